"""Mends what was found, finding by finding: carries lines out with consent, and looks again."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

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
from yoked.doctor.judge import Examiner, Seen, connect
from yoked.doctor.render import error_lines
from yoked.fleet.file import read_fleet
from yoked.fleet.model import Fleet
from yoked.fleet.trust import remember
from yoked.records.examination import Finding
from yoked.remote.client import AgentClient

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

    def to_dict(self) -> dict[str, Any]:
        """For programs."""
        return {
            "check": self.finding.check,
            "hosts": list(self.finding.hosts),
            "state": self.state,
            "commands": list(self.commands),
            "said": self.said,
        }


def mend(
    seen: Seen,
    examiner: Examiner,
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
    journal = FixJournal()
    outcomes: dict[_Key, Mended] = {}
    for _ in range(_MOST_ROUNDS):
        mender = _Mender(
            seen, examiner, fleet_now, ask=ask, note=note, sudo=sudo, only=only, journal=journal
        )
        if not mender.go_through(outcomes):
            break
        seen = examiner(fleet_now())
    return seen, list(outcomes.values())


_Key = tuple[str, tuple[str, ...], tuple[str, str] | None]


def _key(finding: Finding) -> _Key:
    return finding.check, finding.hosts, finding.link


class _Mender:
    """One way through the findings of one examination."""

    def __init__(
        self,
        seen: Seen,
        examiner: Examiner,
        fleet_now: Callable[[], Fleet],
        *,
        ask: Ask,
        note: Callable[[Mended], None],
        sudo: bool,
        only: Sequence[str],
        journal: FixJournal,
    ) -> None:
        self._seen, self._examiner, self._fleet_now = seen, examiner, fleet_now
        self._ask, self._note, self._journal = ask, note, journal
        self._plans = plan_fixes(seen.findings, seen.examination, sudo=sudo, only=only)
        self._gone: set[_Key] = set()

    def go_through(self, outcomes: dict[_Key, Mended]) -> bool:
        """Mend what was not tried before; whether anything was done on a host."""
        acted = False
        with Shells(self._connect) as shells:
            for plan in self._plans:
                key = _key(plan.finding)
                if key in outcomes or key in self._gone:
                    continue
                outcomes[key] = self._mend(plan, shells)
                acted = acted or outcomes[key].state not in ("left", "declined")
        return acted

    def _connect(self, host: str) -> AgentClient:
        return connect(self._fleet_now(), host)

    def _mend(self, plan: FixPlan, shells: Shells) -> Mended:
        finding = plan.finding
        if plan.left:
            return Mended(finding, "left", said=plan.left)
        if not self._ask(list(error_lines(finding, self._seen.examination))):
            return Mended(finding, "declined")
        file = self._fleet_now().path
        carried = apply_fixes(plan, shells, self._journal, file)
        _trust_as_changed(file)
        commands = tuple(each.command for each in carried.done)
        if carried.problem:
            outcome = Mended(finding, "failed", commands, carried.problem)
        elif (same := self._look_again(finding)) is not None:
            outcome = Mended(finding, "still there", commands, same.saw)
        else:
            outcome = Mended(finding, "fixed", commands)
        self._note(outcome)
        return outcome

    def _look_again(self, finding: Finding) -> Finding | None:
        """The finding, if it is still there; what else is gone by now is not mended twice."""
        quick = {check.code for check in CHECKS if check.quick}
        fleet = part_of(self._fleet_now(), finding)
        now = self._examiner(fleet, quick=finding.check in quick)
        looked_at = {host.name for host in fleet.hosts}
        for plan in self._plans:
            other = plan.finding
            known = not now.examination.quick or other.check in quick
            if known and set(other.hosts) <= looked_at and not still_there(other, now.findings):
                self._gone.add(_key(other))
        return still_there(finding, now.findings)


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
