"""Data that a person pushed to this host: a folder by its content, which a name means.

    <cache>/pushed/<digest>/        the files, hard links to blobs, read only
    <cache>/pushed/<digest>.blobs   the hashes of these blobs, which go with it
    <cache>/pushed/<name>.json      what the name means: digest, files, size_bytes

A push of changed content makes another folder, of which only what changed is sent. The one before
stays until the next push, or `yoked clean`, as a run may read it, or be about to.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from yoked.agent.files import DIGEST, blob_path, require, writing_to
from yoked.agent.folders import LINK, entries_digest, make_folder, take_away
from yoked.agent.jobfolder import ACTIVE, all_jobs
from yoked.agent.server import Call
from yoked.core.fs import read_json, write_bytes
from yoked.core.names import DATA_NAME
from yoked.errors import HostError
from yoked.paths import cache_root, private_folder


def answer_pushed(call: Call) -> list[dict[str, Any]]:
    """All that was pushed: [{name, digest, path, files, size_bytes}], by name."""
    del call
    found = []
    for path in sorted(_root().glob("*.json")):
        record = read_json(path) or {}
        digest = str(record.get("digest"))
        folder = _root() / digest
        # Somebody may have emptied the cache.
        if DATA_NAME.fullmatch(path.stem) and DIGEST.fullmatch(digest) and folder.is_dir():
            found.append({**record, "name": path.stem, "path": str(folder)})
    return found


def answer_pushed_put(call: Call) -> str:
    """Have a name mean a folder of blobs that are here; returns its path.

    args: label, the name; digest of the packed entries in `data`.
    """
    name, digest = call.args["label"], call.args["digest"]
    entries = json.loads(zlib.decompress(call.data))
    require(DATA_NAME.fullmatch(name), f"a name {name!r}")
    require(entries_digest(entries) == digest, f"a folder {digest!r} that is none")
    folder, meaning = _root() / digest, _root() / f"{name}.json"
    before = str((read_json(meaning) or {}).get("digest"))
    hashes = [content for _, kind, content, _ in entries if kind != LINK]
    size_bytes = sum(entry[3] for entry in entries)
    record = {"digest": digest, "files": len(entries), "size_bytes": size_bytes}
    with writing_to(folder, None):
        private_folder(_root())
        write_bytes(_blobs_of(folder), "\n".join(hashes).encode(), durable=False)
    make_folder(folder, entries)
    with writing_to(meaning, None):
        write_bytes(meaning, json.dumps(record).encode())
    # Not earlier: what was to be removed may have had blobs of this one alone.
    _remove(_stale(keep=before))
    return str(folder)


def answer_pushed_remove(call: Call) -> bool:
    """Forget a name, and remove what it meant; whether there was such a name.

    args: label, the name. Raises HostError where a run that goes on uses it.
    """
    name = call.args["label"]
    require(DATA_NAME.fullmatch(name), f"a name {name!r}")
    path = _root() / f"{name}.json"
    digest = str((read_json(path) or {}).get("digest"))
    if (run := _users().get(digest)) is not None:
        raise HostError(
            f"data {name} is in the environment of run {run}, which is not over",
            fix=f"yoked stop {run}    or wait for its end",
        )
    was_there = path.is_file()
    path.unlink(missing_ok=True)
    _remove(_stale())
    return was_there


def answer_pushed_sweep(call: Call) -> list[dict[str, Any]]:
    """Folders that no name means any more and no run uses: [{folder, size_bytes}].

    args: remove, to remove them. size_bytes: what that frees.
    """
    found = _stale()
    told = [{"folder": str(path), "size_bytes": _own_bytes(path)} for path in found]
    if call.args.get("remove"):
        _remove(found)
    return told


def _root() -> Path:
    return cache_root() / "pushed"


def _blobs_of(folder: Path) -> Path:
    return folder.with_name(f"{folder.name}.blobs")


def _stale(keep: str = "") -> list[Path]:
    """Folders that nobody needs. keep: the digest of one that a run may be about to be told."""
    meant = {str((read_json(path) or {}).get("digest")) for path in _root().glob("*.json")}
    needed = {keep, *meant, *_users()}
    try:
        found = sorted(path for path in _root().iterdir() if DIGEST.fullmatch(path.name))
    except FileNotFoundError:
        return []
    return [path for path in found if path.name not in needed]


def _users() -> dict[str, str]:
    """By digest, a run that is not over and has its folder in its environment."""
    found = {}
    for job in all_jobs():
        if job.state in ACTIVE:
            for value in (job.read("start.json").get("env") or {}).values():
                if isinstance(value, str) and Path(value).parent == _root():
                    found[Path(value).name] = job.run
    return found


def _own_bytes(folder: Path) -> int:
    """What lies in a folder, and nowhere else but in its blobs."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(OSError):
                seen = os.lstat(Path(parent, name))
                total += seen.st_size if seen.st_nlink <= 2 else 0
    return total


def _remove(folders: Iterable[Path]) -> None:
    """Remove folders, and of their blobs those that no other folder has."""
    for folder in folders:
        blobs = _blobs_of(folder)
        try:
            hashes = blobs.read_text(encoding="ascii").split()
        except OSError:
            hashes = []
        with contextlib.suppress(OSError):
            take_away(folder)
        for digest in filter(DIGEST.fullmatch, hashes):
            with contextlib.suppress(OSError):
                if blob_path(digest).stat().st_nlink == 1:
                    blob_path(digest).unlink()
        blobs.unlink(missing_ok=True)
