"""A run's folder, from the host that has it to the controller: only what is new of it.

Files of a run grow at their ends (journals, logs) or are replaced whole (run.json), so a file
that is longer there is read on from where ours ends, and one of another kind is read anew. Those
of a checkpoint can be replaced by others of the same size: they are told apart by the SHA-256 in
its manifest. A name that begins with a dot is that of a file in the making.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path, PurePosixPath
from typing import Any

from yoked.errors import CheckpointError, HostError, UsageError
from yoked.journal import cut_torn_line
from yoked.paths import private_folder
from yoked.remote.client import AgentClient
from yoked.runs import require_ours

_GROWING = {".jsonl", ".out", ".err", ".log", ".times"}
CHECKPOINTS = "checkpoints"
EVENTS = "events.jsonl"
_MANIFEST = re.compile(r"manifest_(\d+)\.json")
_MODEL = re.compile(r"model_(\d+)\.pt")
_OF_A_STEP = re.compile(r"(?:model|optim|meta|manifest)_(\d+)(?:_rank\d+)?\.(?:pt|json)")
_ONCE_MORE = "yoked fetch    takes the newest that is there then"
# Of a folder: by name, bytes and time of change in ns.
_Listing = dict[str, tuple[int, int]]


def fetch_bytes(client: AgentClient, path: str) -> bytes:
    """A file's content; empty where there is none."""
    return b"".join(part.data for part in client.stream("file_read", path=path))


def fetch_json(client: AgentClient, path: str) -> dict[str, Any] | None:
    """The object in a JSON file of a host; None where there is none."""
    text = fetch_bytes(client, path)
    if not text:
        return None
    found: dict[str, Any] = json.loads(text)
    return found


