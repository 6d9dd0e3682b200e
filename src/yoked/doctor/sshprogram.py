"""Whether the program that is called ssh here is to blame: the system's own is tried in its place.

A script in front of the system's ssh may add options (`-n`, `-tt`, `-f`), take another
configuration, or go through another program. Whatever it does, it is known by this: with the
system's own a command runs on the host, and with the one that PATH finds none does.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from yoked.doctor.bundle import without_secrets
from yoked.doctor.sshinside import run_here
from yoked.doctor.sshoptions import LIMIT_S, comes_in
from yoked.records.examination import SshFailure
from yoked.text import one_line, shortened

# Where systems and their package managers put it.
_USUAL = ("/usr/bin", "/bin", "/usr/local/bin", "/opt/homebrew/bin", "/run/current-system/sw/bin")
_IS_SSH = re.compile(r"OpenSSH")
# The line of a script that starts the other ssh, with what it was given or with words of its own.
_STARTS = re.compile(r"^\s*[^#\s].*\bssh\b", re.IGNORECASE)
_LONGEST_BYTES = 65_536


def of_program(told: SshFailure, host: str, config: Path | None) -> SshFailure:
    """The same failure, or the program in the place of ssh without which a command runs there."""
    called = shutil.which("ssh")
    system = None if called is None else _system_ssh(Path(called))
    if called is None or system is None:
        return told
    if not comes_in(host, config, LIMIT_S, system) or comes_in(host, config, LIMIT_S):
        return told
    line = _line_of(Path(called))
    runs = f", line {line[0]}, runs `{line[1]}`" if line else ""
    text = (
        f"ssh here is {called}{runs}, and no program on the host gets what is sent to it; with "
        f"{system} in its place one does"
    )
    return replace(told, kind="other", cause="program", text=text, about=called)


def _system_ssh(called: Path) -> str | None:
    """The system's own ssh, where that is another program than the one that PATH finds."""
    for path in _others(called):
        done = run_here(str(path), "-V")
        if done is not None and _IS_SSH.search(done.stderr):
            return str(path)
    return None


def _others(called: Path) -> Iterator[Path]:
    """Binaries called ssh that are no script and not the one that PATH finds."""
    named = [*_USUAL, *os.environ.get("PATH", "").split(os.pathsep)]
    is_usual = str(called.parent) in _USUAL and not _is_script(called)
    for folder in dict.fromkeys(named if not is_usual else ()):
        path = Path(folder, "ssh")
        if not folder or not os.access(path, os.X_OK) or _is_script(path):
            continue
        if not path.samefile(called):
            yield path


def _is_script(path: Path) -> bool:
    return _begin(path).startswith(b"#!")


def _begin(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_BYTES)
    except OSError:
        return b""


def _line_of(path: Path) -> tuple[int, str] | None:
    """(number, words) of the line of a script that starts another ssh; None: it is not clear."""
    if not _is_script(path):
        return None
    lines = enumerate(_begin(path).decode(errors="replace").splitlines(), start=1)
    found = [(number, line) for number, line in lines if number > 1 and _STARTS.match(line)]
    if not found:
        return None
    number, line = found[-1]
    return number, shortened(one_line(without_secrets(line.strip())))
