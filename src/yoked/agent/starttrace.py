"""Which line of a start file keeps what comes in by ssh from working.

The files that bash reads where ssh runs a program are run here once more, in a shell without any
variable of this login, and a trap counts their commands. Something that must work (a proof) is
tried in front of one command or another, until it is known with which one it stops working.

Imports nothing of yoked: where no agent comes up, the doctor sends this file as a program.
Source: bash(1), INVOCATION and DEBUG of `trap`.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

# bash reads them, the first where it was built so, if it finds SSH_CLIENT.
_FILES = '/etc/bash.bashrc "$HOME/.bashrc"'
# Each command leaves its place and its words. In front of number YOKED_STOP the proof is tried.
# YOKED_COUNT goes on in a shell that a start file puts in the place of this one.
_TRACED = f"""
# Start files take small numbers, for a lock mostly; a limit of open files allows few.
exec 47>>"$YOKED_TRACE"
export YOKED_COUNT=${{YOKED_COUNT:-0}}
yoked_at() {{
  # What runs in a subshell cannot count for the shell itself: it has the number of before.
  (( BASH_SUBSHELL == 0 && ++YOKED_COUNT == YOKED_STOP )) && {{
    trap - DEBUG; eval "$YOKED_PROOF"; exit
  }}
  printf '%s\\t%s\\t%s\\t%s\\t%s\\n' "$EPOCHREALTIME" "$YOKED_COUNT" "$1" "$2" \\
    "${{3//[$'\\n\\t']/ }}" >&47
}}
set -T
trap 'yoked_at "${{BASH_SOURCE[0]}}" "$LINENO" "$BASH_COMMAND"' DEBUG
for yoked_f in {_FILES}; do [ -r "$yoked_f" ] && . "$yoked_f"; done
trap - DEBUG
printf '%s\\tend\\n' "$EPOCHREALTIME" >&47
eval "$YOKED_PROOF"
"""
_FIRST_LINE = "yoked\n"
# By what must work: how it is tried in that shell. PYTHON stands for an interpreter.
PROOFS = {
    "start": "/bin/sh -c :",
    "reads": '{ read -r w && [ "$w" = yoked ]; }',
    "prints": '[ ! -s "$YOKED_OUT" ]',
    "threads": "exec PYTHON -E -s -S -c 'import threading as t; x = t.Thread(target=int); "
    "x.start(); x.join()' 2> /dev/null",
    "finds": "command -v python3 > /dev/null",
}
_LIMIT_S, _ONE_S = 12.0, 4.0
# From SIGTERM to SIGKILL.
_TO_END_S = 1.0
# A command of a start file that takes this long is felt at each login.
_LONG_S = 1.0
_MOST_COMMANDS, _LONGEST = 20_000, 120


class Command(NamedTuple):
    """A command that a start file ran: its number, where it stands, and its words. took_s: until
    the next one; 0: before bash 5 nobody knows.
    """

    number: int
    file: str
    line: int
    words: str
    took_s: float = 0.0

    def to_json(self) -> dict[str, Any]:
        """As it travels."""
        told = {"file": self.file, "line": self.line, "words": self.words}
        return {**told, "took_s": round(self.took_s, 1)}


class _Run(NamedTuple):
    """One run of the start files. ended: all of them were run; ok: the proof held."""

    commands: list[Command]
    ended: bool
    ok: bool
    late: bool


class StartFiles:
    """The start files of this user's bash, to be run again. python: what proofs take for PYTHON;
    limit_s: for all runs.
    """

    def __init__(self, python: str = sys.executable, limit_s: float = _LIMIT_S) -> None:
        self._python, self._until_s = python, time.monotonic() + limit_s
        self._bash = shutil.which("bash", path=_path())

    def commands(self) -> list[Command]:
        """The commands that they run, up to where one ends or waits."""
        return self._run(":").commands

    def slowest(self) -> Command | None:
        """The command that takes longest, where that is long."""
        commands = [each for each in self._run(":", limit_s=_LIMIT_S).commands if each.file]
        found = max(commands, key=lambda each: each.took_s, default=None)
        return found if found is not None and found.took_s >= _LONG_S else None

    def setters(self, variables: Mapping[str, str]) -> dict[str, Command]:
        """By variable, the command behind which it has its value, in whatever way it is given;
        without those that a start file gives none.
        """
        # Nothing is run for these: PATH may not be there yet.
        lacks = {name: f'[ "${{{name}-}}" != {shlex.quote(value)} ]'
                 for name, value in variables.items() if name.isidentifier()}  # fmt: skip
        # Most often none is of a start file: that is one run.
        if not lacks or self._run(" && ".join(lacks.values())).ok:
            return {}
        found = {name: self.culprit(name, words) for name, words in lacks.items()}
        return {name: each[1] for name, each in found.items() if each and each[0] == name}

    def culprit(self, proof: str, words: str = "") -> tuple[str, Command] | None:
        """With which command a proof stops holding, and how; None: with none. words: of a proof
        that is not of PROOFS.

        how: the proof's name; "waits" and "ends" of a command behind which nothing is run; "inside"
        of one that puts another program around the whole login, where the proof never holds.
        """
        words = words or PROOFS[proof]
        whole = self._run(words)
        if not whole.commands or (whole.ended and whole.ok):
            return None
        if not whole.ended:
            # A proof may take the place of the shell; so may a start file.
            return ("waits" if whole.late else "ends"), whole.commands[-1]
        low, high = 1, max(each.number for each in whole.commands) + 1
        if not self._run(words, low).ok:
            around = [each for each in whole.commands if each.words.startswith("exec ")]
            around = [each for each in around if not each.words[5:].lstrip("0123456789").startswith(
                ("<", ">", "{"))]  # fmt: skip
            return ("inside", around[0]) if around else None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if self._run(words, middle).ok else (low, middle)
        if time.monotonic() >= self._until_s:
            # The last of these were not run.
            return None
        found = next(each for each in whole.commands if each.number == low)
        return (proof, found) if found.file else None

    def _run(self, proof: str, stop: int = 0, limit_s: float = _ONE_S) -> _Run:
        left_s = min(limit_s, self._until_s - time.monotonic())
        if self._bash is None or left_s <= 0:
            return _Run([], ended=True, ok=True, late=False)
        with tempfile.TemporaryDirectory() as folder:
            trace, out, sent = (Path(folder, name) for name in ("trace", "out", "in"))
            sent.write_text(_FIRST_LINE + "more\n" * 9)
            environment = {
                **_login(),
                "YOKED_TRACE": str(trace),
                "YOKED_OUT": str(out),
                "YOKED_STOP": str(stop),
                "YOKED_PROOF": proof.replace("PYTHON", self._python),
            }
            with out.open("w") as printed, sent.open() as given:
                process = subprocess.Popen(
                    [self._bash, "--noprofile", "--norc", "-c", _TRACED],
                    stdin=given,
                    stdout=printed,
                    stderr=subprocess.DEVNULL,
                    env=environment,
                    cwd=environment["HOME"] if Path(environment["HOME"]).is_dir() else "/",
                    start_new_session=True,
                )
            late = False
            try:
                status = process.wait(timeout=left_s)
            except subprocess.TimeoutExpired:
                late, status = True, 1
            finally:
                _end(process)
            commands, ended = _read(trace)
        return _Run(commands, ended, ok=status == 0 and not late, late=late)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the shell and all that it started.

    By SIGTERM first: what a start file calls (pyenv's rehash, for one) gives back its lock in a
    trap, and with the lock left there every login would wait.
    """
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGTERM)
        until_s = time.monotonic() + _TO_END_S
        while time.monotonic() < until_s:
            process.poll()
            # OSError: none is left.
            os.killpg(process.pid, 0)
            time.sleep(0.02)
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _read(trace: Path) -> tuple[list[Command], bool]:
    """The commands of a trace, and whether it came to the end of the start files."""
    try:
        lines = trace.read_text(errors="replace").splitlines()
    except OSError:
        return [], False
    commands: list[Command] = []
    began_s, is_over = 0.0, False
    for line in lines[:_MOST_COMMANDS]:
        at_s, *parts = line.split("\t")
        is_over = parts == ["end"]
        try:
            now_s = float(at_s)
        except ValueError:
            now_s = 0.0
        if commands and began_s:
            commands[-1] = commands[-1]._replace(took_s=max(0.0, now_s - began_s))
        if len(parts) == 4 and parts[0].isdigit() and parts[2].isdigit():
            number, file, at, words = parts
            commands.append(Command(int(number), file, int(at), words[:_LONGEST]))
            began_s = now_s
    return commands, is_over


