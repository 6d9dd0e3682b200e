"""What the recorder has a rank's own thread do, in nanoseconds a call.

usage: hooks.py     prints JSON

Each call is timed in a loop, and an empty one taken off; the fastest of several loops counts, as
whatever else runs can only add to it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import cast

import torch

from yoked.launch.bootstrap.group import Ranks, Starter
from yoked.ranks.recorder import RECORDER

CALLS, LOOPS = 100_000, 15


def measure(calls: int = CALLS, loops: int = LOOPS) -> dict[str, float]:
    """Nanoseconds by call."""
    # It asks for its ranks where it starts a group. From then on it is as here.
    starter = Starter(cast(Ranks, None))
    starter._armed = False
    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)])

    def empty() -> None:
        pass

    def awaits() -> None:
        with RECORDER.awaiting("gradient 3", (1,)):
            pass

    def phases() -> None:
        with RECORDER.phase("saving"):
            pass

    def before_a_step() -> None:
        # As torch calls what register_optimizer_step_pre_hook was given.
        starter._before_a_step(optimizer, (), {})

    base_ns = fastest_ns(empty, calls, loops)
    measured: dict[str, Callable[[], None]] = {
        "step_done": RECORDER.step_done,
        "awaiting": awaits,
        "phase": phases,
        "optimizer hook": before_a_step,
    }
    return {
        name: round(fastest_ns(call, calls, loops) - base_ns, 1) for name, call in measured.items()
    }


def fastest_ns(call: Callable[[], None], calls: int, loops: int) -> float:
    """Of a call, in the fastest loop."""
    took_ns = []
    for _ in range(loops):
        began_ns = time.perf_counter_ns()
        for _ in range(calls):
            call()
        took_ns.append(time.perf_counter_ns() - began_ns)
    return min(took_ns) / calls


if __name__ == "__main__":
    print(json.dumps(measure(), indent=1))
