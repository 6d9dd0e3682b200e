"""Mends what was found, finding by finding: carries lines out with consent, and looks again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from yoked.doctor.catalog import CHECKS
from yoked.doctor.fixing import (
    Done,
    FixJournal,
    FixPlan,
    Shells,
    apply_fixes,
    plan_fixes,
    still_there,
    undo_fix,
)
from yoked.doctor.judge import Seen, connect
from yoked.doctor.render import error_lines
from yoked.fleet.file import read_fleet
from yoked.fleet.model import Fleet
from yoked.fleet.trust import remember
from yoked.records.examination import Examination, Finding

# Mending one thing shows what it hid; after so many times somebody should look.
_MOST_ROUNDS = 4

Ask = Callable[[Sequence[str]], bool]
State = Literal["fixed", "still there", "failed", "declined", "left"]


@dataclass(frozen=True)
class Mended:
    """How it went with a finding. said: why it was not fixed, or what is still seen."""

    finding: Finding
    state: State
    commands: tuple[str, ...] = ()
    said: str = ""

    @property
    def text(self) -> str:
        """How it went, in a line."""
        where = f" on {', '.join(self.finding.hosts)}" if self.finding.hosts else ""
        said = f": {self.said}" if self.said else ""
        return f"{self.finding.check}{where}: {self.state}{said}"

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "check": self.finding.check,
            "hosts": list(self.finding.hosts),
            "state": self.state,
            "commands": list(self.commands),
            "said": self.said,
        }


class Look(Protocol):
    """Looks at a fleet, and judges, as `judge.Examiner` does."""

    def __call__(self, fleet: Fleet, *, quick: bool | None = None) -> Seen:
        """Look. quick: None is as was asked for."""
        ...


def mend(
    seen: Seen,
    examiner: Look,
    fleet_now: Callable[[], Fleet],
    *,
    ask: Ask,
    note: Callable[[Mended], None],
    sudo: bool,
    only: Sequence[str] = (),
) -> tuple[Seen, list[Mended]]:
    """Carry out what can be, each with consent and verified; what is seen then, and how it went.

    fleet_now: reads the fleet's file, which a fix may change. note: told how each went. only:
    checks, of which warnings are mended too; empty: errors of any.
    """
    mender = _Mender(examiner, fleet_now, ask, note)
    for _ in range(_MOST_ROUNDS):
        plans = plan_fixes(seen.findings, seen.examination, sudo=sudo, only=only)
        if not mender.go_through(plans, seen.examination):
            break
        seen = examiner(fleet_now())
    return seen, list(mender.outcomes.values())


_Key = tuple[str, tuple[str, ...], tuple[str, str] | None]


def _key(finding: Finding) -> _Key:
    return finding.check, finding.hosts, finding.link


@dataclass
class _Mender:
    """Goes through findings, and keeps how it went with each that was tried."""

    examiner: Look
    fleet_now: Callable[[], Fleet]
    ask: Ask
    note: Callable[[Mended], None]
    journal: FixJournal = field(default_factory=FixJournal)
    outcomes: dict[_Key, Mended] = field(default_factory=dict)

    def go_through(self, plans: Sequence[FixPlan], examination: Examination) -> bool:
        """Mend what was not tried before; whether anything was done on a host."""
        acted = False
        gone: set[_Key] = set()
        with Shells(lambda host: connect(self.fleet_now(), host)) as shells:
            for plan in plans:
                key = _key(plan.finding)
                if key in self.outcomes or key in gone:
                    continue
                if plan.left:
                    self.outcomes[key] = Mended(plan.finding, "left", said=plan.left)
                elif not self.ask(list(error_lines(plan.finding, examination))):
                    self.outcomes[key] = Mended(plan.finding, "declined")
                else:
                    acted = True
                    self.outcomes[key] = self._carry_out(plan, shells, plans, gone)
                    self.note(self.outcomes[key])
        return acted

    def _carry_out(
        self, plan: FixPlan, shells: Shells, plans: Sequence[FixPlan], gone: set[_Key]
    ) -> Mended:
        """Act, and look again. gone: is given what else of the plans needs no mending by now."""
        finding, file = plan.finding, self.fleet_now().path
        carried = apply_fixes(plan, shells, self.journal, file)
        _trust_as_changed(file)
        commands = tuple(each.command for each in carried.done)
        if carried.problem:
            return Mended(finding, "failed", commands, carried.problem)
        quick = {check.code for check in CHECKS if check.quick}
        fleet = part_of(self.fleet_now(), finding)
        now = self.examiner(fleet, quick=finding.check in quick)
        looked_at = {host.name for host in fleet.hosts}
        for other in (each.finding for each in plans):
            known = not now.examination.quick or other.check in quick
            if known and set(other.hosts) <= looked_at and not still_there(other, now.findings):
                gone.add(_key(other))
        if (same := still_there(finding, now.findings)) is not None:
            return Mended(finding, "still there", commands, same.saw)
        return Mended(finding, "fixed", commands)


def part_of(fleet: Fleet, finding: Finding) -> Fleet:
    """The hosts that a finding is about, and as many others as make a pair."""
    wanted = {*finding.hosts, *(finding.link or ()), *(fix.host for fix in finding.fix)}
    about = [host for host in fleet.hosts if host.name in wanted]
    others = [host for host in fleet.hosts if host.name not in wanted]
    if not about:
        return fleet
    chosen = {host.name for host in (*about, *others[: max(0, 2 - len(about))])}
    return dataclasses.replace(
        fleet, hosts=tuple(host for host in fleet.hosts if host.name in chosen)
    )


def _trust_as_changed(file: Path) -> None:
    """The file was trusted, and the person agreed to each line that may have changed it since."""
    if file.is_file():
        remember(read_fleet(file))


@dataclass(frozen=True)
class TakenBack:
    """What of all that stood was undone; left: why not, by the number of the line."""

    standing: tuple[Done, ...]
    undone: tuple[Done, ...]
    left: dict[str, str]


def take_all_back(fleet: Fleet, ask: Callable[[Done], bool]) -> TakenBack:
    """Undo what `mend` did on a fleet, the newest first, each with consent."""
    journal = FixJournal()
    standing = journal.standing(fleet.path)
    undone: list[Done] = []
    left: dict[str, str] = {}
    stuck: set[str] = set()
    with Shells(lambda host: connect(fleet, host)) as shells:
        for done in standing:
            # What is older on a host may rest on what could not be taken back there.
            if done.host in stuck:
                left[done.id] = f"something newer on {done.host or 'this machine'} was not undone"
            elif not ask(done):
                left[done.id] = "declined"
            elif problem := undo_fix(done, shells, journal):
                left[done.id] = problem
            else:
                undone.append(done)
            if done.id in left:
                stuck.add(done.host)
    _trust_as_changed(fleet.path)
    return TakenBack(tuple(standing), tuple(undone), left)
