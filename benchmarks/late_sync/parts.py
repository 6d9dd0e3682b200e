"""What a delay of one step costs for each kind of parameter: one run in one process.

usage: parts.py RESULTS [--late matrices,lm_head,tables,scalars] [--seed 43] [--tokens 2048]
                [--steps 171] [--first 40] [--end 280] [--rows-in int8]

RESULTS: a file to which a line of JSON is added: the losses of all steps. The kinds that are given
use the last step's gradients in steps from --first to --end; the others, and without --late all,
their own. With --rows-in the tables' gradients are rounded as if they had travelled so. Depth 4,
rows of 512, float32, on the embedded corpus, the schedule of 300 steps.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor

from yoked.console import StageProgress
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions.working import Working
from yoked.train.optim.param_buffers import ReplicatedGrads, Update
from yoked.train.resume import build_trainer
from yoked.train.setup import setup_fleet, setup_run
from yoked.train.sync.codecs import CODECS, encoded
from yoked.train.sync.same_step import SameStepSync
from yoked.train.trainer import Trainer

KINDS = ("matrices", "lm_head", "tables", "scalars")


class Delayed(SameStepSync):
    """Of a rank alone. late: kinds whose gradients are used one step later."""

    late: frozenset[str]
    rows_in: str | None = None
    on = False

    def _last(self, kind: str, gradient: Tensor) -> Tensor:
        """What is due instead of this step's gradient, which is kept."""
        if not self.on or kind not in self.late:
            return gradient
        kept = self.__dict__.setdefault("kept", {})
        due, kept[kind] = kept.get(kind, gradient), gradient.clone()
        return due

    def updates(self) -> Iterator[Update]:
        gradients = self.buffers.matrix_grads
        gradients.copy_(self._last("matrices", gradients).clone())
        return super().updates()

    def head_gradient(self) -> Tensor:
        return self._last("lm_head", super().head_gradient())

    def replicated(self) -> ReplicatedGrads:
        grads = super().replicated()
        rows = grads.rows
        if self.rows_in is not None:
            codec = CODECS[self.rows_in]
            codec.decode(encoded(codec, rows.flat, None), rows.flat)
        if self.on and "tables" in self.late:
            last = self.__dict__.get("last_rows", rows)
            self.__dict__["last_rows"], rows = rows, last
        return ReplicatedGrads(self._last("scalars", grads.scalars), rows)


def prepared(options: argparse.Namespace) -> Trainer:
    """The trainer that `yoked train` has."""
    config = TrainConfig.from_dict(
        {
            "depth": 4,
            "max_seq_len": 512,
            "vocab_size": 32_768,
            "device_batch_size": 2,
            "total_batch_size": options.tokens,
            "num_iterations": 300,
            "seed": options.seed,
            "dtype": "float32",
            "threads": "1",
        }
    )
    fleet = setup_fleet(config, RankInfo.from_environment(), StageProgress(Console(quiet=True)))
    return build_trainer(setup_run(fleet, fleet.comm, Working((0,))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("results", type=Path)
    parser.add_argument("--late", default="")
    parser.add_argument("--seed", type=int, default=43)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=171)
    parser.add_argument("--first", type=int, default=40)
    parser.add_argument("--end", type=int, default=280)
    parser.add_argument("--rows-in", choices=CODECS)
    options = parser.parse_args()
    late = frozenset(filter(None, options.late.split(",")))
    assert late <= set(KINDS), f"of {', '.join(KINDS)}"
    torch.set_num_threads(1)
    trainer = prepared(options)
    assert isinstance(trainer.sync, SameStepSync)
    trainer.sync.__class__ = Delayed
    trainer.sync.late, trainer.sync.rows_in = late, options.rows_in
    losses = list[float]()
    for step in range(options.steps):
        trainer.sync.on = options.first <= step < options.end
        losses.append(trainer.step(step).nats / options.tokens)
        if len(losses) % 20 == 0:
            print(f"step {step + 1}: {statistics.mean(losses[-20:]):.4f}", flush=True)
    about = {"late": sorted(late), "seed": options.seed, "tokens": options.tokens}
    about |= {
        "rows in": options.rows_in,
        "first": options.first,
        "end": options.end,
        "torch": torch.__version__,
    }
    with options.results.open("a") as file:
        file.write(json.dumps({**about, "losses": [round(each, 5) for each in losses]}) + "\n")


if __name__ == "__main__":
    main()
