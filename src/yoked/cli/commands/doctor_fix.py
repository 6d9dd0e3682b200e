"""`yoked doctor --fix` and `--undo`: asks, carries out, looks again, and says how it went."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal

from yoked.cli.commands.doctor_look import connect
from yoked.cli.commands.doctor_text import (
    error_lines,
    fleet_flag,
    indented,
    width,
    wrapped,
)
from yoked.doctor.fixing import (
    Book,
    Repair,
    Shells,
    carry_out,
    repairs,
    still_there,
    take_back,
)
from yoked.errors import UsageError
from yoked.records.examination import Finding

if TYPE_CHECKING:
    from pathlib import Path

    from yoked.cli.commands.doctor_look import Eyes, Seen
    from yoked.cli.output import Output
    from yoked.doctor.fixing import Done
    from yoked.fleet.model import Fleet
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


def asker(output: Output, *, yes: bool, flag: str) -> Ask:
    """Asks a person at the terminal; with --yes nobody.

    Raises UsageError where nobody could answer. flag: what would need the answer.
    """
    if yes:
        return lambda _: True
    if not sys.stdin.isatty():
        raise UsageError(
            f"{flag} asks before each thing that it does, and nobody is at this terminal",
            fix=f"yoked doctor {flag} --yes    asks nothing",
        )

    def ask(lines: Sequence[str]) -> bool:
        for line in lines:
            output.say(line)
        output.say("do this? [y/N] ", end="")
        return sys.stdin.readline().strip().lower() in ("y", "yes")

    return ask


def mend(
    seen: Seen,
    eyes: Eyes,
    fleet_now: Callable[[], Fleet],
    output: Output,
    *,
    ask: Ask,
    sudo: bool,
    only: Sequence[str] = (),
) -> tuple[Seen, list[Mended]]:
    """Carry out what can be, each with consent and verified; what is seen then, and how it went.

    fleet_now: reads the fleet's file, which a fix may change. only: checks, of which warnings are
    mended too; empty: errors of any.
    """
    book = Book()
    outcomes: dict[_Key, Mended] = {}
    for _ in range(_MOST_ROUNDS):
        mender = _Mender(seen, eyes, fleet_now, output, ask=ask, sudo=sudo, only=only, book=book)
        if not mender.go_through(outcomes):
            break
        seen = eyes(fleet_now())
    return seen, list(outcomes.values())


_Key = tuple[str, tuple[str, ...], tuple[str, str] | None]


def _key(finding: Finding) -> _Key:
    return finding.check, finding.hosts, finding.link


class _Mender:
    """One way through the findings of one examination."""

    def __init__(
        self,
        seen: Seen,
        eyes: Eyes,
        fleet_now: Callable[[], Fleet],
        output: Output,
        *,
        ask: Ask,
        sudo: bool,
        only: Sequence[str],
        book: Book,
    ) -> None:
        self._seen, self._eyes, self._fleet_now = seen, eyes, fleet_now
        self._output, self._ask, self._book = output, ask, book
        self._repairs = repairs(seen.findings, seen.examination, sudo=sudo, only=only)
        self._gone: set[_Key] = set()

    def go_through(self, outcomes: dict[_Key, Mended]) -> bool:
        """Mend what was not tried before; whether anything was done on a host."""
        acted = False
        with Shells(self._connect) as shells:
            for repair in self._repairs:
                key = _key(repair.finding)
                if key in outcomes or key in self._gone:
                    continue
                outcomes[key] = self._mend(repair, shells)
                acted = acted or outcomes[key].state not in ("left", "declined")
        return acted

    def _connect(self, host: str) -> AgentClient:
        return connect(self._fleet_now(), host)

    def _mend(self, repair: Repair, shells: Shells) -> Mended:
        finding = repair.finding
        if repair.left:
            return Mended(finding, "left", said=repair.left)
        if not self._ask(list(error_lines(finding, self._seen.examination))):
            return Mended(finding, "declined")
        file = self._fleet_now().path
        carried = carry_out(repair, shells, self._book, file)
        _trust_as_changed(file)
        commands = tuple(each.command for each in carried.done)
        if carried.problem:
            outcome = Mended(finding, "failed", commands, carried.problem)
        elif (same := self._look_again(finding)) is not None:
            outcome = Mended(finding, "still there", commands, same.saw)
        else:
            outcome = Mended(finding, "fixed", commands)
        self._output.note(_short(outcome))
        return outcome

    def _look_again(self, finding: Finding) -> Finding | None:
        """The finding, if it is still there; what else is gone by now is not mended twice."""
        from yoked.doctor.catalog import CHECKS

        quick = {check.code for check in CHECKS if check.quick}
        fleet = part_of(self._fleet_now(), finding)
        now = self._eyes(fleet, quick=finding.check in quick)
        looked_at = {host.name for host in fleet.hosts}
        for repair in self._repairs:
            other = repair.finding
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
    from yoked.fleet.file import read_fleet
    from yoked.fleet.trust import remember

    if file.is_file():
        remember(read_fleet(file))


def _short(outcome: Mended) -> str:
    where = f" on {', '.join(outcome.finding.hosts)}" if outcome.finding.hosts else ""
    said = f": {outcome.said}" if outcome.said else ""
    return f"{outcome.finding.check}{where}: {outcome.state}{said}"


def mended_lines(mended: Sequence[Mended]) -> Iterator[str]:
    """How it went, a line for each finding."""
    yield "fixes:"
    for outcome in mended:
        yield from indented(wrapped("", _short(outcome), width() - 2, hang=4), 2)
        yield from indented(outcome.commands, 4)
    if any(outcome.commands for outcome in mended):
        yield "  yoked doctor --undo    takes back what was done"


def take_all_back(fleet: Fleet, output: Output, *, ask: Ask) -> int:
    """`yoked doctor --undo`: the newest first; the exit status."""
    book = Book()
    standing = book.standing(fleet.path)
    undone: list[Done] = []
    left: dict[str, str] = {}
    stuck: set[str] = set()
    with Shells(lambda host: connect(fleet, host)) as shells:
        for done in standing:
            # What is older on a host may rest on what could not be taken back there.
            if done.host in stuck:
                left[done.id] = f"something newer on {done.host or 'this machine'} was not undone"
            elif not ask(list(_undo_lines(done))):
                left[done.id] = "declined"
            elif problem := take_back(done, shells, book):
                left[done.id] = problem
            else:
                undone.append(done)
            if done.id in left:
                stuck.add(done.host)
    _trust_as_changed(fleet.path)
    return _report_undo(fleet, standing, undone, left, output)


def _undo_lines(done: Done) -> Iterator[str]:
    when = datetime.fromtimestamp(done.at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    yield f"{when}, for {done.check}, on {done.host or 'this machine'}:"
    yield f"  was done    {done.command}"
    yield f"  undoes it   {done.undo}"


def _report_undo(
    fleet: Fleet,
    standing: Sequence[Done],
    undone: Sequence[Done],
    left: dict[str, str],
    output: Output,
) -> int:
    def told(done: Done) -> dict[str, Any]:
        return {"check": done.check, "host": done.host, "command": done.command, "undo": done.undo}

    verdict = f"{len(undone)} of {len(standing)} taken back"
    lines = [f"{done.host or 'this machine'}: {done.undo}" for done in undone]
    lines += [
        f"{done.host or 'this machine'}: not undone, {left[done.id]}: {done.undo}"
        for done in standing
        if done.id in left
    ]
    output.result(
        {
            "ok": not left,
            "undone": [told(done) for done in undone],
            "left": [{**told(done), "why": left[done.id]} for done in standing if done.id in left],
        },
        verdict=verdict if standing else "nothing to take back: --fix did nothing on this fleet",
        evidence=lines,
        next_commands=[f"yoked doctor{fleet_flag(fleet)}"] if standing else [],
    )
    return 1 if left else 0
