"""What it saves to update rows of the tables when they are read, and not in every step.

usage: bench.py ROWS [--vocab N] [--length N] [--dtype float32|bfloat16] [--beside]
                [--rounds 3] [--steps 150] [--whole 6] [--results FILE]

ROWS: the train.rows of a data set that yoked prepared (~/.cache/yoked/data). A depth-4 model, 2,048
tokens a step, one thread. Each round is A B: all rows in every step, then when they are read; the
optimizer alone on the rows that real tokens use, and steps of the whole trainer behind it.
--beside: the same in a second process at the same time, as two hosts on one machine's memory.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import statistics
import time
from pathlib import Path
from typing import Any

import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.data.rows import RowFile, SampleStream
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule, batch_lr_scale
from yoked.train.trainer import Trainer

TOKENS, MANY_STEPS = 2048, 1_000_000
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class Arm:
    """A trainer whose optimizer updates the tables in one of the two ways."""

    def __init__(self, options: argparse.Namespace, *, put_off: bool) -> None:
        rows = options.rows.stat().st_size // (2 * (options.length + 1))
        file = RowFile(
            options.rows, num_rows=rows, row_tokens=options.length + 1, vocab_size=options.vocab
        )
        self.stream = SampleStream(file, 1)
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
            ParamBuffers(model, [1.0]), settings, Schedule(MANY_STEPS, warmup_steps=1), 0
        )
        if not put_off:
            self.optimizer._idle_rows = None
        self.rows_a_step = TOKENS // options.length
        self.trainer = Trainer(
            model,
            self.optimizer,
            FusedLinearCrossEntropy(options.vocab),
            Communicator(),
            self.stream,
            rows=[self.rows_a_step],
            batch_sizes=[2],
        )
        self.taken = 0

    def optimizer_step_s(self) -> float:
        """The optimizer's part of a step, with gradients that are noise on a real step's rows."""
        first = self.taken * self.rows_a_step
        used = torch.from_numpy(self.stream.batch(first, first + self.rows_a_step))[:, :-1].unique()
        buffers = self.optimizer.buffers
        vocab = self.trainer.model.config.padded_vocab_size
        gradients = RowGrads(used, buffers.table_widths, vocab)
        gradients.flat.normal_(0, 1e-3)
        began_s = time.perf_counter()
        self.optimizer.catch_up([gradients])
        self.optimizer.step_adamw(self.taken, gradients)
        took_s = time.perf_counter() - began_s
        self.taken += 1
        return took_s

    def whole_step_s(self) -> float:
        """A step of the trainer."""
        began_s = time.perf_counter()
        self.trainer.step(self.taken)
        took_s = time.perf_counter() - began_s
        self.taken += 1
        return took_s


def measure(options: argparse.Namespace) -> list[dict[str, Any]]:
    """A row for each round and arm: medians, in ms."""
    torch.set_num_threads(1)
    arms = {name: Arm(options, put_off=name == "when read") for name in ("every step", "when read")}
    for arm in arms.values():
        for _ in range(options.steps):
            arm.optimizer_step_s()
    found = []
    for number in range(options.rounds):
        for name, arm in arms.items():
            optimizer = [arm.optimizer_step_s() for _ in range(options.steps)]
            whole = [arm.whole_step_s() for _ in range(options.whole)]
            began_s = time.perf_counter()
            arm.optimizer.catch_up_all()
            found.append(
                {
                    "round": number,
                    "arm": name,
                    "optimizer_ms": round(1e3 * statistics.mean(optimizer), 2),
                    "whole_ms": round(1e3 * statistics.median(whole), 1) if whole else None,
                    "all_rows_ms": round(1e3 * (time.perf_counter() - began_s), 1),
                }
            )
    return found


def ratios(rows: list[dict[str, Any]], figure: str) -> list[float]:
    """In every step over when read, by round."""
    by_round: dict[int, dict[str, float]] = {}
    for row in rows:
        by_round.setdefault(row["round"], {})[row["arm"]] = row[figure]
    return [round(each["every step"] / each["when read"], 3) for each in by_round.values()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("rows", type=Path)
    parser.add_argument("--vocab", type=int, default=32_768)
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--dtype", choices=DTYPES, default="float32")
    parser.add_argument("--beside", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--whole", type=int, default=6)
    parser.add_argument("--results", type=Path)
    options = parser.parse_args()
    other = multiprocessing.get_context("spawn").Process(target=measure, args=(options,))
    if options.beside:
        other.start()
    rows = measure(options)
    if options.beside:
        other.join()
    for row in rows:
        print(json.dumps(row))
    told = {
        "processor": platform.processor() or platform.machine(),
        "torch": torch.__version__,
        "dtype": options.dtype,
        "beside": options.beside,
        "optimizer": ratios(rows, "optimizer_ms"),
        "whole": ratios(rows, "whole_ms") if options.whole else [],
        "rounds": rows,
    }
    print(f"the optimizer alone: {told['optimizer']} times as fast; a whole step: {told['whole']}")
    if options.results:
        options.results.write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
