"""Whether folders on all hosts hold what they hold here: by name and content, file by file."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from yoked.agent.programs import run_program
from yoked.at_once import at_once
from yoked.doctor.fixing import Caller, Connect
from yoked.errors import HostError, UsageError, YokedError
from yoked.records.examination import Examination, HostSeen

# Ten gigabytes a minute is what a slow disk gives.
LIMIT_S = 900.0
_ANSWER_S = LIMIT_S + 10.0
_KEPT_BYTES = 100_000_000
# It runs on any Python 3, here and there: what is compared was found in one way. Nothing of a
# version control, of an interpreter or of an environment is data or a program.
_LIST = """
import hashlib, json, os, sys
folder = os.path.expanduser(sys.argv[1])
found = {}
for where, folders, files in os.walk(folder):
    folders[:] = sorted(set(folders) - {".git", "__pycache__", ".venv"})
    for name in files:
        path = os.path.join(where, name)
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            for piece in iter(lambda: file.read(1 << 20), b""):
                digest.update(piece)
        found[os.path.relpath(path, folder)] = digest.hexdigest()
print(json.dumps(found if os.path.isdir(folder) else None))
"""

Digests = Mapping[str, str]


def with_contents(
    examination: Examination, folders: Mapping[str, Path], connect: Connect
) -> Examination:
    """The examination with the contents of folders: here in `need`, there in each host's health.

    folders: by what they are, "data" or "code". On the hosts they have the same path, or the same
    below the home folder. connect: to a host by its name. Raises UsageError for a folder that is
    not here.
    """
    here = {kind: _here(kind, folder) for kind, folder in folders.items()}
    paths = {kind: _path_there(folder) for kind, folder in folders.items()}

    def look(host: HostSeen) -> HostSeen:
        if not host.up:
            return host
        try:
            told = _there(host, paths, connect)
        except YokedError as problem:
            # What could not be told is no trouble of the data's.
            told = {
                "untold": {**host.health.get("untold", {}), **dict.fromkeys(paths, problem.what)}
            }
        return dataclasses.replace(host, health={**host.health, **told})

    return dataclasses.replace(
        examination,
        hosts=tuple(at_once(look, examination.hosts)),
        need=dataclasses.replace(examination.need, data=here.get("data"), code=here.get("code")),
    )


def _here(kind: str, folder: Path) -> Digests:
    outcome = run_program(
        [sys.executable, "-c", _LIST, str(folder.absolute())],
        limit_s=LIMIT_S,
        keep_bytes=_KEPT_BYTES,
    )
    if not outcome.ok:
        said = outcome.stderr.decode(errors="replace").strip().splitlines() or ["it took too long"]
        raise UsageError(f"--{kind} {folder} cannot be read: {said[-1]}", fix=f"ls -l {folder}")
    found: Digests | None = json.loads(outcome.stdout)
    if not found:
        raise UsageError(
            f"--{kind} {folder}: there is no such folder here, or nothing in it",
            fix="name the folder as it is on this machine, with what all hosts should have",
        )
    return found


def _path_there(folder: Path) -> str:
    """The folder's path on a host, whose home may be another."""
    path = Path(os.path.normpath(folder.absolute()))
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)


def _there(host: HostSeen, paths: Mapping[str, str], connect: Connect) -> dict[str, Digests]:
    """What a host has. Raises HostError when it cannot tell."""
    with connect(host.name) as agent:
        return {
            kind: _listed(agent, [str(host.facts["executable"]), "-c", _LIST, path], host.name)
            for kind, path in paths.items()
        }


def _listed(agent: Caller, argv: Sequence[str], host: str) -> Digests:
    told = agent.call(
        "run", argv=list(argv), limit_s=LIMIT_S, keep_bytes=_KEPT_BYTES, timeout_s=_ANSWER_S
    )
    if told["exit_status"] != 0:
        said = told["stderr"].strip().splitlines() or [f"no end in {LIMIT_S:g} s"]
        raise HostError(f"{host}: {said[-1]}", fix=f"ssh {host}")
    found: Digests | None = json.loads(told["stdout"])
    # A folder that is not there has nothing of what is wanted.
    return found or {}
