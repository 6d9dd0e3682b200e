"""A login that works, and yet no agent: which line of a start file there is to blame, or what
keeps an interpreter that is there from being used.

The programs that find it out (yoked.agent.starttrace, yoked.core.unusable) need neither what is
sent to a host, nor threads, nor the variables of the login: those are what may be broken.
"""

from __future__ import annotations

import base64
import json
import secrets
import subprocess
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import yoked
from yoked.doctor.checks.imports import other_library, refusal
from yoked.records.examination import HostSeen, SshFailure
from yoked.records.host_rules import START_FILES, UNUSABLE
from yoked.records.rules import Rule, reread
from yoked.records.shell import joined, shell_line
from yoked.remote.ssh import ssh_argv
from yoked.text import one_line

# ssh itself is there in a quarter of a second over a LAN.
SLOW_S = 5.0
_TRY_S, _LIMIT_S = 4, 25.0
# Of programs of this machine that only tell something.
ASK_S = 2.0
_FLAGS = shell_line("-E -s -S")
_SOURCE = Path(yoked.__file__).parent / "agent" / "starttrace.py"
_UNUSABLE = Path(yoked.__file__).parent / "core" / "unusable.py"
_SAID = {
    "start": "and no program can be started behind it",
    "threads": "and no program can start a thread behind it",
    "reads": "which reads what is sent to the host for another program",
    "prints": "which prints, although nobody sits there",
    "finds": "and no python3 is found behind it (PATH)",
    "waits": "and waits there",
    "ends": "and ends there",
}
_INSIDE = {
    "start": "and in it no program can be started",
    "threads": "and in it no program can start a thread",
    "reads": "which reads what is sent to the host",
    "prints": "which prints",
    "finds": "and in it no python3 is found",
}


def of_start_files(told: SshFailure, host: str, ssh_config: Path | None) -> SshFailure:
    """The same failure, or the line of a start file there that is to blame for it."""
    return blamed(told, _ask(host, ssh_config, _SOURCE, START_FILES))


def of_interpreter(told: SshFailure, host: str, ssh_config: Path | None, python: str) -> SshFailure:
    """The same failure, or why the interpreter that the fleet's file names does not start there."""
    found = _ask(host, ssh_config, _UNUSABLE, UNUSABLE, python)
    # Its owner can mend it as it is mended where nobody is turned away.
    if (refused := found.get("barred")) and refused["owner"] != refused["user"]:
        text = f"{told.text}; {refusal(refused)}"
        place, user = refused["place"], refused["user"]
        return replace(told, cause="barred", text=text, about=place, user=user)
    if home := found.get("home"):
        text = f"{told.text}; {other_library(home)}"
        return replace(told, cause="other-home", text=text, about=python)
    return told


def with_reason(seen: HostSeen, ssh_config: Path | None) -> HostSeen:
    """What was seen of a host; of one whose agent fell silent, with the line that is to blame."""
    if seen.failure is None or seen.failure.cause not in ("silent", "host-exhausted"):
        return seen
    # It came up. So ssh leads to a program there, which may not be able to go on.
    return replace(seen, failure=of_start_files(seen.failure, seen.name, ssh_config))


def blamed(told: SshFailure, answer: Mapping[str, Any]) -> SshFailure:
    """answer: as of the agent's call `start_files`."""
    command, how, proof = answer.get("command"), answer.get("how"), answer.get("proof")
    if not command or not how or not proof:
        return told
    ends = _SAID.get(how)
    if ends is None:
        ends = f"which puts each login into another program, {_INSIDE[proof]}"
    text = f"{command['file']}, line {command['line']}, runs `{one_line(command['words'])}`, {ends}"
    about = f"{command['file']}:{command['line']}"
    return replace(told, kind="shell", cause="start-file", text=text, about=about)


def heard(
    shell: Mapping[str, Any], noise: str, answers: Mapping[str, Mapping[str, Any]]
) -> Mapping[str, Any]:
    """What is known of a host's shell, with what it prints. answers: as in `blamed`, by proof."""
    prints, soon = answers.get("prints", {}), answers.get("soon", {})
    return {
        **shell,
        "sources_noise": bool(noise),
        "searched": "prints" in answers,
        "prints": prints.get("command") if prints.get("how") == "prints" else None,
        "takes_long": soon.get("command"),
    }


def _ask(
    host: str, ssh_config: Path | None, source: Path, rule: Rule, *args: str
) -> Mapping[str, Any]:
    """What a program says there; nothing where it does not come to that."""
    token = _token()
    config = None if ssh_config is None else str(ssh_config)
    argv = ssh_argv(host, config, patience_s=_TRY_S, shared=False)
    done = run_here(*argv, _command(source, token, *args), limit_s=_LIMIT_S)
    for line in done.stdout.splitlines() if done else ():
        before, _, said = line.partition(f"{token} ")
        if said and not before.strip():
            try:
                content = json.loads(said)
            except ValueError:
                return {}
            found = reread(rule, source.stem, content, [], {})
            return found if isinstance(found, dict) else {}
    return {}


def run_here(
    *argv: str, limit_s: float = ASK_S, given: str | None = None
) -> subprocess.CompletedProcess[str] | None:
    """A program of this machine; None: there is none, or it did not end in time. given: its
    standard input.
    """
    try:
        return subprocess.run(
            argv,
            stdin=subprocess.DEVNULL if given is None else None,
            input=given,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None


def _token() -> str:
    return secrets.token_hex(8)


def _command(source: Path, *args: str) -> str:
    """The program as a line of sh, bash and zsh; the two that read start files begin it without the
    variables of the login (`exec -c`), which may be larger than a program may have.
    """
    packed = base64.b64encode(zlib.compress(source.read_bytes(), 9)).decode()
    program = f'import base64,zlib;exec(zlib.decompress(base64.b64decode("{packed}")))'
    return shell_line(
        "y={program}; PATH=$PATH:/usr/local/bin:/usr/bin:/bin; p=python3; "
        # The first one may be what is broken.
        "$p {flags} -c 'import random' 2>/dev/null || p=/usr/bin/python3; "
        "(exec -c true) 2>/dev/null && "
        'exec -c $p {flags} -c "$y" {args}; exec $p {flags} -c "$y" {args}',
        program=program,
        flags=_FLAGS,
        args=joined(" ", args),
    )
