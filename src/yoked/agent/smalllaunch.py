"""The steps of a launch, tried in small: a second login, a supervisor that is left alone, and the
files that are here already.
"""

from __future__ import annotations

import os
import re
import secrets
import shlex
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

from yoked.agent.ask import text
from yoked.agent.culprits import guilty_variables
from yoked.agent.detach import detached_argv, scope_helps
from yoked.agent.files import blobs_root
from yoked.agent.programs import Outcome, run_program
from yoked.agent.server import Call
from yoked.agent.startfiles import places_of
from yoked.agent.starttrace import StartFiles
from yoked.agent.watch import BEAT
from yoked.core.fs import sha256_of
from yoked.core.parallel import gather_within
from yoked.core.proc import ProcessId, all_processes, has_open
from yoked.errors import HostError
from yoked.paths import cache_root

# Where nothing is wrong, all is over in a tenth of a second. Some inits look every two seconds for
# what has ended.
_LIMIT_S, _START_S, _READ_S, _REAPED_S, _POLL_S = 6.0, 4.0, 0.5, 4.0, 0.02
# No step of a build takes this long.
_BUILDS_S = 1800.0
_LARGE_BYTES = 1 << 20
_LONGEST = 120
# It leaves another one behind, as a launch does, and tells its number. That one is killed then.
_LEAVE = ("/bin/sh", "-c", "sleep 30 & echo $!")
# Holds where a login leaves its standard streams such that programs wait at them.
_BLOCK = (
    "exec PYTHON -E -s -S -c 'import os, sys; sys.exit(not all(map(os.get_blocking, (0, 1, 2))))'"
)
# Holds where a login has the numbers of processes that this agent has.
_SAME_TREE = '[ "$(readlink /proc/self/ns/pid)" = {} ]'
_NUMBERS = re.compile(r"^NSpid:((?:\t\d+)+)$", re.MULTILINE)
_PARENT = re.compile(r"^PPid:\t(\d+)$", re.MULTILINE)
_ZOMBIE_OF = re.compile(r"^State:\tZ.*^PPid:\t(\d+)", re.DOTALL | re.MULTILINE)


def answer_small_launch(call: Call) -> dict[str, Any]:
    """The faults that the steps of a launch have by name; an empty dict: they have none.

    login {how, command}: a second login "waits" at a command of a start file, or one "blocks", by
    leaving standard streams such that nobody waits for them. failed: the last words of what should
    start a supervisor. noise {line, variables}: what it says by itself, and not without these.
    adopter {pid, command}: who does not wait for a program that has lost its parent. damaged: files
    of programs that are not what was sent. enclosed {command, start_file}: a login's own process 1,
    with which the kernel ends all that the login started, and what starts it, where a start file
    does. batons: locks of torch's builds of extensions that nobody holds. stood {times, lost_s}: of
    this agent, since the first look at this host.
    """
    del call
    acts = {"login": _login, "supervisor": _supervisor, "damaged": _damaged, "enclosed": _enclosed,
            "batons": _batons}  # fmt: skip
    told, _ = gather_within(_LIMIT_S, acts)
    supervisor = told.pop("supervisor", None) or {}
    found = {**told, **supervisor}
    if found.get("enclosed"):
        # /proc may have other numbers than the programs of this login.
        found.pop("adopter", None)
    found["stood"] = BEAT.stood()
    return {name: each for name, each in found.items() if each}


def _login() -> dict[str, Any] | None:
    found = StartFiles().culprit("blocks", _BLOCK)
    # That it ends there is no matter: this agent came up.
    if found is None or found[0] not in ("waits", "blocks"):
        return None
    return {"how": found[0], "command": found[1].to_json()}


def _supervisor() -> dict[str, Any]:
    try:
        outcome = _start()
    except HostError as problem:
        return {"failed": problem.what}
    words = outcome.stderr.decode(errors="replace").strip()
    line = " ".join(words.rpartition("\n")[2].split())[:_LONGEST]
    if not outcome.ok:
        # Late on a busy host proves nothing.
        return {} if outcome.late else {"failed": line or f"status {outcome.exit_status}"}
    told: dict[str, Any] = {"adopter": _adopter(int(outcome.stdout))}
    # A library that cannot be loaded first is told as such: see yoked.agent.environ.
    names = [] if not words else guilty_variables(lambda without: not _start(without).stderr, words)
    if names and names != ["LD_PRELOAD"]:
        places = places_of(names)
        variables = [{"name": name, "places": places[name]} for name in names]
        told["noise"] = {"line": line, "variables": variables}
    return told


