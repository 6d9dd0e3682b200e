"""Ways to compute, timed against each other on the device that trains."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch

from yoked.train.device import synchronize

# Of one thing that is timed: runs, and seconds after which the fewest are enough.
SAMPLE_MAX_RUNS = 5
SAMPLE_MIN_RUNS = 2
SAMPLE_S = 0.015
K = TypeVar("K")


def best_time_s(run: Callable[[], object], device: torch.device) -> float:
    """Shortest of a few runs, as `time_interleaved` takes them."""
    return time_interleaved({"": run}, device)[""]


def thread_time_clock(device: torch.device) -> Callable[[], float]:
    """The clock by which ways to compute are compared: one thread's own time, where there is one.

    A process with a quota of its processor, or one that shares it, stands still in the middle of
    one way and not of the other: by the wall's time the slower one was chosen in every second run.
    The process' own clock would do as well, but goes on by milliseconds alone where its CPU time is
    limited (`ulimit -t`): the kernel then counts it at its ticks.
    """
    alone = device.type == "cpu" and torch.get_num_threads() == 1
    return time.thread_time if alone else time.perf_counter


def time_interleaved(
    runs: Mapping[K, Callable[[], object]],
    device: torch.device,
    clock: Callable[[], float] | None = None,
) -> dict[K, float]:
    """Shortest time of each, to be compared: in turns, so that what disturbs one disturbs all.

    A first round warms up. One that the machine held up must not decide, so that at least two
    rounds follow; no more than those where runs are long. clock: the wall's where none is given.
    """
    clock = clock or time.perf_counter
    best, spent_s = dict.fromkeys(runs, math.inf), 0.0
    for number in range(1 + SAMPLE_MAX_RUNS):
        for key, run in runs.items():
            synchronize(device)
            started = clock()
            run()
            synchronize(device)
            took = clock() - started
            best[key] = min(best[key], took)
            spent_s += took if number else 0.0
        if number >= SAMPLE_MIN_RUNS and spent_s > SAMPLE_S * len(runs):
            break
    return best
