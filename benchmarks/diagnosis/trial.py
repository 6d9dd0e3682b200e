"""One trial: a run, a fault in it at a random moment, what its hosts said, and whether it is so."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from classes import SLOW_CODES, SLOW_STEPS, FaultClass, Program, is_right_place, is_right_rank
from inject import before, inject
from stage import STAMP, Run, Stage, without_folders
from told import Told, told_by

from yoked.errors import YokedError

# The fault comes after so many steps, and up to so many seconds later.
_STEPS_BEFORE, _MOST_WAIT_S = 15, 5.0
_FOR_EVER = 100_000
# Programs that end by themselves, where the fault shows at their end alone.
_STEPS_OF_ENDING = {"skipped-equal": 60, "disk-full": 60}
_LOOK_S = 0.02
# Without a verdict, or until a program has come to its end; and after a verdict, until the run must
# have ended.
_LIMIT_S, _LIMIT_TO_END_S, _LIMIT_AFTER_S = 60.0, 180.0, 45.0
# Slow steps, too, are over by then.
_SLOW_LIMIT_S = 60.0
_SLOW_GRACE_S = 1.0
# What is usual must be known, and steps must take so many times that with the fault.
_LEAST_WAIT_S, _LEAST_WAIT_SLOW_S, _LEAST_TIMES = 0.5, 4.0, 1.4


@dataclass
class Trial:
    """What came of it. Times since the epoch, all of one machine's clock.

    began_s: from when the seconds count. told: all causes in their order; the first is the verdict.
    verdict_s: from began_s to the verdict; sure_s: to the first word that is sure, upon which the
    run ends; freed_s: from that one until the ranks that the fault held up were gone, raised_s:
    until their calls had raised, by their own clock; None: that did not happen. step_s: of a usual
    step before the fault; slow_step_s: with it; steps: that a slowed run took until it was told.
    beside: slow-downs told of a run that stands; before: what was told before the fault. trouble:
    why it is no trial.
    """

    fault: str
    program: Program
    seed: int
    num_hosts: int = 2
    host: str = ""
    rank: int = -1
    done: str = ""
    injected_s: float | None = None
    began_s: float | None = None
    verdict_s: float | None = None
    sure_s: float | None = None
    freed_s: float | None = None
    raised_s: float | None = None
    code: str = ""
    told_hosts: list[str] = field(default_factory=list)
    told_rank: int | None = None
    certainty: str = ""
    right_host: bool = False
    right_code: bool = False
    right_rank: bool = False
    wrong_hosts: bool = False
    steps: int | None = None
    step_s: float | None = None
    slow_step_s: float | None = None
    told: list[Told] = field(default_factory=list)
    beside: list[Told] = field(default_factory=list)
    before: list[Told] = field(default_factory=list)
    outcome: dict[str, Any] = field(default_factory=dict)
    load: list[float] = field(default_factory=list)
    took_s: float = 0.0
    printed: str = ""
    trouble: str = ""


def run_trial(own: Stage, one: FaultClass, trial: Trial) -> Run | None:
    """All of a trial; what went wrong with it is in it. Returns the run, for who clears it away."""
    dice = Random(f"{one.name} {trial.program} {trial.seed}")
    trial.rank = dice.randrange(len(own.hosts))
    if one.rank is not None and trial.program == "trainer":
        trial.rank = one.rank
    trial.host = own.hosts[trial.rank]
    trial.load.append(round(os.getloadavg()[0], 2))
    started_s = time.monotonic()
    run = None
    try:
        own.prepare(trial.program)
        before(own, one, trial.rank)
        steps = _STEPS_OF_ENDING.get(one.name, _FOR_EVER)
        flags = ["--plain"] if one.name == "skipped-equal" else []
        run = own.start(trial.program, steps, *flags)
        _break(own, one, run, trial, dice)
        _judge(one, trial)
    except (YokedError, RuntimeError, OSError) as problem:
        trial.trouble = f"{type(problem).__name__}: {problem}"[:2000]
    if run is not None and not (trial.right_host and trial.right_code):
        trial.printed = run.printed()
    trial.took_s = round(time.monotonic() - started_s, 1)
    trial.load.append(round(os.getloadavg()[0], 2))
    return run


def _break(own: Stage, one: FaultClass, run: Run, trial: Trial, dice: Random) -> None:
    own.await_steps(run, _STEPS_BEFORE)
    first_s, first = time.monotonic(), run.steps(trial.rank)
    watch = _Watch(one, run, trial)
    # Ending programs have to be met before their end.
    wait_s = dice.random() * (1.0 if one.name in _STEPS_OF_ENDING else _MOST_WAIT_S)
    until_s = first_s + max(_LEAST_WAIT_SLOW_S if one.slows else _LEAST_WAIT_S, wait_s)
    while time.monotonic() < until_s:
        trial.before += watch.look()
        time.sleep(_LOOK_S)
    taken = run.steps(trial.rank) - first
    trial.step_s = round((time.monotonic() - first_s) / max(taken, 1), 3)
    steps = run.steps(trial.rank)
    # What is said all the time is said of the fault, too.
    watch.forget()
    trial.injected_s = time.time()
    trial.done = inject(own, one, run, trial.rank, dice)
    if one.slows:
        _follow_slowed(watch, run, trial, steps)
    else:
        _follow(watch, run, trial)
    trial.began_s = _began(own, one, watch, trial)
    sure = [each for each in trial.told if each.certainty != "likely"]
    if sure and trial.began_s is not None:
        trial.sure_s = round(sure[0].at_s - trial.began_s, 2)
        if watch.ends_s is not None:
            trial.freed_s = round(_latest_s(sure, watch.ends_s), 2)
            # One that was killed left no word.
            if raised := watch.raised_s:
                trial.raised_s = round(_latest_s(sure, raised), 3)


def _latest_s(sure: list[Told], times_s: dict[str, float]) -> float:
    """From a host's own sure word to this time of its rank, on the host where that takes longest.

    Where hosts cannot hear each other, each becomes sure by itself.
    """
    own = {each.by: each.at_s for each in reversed(sure)}
    return max(time_s - own.get(host, sure[0].at_s) for host, time_s in times_s.items())


def _follow(watch: _Watch, run: Run, trial: Trial) -> None:
    """Until all is said and no rank of a surviving host is left, or for long enough."""
    assert trial.injected_s is not None
    limit_s = _LIMIT_TO_END_S if trial.fault in _STEPS_OF_ENDING else _LIMIT_S
    while not (watch.over and watch.ends_s is not None):
        _sort(trial, watch.look(), slows=False)
        last_s = trial.told[0].at_s if trial.told else trial.injected_s
        if time.time() - last_s > (_LIMIT_AFTER_S if trial.told else limit_s):
            return
        time.sleep(_LOOK_S)


def _sort(trial: Trial, new: list[Told], *, slows: bool) -> None:
    """A verdict, or what is said of slowness beside it."""
    for told in new:
        beside = not slows and told.code in SLOW_CODES
        (trial.beside if beside else trial.told).append(told)


def _follow_slowed(watch: _Watch, run: Run, trial: Trial, steps: int) -> None:
    """For SLOW_STEPS of all ranks, and a moment more."""
    began_s, done_s = time.monotonic(), None
    until_s = began_s + _SLOW_LIMIT_S
    while time.monotonic() < until_s:
        taken = run.least_steps - steps
        if new := watch.look():
            _sort(trial, new, slows=True)
            trial.steps = taken if trial.steps is None else trial.steps
        if taken > SLOW_STEPS and done_s is None:
            done_s = time.monotonic()
            trial.slow_step_s = round((done_s - began_s) / taken, 3)
        if done_s is not None and time.monotonic() > done_s + _SLOW_GRACE_S:
            break
        time.sleep(_LOOK_S)
    assert trial.step_s is not None
    if trial.slow_step_s is not None and trial.slow_step_s < _LEAST_TIMES * trial.step_s:
        trial.trouble = f"a step took {trial.step_s} s, with the fault {trial.slow_step_s} s"


def _began(own: Stage, one: FaultClass, watch: _Watch, trial: Trial) -> float | None:
    """From when the seconds count."""
    if one.clock == "death":
        return watch.died_s.get(trial.rank, trial.injected_s)
    if one.clock == "stamp":
        with contextlib.suppress(OSError, ValueError):
            return float(open(f"/proc/{own.host(trial.host).pid}/root{STAMP}").read())
        trial.trouble = "the program left no stamp: the fault did not come to pass"
    return trial.injected_s


class _Watch:
    """Looks at what the surviving hosts say, and at their ranks."""

    def __init__(self, one: FaultClass, run: Run, trial: Trial) -> None:
        self._run, self._trial, self._one = run, trial, one
        self._speakers = [host for host in run.hosts if not (one.lost and host == trial.host)]
        self._seen: set[object] = set()
        self.died_s: dict[int, float] = {}
        self.over = False

    @property
    def ends_s(self) -> dict[str, float] | None:
        """By host, when the ranks that were held up had ended; None: one runs."""
        guilty = self._trial.rank if self._one.names == "rank" else None
        hosts = enumerate(self._run.hosts)
        ranks = [rank for rank, host in hosts if host in self._speakers and rank != guilty]
        if any(rank not in self.died_s for rank in ranks):
            return None
        return {self._run.hosts[rank]: self.died_s[rank] for rank in ranks}

    @property
    def raised_s(self) -> dict[str, float]:
        """By host, when the ranks that have ended left word of what they raised."""
        words = {
            host: self._run.read(host, f"errors/0.{rank}.json")
            for rank, host in enumerate(self._run.hosts)
            if host in (self.ends_s or {})
        }
        return {host: word["time_s"] for host, word in words.items() if "time_s" in word}

    def forget(self) -> None:
        """All that was told is new when it is told again."""
        self._seen.clear()

    def look(self) -> list[Told]:
        """Causes that are new, and told since the injection if there was one."""
        for rank, process in self._run.ranks.items():
            if rank not in self.died_s and not process.alive:
                self.died_s[rank] = time.time()
        found = []
        outcomes = {host: self._run.read(host, "outcome.json") for host in self._speakers}
        for host in self._speakers:
            found += [
                each
                for each in told_by(host, self._run.read(host, "diagnosis.json"))
                if self._is_new(each)
            ]
            found += [each for each in self._of_outcome(host, outcomes[host]) if self._is_new(each)]
        self.over = all(outcomes.values()) or (self._disk_is_full and any(outcomes.values()))
        if self.over:
            self._trial.outcome = next(each for each in outcomes.values() if each)
        return sorted(found, key=lambda each: each.at_s)

    @property
    def _disk_is_full(self) -> bool:
        return self._trial.fault == "disk-full" and self._trial.injected_s is not None

    def _is_new(self, told: Told) -> bool:
        if told.at_s < (self._trial.injected_s or 0.0):
            return False
        key = (told.by, told.code, told.rank, *told.hosts, told.certainty)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def _of_outcome(self, host: str, outcome: dict[str, Any]) -> Iterator[Told]:
        failure = outcome["attempts"][-1]["failure"] if outcome.get("attempts") else None
        if failure is None:
            return
        hosts, code = failure["hosts"] or [failure["host"]], failure["cause"]
        with contextlib.suppress(OSError):
            yield Told(
                by=host,
                at_s=os.stat(self._run.folders[host] / "outcome.json").st_mtime,
                code=code or f"none ({failure['kind'] or failure['signal']})",
                hosts=hosts,
                rank=failure["rank"],
                certainty="outcome",
                what=failure["what"],
            )


def _judge(one: FaultClass, trial: Trial) -> None:
    """The first that was told is the verdict, be it sure or likely."""
    if not trial.told or trial.began_s is None:
        return
    first = trial.told[0]
    trial.code, trial.told_hosts, trial.told_rank = first.code, first.hosts, first.rank
    trial.certainty = first.certainty
    trial.verdict_s = round(first.at_s - trial.began_s, 2)
    trial.right_host = is_right_place(trial.host, first.code, first.hosts)
    trial.right_rank = is_right_rank(one, trial.rank, first.rank)
    in_time = not one.slows or (trial.steps is not None and trial.steps <= SLOW_STEPS)
    trial.right_code = first.code in one.codes and in_time
    trial.wrong_hosts = any(not is_right_place(trial.host, t.code, t.hosts) for t in trial.told)


def to_json(trial: Trial) -> str:
    if trial.program == "nanochat":
        # Tracebacks would have lines of its code, which is not ours to keep.
        trial = replace(trial, printed="", outcome={})
    return without_folders(json.dumps(trial, default=vars, indent=1)) + "\n"
