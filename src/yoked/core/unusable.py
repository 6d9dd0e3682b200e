"""What keeps a file, or an interpreter that is there, from being used.

Sent to hosts as text: the standard library from Python 3.9 on. Source: path_resolution(7), and
PEP 405 (pyvenv.cfg).
"""

from __future__ import annotations

import json
import os
import pwd
import re
import stat
import sys
from pathlib import Path
from typing import Any

# The kernel follows 40 links.
_MOST_STEPS = 400


def barred(path: str, wanted: int = os.R_OK) -> dict[str, Any] | None:
    """The place on the way to a file at which this user is turned away: place, owner, mode, user,
    and lacks (r or x, what it needs there). None: at none.

    wanted: as of os.access. Links are followed one by one, as the kernel does.
    """
    left, at = list(Path(path).parts[::-1]), Path("/")
    for _ in range(_MOST_STEPS):
        if not left:
            return None if os.access(at, wanted) else _place(at, "x" if wanted == os.X_OK else "r")
        if not os.access(at, os.X_OK):
            return _place(at, "x")
        name = left.pop()
        # No part of it is a link.
        at = at.parent if name == ".." else at / name
        if at.is_symlink():
            left += at.readlink().parts[::-1]
            at = at.parent
    return None


def _place(at: Path, lacks: str) -> dict[str, Any] | None:
    try:
        status = at.stat()
    except OSError:
        return None
    return {
        "place": str(at),
        "owner": _name(status.st_uid),
        "mode": f"{stat.S_IMODE(status.st_mode):04o}",
        "user": _name(os.geteuid()),
        "lacks": lacks,
    }


def _name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def other_home(python: str) -> dict[str, str] | None:
    """Of an environment whose pyvenv.cfg names another Python's folder than its link leads to:
    file, home (what it names), own (where its Python lies). None: it is in order, or there is none.
    """
    settings, real = Path(python).parent.parent / "pyvenv.cfg", Path(os.path.realpath(python))
    try:
        found = re.search(r"(?im)^home *= *(.+?) *$", settings.read_text(errors="replace"))
    except OSError:
        return None
    # A copy of an interpreter leads nowhere.
    if found is None or real.parent == Path(os.path.realpath(Path(python).parent)):
        return None
    if any(os.path.realpath(Path(found[1], each)) == str(real) for each in (real.name, "python3")):
        return None
    return {"file": str(settings), "home": found[1], "own": str(real.parent)}


def main() -> None:
    """Say both of an interpreter as a line of JSON. argv: a word to begin that line, its path."""
    token, python = sys.argv[1:3]
    path = os.path.expanduser(python)  # noqa: PTH111 - Path raises where there is no home
    told = {"barred": barred(path, os.X_OK), "home": other_home(path)}
    sys.stdout.write(f"{token} {json.dumps(told)}\n")


if __name__ == "__main__":
    main()
