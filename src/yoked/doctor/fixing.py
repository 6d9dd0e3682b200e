"""Carry out the fixes of findings, and take them back.

What is done is written down before it is done: a controller that dies in between leaves a note of
what it may have changed, and `yoked doctor --undo` takes that back too. Nothing here asks anybody.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from yoked.agent.programs import run_program
from yoked.errors import HostError, YokedError
from yoked.journal import Journal, read
from yoked.paths import state_root
from yoked.records.examination import Examination, Finding, Fix
from yoked.records.shell import renamed
from yoked.remote.client import AgentClient

# Long enough for `yoked install` over a slow line.
LIMIT_S = 900.0
_ANSWER_S = LIMIT_S + 30.0
_SHELL = ("/bin/sh", "-c")
# Started by a shell, which says by its status that there is no sudo.
_SUDO = (*_SHELL, 'exec sudo -n /bin/sh -c "$1"', "sh")
# A plain command needs no shell of root's: none of these is outside quotes.
_OPERATORS = frozenset("();<>|&")


def is_root(examination: Examination, host: str) -> bool:
    """Whether what is run on a host as its user is run by root. host "": this machine."""
    if host == "":
        return os.getuid() == 0
    seen = next((each for each in examination.hosts if each.name == host), None)
    return seen is not None and seen.facts.get("uid") == 0


def as_typed(fix: Fix, *, root_there: bool) -> str:
    """The line as a person types it: with sudo where it needs root and nobody is.

    root_there: whether the user of that host is root, who may have no sudo.
    """
    line = fix.command
    if not fix.root or fix.by_hand or root_there:
        return line
    return f"sudo {line}" if _is_one_command(line) else f"sudo sh -c {shlex.quote(line)}"


def _is_one_command(line: str) -> bool:
    words = shlex.shlex(line, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        # In a line of several, or with an assignment in front, sudo would take the first alone.
        found = list(words)
    except ValueError:
        return False
    joined = any(word and set(word) <= _OPERATORS for word in found)
    return not joined and "\n" not in line and not re.match(r"\w+=", line)


@dataclass(frozen=True)
class FixPlan:
    """The fix of a finding. left: why it is not carried out; empty: it can be."""

    finding: Finding
    left: str = ""


def plan_fixes(
    findings: Sequence[Finding], examination: Examination, *, sudo: bool, only: Sequence[str] = ()
) -> tuple[FixPlan, ...]:
    """What can be carried out of the findings' fixes, and why the rest cannot. sudo: may be used.

    only: checks, whose findings alone are meant; empty: all, of which warnings are left: a host
    that sleeps, or saves power, may do so by its person's wish. A fix is carried out as a whole or
    not at all.
    """
    meant = [each for each in findings if not only or each.check in only]
    return tuple(
        FixPlan(each, _why_left(each, examination, sudo, named=bool(only))) for each in meant
    )


def _why_left(finding: Finding, examination: Examination, sudo: bool, *, named: bool) -> str:
    if not finding.fix:
        return "there is no line that mends it"
    if any(fix.by_hand for fix in finding.fix):
        return "only a person can do it"
    if finding.severity == "warning" and not named:
        return f"a warning is mended when it is named: yoked doctor --fix --only {finding.check}"
    up = {each.name for each in examination.up}
    for fix in finding.fix:
        if fix.host and fix.host not in up:
            return f"there is no agent on {fix.host}"
        if fix.root and not is_root(examination, fix.host) and not sudo:
            where = f"on {fix.host}" if fix.host else "here"
            return f"it needs root {where}: yoked doctor --fix --sudo"
    return ""


@dataclass(frozen=True)
class ShellResult:
    """How a line ended. text: its last words, for people."""

    ok: bool
    text: str


class Shell(Protocol):
    """Runs a line on a host, or, for host "", on this machine."""

    def __call__(self, host: str, line: str, *, root: bool) -> ShellResult:
        """Run it as the host's user, or as root. Raises HostError when the host is silent."""
        ...


# Makes an agent on the host of a name; it raises HostError.
Connect = Callable[[str], AgentClient]


class Shells:
    """Lines for the hosts of a fleet, each by an agent of its own that is there when needed.

    Leaving its context closes the agents.
    """

    def __init__(self, connect: Connect) -> None:
        self._connect = connect
        self._agents: dict[str, AgentClient] = {}
        self._open = ExitStack()

    def __call__(self, host: str, line: str, *, root: bool) -> ShellResult:
        """Run it. root: by `sudo -n`, where the user is not root already."""
        if host == "":
            # `yoked` of this very environment, which need not be activated.
            path = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
            argv = _argv(line, root=root and os.getuid() != 0)
            outcome = run_program(argv, env={"PATH": path}, limit_s=LIMIT_S)
            out, err = (text.decode(errors="replace") for text in (outcome.stdout, outcome.stderr))
            return _said(outcome.exit_status, outcome.late, out, err)
        if host not in self._agents:
            self._agents[host] = self._open.enter_context(self._connect(host))
        agent = self._agents[host]
        is_user = root and agent.call("facts", timeout_s=_ANSWER_S)["uid"] != 0
        told = agent.call(
            "run", argv=_argv(line, root=is_user), limit_s=LIMIT_S, timeout_s=_ANSWER_S
        )
        return _said(told["exit_status"], told["late"], told["stdout"], told["stderr"])

    def __enter__(self) -> Shells:
        return self

    def __exit__(self, *problem: object) -> None:
        self._open.close()


