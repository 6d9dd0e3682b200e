"""Carries out a plan of timed faults on a lab, and heals what it brought about.

The clock and the hand that acts are handed in, so that a test needs neither time nor a lab.
"""

from __future__ import annotations

import contextlib
import shlex
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

from yoked.errors import UsageError, YokedError
from yoked.lab.follow import HostRun, LocalRun, Progress, follow
from yoked.lab.schedule import Plan, PlannedFault, RunPlace

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# A step of a small model takes about so long; a fault at a step should hit that step.
POLL_S = 0.1


class Clock(Protocol):
    """Time that passes by itself, or because a test says so."""

    def now_s(self) -> float:
        """Seconds since whenever."""
        ...

    def sleep(self, time_s: float) -> None:
        """Wait."""
        ...


class WallClock:
    """The machine's time."""

    def now_s(self) -> float:
        """Seconds since the machine started."""
        return time.monotonic()

    def sleep(self, time_s: float) -> None:
        """Wait."""
        time.sleep(time_s)


class Hand(Protocol):
    """What acts on the lab."""

    def apply(self, do: Sequence[str]) -> str:
        """Bring a fault about; returns its id. Raises YokedError."""
        ...

    def heal(self, fault_id: str) -> None:
        """Undo it; one that is undone already is none to worry about. Raises YokedError."""
        ...

    def progress(self, run: RunPlace) -> Progress:
        """How far a run is."""
        ...


@dataclass(frozen=True)
class Event:
    """What was done. at_s: seconds since the start of the plan."""

    at_s: float
    what: Literal["applied", "healed", "failed", "skipped"]
    fault: PlannedFault
    detail: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        return f"{self.at_s:7.1f} s  {self.what:<7}  {shlex.join(self.fault.do)}{detail}"

    def to_json(self) -> dict[str, Any]:
        """Plain data, for --json."""
        return {
            "at_s": round(self.at_s, 3),
            "what": self.what,
            "do": shlex.join(self.fault.do),
            "detail": self.detail,
        }


@dataclass
class _Standing:
    """A fault that was brought about. heal_at_s: None where it shall stay."""

    fault: PlannedFault
    fault_id: str
    heal_at_s: float | None


def carry_out(
    plan: Plan, hand: Hand, *, clock: Clock, tell: Callable[[Event], None]
) -> list[Event]:
    """Do what the plan says, to its end; returns what was done, each told when it happens.

    A fault that cannot be brought about is told and passed over. Whatever ends this early
    (Ctrl-C too) heals all that it brought about, what should have stayed as well.
    """
    runner = _Runner(plan, hand, clock, tell)
    try:
        while (pause_s := runner.turn()) is not None:
            clock.sleep(pause_s)
    except BaseException:
        runner.heal_all()
        raise
    return runner.events


class _Runner:
    """One plan under way."""

    def __init__(self, plan: Plan, hand: Hand, clock: Clock, tell: Callable[[Event], None]) -> None:
        self.events: list[Event] = []
        self._hand, self._clock, self._tell = hand, clock, tell
        self._waiting = list(plan.faults)
        self._standing: list[_Standing] = []
        self._started_s = clock.now_s()

    def turn(self) -> float | None:
        """Do what is due; returns the seconds until something may be, None at the end."""
        for standing in [s for s in self._standing if s.heal_at_s is not None]:
            assert standing.heal_at_s is not None
            if standing.heal_at_s <= self._now_s():
                self._heal(standing)
        for fault in list(self._waiting):
            self._look_at(fault)
        return self._pause_s()

    def heal_all(self) -> None:
        """Undo all that was brought about, the newest first."""
        for standing in reversed(list(self._standing)):
            # Whoever listened may have gone; the healing is not for them alone.
            with contextlib.suppress(OSError):
                self._heal(standing)

    def _now_s(self) -> float:
        return self._clock.now_s() - self._started_s

    def _pause_s(self) -> float | None:
        moments = [s.heal_at_s for s in self._standing if s.heal_at_s is not None]
        moments += [f.after_s for f in self._waiting if f.after_s is not None]
        pauses = [max(moment - self._now_s(), 0.0) for moment in moments]
        if any(fault.after_s is None for fault in self._waiting):
            pauses.append(POLL_S)
        return min(pauses, default=None)

    def _look_at(self, fault: PlannedFault) -> None:
        if fault.after_s is not None:
            if fault.after_s <= self._now_s():
                self._apply(fault)
            return
        assert fault.run is not None
        assert fault.at_step is not None
        progress = self._hand.progress(fault.run)
        if progress.step >= fault.at_step:
            self._apply(fault)
        elif progress.finished:
            self._waiting.remove(fault)
            self._note("skipped", fault, f"the run finished at step {progress.step}")

    def _apply(self, fault: PlannedFault) -> None:
        self._waiting.remove(fault)
        try:
            fault_id = self._hand.apply(fault.do)
        except YokedError as problem:
            self._note("failed", fault, problem.what)
            return
        heal_at_s = None if fault.for_s is None else self._now_s() + fault.for_s
        self._standing.append(_Standing(fault, fault_id, heal_at_s))
        self._note("applied", fault, fault_id)

    def _heal(self, standing: _Standing) -> None:
        self._standing.remove(standing)
        try:
            self._hand.heal(standing.fault_id)
        except YokedError as problem:
            self._note("failed", standing.fault, f"not healed: {problem.what}")
            return
        self._note("healed", standing.fault, standing.fault_id)

    def _note(
        self,
        what: Literal["applied", "healed", "failed", "skipped"],
        fault: PlannedFault,
        detail: str,
    ) -> None:
        self.events.append(Event(self._now_s(), what, fault, detail))
        self._tell(self.events[-1])


class LabHand:
    """Acts on a real lab, whose hosts others may start anew. seed: for what faults draw."""

    def __init__(self, lab: Lab, *, seed: int) -> None:
        self._lab, self._seed = lab, seed
        self._runs: dict[RunPlace, LocalRun | HostRun] = {}

    def check(self, plan: Plan) -> None:
        """Refuse a plan that cannot work before anything is broken. Raises YokedError."""
        from yoked.lab import faults

        for fault in plan.faults:
            kind, *args = fault.do
            try:
                meant = faults.kind_named(kind).parse(self._lab, args)
                if fault.run is not None and fault.run.host is not None:
                    self._lab.host(fault.run.host)
            except YokedError as problem:
                raise UsageError(f"{fault}: {problem.what}", fix=problem.fix) from problem
            if (reason := meant.blocked(self._lab)) is not None:
                raise YokedError(f"{fault}: this machine cannot: {reason}")

    def apply(self, do: Sequence[str]) -> str:
        """Bring a fault about; returns its id."""
        from yoked.lab import faults

        kind, *args = do
        self._lab.refresh()
        return faults.apply(self._lab, kind, args, seed=self._seed).id

    def heal(self, fault_id: str) -> None:
        """Undo it, if it is there still."""
        from yoked.lab import faults

        self._lab.refresh()
        if any(fault.id == fault_id for fault in faults.active(self._lab)):
            faults.heal(self._lab, [fault_id])

    def progress(self, run: RunPlace) -> Progress:
        """From the run's own files; a host that is down shows no progress."""
        if run not in self._runs:
            self._runs[run] = follow(self._lab, run)
        return self._runs[run].progress()

    def close(self) -> None:
        """Stop following runs."""
        for run in self._runs.values():
            run.close()
        self._runs.clear()
