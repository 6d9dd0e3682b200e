"""What it saves to update rows of the tables when they are read, and not in every step.

usage: bench.py ROWS [--vocab N] [--length N] [--dtype float32|bfloat16] [--ranks 1|2]
                [--steps 150] [--results FILE]

ROWS: the train.rows of a data set that yoked prepared (~/.cache/yoked/data). A depth-4 model, 2,048
tokens a step, one thread a rank; two ranks share rows and vocabulary, over loopback. Both ways are
in one process, and take steps in turns (A B B A), so what else the machine does meets both alike.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from yoked.costmodel.model_shape import ModelShape
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.data.rows import RowFile, SampleStream
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import group_settings
from yoked.train.optim.idle_rows import MOST_BEHIND
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule, batch_lr_scale
from yoked.train.trainer import Trainer

TOKENS, MANY_STEPS = 2048, 1_000_000
WAYS = ("every step", "when read")
WHEN_READ = WAYS[1]
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Arm:
    """A trainer whose optimizer updates the tables in one of the two ways."""

    def __init__(self, options: argparse.Namespace, comm: Communicator, *, put_off: bool) -> None:
        rows = options.rows.stat().st_size // (2 * (options.length + 1))
        file = RowFile(
            options.rows, num_rows=rows, row_tokens=options.length + 1, vocab_size=options.vocab
        )
        shape = ModelShape.from_depth(4, sequence_len=options.length, vocab_size=options.vocab)
        model = GPT(shape, DTYPES[options.dtype])
        model.init_weights()
        model.finish()
        settings = group_settings(
            TrainConfig(),
            shape.n_embd,
            batch_lr_scale=batch_lr_scale(TOKENS),
            muon_weight_decay=0.1,
        )
        self.optimizer = MuonAdamW(
            ParamBuffers(model, [1.0] * comm.world_size),
            settings,
            Schedule(MANY_STEPS, warmup_steps=1),
            comm.rank,
        )
        if not put_off:
            self.optimizer._idle_rows = None
        rows_a_step = TOKENS // options.length
        self.trainer = Trainer(
            model,
            self.optimizer,
            FusedLinearCrossEntropy(options.vocab),
            comm,
            SampleStream(file, 1),
            rows=[rows_a_step // comm.world_size] * comm.world_size,
            batch_sizes=[2] * comm.world_size,
            head_rows=[1.0] * comm.world_size if comm.active else None,
        )
        self.taken = 0

    def step_s(self) -> tuple[float, float]:
        """A step, and of it what AdamW takes and catches up with."""
        spent_s = 0.0

        def timed(act: Callable[..., None]) -> Callable[..., None]:
            def function(*args: Any) -> None:
                nonlocal spent_s
                began_s = time.perf_counter()
                act(*args)
                spent_s += time.perf_counter() - began_s

            return function

        optimizer = self.optimizer
        names = ("catch_up", "step_head", "step_adamw")
        for name in names:
            setattr(optimizer, name, timed(getattr(optimizer, name)))
        began_s = time.perf_counter()
        self.trainer.step(self.taken)
        took_s = time.perf_counter() - began_s
        for name in names:
            delattr(optimizer, name)
        self.taken += 1
        return took_s, spent_s


def rank_main(rank: int, options: argparse.Namespace, place: str) -> None:
    """One rank: its steps in turns; rank 0 tells."""
    torch.set_num_threads(1)
    os.sched_setaffinity(0, {sorted(os.sched_getaffinity(0))[rank]})
    if options.ranks > 1:
        dist.init_process_group("gloo", f"file://{place}/meet", rank=rank, world_size=options.ranks)
    arms = {name: Arm(options, Communicator(), put_off=name == WHEN_READ) for name in WAYS}
    whole: dict[str, list[float]] = {name: [] for name in WAYS}
    optimizer: dict[str, list[float]] = {name: [] for name in WAYS}
    for number in range(MOST_BEHIND + options.steps):
        for name in WAYS if number % 2 else reversed(WAYS):
            whole_s, optimizer_s = arms[name].step_s()
            if number >= MOST_BEHIND:  # by then each row has had its turn
                whole[name].append(whole_s)
                optimizer[name].append(optimizer_s)
    all_rows_s = -time.perf_counter()
    arms[WHEN_READ].trainer.drain()
    all_rows_s += time.perf_counter()
    arms[WAYS[0]].trainer.drain()
    if rank == 0:
        tell(options, whole, optimizer, all_rows_s)
    if options.ranks > 1:
        dist.barrier()
        dist.destroy_process_group()


def tell(
    options: argparse.Namespace,
    whole: dict[str, list[float]],
    optimizer: dict[str, list[float]],
    all_rows_s: float,
) -> None:
    """Print, and keep, the medians and their ratios."""
    told: dict[str, Any] = {
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "dtype": options.dtype,
        "ranks": options.ranks,
        "steps": options.steps,
        "all_rows_ms": round(1e3 * all_rows_s, 1),
    }
    for title, by_way in (("optimizer", optimizer), ("whole", whole)):
        before, after = (statistics.median(by_way[name]) for name in WAYS)
        tenths = [
            statistics.median(by_way[WAYS[0]][part]) / statistics.median(by_way[WHEN_READ][part])
            for part in parts(options.steps)
        ]
        told[title] = {
            **{name: round(1e3 * statistics.median(by_way[name]), 2) for name in WAYS},
            "ratio": round(before / after, 4),
            "by_tenth": [round(each, 3) for each in tenths],
        }
        print(f"{title}: {told[title]}", flush=True)
    told["steps_ms"] = {name: [round(1e3 * each, 1) for each in whole[name]] for name in WAYS}
    if options.results:
        options.results.write_text(json.dumps(told, indent=1) + "\n")


def parts(steps: int) -> list[slice]:
    """Ten, one after the other: how far they are apart is the spread."""
    edges = [steps * number // 10 for number in range(11)]
    return [slice(first, last) for first, last in pairwise(edges)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--ranks", type=int, choices=(1, 2), default=1)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        mp.spawn(rank_main, (options, place), nprocs=options.ranks)


if __name__ == "__main__":
    main()