def _path() -> str:
    return os.defpath if os.getuid() else f"/usr/sbin:/sbin:{os.defpath}"


def _login() -> dict[str, str]:
    """What a login by ssh finds before a start file is read."""
    account = pwd.getpwuid(os.getuid())
    return {
        "HOME": account.pw_dir,
        "USER": account.pw_name,
        "LOGNAME": account.pw_name,
        "SHELL": account.pw_shell,
        "PATH": f"/usr/local/bin:/usr/bin:/bin:{_path()}",
        "SHLVL": "0",
        "SSH_CLIENT": os.environ.get("SSH_CLIENT", "127.0.0.1 1 22"),
        "SSH_CONNECTION": os.environ.get("SSH_CONNECTION", "127.0.0.1 1 127.0.0.1 22"),
    }


def told(python: str = sys.executable, proofs: tuple[str, ...] = tuple(PROOFS)) -> dict[str, Any]:
    """The first proof that a start file breaks, how, and the command as file, line and words, with
    took_s; all null: none does. The proof "soon" holds where no command takes long.
    """
    files = StartFiles(python)
    if proofs == ("soon",):
        slow = files.slowest()
        how = "soon" if slow else None
        return {"proof": how, "how": how, "command": slow and slow.to_json()}
    for proof in proofs:
        if (found := files.culprit(proof)) is not None:
            how, command = found
            return {"proof": proof, "how": how, "command": command.to_json()}
    return {"proof": None, "how": None, "command": None}


def main() -> None:
    """Say it as a line of JSON. argv: a word to begin that line with."""
    sys.stdout.write(f"{sys.argv[1]} {json.dumps(told())}\n")


if __name__ == "__main__":
    main()
