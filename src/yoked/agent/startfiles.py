"""Where variables and limits are set that a program finds which comes in by ssh: files of shells,
PAM, sshd; and what else a start file of the shell does.

Source: bash(1), zsh(1), pam_env(8), sshd(8) and sshd_config(5), environment.d(5). A file that
another one reads (`. FILE`) counts too.
"""

from __future__ import annotations

import os
import re
import resource
import signal
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.agent.environ import probe_environment
from yoked.agent.limits import allowed_to, umask
from yoked.agent.processors import affinity
from yoked.agent.server import Call
from yoked.agent.starttrace import PROOFS, StartFiles, told
from yoked.core.proc import ProcessId

# In the order in which they are read, as far as there is one.
_FILES = (
    "/etc/environment", "/etc/security/pam_env.conf", "~/.pam_environment", "/etc/environment.d/*",
    "~/.config/environment.d/*", "/etc/systemd/system.conf", "/etc/systemd/user.conf",
    "/etc/ssh/sshd_config", "/etc/ssh/sshd_config.d/*", "/etc/default/ssh", "~/.ssh/environment",
    "~/.ssh/rc", "/etc/profile", "/etc/profile.d/*", "/etc/bash.bashrc", "/etc/bashrc",
    "/etc/zsh/zshenv", "/etc/zshenv", "~/.profile", "~/.bash_profile", "~/.bash_login", "~/.bashrc",
    "~/.bash_aliases", "~/.zshenv", "~/.zprofile", "~/.zshrc", "~/.config/fish/config.fish",
    "~/.config/fish/conf.d/*", "~/.config/fish/fish_variables", "~/.cshrc", "~/.tcshrc",
)  # fmt: skip
# Those that every login has, and that keep no run from working.
_USUAL = re.compile(r"(HOME|YOKED_\w+)=.*|(LANG|LC_\w+)=(.*utf-?8.*|C|POSIX)?", re.IGNORECASE)
_READS = re.compile(r"(?:^|[;&]|\bthen)\s*(?:\.|source)\s+[\"']?([^\"'\s;&]+)", re.MULTILINE)
# By the letter of `ulimit`: the limit of getrlimit(2), its name in limits.conf(5), and that one's
# unit; a limit of fewer is one of somebody's choice.
_LIMITS = {
    "n": (resource.RLIMIT_NOFILE, "nofile", 1, 1024),
    "u": (getattr(resource, "RLIMIT_NPROC", None), "nproc", 1, 4096),
    "s": (resource.RLIMIT_STACK, "stack", 1024, 8 << 20),
    "v": (resource.RLIMIT_AS, "as", 1024, 1 << 62),
    "d": (resource.RLIMIT_DATA, "data", 1024, 1 << 62),
    "f": (resource.RLIMIT_FSIZE, "fsize", 1024, 1 << 62),
    # Less than any system has that is left as it was.
    "l": (getattr(resource, "RLIMIT_MEMLOCK", None), "memlock", 1024, 16_384),
    "t": (resource.RLIMIT_CPU, "cpu", 60, 1 << 62),
}
_ULIMIT = re.compile(r"(?:builtin |command )?ulimit (.*)")
# What else programs inherit: by name, the commands that change it.
_CALLS = {
    "priority": re.compile(r"(?:renice|chrt|ionice|nice) .*"),
    "cpus": re.compile(r"taskset .*"),
    "umask": re.compile(r"umask .*"),
}
# What is ignored stays so in all that is started. Source: _SIGNALS of yoked.probe.interpreter.
_SIGNALS = ("SIGTERM", "SIGCHLD", "SIGALRM", "SIGUSR1", "SIGUSR2")
_IGNORES = re.compile(r"trap (?:-- )?(?:''|\"\") (.*)")
_PAM_LIMITS = ("/etc/security/limits.conf", "/etc/security/limits.d/*.conf")
_LOW_POLICIES = (getattr(os, "SCHED_IDLE", -1), getattr(os, "SCHED_BATCH", -1))
_TRACE_S = 2.0
_MOST_FILES, _MOST_BYTES, _MOST_PLACES = 80, 200_000, 4


def probe_set_by() -> dict[str, list[dict[str, Any]]]:
    """By variable that matters here, the lines of start files that set it: [{file, line}].

    Nothing for one that something else sets: a container, a unit, the program that starts sshd.
    """
    told = probe_environment()
    return places_of(name for name in told if not _USUAL.fullmatch(f"{name}={told[name]}"))


