"""Runs programs in worlds of several ranks, forked from one process that has imported torch.

Importing it costs more than what the programs do. Standard input: a JSON list of worlds, each
{"ranks", "port" (of a TCPStore that is there already), "argv", "out" (file of rank 0's words),
"stuck_s" (seconds after which a rank is stuck)}.
"""

from __future__ import annotations

import faulthandler
import json
import multiprocessing
import os
import runpy
import sys
from pathlib import Path
from typing import Any

# What DistributedDataParallel and optimizers import when they are first made.
import torch._dynamo  # noqa: F401

import yoked.ddp  # noqa: F401


def be_rank(rank: int, world: dict[str, Any]) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world["ranks"]),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(world["port"]),
        TORCHELASTIC_USE_AGENT_STORE="True",
    )
    # What hangs says where, before whoever waits for it gives up.
    faulthandler.dump_traceback_later(world["stuck_s"], exit=True)
    sys.argv = world["argv"]
    with Path(world["out"] if rank == 0 else os.devnull).open("w") as words:
        os.dup2(words.fileno(), 1)
    runpy.run_path(world["argv"][0], run_name="__main__")


def main() -> int:
    fork = multiprocessing.get_context("fork")
    ranks = [
        fork.Process(target=be_rank, args=(rank, world), daemon=True)
        for world in json.load(sys.stdin)
        for rank in range(world["ranks"])
    ]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join()
    return max(abs(process.exitcode or 0) for process in ranks)


if __name__ == "__main__":
    sys.exit(main())
