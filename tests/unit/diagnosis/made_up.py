"""A run of two hosts, a rank each, as their daemons would tell of it twice a second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from yoked.diagnosis.history import Place, RunHistory
from yoked.diagnosis.vitals import (
    Awaited,
    Flight,
    Frame,
    Group,
    LinkVitals,
    RankVitals,
    Recorded,
    Vitals,
)

PERIOD_S = 0.5
STEP_S = 0.3
IN_TORCH = Frame("/v/site-packages/torch/distributed/distributed_c10d.py", 3252, "all_reduce")
IN_BACKWARD = Frame("/v/site-packages/torch/autograd/graph.py", 979, "_engine_run_backward")
IN_PROGRAM = Frame("/home/me/train.py", 41, "main")


def recorded(**changes: Any) -> Recorded:
    whole = Recorded(
        age_s=0.1,
        steps=10,
        stepped_age_s=0.1,
        phase=None,
        awaits=None,
        frames=(IN_PROGRAM,),
        frames_age_s=0.0,
        groups=None,
    )
    return replace(whole, **changes)


def rank(number: int, **changes: Any) -> RankVitals:
    whole = RankVitals(number, 100 + number, "S", 5.0, recorded())
    return replace(whole, **changes)


def in_collective(
    number: int, age_s: float, sizes: tuple[int, ...] = (1000,), op: str = "gloo:all_reduce"
) -> Recorded:
    """A rank that is in its n-th collective for so long."""
    return recorded(
        frames=(IN_TORCH, IN_PROGRAM),
        frames_age_s=age_s,
        groups=(
            Group(
                "0",
                number,
                (Flight(number, op),),
                (*["all_reduce of [1000] Float"] * 3, f"{op[5:]} of {list(sizes)} Float"),
            ),
        ),
    )


def in_backward(number: int, age_s: float) -> Recorded:
    """A rank of DDP whose gradients are on their way."""
    return replace(in_collective(number, age_s), frames=(IN_BACKWARD, IN_PROGRAM))


def awaiting(what: str, ranks: tuple[int, ...], age_s: float) -> Recorded:
    """A rank of yoked's trainer that waits for the message of others."""
    return recorded(awaits=Awaited(what, ranks, age_s), frames_age_s=age_s, phase="training")


def link(node: int, **changes: Any) -> LinkVitals:
    whole = LinkVitals(node, 2, 0, 0, 0, 3, 1000, 1000, 0.01, 0.01, 3e-4, 10**9, 10**9)
    return replace(whole, **changes)


class Told:
    """A run of several hosts with a rank each, all well until something is said otherwise."""

    def __init__(self, hosts: int = 2, here: int = 0) -> None:
        places = [Place(f"host{node}", (node,)) for node in range(hosts)]
        self.history = RunHistory(places, here)
        self.now_s = 1000.0
        self._number = 0

    def steps(self, count: int = 12) -> Told:
        """All ranks take a step each look, with a core of their own."""
        for step in range(count):
            ranks = [
                rank(
                    node,
                    cpu_s=step * STEP_S,
                    recorded=recorded(
                        steps=step + 1,
                        age_s=0.0,
                        step_s=(STEP_S,) * step,
                        step_cpu_s=(STEP_S,) * step,
                    ),
                )
                for node in range(len(self.history.hosts))
            ]
            self.look(*[Vitals(0, 0, (each,)) for each in ranks])
        return self

    def look(self, *vitals: Vitals | None) -> Told:
        """The next look of each host comes; None: nothing comes of it."""
        self.now_s += PERIOD_S
        self._number += 1
        for node, told in enumerate(vitals):
            if told is not None:
                self.history.take(node, replace(told, number=self._number), self.now_s)
        self.history.tick(self.now_s)
        return self
