"""Steps towards a goal: each looks, says what is missing, and does it, once it may.

Pure: what a step looks at and does is its own matter, and whoever may agree is behind `Person`.
Every step can be repeated: the next time it finds what was done, so nothing is kept of where an
earlier attempt stopped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

from yoked.errors import UsageError, YokedError

# What a step does may show what was hidden behind it. After so many times a person should look.
_MOST_ACTS = 3
_MOST_REPAIRS = 4

Ask = Callable[[Sequence[str]], bool]
# declined: the person said no. waiting: an earlier step is in the way.
State = Literal["done", "failed", "hands", "consent", "declined", "waiting"]


@dataclass(frozen=True)
class Command:
    """What is typed on a host. host "": this machine. by_hand: words for a person, no line of a
    shell. root: it needs root there.
    """

    host: str
    command: str
    by_hand: bool = False
    root: bool = False


@dataclass(frozen=True)
class Standing:
    """How a step stands.

    state: `done`; `due`: the step can do it; `hands`: only a person can. said: one line. lines:
    more, for people. commands: what would be carried out, or what the person is to do. consent:
    whether that changes something. findings: as the doctor's --json has them. facts: more, for
    programs.
    """

    state: Literal["done", "due", "hands"]
    said: str
    lines: tuple[str, ...] = ()
    commands: tuple[Command, ...] = ()
    consent: bool = True
    findings: tuple[Mapping[str, Any], ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)


class Step(Protocol):
    """One step. name: one word; purpose: what it is for, in a few."""

    name: str
    purpose: str

    def check(self) -> Standing:
        """Look. Changes nothing. Raises YokedError where that cannot be told."""
        ...

    def act(self, ask: Ask) -> bool:
        """Do what `check` found to be due, after a yes to each change; whether there was one.

        Raises YokedError.
        """
        ...


@dataclass(frozen=True)
class Report:
    """What came of a step. changed: whether it did something. problem: why it failed."""

    name: str
    state: State
    standing: Standing
    changed: bool = False
    problem: YokedError | None = None
    took_s: float = 0.0


class Person(Protocol):
    """Who may agree to changes, and does what only hands can do.

    may_agree: whether anybody could say yes.
    """

    may_agree: bool

    def agrees(self, lines: Sequence[str]) -> bool:
        """Whether this may be done."""
        ...

    def helps(self, step: Step, standing: Standing, *, look: bool) -> bool:
        """Ask for hands, and wait; False: nobody is there. look: looking again does no work, so
        that the wait may end by itself.
        """
        ...

    def begins(self, step: Step) -> None:
        """A step begins."""
        ...

    def ends(self, report: Report) -> None:
        """A step has ended."""
        ...


def climb(steps: Sequence[Step], repair: Step | None, person: Person) -> tuple[Report, ...]:
    """Take the steps in order, up to the first that cannot be done; a report of each.

    repair: finds and mends what keeps another step from being done; the step is then tried again.
    Raises UsageError, which no repair helps.
    """
    reports: list[Report] = []
    for step in steps:
        if any(each.state != "done" for each in reports):
            reports.append(Report(step.name, "waiting", Standing("due", step.purpose)))
            continue
        person.begins(step)
        began_s = time.monotonic()
        report = _Climber(step, repair, person).climb()
        reports.append(replace(report, took_s=time.monotonic() - began_s))
        person.ends(reports[-1])
    return tuple(reports)


class _Climber:
    """Takes one step."""

    def __init__(self, step: Step, repair: Step | None, person: Person) -> None:
        self._step, self._repair, self._person = step, repair, person
        self._acts = self._repairs = 0
        self._changed = False
        self._standing = Standing("due", step.purpose)

    def climb(self) -> Report:
        """Look and act in turn, until it is done or cannot be."""
        while True:
            try:
                ended = self._look_and_act()
            except UsageError:
                raise
            except YokedError as problem:
                ended = self._mend(problem)
            if ended is not None:
                return ended

    def _look_and_act(self) -> Report | None:
        """Look once, and do what is due; None: look again."""
        standing = self._standing = self._step.check()
        if standing.state == "done":
            return self._report("done")
        if standing.state == "hands":
            if not self._person.helps(self._step, standing, look=True):
                return self._report("hands")
            self._changed = True
            return None
        if self._acts == _MOST_ACTS:
            return self._report("failed")
        if standing.consent and not self._person.may_agree:
            return self._report("consent")
        self._acts += 1
        if not self._step.act(self._person.agrees):
            return self._report("declined")
        self._changed = True
        return None

    def _mend(self, problem: YokedError) -> Report | None:
        """Have what is in the way mended; None: try again."""
        if self._repair is not None and self._repairs < _MOST_REPAIRS:
            self._repairs += 1
            mended = _Climber(self._repair, None, self._person).climb()
            if mended.state == "done" and mended.changed:
                # What failed for another's fault does not count.
                self._acts = 0
                return None
            if mended.state != "done" and mended.problem is None:
                self._standing = mended.standing
                return self._report(mended.state, problem)
        if not problem.fix:
            return self._report("failed", problem)
        commands = tuple(Command("", line, by_hand=True) for line in problem.fix)
        self._standing = Standing("hands", problem.what, commands=commands)
        # To look is to try again what failed: the person says when.
        if self._person.helps(self._step, self._standing, look=False):
            self._acts = 0
            return None
        return self._report("failed", problem)

    def _report(self, state: State, problem: YokedError | None = None) -> Report:
        return Report(self._step.name, state, self._standing, self._changed, problem)
