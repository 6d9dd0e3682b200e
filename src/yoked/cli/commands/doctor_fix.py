"""`yoked doctor --fix` and `--undo`: asks a person, and says how it went."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from yoked.doctor import mending
from yoked.doctor.mending import Ask, Mended
from yoked.doctor.render import indented, width, wrapped
from yoked.errors import UsageError

if TYPE_CHECKING:
    from yoked.cli.output import Output
    from yoked.doctor.fixing import Done
    from yoked.fleet.model import Fleet


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
        return output.asks("do this?")

    return ask


def outcome_text(outcome: Mended) -> str:
    """How it went with a finding, in a line."""
    where = f" on {', '.join(outcome.finding.hosts)}" if outcome.finding.hosts else ""
    said = f": {outcome.said}" if outcome.said else ""
    return f"{outcome.finding.check}{where}: {outcome.state}{said}"


def mended_lines(mended: Sequence[Mended]) -> Iterator[str]:
    """How it went, a line for each finding."""
    yield "fixes:"
    for outcome in mended:
        yield from indented(wrapped("", outcome_text(outcome), width() - 2, hang=4), 2)
        yield from indented(outcome.commands, 4)
    if any(outcome.commands for outcome in mended):
        yield "  yoked doctor --undo    takes back what was done"


def _undo_lines(done: Done) -> Iterator[str]:
    when = datetime.fromtimestamp(done.at_s).astimezone().strftime("%Y-%m-%d %H:%M:%S")
    yield f"{when}, for {done.check}, on {done.host or 'this machine'}:"
    yield f"  was done    {done.command}"
    yield f"  undoes it   {done.undo}"


def take_all_back(fleet: Fleet, output: Output, *, ask: Ask) -> int:
    """`yoked doctor --undo`: the newest first; the exit status."""
    taken = mending.take_all_back(fleet, lambda done: ask(list(_undo_lines(done))))
    standing, undone, left = taken.standing, taken.undone, taken.left

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
        next_commands=[f"yoked doctor{fleet.flag}"] if standing else [],
    )
    return 1 if left else 0
