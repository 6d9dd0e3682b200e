"""Where variables are set that a program finds which comes in by ssh: files of shells, PAM, sshd.

Source: bash(1), zsh(1), pam_env(8), sshd(8) and sshd_config(5), environment.d(5). A file that
another one reads (`. FILE`) counts too.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.agent.environ import probe_environment
from yoked.core.proc import ProcessId

# In the order in which they are read, as far as there is one.
_FILES = (
    "/etc/environment", "/etc/security/pam_env.conf", "~/.pam_environment", "/etc/environment.d/*",
    "~/.config/environment.d/*", "/etc/systemd/system.conf", "/etc/systemd/user.conf",
    "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/*", "/etc/default/ssh", "~/.ssh/environment",
    "~/.ssh/rc", "/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc", "/etc/bashrc",
    "/etc/zsh/zshenv", "/etc/zshenv", "~/.profile", "~/.bash_profile", "~/.bash_login", "~/.bashrc",
    "~/.bash_aliases", "~/.zshenv", "~/.zprofile", "~/.zshrc", "~/.config/fish/config.fish",
    "~/.config/fish/conf.d/*", "~/.cshrc", "~/.tcshrc",
)  # fmt: skip
# Those that every login has, and that keep no run from working.
_USUAL = re.compile(r"HOME|LANG|LC_\w+|YOKED_\w+")
_READS = re.compile(r"(?:^|[;&]|\bthen)\s*(?:\.|source)\s+[\"']?([^\"'\s;&]+)", re.MULTILINE)
_MOST_FILES, _MOST_BYTES, _MOST_PLACES = 80, 200_000, 4


def probe_set_by() -> dict[str, list[dict[str, Any]]]:
    """By variable that matters here, the lines of start files that set it: [{file, line}].

    Nothing for one that something else sets: a container, a unit, the program that starts sshd.
    """
    return places_of(name for name in probe_environment() if not _USUAL.fullmatch(name))


def places_of(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """`probe_set_by` of some variables."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    if not found:
        return found
    # In an assignment, and as fish, csh, and pam_env have it.
    either = "|".join(map(re.escape, found))
    sets = re.compile(
        rf"(?:^|[\s;&\"'])(?:({either})=|set\s+(?:-\w+\s+)+({either})\s|setenv\s+({either})\s"
        rf"|({either})\s+(?:DEFAULT|OVERRIDE)=)"
    )
    for path, content in _contents():
        for number, line in enumerate(content.splitlines(), start=1):
            if line.lstrip().startswith("#"):
                continue
            for match in sets.finditer(line):
                places = found[next(filter(None, match.groups()))]
                place = {"file": str(path), "line": number}
                if place not in places and len(places) < _MOST_PLACES:
                    places.append(place)
    return found


def _contents() -> Iterator[tuple[Path, str]]:
    """Start files that are here, and those that they read, each with what it says."""
    waiting = list(_start_files())
    seen: set[Path] = set()
    for path in waiting:
        if path in seen or len(seen) >= _MOST_FILES or not path.is_file():
            continue
        seen.add(path)
        content = text(path)
        if len(content) > _MOST_BYTES:
            continue
        yield path, content
        for named in _READS.findall(content):
            place = os.path.expandvars(named)
            # What only a shell could work out is passed over.
            if "$" not in place and place.startswith(("/", "~/")):
                waiting.append(Path(place).expanduser())


def _start_files() -> Iterator[Path]:
    for name in (*_FILES, *_sshd_files()):
        path = Path(name).expanduser()
        yield from sorted(path.parent.glob(path.name)) if "*" in name else [path]
    for conda in (os.environ.get("CONDA_PREFIX"), os.environ.get("CONDA_PREFIX_1")):
        if conda:
            yield from sorted(Path(conda, "etc/conda/activate.d").glob("*"))


def _sshd_files() -> Iterator[str]:
    """The settings of the sshd that this agent came in by, where it was told of other ones."""
    pid: int | None = os.getpid()
    for _ in range(10):
        try:
            pid = ProcessId.of(pid).parent if pid and pid > 1 else None
            if pid is None:
                return
            words = ProcessId.of(pid).command().split()
        except ProcessLookupError:
            return
        if words and "sshd" in words[0] and "-f" in words[:-1]:
            file = words[words.index("-f") + 1]
            # From where it was started nobody knows.
            if file.startswith("/"):
                yield file
