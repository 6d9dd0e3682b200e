"""Ask the host: its files and its programs; what does not answer says nothing."""

from __future__ import annotations

import itertools
import os
import pwd
import subprocess
import sys
import threading
from pathlib import Path

_QUICK_S = 5.0
_LINGER = Path("/var/lib/systemd/linger")


def run_to_end(argv: list[str], limit_s: float = _QUICK_S) -> subprocess.CompletedProcess[str]:
    """A program that has ended, and its words. Raises OSError, and TimeoutExpired of subprocess."""
    return subprocess.run(
        argv,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        # A model's name in another encoding is no reason to know nothing of the host.
        errors="replace",
        timeout=limit_s,
        check=False,
    )


def run_quiet(argv: list[str]) -> str:
    """The words of a program; "" where there is none, it fails, or takes too long."""
    try:
        done = run_to_end(argv)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def first_lines(argv: list[str], most: int, limit_s: float = 1.5) -> tuple[list[str], bool]:
    """The first lines that a program prints, and whether these are all, and it ended well. One that
    prints more, or takes too long, is ended.
    """
    try:
        program = subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            text=True, errors="replace",
        )  # fmt: skip
    except OSError:
        return [], False
    late = threading.Timer(limit_s, program.kill)
    late.start()
    assert program.stdout is not None
    try:
        with program.stdout:
            found = [line.rstrip("\n") for line in itertools.islice(program.stdout, most + 1)]
        if len(found) > most:
            program.kill()
        return found[:most], program.wait() == 0 and len(found) <= most
    finally:
        late.cancel()


def sysctl(name: str) -> str:
    """A value of macOS's sysctl(8); "" where there is none."""
    return run_quiet(["sysctl", "-n", name]) if sys.platform == "darwin" else ""


def text(path: Path) -> str:
    """What a file says; "" where it cannot be read."""
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""


def named_values(said: str, separator: str = ":") -> dict[str, str]:
    """{name: value} of the lines `name: value`; what is no such line is passed over."""
    rows = (line.partition(separator) for line in said.splitlines())
    return {name.strip(): value.strip() for name, found, value in rows if found}


def number(path: Path) -> int | None:
    """The number in a file, which may be below 0; None where there is none."""
    try:
        return int(text(path))
    except ValueError:
        return None


def process_names() -> set[str]:
    """What runs on this host, by the kernel's names of it; nothing where there is no /proc."""
    return {text(path) for path in Path("/proc").glob("[0-9]*/comm")}


def lingers() -> bool:
    """Whether our user's systemd, and what runs in it, stays when the last session ends."""
    return (_LINGER / user_name(os.getuid())).exists()


def user_name(uid: int) -> str:
    """The name of a user; one without an entry is its number."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)
