"""Whether folders on all hosts hold what they hold here: by name and content, file by file."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yoked.agent.files import DIGEST
from yoked.agent.folders import contents
from yoked.core.parallel import at_once
from yoked.doctor.checks.content import A_FOLDER, CHANGING
from yoked.doctor.damage import damage_below
from yoked.doctor.fixing import Connect
from yoked.errors import UsageError, YokedError
from yoked.records.examination import Examination, HostSeen
from yoked.remote.client import AgentClient, RemoteBug

# Ten gigabytes a minute is what a slow disk gives.
LIMIT_S = 900.0
# What writes a file anew does so within this, or there is no saying so.
_BETWEEN_S = 1.5
# A server that gives no locks may leave one waiting.
_USE_S = 5.0


def with_contents(
    examination: Examination, folders: Mapping[str, Path], connect: Connect
) -> Examination:
    """The examination with the contents of folders: here in `need`, there in each host's health; in
    the order of the files' times, where the program here takes them so.

    folders: by what they are, "data" or "code". On the hosts they have the same path, or the same
    below the home folder. connect: to a host by its name. Raises UsageError for a folder that is
    not here.
    """
    by_time = bool(examination.controller.get("file_times"))
    here = {kind: _here(kind, folder, by_time=by_time) for kind, folder in folders.items()}
    paths = {kind: _path_there(folder) for kind, folder in folders.items()}

    def look(host: HostSeen) -> HostSeen:
        if not host.up:
            return host
        try:
            with connect(host.name) as agent:
                # Of a folder that is not there, nothing.
                told = {
                    kind: agent.call(
                        "folder_contents", folder=path, by_time=by_time, timeout_s=LIMIT_S
                    )
                    or {}
                    for kind, path in paths.items()
                }
                for kind, path in paths.items():
                    told[kind] |= _changing(agent, path, here[kind], told[kind])
                use = _use(agent, paths["data"], told["data"]) if "data" in paths else {}
        except (YokedError, RemoteBug) as problem:
            # It was asked for: the checks say that it could not be told.
            why = dict.fromkeys(paths, problem.what.splitlines()[0])
            told = {"untold": {**host.health.get("untold", {}), **why}}
            use = {}
        return dataclasses.replace(host, health={**host.health, **told, **use})

    return dataclasses.replace(
        examination,
        hosts=tuple(at_once(look, examination.hosts)),
        need=dataclasses.replace(
            examination.need,
            data=here.get("data"),
            code=here.get("code"),
            damaged=damage_below(folders["data"], here["data"]) if "data" in here else {},
            folders=paths,
        ),
    )


def _use(agent: AgentClient, folder: str, there: Mapping[str, str]) -> dict[str, Any]:
    """data_lock, data_map: why a host cannot lock, or map, files of the data, where it cannot;
    data_mount: where they lie, where something there cannot be used.
    """
    try:
        found = agent.call("folder_use", folder=folder, timeout_s=_USE_S)
    except (YokedError, RemoteBug):
        return {}
    told = {f"data_{how}": why for how in ("lock", "map") if (why := found.get(how))}
    is_unread = any(content.startswith("unreadable") for content in there.values())
    if found.get("mount") and (told or is_unread):
        told["data_mount"] = found["mount"]
    return told


def _changing(
    agent: AgentClient, folder: str, wanted: Mapping[str, str], there: Mapping[str, str]
) -> dict[str, str]:
    """Of files with other content than they should have, those that change while one looks.

    Only there a second look, and the time before it, is worth its while.
    """
    other = [name for name, content in there.items()
             if is_hash(content) and wanted.get(name, content) != content]  # fmt: skip
    if not other:
        return {}
    time.sleep(_BETWEEN_S)
    again = agent.call("folder_contents", folder=folder, names=other, timeout_s=LIMIT_S) or {}
    return {name: CHANGING for name in other if again.get(name) != there[name]}


def _here(kind: str, folder: Path, *, by_time: bool) -> Mapping[str, str]:
    try:
        found = contents(folder.absolute(), by_time=by_time)
    except OSError as problem:
        raise UsageError(
            f"--{kind} {folder} cannot be read: {problem.filename}: {problem.strerror}",
            fix=f"ls -l {folder}",
        ) from problem
    if kind == "data":
        for name, content in found.items() if found else ():
            if not is_hash(content) and content != A_FOLDER:
                raise UsageError(
                    f"--{kind} {folder}: {name} is no file that can be read: {content}",
                    fix=f"ls -l {folder / name}",
                )
    # Beside a program may lie what no host gets: a socket of an editor.
    found = {
        name: each for name, each in (found or {}).items() if is_hash(each) or each == A_FOLDER
    }
    if not any(map(is_hash, found.values())):
        raise UsageError(
            f"--{kind} {folder}: there is no such folder here, or nothing in it",
            fix="name the folder as it is on this machine, with what all hosts should have",
        )
    return found


def is_hash(content: object) -> bool:
    """Whether this is of a file's content, and not why there is none."""
    return DIGEST.fullmatch(str(content)) is not None


def _path_there(folder: Path) -> str:
    """The folder's path on a host, whose home may be another."""
    path = Path(os.path.normpath(folder.absolute()))
    home = Path.home()
    return f"~/{path.relative_to(home)}" if path.is_relative_to(home) else str(path)
