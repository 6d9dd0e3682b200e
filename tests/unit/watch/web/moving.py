"""A run that goes on, for tests of the page: each look is some steps later."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable
from typing import Any

from yoked.errors import UsageError, YokedError
from yoked.watch.view import (
    Cost,
    LinkNow,
    Progress,
    RankNow,
    RecentSteps,
    RunRow,
    Verdict,
    View,
)

START_S = 1_795_820_532.5
STEPS = 100_000
_RECENT = 120


class Moving:
    """A `Watched` of made-up figures. each_look: steps between two looks; failure: what the next
    looks raise; verdict: what they say.
    """

    def __init__(
        self,
        ranks: int = 3,
        done: int = 200,
        *,
        each_look: int = 3,
        points: int = 1000,
        host: str = "alpha",
    ) -> None:
        self.ranks, self.done, self.each_look, self.points = ranks, done, each_look, points
        self.host = host
        self.run = "night"
        self.failure: YokedError | None = None
        self.verdict = Verdict("good", "run night gets on", ("of each step a rank computes 70%",))
        self.active = True
        self.looks = 0
        self.threads: set[int] = set()
        self.asked: list[tuple[int, int, int]] = []
        self.on_look: Callable[[], None] = lambda: None
        self._busy = threading.Lock()

    def runs(self) -> list[RunRow]:
        with self._alone():
            day = RunRow("day", "finished", (self.host,), START_S - 86_400, 500, 3.25)
            return [RunRow("night", "running", (self.host, "beta"), START_S, self.done, 2.5), day]

    def choose(self, run: str) -> None:
        with self._alone():
            self.run = run

    def look(self) -> View:
        with self._alone():
            self.looks += 1
            self.on_look()
            if self.failure is not None:
                raise self.failure
            self.done += self.each_look
            return self._view()

    def curve(self, first: int, last: int, points: int) -> dict[str, Any]:
        with self._alone():
            self.asked.append((first, last, points))
            last = min(last, self.done - 1)
            return self._curve(first, last, max(1, math.ceil((last - first + 1) / points)))

    def log(self, rank: int, lines: int) -> list[tuple[str, str]]:
        raise AssertionError("the page shows no logs")

    def save(self) -> str:
        raise AssertionError("the page saves nothing")

    def stop(self, *, now: bool = False) -> str:
        raise AssertionError("the page stops nothing")

    def _alone(self) -> threading.Lock:
        """Whoever makes a call makes it alone."""
        assert not self._busy.locked(), "two calls at a time"
        self.threads.add(threading.get_ident())
        return self._busy

    # ---- what is made up

    def _name(self, rank: int) -> str:
        return f"{self.host}{rank or ''}"

    def _times(self, step: int, rank: int) -> tuple[float, float, float]:
        """Of a step: computes, sends, waits."""
        slow = 0.02 * ((step * 7) % 5)
        late = 0.25 * (1 + math.sin(step / 9)) / 2
        compute_s = 0.4 + slow + (late if rank == 0 else 0.1 * late)
        return compute_s, 0.12 + 0.01 * ((step + rank) % 3), max(0.0, 0.68 - compute_s)

    def _loss(self, step: int) -> float:
        return 2.2 + 4 * math.exp(-step / 150) + 0.05 * math.sin(step)

    def _dt_s(self, step: int) -> float:
        return max(sum(self._times(step, rank)) for rank in range(self.ranks)) + 0.02

    def _curve(self, first: int, last: int, width: int) -> dict[str, Any]:
        ends = [min(at + width - 1, last) for at in range(first, last + 1, width)]
        speeds = [8192 / self._dt_s(step) for step in ends]
        return {
            "step": [step + 1 for step in ends],
            "tokens": [8192.0 * (step - first + 1) for step in ends],
            "loss": [self._loss(step) for step in ends],
            "loss_low": [self._loss(step) - 0.1 for step in ends],
            "loss_high": [self._loss(step) + 0.1 for step in ends],
            "step_s": [self._dt_s(step) for step in ends],
            "tokens_per_s": speeds,
            "ranks": [
                {
                    name: [self._times(step, rank)[place] for step in ends]
                    for place, name in enumerate(("compute_s", "comm_s", "wait_s"))
                }
                for rank in range(self.ranks)
            ],
        }

    def _figures(self) -> dict[str, Any]:
        width = 1
        while self.done / width > self.points:
            width *= 2
        ranks = range(self.ranks)
        each_s = [self._times(7, rank) for rank in ranks]
        return {
            "run": self.run,
            "dir": f"runs/{self.run}",
            "state": "running" if self.active else "finished",
            "verdict": self.verdict.text,
            "why": [],
            "next": [],
            "command": "yoked train --depth=4",
            "started_s": START_S,
            "attempts": 1,
            "steps": self.done,
            "tokens": 8192 * self.done,
            "elapsed_s": 0.7 * self.done,
            "loss": self._loss(self.done - 1),
            "val_bpb": 1.25,
            "best": {"step": 100, "val_bpb": 1.75} if self.done > 100 else None,
            "step_s": 0.7,
            "first_step_s": 2.0,
            "tokens_per_second": 11_700.0,
            "ranks": [
                {
                    "rank": rank,
                    "host": self._name(rank),
                    "tokens": 8192 * self.done // self.ranks,
                    "compute_s": each_s[rank][0] * self.done,
                    "comm_s": each_s[rank][1] * self.done,
                    "wait_s": each_s[rank][2] * self.done,
                    "head_s": 0.0,
                    "other_s": 0.02 * self.done,
                    "bytes_sent": 1_500_000 * self.done,
                    "kept_waiting_s": [
                        {"rank": other, "wait_s": 0.01 * self.done if rank == 0 else 0.0}
                        for other in ranks
                    ],
                }
                for rank in ranks
            ],
            "curve": self._curve(0, self.done - 1, width),
            "steps_each": width,
            "shares": None,
            "evaluations": [
                {"step": step, "val_bpb": 1.25 + 50 / step} for step in range(100, self.done, 100)
            ],
            "resumed": [],
            "events": [
                {
                    "time_s": START_S + 60 * place,
                    "step": 100 * place,
                    "attempt": 1,
                    "kind": "checkpoint",
                    "level": "plain",
                    "text": f"a checkpoint after {100 * place} steps, on {self.host}",
                    "fix": [],
                }
                for place in range(1, self.done // 100 + 1)
            ][-5:],
            "foreseen": [],
            "choices": [],
            "hosts": [
                {"name": self._name(rank), "rank": rank, "device": "cpu", "torch": "2.13.0"}
                for rank in ranks
            ],
            "config": {"depth": 4, "passed": ["depth"]},
            "model": {},
            "params": {},
        }

    def _view(self) -> View:
        ranks = range(self.ranks)
        recent = range(max(0, self.done - _RECENT), self.done)
        times = [[self._times(step, rank) for step in recent] for rank in ranks]
        now = [self._times(self.done - 1, rank) for rank in ranks]
        dt_s = self._dt_s(self.done - 1)
        return View(
            run=self.run,
            state="running" if self.active else "finished",
            active=self.active,
            time_s=time.time(),
            verdict=self.verdict,
            progress=Progress(
                step=self.done,
                steps=STEPS,
                left_s=0.7 * (STEPS - self.done),
                tokens_per_s=8192 / dt_s,
                loss=self._loss(self.done - 1),
                val_bpb=1.25,
            ),
            ranks=tuple(
                RankNow(
                    rank=rank,
                    host=self._name(rank),
                    parts={
                        "computes": now[rank][0] / dt_s,
                        "sends": now[rank][1] / dt_s,
                        "waits": now[rank][2] / dt_s,
                    },
                    waits_for=(0,) if rank and now[rank][2] > 0.02 else (),
                    memory_bytes=1_800_000_000 + 1_000_000 * rank,
                )
                for rank in ranks
            ),
            links=tuple(
                LinkNow(
                    sender=self._name(rank),
                    receiver=self._name((rank + 1) % self.ranks),
                    bits_per_s=4.1e8 + 1e6 * (self.done % 50),
                    wire_bits_per_s=9.4e8,
                    rtt_s=0.0004 + 1e-6 * (self.done % 90),
                )
                for rank in (ranks if self.ranks > 1 else ())
            ),
            recent=RecentSteps(
                step=tuple(recent),
                dt_s=tuple(self._dt_s(step) for step in recent),
                tokens=tuple(8192.0 for _ in recent),
                loss=tuple(self._loss(step) for step in recent),
                compute_s=tuple(tuple(each[0] for each in steps) for steps in times),
                comm_s=tuple(tuple(each[1] for each in steps) for steps in times),
                wait_s=tuple(tuple(each[2] for each in steps) for steps in times),
            ),
            figures=self._figures(),
            silent={},
            cost=Cost(3210.0 + self.done % 100, 16_000.0, 41_000),
        )


class Nothing(Moving):
    """There is no run yet."""

    def look(self) -> View:
        raise UsageError("there is no run to look at yet", fix="yoked train")

    def runs(self) -> list[RunRow]:
        return []
