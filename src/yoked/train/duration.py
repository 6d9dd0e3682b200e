"""`--for 8h`: as many steps as fit, by the time that a few take before the first one counts.

The steps are fixed then, and with them the learning rate of each: what is learned does not depend
on how fast the machine is later. Should it slow down, the run lasts longer, and says so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from statistics import median

from yoked.errors import UsageError
from yoked.ranks.exchange import read_number, read_whole
from yoked.train.comm.control import run_on_rank0
from yoked.train.data.progress import StartProgress
from yoked.train.outlook import steps_in_all
from yoked.train.resolve import TrainSchedule, resolve_schedule
from yoked.train.resume import build_trainer
from yoked.train.setup import RunSetup
from yoked.units import format_duration, parse_duration_s

# The first steps compile, and have their memory to find.
WARM_UP_STEPS = 2
MEASURE_STEPS = 3
MEASURE_S = 3.0
MEASURE_MOST_STEPS = 20
# Of the time that is asked for; then one step after the first must do.
MEASURE_FRACTION = 0.05
# Of the time, for checkpoints and for what a few steps do not show.
RESERVE = 0.02
# How much longer steps take before a run says that it will last longer.
SLOWER = 1.15


def fit_duration(
    setup: RunSetup, began_s: float, progress: StartProgress
) -> tuple[RunSetup, float | None]:
    """The run with the steps that `--for` has time for, and the seconds that one takes.

    began_s: when the start of the run began, on this rank's monotonic clock. Collective. A run
    without `--for` is returned as it is.
    """
    asked = setup.config.duration
    if asked is None:
        return setup, None
    asked_s = parse_duration_s(asked)
    step_s = measure_step_s(setup, progress, MEASURE_FRACTION * asked_s)
    left_s = asked_s - (time.monotonic() - began_s)

    def choose() -> int:
        return steps_within(left_s, step_s, lambda steps: _schedule(setup, steps), asked)

    steps = run_on_rank0(setup.comm, choose, read_whole)
    schedule = _schedule(setup, steps)
    reason = f"--for {asked}, at {format_duration(step_s)} a step as measured before the start"
    config = replace(setup.config, num_iterations=steps, duration=None)
    return replace(
        setup,
        config=config,
        resolved=replace(setup.resolved, config=config),
        schedule=replace(schedule, reasons={**schedule.reasons, "num_iterations": reason}),
    ), step_s


def _schedule(setup: RunSetup, steps: int) -> TrainSchedule:
    config = replace(setup.resolved.config, num_iterations=steps, duration=None)
    return resolve_schedule(replace(setup.resolved, config=config), setup.data.info.vocab_size)


def steps_within(
    time_s: float, step_s: float, schedule_of: Callable[[int], TrainSchedule], asked: str
) -> int:
    """Steps that fit into a time, with their evaluations. Raises UsageError where none does.

    schedule_of: that of a run of so many steps.
    """
    steps_s = (1 - RESERVE) * time_s
    steps = int(steps_s / step_s)
    if steps < 1:
        raise UsageError(
            f"--for {asked} is too short for a step, which takes {format_duration(step_s)} after "
            "the start",
            fix="give it more time, or a smaller --total-batch-size or --depth",
        )
    # The fewer steps, the fewer evaluations: one more look is near enough.
    for _ in range(2):
        steps = max(1, int(steps * steps_s / (step_s * steps_in_all(schedule_of(steps)))))
    return steps


def measure_step_s(setup: RunSetup, progress: StartProgress, most_s: float) -> float:
    """Seconds of a step, the same on all ranks. most_s: to spend on it, if possible. Collective.

    A trainer of its own takes the first steps of the run, and is thrown away with what it learned.
    """
    trainer = build_trainer(setup)
    took: list[float] = []
    try:
        for step in range(WARM_UP_STEPS + MEASURE_MOST_STEPS):
            progress.doing("taking a few steps, to measure them for --for")
            began_s = time.perf_counter()
            trainer.step(step)
            mine_s = time.perf_counter() - began_s
            # Rank 0's clock says for all how long it took, and when that is enough.
            took.append(setup.comm.all_gather_json(mine_s, read_number)[0])
            if _is_enough(took, most_s):
                break
        trainer.drain()
    finally:
        trainer.close()
        progress.close()
    return median(took[WARM_UP_STEPS:] or took[-1:])


def _is_enough(took: list[float], most_s: float) -> bool:
    counted = took[WARM_UP_STEPS:]
    if len(took) > 1 and sum(took) >= most_s:
        return True
    return len(counted) >= MEASURE_STEPS and sum(counted) >= MEASURE_S


class Pace:
    """Whether a run keeps the step time by which its steps were fixed. step_s: as foreseen."""

    def __init__(self, step_s: float, steps: int, asked: str) -> None:
        self._step_s, self._steps, self._asked = step_s, steps, asked
        self._took: list[float] = []
        self._told = SLOWER

    def step(self, dt_s: float) -> str | None:
        """A step took so long; a sentence where the run now lasts clearly longer than asked."""
        self._took.append(dt_s)
        if len(self._took) <= MEASURE_MOST_STEPS:
            return None
        del self._took[0]
        slower = median(self._took) / self._step_s
        if slower < self._told:
            return None
        self._told = 1.5 * slower
        return (
            f"a step takes {slower:.2g}x as long as before the start: at that pace the "
            f"{self._steps:,} steps of --for {self._asked} take {slower:.2g}x the time. They stay "
            "as they were fixed; yoked stop saves and ends the run earlier"
        )
