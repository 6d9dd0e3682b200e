"""A run's folder, from the host that has it to the controller: only what is new of it.

Files of a run grow at their ends (journals, logs) or are replaced whole (run.json), so a file
that is longer there is read on from where ours ends, and one of another kind is read anew. Those
of a checkpoint can be replaced by others of the same size: they are told apart by the SHA-256 in
its manifest. Only names that a run has come, and no file longer than it was listed; see listing.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shlex
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from yoked.core.faults import fault
from yoked.core.fs import free_bytes, sha256_of
from yoked.errors import CheckpointError, HostError, UsageError
from yoked.journal import cut_torn_line
from yoked.launch.listing import (
    MOST_JSON_BYTES,
    TAKEN,
    TOKENIZER_FILE,
    is_taken,
    list_run,
    tell_refused,
)
from yoked.paths import private_folder
from yoked.records.manifest import Manifest, best_of
from yoked.remote.client import AgentClient
from yoked.runs import require_ours
from yoked.units import format_bytes

_GROWING = {".jsonl", ".log"}
CHECKPOINTS = "checkpoints"
EVENTS = "events.jsonl"
_MANIFEST = re.compile(r"manifest_(\d+)\.json")
_MODEL = re.compile(r"model_(\d+)\.pt")
_OF_A_STEP = re.compile(r"(?:model|optim|meta|manifest)_(\d+)(?:_rank\d+)?\.(?:pt|json)")
_ONCE_MORE = "yoked fetch    takes the newest that is there then"
# Logs of as many ranks, and more, are no run's.
_MOST_FILES = 10_000
# Of a folder: by name, bytes and time of change in ns.
_Listing = dict[str, tuple[int, int]]


def fetch_bytes(client: AgentClient, path: str) -> bytes:
    """A small file's content; empty where there is none. Raises HostError for a larger one."""
    return b"".join(pieces(client, path, 0, MOST_JSON_BYTES))


def fetch_json(client: AgentClient, path: str) -> dict[str, Any] | None:
    """The object in a JSON file of a host; None where there is none. Raises HostError."""
    text = fetch_bytes(client, path)
    if not text:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise HostError(f"{path} on {client.host} is no JSON object", fix="look at it there")
    return found