def places_of(names: Iterable[str]) -> dict[str, list[dict[str, Any]]]:
    """`probe_set_by` of some variables; traced: of a line that was found by running it, whose words
    need not have the name.
    """
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    if not found:
        return found
    # In an assignment, and as fish, what fish keeps by itself, csh, and pam_env have it.
    either = "|".join(map(re.escape, found))
    sets = re.compile(
        rf"(?:^|[\s;&\"'])(?:({either})=|set\s+(?:-\w+\s+)+({either})\s|setenv\s+({either})\s"
        rf"|({either})\s+(?:DEFAULT|OVERRIDE)=|SETUVAR\s+(?:--\w+\s+)*({either}):)"
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
    unfound = {name: value for name, places in found.items()
               if not places and (value := os.environ.get(name))}  # fmt: skip
    for name, command in StartFiles(limit_s=_TRACE_S).setters(unfound).items():
        found[name].append({"file": command.file, "line": command.line, "traced": True})
    return found


def probe_set_limits() -> dict[str, list[dict[str, Any]]]:
    """By letter of `ulimit`, for the limits that are low: the lines that set them, [{file, line}];
    and by "priority", "cpus" or "umask", where that is no usual one, or a signal that is ignored.

    Those of start files, which are run again; else those of PAM's limits.conf with just that value.
    """
    low = {letter: soft for letter, soft in _soft_limits().items() if soft < _LIMITS[letter][3]}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in (*low, *_unusual())}
    if not found:
        return {}
    for each in StartFiles(limit_s=_TRACE_S).commands():
        names = {name for name, words in _CALLS.items() if words.fullmatch(each.words)}
        if called := _ULIMIT.fullmatch(each.words):
            names = set("".join(re.findall(r"-(\w+)", called[1])))
        if called := _IGNORES.fullmatch(each.words):
            names = {f"SIG{name.removeprefix('SIG')}" for name in called[1].split()}
        for name in names & found.keys():
            found[name].append({"file": each.file, "line": each.line})
    for letter, soft in low.items():
        _, item, unit, _ = _LIMITS[letter]
        if not found[letter]:
            found[letter] = list(_pam_lines(item, soft // unit))
    return {letter: places[:_MOST_PLACES] for letter, places in found.items()}


def _soft_limits() -> dict[str, int]:
    """Those of this process, by letter, that are not without bounds."""
    told = {
        letter: resource.getrlimit(kind)[0]
        for letter, (kind, *_) in _LIMITS.items()
        if kind is not None
    }
    return {letter: soft for letter, soft in told.items() if soft != resource.RLIM_INFINITY}


def _unusual() -> Iterator[str]:
    """What of _CALLS and _SIGNALS this process has otherwise than a login has by itself."""
    policy = getattr(os, "sched_getscheduler", lambda _: 0)(0)
    if os.getpriority(os.PRIO_PROCESS, 0) > 0 or policy in _LOW_POLICIES:
        yield "priority"
    of_init = allowed_to(1)
    if of_init is not None and len(affinity()) < of_init:
        yield "cpus"
    if (umask() or 0) & 0o700:
        yield "umask"
    for name in _SIGNALS:
        if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
            yield name


def _pam_lines(item: str, value: int) -> Iterator[dict[str, Any]]:
    """The lines of limits.conf that give an item a value."""
    sets = re.compile(rf"\s*[^#\s]\S*\s+\S+\s+{item}\s+{value}\s*(?:#.*)?")
    for path in matching(_PAM_LIMITS):
        for number, line in enumerate(text(path).splitlines(), start=1):
            if sets.fullmatch(line):
                yield {"file": str(path), "line": number}


def answer_start_files(call: Call) -> dict[str, Any]:
    """Which command of a start file keeps something from working that must.

    args: proofs, of yoked.agent.starttrace.PROOFS, or "soon". Gives what `told` there gives.
    """
    known = (*PROOFS, "soon")
    return told(proofs=tuple(each for each in call.args["proofs"] if each in known))


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
    yield from matching((*_FILES, *sshd_files()))
    for conda in (os.environ.get("CONDA_PREFIX"), os.environ.get("CONDA_PREFIX_1")):
        if conda:
            yield from sorted(Path(conda, "etc/conda/activate.d").glob("*"))


def matching(names: Iterable[str]) -> Iterator[Path]:
    """Files of these names, which may end with a pattern."""
    for name in names:
        path = Path(name).expanduser()
        yield from sorted(path.parent.glob(path.name)) if "*" in name else [path]


def sshd_files() -> Iterator[str]:
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
