"""What a trace costs a rank: a span, and an all_reduce between two ranks, traced and not.

    python benchmarks/trace/cost.py [--rounds 10]

Two Gloo ranks on this machine, in turns: not traced, traced, not traced, ... Prints one JSON
object: microseconds by round, and their medians.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from yoked.ranks.instruments import Instruments
from yoked.ranks.spans import SPANS

CALLS = 1000


def us_each(act: Callable[[], Any]) -> float:
    """Microseconds of one call, of CALLS."""
    began_s = time.perf_counter()
    for _ in range(CALLS):
        act()
    return (time.perf_counter() - began_s) / CALLS * 1e6


def span() -> None:
    with SPANS.span("forward"):
        pass


def measure(rank: int, port: int, rounds: int) -> None:
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), TORCH_FR_BUFFER_SIZE="64")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=2)
    tensor = torch.ones(1000)
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(2 * rounds):
            traced = number % 2 == 1
            dist.barrier()
            instruments = Instruments(own_steps=True)
            if traced:
                instruments.install()
                SPANS.ask(1000, 600.0)
            how = "traced" if traced else "not traced"
            found.setdefault(f"span, {how}", []).append(us_each(span))
            reduced = us_each(lambda: dist.all_reduce(tensor))
            found.setdefault(f"all_reduce of 4 kB, {how}", []).append(reduced)
            if traced:
                instruments.remove()
                began_s = time.perf_counter()
                SPANS.write(Path(folder) / f"0.{rank}.trace", rank)
                took_ms = (time.perf_counter() - began_s) * 1e3
                found.setdefault(f"ms to write {2 * CALLS:,} spans", []).append(took_ms)
    dist.barrier()
    if rank == 0:
        rounded = {name: [round(each, 2) for each in values] for name, values in found.items()}
        medians = {name: round(median(values), 2) for name, values in found.items()}
        sys.stdout.write(json.dumps({"medians": medians, "rounds": rounded}, indent=1) + "\n")
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=10)
    rounds = parser.parse_args().rounds
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    mp.spawn(measure, (port, rounds), nprocs=2)


if __name__ == "__main__":
    main()
