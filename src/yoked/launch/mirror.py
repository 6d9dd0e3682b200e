"""A run's folder, from the host that has it to the controller: only what is new of it.

Files of a run grow at their ends (journals, logs) or are replaced whole (run.json), so a file
that is longer there is read on from where ours ends, and one of another kind is read anew.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from yoked.remote.client import AgentClient

# They only grow; a torn last line of ours would be completed by what follows.
_GROWING = {".jsonl", ".out", ".err", ".log", ".times"}
CHECKPOINTS = "checkpoints"


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
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Copy what is new of a folder; returns how many bytes came.

    wanted: by a file's path below the folder; checkpoints stay where they are by default.
    progress: told the bytes that came, and that will have come.
    """
    listed = [entry for entry in client.call("file_list", folder=remote) if wanted(entry[0])]
    todo = [(name, size) for name, size, _ in listed if not _same(here / name, size)]
    total = sum(size for _, size in todo)
    came = 0
    for name, _ in todo:
        # The listing is of another machine: nothing may lead out of our folder.
        assert ".." not in PurePosixPath(name).parts, name
        for size in _fetch(client, f"{remote}/{name}", here / name):
            came += size
            if progress is not None:
                progress(came, total)
    return came


def newest_checkpoint(names: list[str]) -> Callable[[str], bool]:
    """Which files make the newest checkpoint, with its tokenizer, of those that are listed."""
    steps = [(_step(name), str(PurePosixPath(name).parent)) for name in names]
    newest, folder = max(((s, f) for s, f in steps if s is not None), default=(None, ""))

    def wanted(name: str) -> bool:
        if not name.startswith(f"{CHECKPOINTS}/"):
            return False
        step = _step(name)
        return step is None or (step == newest and str(PurePosixPath(name).parent) == folder)

    return wanted


def _step(name: str) -> int | None:
    """The step in a checkpoint file's name, such as model_000050.pt."""
    digits = PurePosixPath(name).stem.split("_")[1:2]
    return int(digits[0]) if digits and digits[0].isdecimal() else None


def _same(path: Path, size: int) -> bool:
    # Of equal length is equal: journals and logs only grow, checkpoints never change. The rest,
    # run.json and result.json, is small and read again.
    if path.suffix == ".json":
        return False
    return path.is_file() and path.stat().st_size == size


def _fetch(client: AgentClient, remote: str, here: Path) -> Iterator[int]:
    """Bring one file; yields the size of each piece that came."""
    here.parent.mkdir(parents=True, exist_ok=True)
    if here.suffix in _GROWING:
        with here.open("ab") as file:
            for part in client.stream("file_read", path=remote, offset=file.tell()):
                yield file.write(part.data)
        return
    unfinished = here.with_name(f".{here.name}.unfinished")
    with unfinished.open("wb") as file:
        for part in client.stream("file_read", path=remote):
            yield file.write(part.data)
    unfinished.replace(here)
