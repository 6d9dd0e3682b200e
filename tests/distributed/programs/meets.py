"""Ranks that meet at a file, and then rank 0 gives all its weights: `meets.py ACT FOLDER`.

Says on standard output, as JSON, what the rank has in the end, and the error that it met.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from yoked.errors import YokedError
from yoked.ranks.exchange import gather_json, read_whole
from yoked.ranks.meeting import meet

RANK, WORLD_SIZE = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
FOLDER = Path(sys.argv[2])
WEIGHT = 7.5
# Silence is found out after this time; what answers wrongly, at once.
DEADLINE_S = 2.0


class HeldStore(dist.Store):
    """Tells nobody where this rank listens before the file `dialled` is there."""

    def __init__(self, inner: dist.Store) -> None:
        super().__init__()
        self.inner = inner

    def set(self, key: str, value: Any) -> None:
        (FOLDER / f"listens.{RANK}").touch()
        while not (FOLDER / "dialled").exists():
            time.sleep(0.01)
        self.inner.set(key, value)

    def get(self, key: str) -> bytes:
        return self.inner.get(key)

    def add(self, key: str, amount: int) -> int:
        return self.inner.add(key, amount)

    def wait(self, keys: list[str], *timeout: timedelta) -> None:
        self.inner.wait(keys, *timeout)

    def check(self, keys: list[str]) -> bool:
        return self.inner.check(keys)


def connect(store: dist.Store | None = None) -> None:
    dist.init_process_group(
        "gloo",
        store=store or dist.FileStore(str(FOLDER / "store"), WORLD_SIZE),
        rank=RANK,
        world_size=WORLD_SIZE,
        timeout=timedelta(seconds=20),
    )


def weights() -> float:
    """The weight that rank 0 gives to all."""
    told = torch.tensor([WEIGHT if RANK == 0 else 0.0])
    dist.broadcast(told, 0)
    return float(told)


def proved() -> dict[str, Any]:
    meet(connect, deadline_s=DEADLINE_S)
    return {"weight": weights(), "ranks": gather_json(RANK, read_whole)}


def in_a_second_group() -> dict[str, Any]:
    """Rank 1 proves the first group, and is another when the second one connects."""
    meet(connect, deadline_s=DEADLINE_S)
    if RANK == 1:
        os.environ["YOKED_SECRET"] = "of somebody else"
    meet(lambda: dist.new_group(backend="gloo"), "the second", deadline_s=DEADLINE_S)
    return {"weight": weights()}


def held() -> dict[str, Any]:
    meet(
        lambda: connect(HeldStore(dist.FileStore(str(FOLDER / "store"), WORLD_SIZE))),
        deadline_s=DEADLINE_S,
    )
    return {"weight": weights()}


def stranger() -> dict[str, Any]:
    """Takes a rank's place in the store, proves nothing, and waits for what comes."""
    connect()
    return {"weight": weights()}


def flooded() -> dict[str, Any]:
    """Few files may be open here; a stranger has time to open as many at Gloo's port."""
    meet(connect, deadline_s=DEADLINE_S)
    meet(lambda: dist.new_group(backend="gloo"), "the second", deadline_s=DEADLINE_S)
    open_files = len(list(Path("/proc/self/fd").iterdir()))
    resource.setrlimit(resource.RLIMIT_NOFILE, (open_files + 20, open_files + 20))
    (FOLDER / f"met.{RANK}").touch()
    while not (FOLDER / "flooded").exists():
        time.sleep(0.01)
    return {"weight": weights()}


def timed() -> dict[str, Any]:
    """Seconds of connecting alone, then of the same with the proof; each a new group."""
    connect()
    rounds: dict[str, list[float]] = {"connect": [], "meet": []}
    for _ in range(20):
        for name, act in (("connect", lambda make: make()), ("meet", meet)):
            dist.barrier()
            began_s = time.perf_counter()
            act(lambda: dist.new_group(backend="gloo"))
            rounds[name].append(time.perf_counter() - began_s)
    return {name: sorted(took)[len(took) // 2] for name, took in rounds.items()}


ACTS = {
    "proved": proved,
    "second": in_a_second_group,
    "held": held,
    "flooded": flooded,
    "stranger": stranger,
    "timed": timed,
}

if __name__ == "__main__":
    said: dict[str, Any] = {}
    try:
        said = ACTS[sys.argv[1]]()
    except YokedError as problem:
        said = {"kind": type(problem).__name__, "what": problem.what, "fix": problem.fix}
    except RuntimeError as problem:
        said = {"kind": "RuntimeError", "what": str(problem)}
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()
    # Python's own end would wait inside Gloo for peers that never answer.
    os._exit(0)