def mirror_run(
    client: AgentClient,
    remote: str,
    here: Path,
    *,
    wanted: Callable[[str], bool] = lambda name: not name.startswith(f"{CHECKPOINTS}/"),
    digests: Mapping[str, str | None] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Copy what is new of a folder; returns how many bytes came.

    wanted: by a file's path below the folder; checkpoints stay where they are by default.
    digests: by path, the SHA-256 of files that are known to have one.
    progress: told the bytes that came, and that will have come.
    Raises CheckpointError when one of those is gone, or comes with another, and UsageError when
    `here` is another run.
    """
    require_same_run(client, remote, here)
    digests = digests or {}
    listed = [
        (name, size)
        for name, size, _ in client.call("file_list", folder=remote)
        if wanted(name) and not _in_the_making(name)
    ]
    gone = sorted(set(digests) - {name for name, _ in listed})
    if gone:
        raise CheckpointError(f"{remote}/{gone[0]} was removed meanwhile.", fix=_ONCE_MORE)
    todo = [
        (name, size) for name, size in listed if not _same(here / name, size, digests.get(name))
    ]
    # A manifest says that the files of its step are here: it comes after them.
    todo.sort(key=lambda entry: _MANIFEST.fullmatch(PurePosixPath(entry[0]).name) is not None)
    total = sum(size for _, size in todo)
    came = 0
    for name, _ in todo:
        # The listing is of another machine: nothing may lead out of our folder.
        if ".." in PurePosixPath(name).parts or PurePosixPath(name).is_absolute():
            raise HostError(f"{remote} is listed with {name!r}, which is not in it")
        for size in _fetch(client, f"{remote}/{name}", here / name, digests.get(name)):
            came += size
            if progress is not None:
                progress(came, total)
    return came


def require_same_run(client: AgentClient, remote: str, here: Path) -> None:
    """Raise UsageError where a folder here is that of another run than the one there."""
    ours = here / EVENTS
    if not ours.is_file():
        require_ours(here)
        return
    with ours.open("rb") as file:
        begun = file.readline()
    # Its beginning no run shares with another.
    there = fetch_bytes(client, f"{remote}/{EVENTS}")
    if begun.endswith(b"\n") and there and not there.startswith(begun):
        raise UsageError(
            f"{here} is another run of that name than the one on the hosts",
            fix=f"move it away: mv {here} {here}.other",
        )


def newest_checkpoint(client: AgentClient, remote: str) -> dict[str, str | None]:
    """Files of the newest complete checkpoint below a run's folder, and of its tokenizer.

    By path below the run's folder: the SHA-256, None where none is on record. Nothing: no
    checkpoint is complete. The newest is the one that was saved last, which after a resume from
    an earlier step need not be the one with the highest step.
    """
    folders: dict[str, _Listing] = {}
    for name, size, changed_ns in client.call("file_list", folder=remote):
        folder, _, last = name.rpartition("/")
        if folder.split("/")[0] == CHECKPOINTS:
            folders.setdefault(folder, {})[last] = (size, changed_ns)
    found: list[_Checkpoint] = []
    for folder, listing in folders.items():
        found += _with_manifest(client, f"{remote}/{folder}", folder, listing)
        found += _without_manifest(folder, listing)
    if not found:
        return {}
    files = {
        f"{folder}/{last}": None
        for folder, listing in folders.items()
        for last in listing
        if not _in_the_making(last) and not _OF_A_STEP.fullmatch(last)
    }
    return {**files, **max(found, key=lambda checkpoint: checkpoint.age).files}


@dataclass(frozen=True)
class _Checkpoint:
    """A complete checkpoint there. age: greater is newer. files: by path, their SHA-256."""

    age: tuple[int, ...]
    files: Mapping[str, str | None]


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
            manifest = json.loads(data)
            sequence, token = manifest["sequence"], manifest["token"]
            entries = {e["name"]: (e["size_bytes"], e["sha256"]) for e in manifest["files"]}
        except (ValueError, KeyError, TypeError):
            # Removed meanwhile, or damaged: another checkpoint is to come.
            continue
        # Until the staged files have their names, these are those of the step's earlier save.
        staged = f".yoked-{match[1]}-{token}-"
        if any(other.startswith(staged) for other in listing):
            continue
        if all(name in listing and listing[name][0] == size for name, (size, _) in entries.items()):
            digests = {f"{folder}/{name}": sha256 for name, (_, sha256) in entries.items()}
            own = {f"{folder}/{last}": hashlib.sha256(data).hexdigest()}
            yield _Checkpoint((_last_saved_ns(listing), 1, sequence), {**digests, **own})


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
                {f"{folder}/{name}": None for name in names},
            )


def _last_saved_ns(listing: _Listing) -> int:
    """When a folder's last model was saved: of several folders, that one is being worked on."""
    times = [changed_ns for name, (_, changed_ns) in listing.items() if _MODEL.fullmatch(name)]
    return max(times, default=0)


def _in_the_making(name: str) -> bool:
    return PurePosixPath(name).name.startswith(".")


def _same(path: Path, size: int, sha256: str | None) -> bool:
    if not path.is_file():
        return False
    if sha256 is not None:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == sha256
    # Of equal length is equal: journals and logs only grow. The rest, run.json and result.json,
    # is small and read again.
    return path.suffix != ".json" and path.stat().st_size == size


def _fetch(client: AgentClient, remote: str, here: Path, sha256: str | None) -> Iterator[int]:
    """Bring one file; yields the size of each piece that came."""
    private_folder(here.parent)
    if here.suffix in _GROWING:
        with here.open("ab+", buffering=0) as file:
            if here.suffix == ".jsonl":
                # Where a run goes on, a line that was torn there is no more.
                cut_torn_line(file)
            file.seek(0, SEEK_END)
            for part in client.stream("file_read", path=remote, offset=file.tell()):
                yield file.write(part.data)
        return
    unfinished = here.with_name(f".yoked-unfinished-{here.name}")
    digest = hashlib.sha256()
    with unfinished.open("wb") as file:
        for part in client.stream("file_read", path=remote):
            digest.update(part.data)
            yield file.write(part.data)
    if sha256 is not None and digest.hexdigest() != sha256:
        unfinished.unlink()
        raise CheckpointError(
            f"{remote} is not what its manifest says: it is damaged there, or was replaced while "
            "it came.",
            fix=_ONCE_MORE,
        )
    unfinished.replace(here)