def mirror_run(
    client: AgentClient,
    remote: str,
    here: Path,
    *,
    wanted: Callable[[str], bool] = lambda name: not name.startswith(f"{CHECKPOINTS}/"),
    digests: Mapping[str, str | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
    note: Callable[[str], None] | None = None,
) -> int:
    """Copy what is new of a folder; returns how many bytes came.

    wanted: by a file's path below the folder; checkpoints stay where they are by default.
    digests: by path, the SHA-256 of files that are known to have one.
    progress: told the bytes that came, and that will have come.
    note: told once of the files that stay where they are because no run has such.
    Raises CheckpointError when one of those is gone, or comes with another, UsageError when
    `here` is another run, and HostError for a host that sends more than it listed.
    """
    require_same_run(client, remote, here)
    digests = digests or {}
    listing = list_run(client, remote)
    taken = {name: TAKEN for name in listing.files if is_taken(here, name)}
    refused = {**listing.refused, **taken}
    if refused and note is not None:
        note(tell_refused(client.host, refused))
    for name in sorted(digests):
        if name in taken:
            look = f"ls -l {shlex.quote(str(here))}; move it away"
            raise CheckpointError(f"{here / name}: {TAKEN}", fix=look)
        if name not in listing.files:
            raise CheckpointError(f"{remote}/{name} was removed meanwhile.", fix=_ONCE_MORE)
    todo = [
        (name, size)
        for name, (size, _) in listing.files.items()
        if name not in taken and wanted(name) and not _same(here / name, size, digests.get(name))
    ]
    _require_room(client, here, todo)
    # A manifest says that the files of its step are here: it comes after them.
    todo.sort(key=lambda entry: _MANIFEST.fullmatch(PurePosixPath(entry[0]).name) is not None)
    total = sum(size for _, size in todo)
    came = 0
    for name, size in todo:
        for piece in _fetch(client, f"{remote}/{name}", here / name, size, digests.get(name)):
            came += piece
            if progress is not None:
                progress(came, total)
        _keep_time(here / name, listing.files[name][1])
    return came


def _keep_time(path: Path, changed_ns: int) -> None:
    """Let a file be as old as there: a person asks when a checkpoint was saved, and the latest run
    is the one that was last alive.
    """
    # A host may name any time. What is not after 1970 would count as never alive.
    time_ns = min(max(changed_ns, 1), time.time_ns())
    with contextlib.suppress(OSError):
        os.utime(path, ns=(time_ns, time_ns))


def require_same_run(client: AgentClient, remote: str, here: Path) -> None:
    """Raise UsageError where a folder here is that of another run than the one there."""
    ours = here / EVENTS
    if not ours.is_file():
        require_ours(here)
        return
    with ours.open("rb") as file:
        begun = file.readline()
    # Its beginning no run shares with another.
    there = b"".join(pieces(client, f"{remote}/{EVENTS}", 0, len(begun), cut=True))
    if begun.endswith(b"\n") and there and not there.startswith(begun):
        raise UsageError(
            f"{here} is another run of that name than the one on the hosts",
            fix=f"move it away: mv {shlex.quote(str(here))} {shlex.quote(str(here))}.other",
        )


def find_checkpoint(
    client: AgentClient, remote: str, which: str = "latest"
) -> dict[str, str | None]:
    """Files of a complete checkpoint below a run's folder, and of its tokenizer.

    which: latest, best, or a step. By path below the run's folder: the SHA-256, None where none is
    on record. Nothing: there is no such checkpoint that is complete. The latest is the one that was
    saved last, which after a resume from an earlier step need not be the one with the highest step.
    """
    folders: dict[str, _Listing] = {}
    listed = list_run(client, remote)
    for name, told in [*listed.files.items(), *((name, (0, 0)) for name in listed.making)]:
        folder, _, last = name.rpartition("/")
        if folder.split("/")[0] == CHECKPOINTS:
            folders.setdefault(folder, {})[last] = told
    found: list[_Checkpoint] = []
    for folder, listing in folders.items():
        found += _with_manifest(client, f"{remote}/{folder}", folder, listing)
        found += _without_manifest(folder, listing)
    if not found:
        return {}
    wanted = max(found, key=lambda checkpoint: checkpoint.age)
    if which != "latest":
        # Of several models, that which is being worked on.
        beside = [each for each in found if each.age[0] == wanted.age[0]]
        if which == "best":
            best = best_of(each.manifest for each in beside if each.manifest is not None)
            of_step = [each for each in beside if best and each.manifest is best]
        else:
            of_step = [each for each in beside if each.step == int(which)]
        if not of_step:
            return {}
        wanted = of_step[0]
    tokenizer = {TOKENIZER_FILE: None} if TOKENIZER_FILE in listed.files else {}
    return {**tokenizer, **wanted.files}


def manifest_step(files: Iterable[str]) -> int | None:
    """The steps that a checkpoint came after, by the manifest among its files; None: without."""
    found = (_MANIFEST.fullmatch(PurePosixPath(path).name) for path in files)
    return next((int(match[1]) for match in found if match is not None), None)


@dataclass(frozen=True)
class _Checkpoint:
    """A complete checkpoint there. files: by path, their SHA-256.

    age: greater is newer: when its folder was last saved to, whether yoked saved it, and the number
    of the save (of nanochat's, the step).
    """

    age: tuple[int, int, int]
    step: int
    files: Mapping[str, str | None]
    manifest: Manifest | None = None


def _with_manifest(
    client: AgentClient, remote: str, folder: str, listing: _Listing
) -> Iterator[_Checkpoint]:
    """Those that yoked saved, as far as all their files have their names."""
    for last in listing:
        match = _MANIFEST.fullmatch(last)
        if match is None:
            continue
        data = fetch_bytes(client, f"{remote}/{last}")
        try:
            manifest = Manifest.from_bytes(data)
        except ValueError:
            # Removed meanwhile, or damaged: another checkpoint is to come.
            continue
        # Until the staged files have their names, these are those of the step's earlier save.
        staged = f".yoked-{match[1]}-{manifest.token}-"
        if any(other.startswith(staged) for other in listing):
            continue
        if all(listing.get(each.name, (None,))[0] == each.size_bytes for each in manifest.files):
            digests = {f"{folder}/{each.name}": each.sha256 for each in manifest.files}
            own = {f"{folder}/{last}": hashlib.sha256(data).hexdigest()}
            age = (_last_saved_ns(listing), 1, manifest.sequence)
            yield _Checkpoint(age, int(match[1]), {**digests, **own}, manifest)


def _without_manifest(folder: str, listing: _Listing) -> Iterator[_Checkpoint]:
    """Those that nanochat wrote: older than all of yoked's in their folder."""
    for last in listing:
        match = _MODEL.fullmatch(last)
        if match is None or f"manifest_{match[1]}.json" in listing:
            continue
        if f"meta_{match[1]}.json" in listing:
            names = [
                name for name in listing if (m := _OF_A_STEP.fullmatch(name)) and m[1] == match[1]
            ]
            yield _Checkpoint(
                (_last_saved_ns(listing), 0, int(match[1])),
                int(match[1]),
                {f"{folder}/{name}": None for name in names},
            )


def _last_saved_ns(listing: _Listing) -> int:
    """When a folder's last model was saved: of several folders, that one is being worked on."""
    times = [changed_ns for name, (_, changed_ns) in listing.items() if _MODEL.fullmatch(name)]
    return max(times, default=0)


def _require_room(client: AgentClient, here: Path, todo: list[tuple[str, int]]) -> None:
    """Raise HostError for more files than a run has, YokedError where the disk is too small."""
    if len(todo) > _MOST_FILES:
        raise fault("run-too-many-files", host=client.host, files=len(todo), most=_MOST_FILES)
    # What a file that grows has here already does not come again.
    needed = sum(max(0, size - _grown_bytes(here / name)) for name, size in todo)
    free = free_bytes(here.absolute())
    if needed > free:
        raise fault(
            "disk-full-here", here=here, needed=format_bytes(needed), free=format_bytes(free)
        )


def _grown_bytes(path: Path) -> int:
    return path.stat().st_size if path.suffix in _GROWING and path.is_file() else 0


def _same(path: Path, size: int, sha256: str | None) -> bool:
    if not path.is_file():
        return False
    if sha256 is not None:
        return sha256_of(path) == sha256
    # Of equal length is equal: journals and logs only grow. The rest, run.json and result.json,
    # is small and read again.
    return path.suffix != ".json" and path.stat().st_size == size


def _fetch(
    client: AgentClient, remote: str, here: Path, size: int, sha256: str | None
) -> Iterator[int]:
    """Bring one file of so many bytes; yields the size of each piece that came."""
    private_folder(here.parent)
    if here.suffix in _GROWING:
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW
        with os.fdopen(os.open(here, flags, 0o600), "ab+", buffering=0) as file:
            if here.suffix == ".jsonl":
                # Where a run goes on, a line that was torn there is no more.
                cut_torn_line(file)
            offset = file.seek(0, SEEK_END)
            # What was added since it was listed comes another time.
            for piece in pieces(client, remote, offset, size - offset, cut=True):
                yield file.write(piece)
        return
    unfinished = here.with_name(f".yoked-unfinished-{here.name}")
    digest = hashlib.sha256()
    try:
        with _created(unfinished) as file:
            for piece in pieces(client, remote, 0, size):
                digest.update(piece)
                yield file.write(piece)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise CheckpointError(
                f"{remote} is not what its manifest says: it is damaged there, or was replaced "
                "while it came.",
                fix=_ONCE_MORE,
            )
        unfinished.replace(here)
    finally:
        unfinished.unlink(missing_ok=True)


def _created(path: Path) -> BinaryIO:
    """A new file: what was there, be it a link, is removed."""
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    return os.fdopen(os.open(path, flags, 0o600), "wb")


def pieces(
    client: AgentClient,
    path: str,
    offset: int,
    most_bytes: int,
    *,
    cut: bool = False,
    timeout_s: float | None = None,
) -> Iterator[bytes]:
    """A file's content as it comes, from an offset on.

    Where it is longer than most_bytes: HostError, or, cut, so much of it, and no more is sent.
    timeout_s: the longest silence between two pieces; None: any.
    """
    left = most_bytes
    limit: dict[str, Any] = {"most_bytes": most_bytes} if cut else {}
    for part in client.stream("file_read", timeout_s=timeout_s, path=path, offset=offset, **limit):
        if len(part.data) > left and not cut:
            raise fault("file-grew", path=path, host=client.host, most_bytes=most_bytes)
        piece = part.data[: max(left, 0)]
        left -= len(piece)
        if piece:
            yield piece
        if cut and left <= 0:
            return
