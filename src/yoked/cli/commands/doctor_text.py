"""What `yoked doctor` says: of what it found, what it mended or took back, and of a check."""

from __future__ import annotations

import getpass
import sys
from collections.abc import Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from yoked.cli.output import Output
from yoked.doctor import catalog, console, mending
from yoked.doctor import render as text
from yoked.doctor.bundle import bundle, write_bundle
from yoked.doctor.fixing import Done, plan_fixes
from yoked.doctor.judge import Seen
from yoked.doctor.mending import Ask, Mended
from yoked.doctor.render import indented, width, wrapped
from yoked.doctor.replay import to_json
from yoked.doctor.sshtry import key_of, way_to
from yoked.doctor.sshway import Way
from yoked.errors import UsageError
from yoked.fleet.model import HERE, Fleet


def report(
    seen: Seen,
    output: Output,
    fleet: Fleet | None = None,
    mended: Sequence[Mended] | None = None,
    *,
    bandwidth: bool,
    bundle_path: Path | None,
) -> int:
    """Say what was found; the exit status.

    fleet: None for a saved examination. mended: None where nothing was to be mended.
    """
    payload = text.payload(seen.examination, seen.findings)
    verdict = text.verdict(seen.fleet, seen.examination, seen.findings)
    evidence = text.evidence(seen.examination, seen.findings, bandwidth=bandwidth)
    if mended:
        payload["fixed"] = [each.to_dict() for each in mended]
        evidence = [*mended_lines(mended), "", *evidence]
    if bundle_path is not None:
        has_file = fleet is not None and fleet.path.is_file()
        files = bundle(
            to_json(seen.examination),
            [text.finding_payload(each, seen.examination) for each in seen.findings],
            "\n".join([verdict, *evidence, ""]),
            fleet.path.read_text(encoding="utf-8") if fleet is not None and has_file else None,
        )
        write_bundle(bundle_path, files)
        payload["bundle"] = str(bundle_path)
        kept = f"kept in {bundle_path}, for a bug report: read it before you send it"
        evidence = [*evidence, "", kept]
    output.result(
        payload,
        verdict=verdict,
        evidence=evidence,
        next_commands=[] if fleet is None else _next(seen, fleet, fixed=mended is not None),
    )
    return 1 if text.errors_of(seen.findings) else 0


def _next(seen: Seen, fleet: Fleet, *, fixed: bool) -> list[str]:
    errors = text.errors_of(seen.findings)
    if not errors:
        return [f"yoked train{fleet.flag}"]
    found = [f"yoked doctor --explain {errors[0].check}    says more of it"]
    able = [not each.left for each in plan_fixes(seen.findings, seen.examination, sudo=False)]
    as_root = [not each.left for each in plan_fixes(seen.findings, seen.examination, sudo=True)]
    if any(as_root) and not fixed:
        sudo = "" if any(able) else " --sudo"
        found.append(f"yoked doctor --fix{sudo}{fleet.flag}    carries out what it can, asking")
    return found


def explain(name: str, output: Output) -> int:
    """Print a check's page. Raises UsageError with the nearest for a name that no check has."""
    check = catalog.check_named(name, "--explain")
    payload = {
        "check": check.code,
        "question": check.question,
        "severity": check.severity,
        "needs": list(check.reads),
        "page": check.page,
    }
    verdict = f"{check.code}: {check.question}"
    output.result(payload, verdict=verdict, evidence=text.page_lines(check.page))
    return 0


def console_script(fleet: Fleet, name: str, output: Output) -> int:
    """Print the script for the console of a host; beside it, how it comes there."""
    host = next((each for each in fleet.hosts if each.name == name), None)
    if host is None:
        raise UsageError(
            f"--console {name}: there is no such host in the fleet",
            fix=f"it has: {', '.join(each.name for each in fleet.hosts)}",
        )
    way = way_to(name, fleet.ssh_file) if name != HERE else Way(user=getpass.getuser())
    is_dialled = way.proxy != "command" and name != HERE
    script = console.script(
        way.user or getpass.getuser(),
        key_of(way),
        way.port if is_dialled else None,
        addresses=console.addresses_of(way.address) if is_dialled else (),
    )
    if output.json_mode:
        output.result({"host": name, "script": script}, verdict="")
        return 0
    output.text(script)
    line = f"yoked doctor --console {name}{fleet.flag}"
    output.note(
        f"for root's shell on {name}. Paste it there, or send it: {line} | docker exec -i ... sh; "
        f"{line} | ssh ANOTHER-USER@{name.rpartition('@')[2]} sudo sh; or carry it there as a file"
    )
    return 0


def asker(output: Output, *, yes: bool, flag: str) -> Ask:
    """Asks a person at the terminal; with --yes nobody.

    Raises UsageError where nobody could answer. flag: what would need the answer.
    """
    if yes:
        return lambda _: True
    # A question that is not seen is none.
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UsageError(
            f"{flag} asks before each thing that it does, and nobody is at this terminal",
            fix=f"yoked doctor {flag} --yes    asks nothing",
        )

    def ask(lines: Sequence[str]) -> bool:
        for line in lines:
            output.say(line)
        return output.asks("do this?")

    return ask


def mended_lines(mended: Sequence[Mended]) -> Iterator[str]:
    """How it went, a line for each finding."""
    yield "fixes:"
    for outcome in mended:
        yield from indented(wrapped("", outcome.text, width() - 2, hang=4), 2)
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