def _start(without: Collection[str] = ()) -> Outcome:
    argv = detached_argv(_LEAVE, f"yoked-look-{secrets.token_hex(6)}", scope=scope_helps())
    return run_program(argv, env=dict.fromkeys(without), cwd="/", limit_s=_START_S)


def _adopter(orphan: int) -> dict[str, Any] | None:
    """The parent that does not wait for a program that has ended; None: it was waited for."""
    until_s = time.monotonic() + _REAPED_S
    # It was killed a moment ago, and may not have ended yet.
    while (status := text(Path(f"/proc/{orphan}/status"))) and time.monotonic() < until_s:
        time.sleep(_POLL_S)
    found = _ZOMBIE_OF.search(status)
    if found is None:
        return None
    return {"pid": int(found[1]), "command": ProcessId(int(found[1]), 0).command()[:_LONGEST]}


def _enclosed(proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """The first process of a PID namespace that this very login has made; None: it has made none.

    Source: pid_namespaces(7).
    """
    login = os.environ.get("SSH_CONNECTION")
    first = _first_process(proc)
    # One that was there before outlives the login. Whose variables nobody may read proves nothing.
    if first is None or login is None or first.environment().get("SSH_CONNECTION") != login:
        return None
    same = _SAME_TREE.format(shlex.quote(str((proc / "self/ns/pid").readlink())))
    found = StartFiles().culprit("enclosed", same)
    start_file = found[1].to_json() if found and found[0] == "enclosed" else None
    return {"command": first.command()[:_LONGEST], "start_file": start_file}


def _first_process(proc: Path) -> ProcessId | None:
    """That of our PID namespace, among those that have led to us; /proc may be one further out."""
    status = text(proc / "self/status")
    depth = None
    while numbers := _NUMBERS.search(status):
        own = numbers[1].split()
        depth = depth or len(own)
        if len(own) == depth and own[-1] == "1":
            return ProcessId(int(own[0]), 0)
        parent = _PARENT.search(status)
        status = text(proc / (parent[1] if parent else "0") / "status")
    return None


def _batons() -> list[str]:
    """The files `lock` that killed builds left: whoever loads that extension waits for its end.

    Source: torch/utils/file_baton.py; _get_build_directory of torch/utils/cpp_extension.py.
    """
    caches = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    root = Path(os.environ.get("TORCH_EXTENSIONS_DIR") or Path(caches, "torch_extensions"))
    found = sorted({*root.glob("*/lock"), *root.glob("*/*/lock")})
    # Whoever builds has it open. On a home that hosts share, that may be elsewhere.
    return [
        str(path)
        for path in found
        if time.time() - _newest_s(path.parent) > _BUILDS_S
        and not any(has_open(each.pid, os.path.realpath(path)) for each in all_processes())
    ]


def _newest_s(folder: Path) -> float:
    try:
        return max(each.lstat().st_mtime for each in folder.iterdir())
    except (OSError, ValueError):
        return time.time()


def _damaged() -> list[str]:
    """The newest blobs are read first, and no large ones, as far as there is time. Each bears the
    hash of its content as its name; it is told by where a program has it.
    """
    until_s = time.monotonic() + _READ_S
    # What is still on its way has a name that begins with a dot.
    blobs = [(each.stat(), each) for each in blobs_root().glob("??/[0-9a-f]*")]
    inodes = set()
    for stat, path in sorted(blobs, key=lambda each: -each[0].st_mtime):
        if time.monotonic() > until_s:
            break
        if stat.st_size <= _LARGE_BYTES and sha256_of(path) != path.name:
            inodes.add(stat.st_ino)
    if not inodes:
        return []
    trees = (cache_root() / "trees").rglob("*")
    found = [str(each) for each in trees if each.lstat().st_ino in inodes]
    return sorted(found or [str(path) for stat, path in blobs if stat.st_ino in inodes])
