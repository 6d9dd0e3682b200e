"""What a shell may hand to a command: few files, and libraries that cannot be loaded."""

from __future__ import annotations

import os
import re
import resource
import shlex
import sys

from yoked.errors import YokedError

# For an agent on each of dozens of hosts, with three pipes, and what openssl and ssh take.
_FILES = 1024
# Of what the loader of libraries says: /opt/sim/lib/libssl.so.3: file too short.
_LIBRARY = re.compile(r"[^\s:]+\.(?:so|dylib)\b[^\s:]*(?=: )")
_WHAT = "a library of this machine's Python cannot be loaded"
_PATHS = ("LD_LIBRARY_PATH", "LD_PRELOAD", "DYLD_LIBRARY_PATH")


def allow_files() -> None:
    """Let this process open the files that it needs, where the shell's limit may be raised."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _FILES if hard == resource.RLIM_INFINITY else min(_FILES, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def unloadable(problem: BaseException) -> YokedError | None:
    """The failure of a library, or of a part of Python itself, that cannot be loaded here.

    None: the problem is another, or a bug.
    """
    for cause in _causes(problem):
        said = str(cause)
        library = _LIBRARY.search(said)
        if isinstance(cause, (ImportError, OSError)) and library:
            because, remedy = _source(library[0])
            return YokedError(f"{_WHAT}: {said}{because}", fix=remedy)
        missing = (cause.name or "") if isinstance(cause, ModuleNotFoundError) else ""
        if missing.partition(".")[0] in sys.stdlib_module_names:
            remedy = f"install another Python, or this one anew: {sys.executable} lacks {missing}"
            return YokedError(f"{_WHAT}: {said}", fix=remedy)
    return None


def _causes(problem: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    following: BaseException | None = problem
    while following is not None and following not in found:
        found.append(following)
        following = following.__cause__ or following.__context__
    return found


def _source(library: str) -> tuple[str, str]:
    """(which variable leads to a library, what to do about it)."""
    for name in _PATHS:
        value = os.environ.get(name, "")
        folders = [each for each in re.split("[: ]", value) if each]
        if any(library == each or library.startswith(f"{each.rstrip('/')}/") for each in folders):
            return (
                f"; {name} of this shell leads there",
                f"unset {name}    in this shell, then the same command again",
            )
    if name := next((each for each in _PATHS if os.environ.get(each)), ""):
        again = shlex.join(["yoked", *sys.argv[1:]])
        return (
            f"; {name} of this shell may be why",
            f"env -u {name} {again}    tells whether it is",
        )
    return "", "install the package of the system that has it, or another Python"