def _argv(line: str, *, root: bool) -> list[str]:
    return [*(_SUDO if root else _SHELL), line]


def _said(status: int | None, late: bool, out: str, err: str) -> ShellResult:
    lines = [line for line in (err or out).strip().splitlines() if line.strip()]
    if late:
        return ShellResult(False, f"it was ended after {LIMIT_S:g} s")
    if status == 0:
        return ShellResult(True, lines[-1] if lines else "")
    ended = "it was killed" if status is None else f"it ended with status {status}"
    # What is indented goes on with the line above: mount(8) says so where to look for more.
    said = [line for line in lines if not line[0].isspace()] or lines
    return ShellResult(False, f"{ended}: {said[-1]}" if said else ended)


@dataclass(frozen=True)
class Done:
    """A line that was carried out, or was about to be. undo: None where nothing is to take back.

    fleet: the fleet's file; at_s: Unix time.
    """

    id: str
    at_s: float
    fleet: str
    check: str
    host: str
    command: str
    undo: str | None
    root: bool


class FixJournal:
    """What was done on hosts, in the controller's state folder; each line is on disk at once.

    path: default `doctor/fixes.jsonl` of the state folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = path or state_root() / "doctor" / "fixes.jsonl"

    def begin(self, fleet: Path, finding: Finding, fix: Fix) -> Done:
        """Note that a line is about to be carried out."""
        number = uuid.uuid4().hex[:12]
        if fix.kept:
            # Names of copies that no other time has, so that each undo finds its own.
            assert fix.undo is not None, fix
            own = f"{fix.kept}-{number}"
            command, undo = (renamed(each, fix.kept, own) for each in (fix.command, fix.undo))
            fix = replace(fix, command=command, undo=undo)
        done = Done(
            id=number,
            at_s=time.time(),
            fleet=str(fleet.absolute()),
            check=finding.check,
            host=fix.host,
            command=fix.command,
            undo=fix.undo,
            root=fix.root,
        )
        self._append({"event": "begin", **asdict(done)})
        return done

    def end(self, done: Done, event: str, said: str = "") -> None:
        """Note how it went on. event: "done", "failed" or "undone"."""
        self._append({"event": event, "id": done.id, "said": said})

    def standing(self, fleet: Path) -> list[Done]:
        """What can be taken back of a fleet, newest first: all that began and did not fail."""
        if not self.path.exists():
            return []
        begun: dict[str, Done] = {}
        for event in read(self.path):
            if event["event"] == "begin":
                fields = {name: event[name] for name in Done.__dataclass_fields__}
                begun[event["id"]] = Done(**fields)
            elif event["event"] in ("failed", "undone"):
                begun.pop(event["id"], None)
        own = str(fleet.absolute())
        return [
            done for done in reversed(begun.values()) if done.fleet == own and done.undo is not None
        ]

    def _append(self, event: Mapping[str, Any]) -> None:
        with Journal(self.path, fsync=True) as journal:
            journal.append(event)


@dataclass(frozen=True)
class Carried:
    """How a plan went. done: its lines that were carried out; problem: what stopped it."""

    done: tuple[Done, ...]
    problem: str = ""


def apply_fixes(plan: FixPlan, shell: Shell, journal: FixJournal, fleet: Path) -> Carried:
    """Carry out a plan line by line, up to the first that fails."""
    assert not plan.left, plan
    carried: list[Done] = []
    for fix in plan.finding.fix:
        done = journal.begin(fleet, plan.finding, fix)
        line = done.command
        if fix.kept:
            # What fails half way takes itself back.
            line = f"{{ {line}; }} || {{ {done.undo}; false; }}"
        try:
            said = shell(fix.host, line, root=fix.root)
        except YokedError as problem:
            # Whether it ran is not known: it stays among what can be taken back.
            return Carried((*carried, done), problem.what)
        if not said.ok:
            journal.end(done, "failed", said.text)
            return Carried(tuple(carried), f"{done.command}: {said.text}")
        journal.end(done, "done", said.text)
        carried.append(done)
    return Carried(tuple(carried))


def undo_fix(done: Done, shell: Shell, journal: FixJournal) -> str:
    """Undo one line; why it could not be, or nothing."""
    assert done.undo is not None, done
    try:
        said = shell(done.host, done.undo, root=done.root)
    except HostError as problem:
        return problem.what
    if not said.ok:
        return said.text
    journal.end(done, "undone", said.text)
    return ""


def still_there(finding: Finding, findings: Sequence[Finding]) -> Finding | None:
    """The finding that says the same after a fix, also where another explains it now."""

    def same(other: Finding) -> bool:
        if other.check != finding.check:
            return False
        if finding.link or other.link:
            return finding.link == other.link
        return not finding.hosts or bool(set(finding.hosts) & set(other.hosts))

    return next(filter(same, _all(findings)), None)


def _all(findings: Sequence[Finding]) -> Iterator[Finding]:
    for finding in findings:
        yield finding
        yield from _all(finding.follows)
