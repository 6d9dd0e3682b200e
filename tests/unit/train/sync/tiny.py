"""A tiny trainer on fixed rows and weights, for tests of what ranks exchange."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor

from yoked.costmodel.assignment import split_by_weight
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.work import compression_of, delays_of
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.lm_head.vocab_parallel import SHARDED
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import HEAD, ParamBuffers
from yoked.train.optim.schedule import Schedule
from yoked.train.state import checksum
from yoked.train.sync.codecs import CODECS
from yoked.train.sync.late import LateSteps
from yoked.train.trainer import StepStats, Trainer

VOCAB = 60


@dataclass(frozen=True)
class Tiny:
    """Sizes that a test's trainers have in common: tokens a row, layers, rows a step, n_embd."""

    sequence_len: int
    n_layer: int
    rows: int
    width: int = 32

    def batch(self, start: int, stop: int) -> np.ndarray:
        """Row i is fixed."""
        return np.stack(
            [
                np.random.default_rng(i).integers(0, VOCAB, self.sequence_len + 1)
                for i in range(start, stop)
            ]
        )

    def model(self, dtype: torch.dtype = torch.float32) -> GPT:
        """With weights that are always the same."""
        config = ModelShape(
            sequence_len=self.sequence_len,
            vocab_size=VOCAB,
            n_layer=self.n_layer,
            n_head=2,
            n_kv_head=2,
            n_embd=self.width,
            window_pattern="L",
        )
        model = GPT(config, dtype)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        model.finish()
        return model

    def trainer(
        self,
        comm: Communicator,
        shares: list[float],
        payload: str = "exact",
        *,
        batch: int | Sequence[int] = 2,
        dtype: torch.dtype = torch.float32,
        vocab_parallel: bool = False,
        late: tuple[int, int] = (1, 100),
    ) -> Trainer:
        """One rank's. batch: rows of a micro-batch, perhaps by rank. vocab_parallel: the head.
        payload: as `--sync` has it; late: the steps of a delay, where it has one.
        """
        model = self.model(dtype)
        settings = group_settings(
            TrainConfig(), model.config.n_embd, batch_lr_scale=1.0, muon_weight_decay=0.1
        )
        buffers, delays = ParamBuffers(model, shares), delays_of(payload)
        return Trainer(
            model,
            MuonAdamW(buffers, settings, Schedule(100), comm.rank),
            FusedLinearCrossEntropy(VOCAB),
            comm,
            self,
            rows=[len(part) for part in split_by_weight(self.rows, shares)],
            batch_sizes=[batch] * len(shares) if isinstance(batch, int) else batch,
            codec=CODECS.get(compression_of(payload)),
            late=LateSteps(*late, delays.matrices) if any(delays) else None,
            head_rows=shares if vocab_parallel else None,
        )


def gradient_step(trainer: Trainer, step: int) -> tuple[StepStats, RowGrads]:
    """A step in which the optimizer changes nothing: its figures, and the tables' summed rows."""
    optimizer, tables = trainer.optimizer, list[RowGrads]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(optimizer, "step_bucket", lambda step, due: None)
        patch.setattr(optimizer, "step_head", lambda step, gradient: None)
        patch.setattr(optimizer, "step_adamw", lambda step, grads: tables.append(grads.rows))
        stats = trainer.step(step)
    (rows,) = tables
    return stats, rows


def one_step(trainer: Trainer) -> tuple[dict[str, Tensor], StepStats]:
    """All dense gradients that this rank applies, of the lm_head its part, and its figures."""
    stats = trainer.step(0)
    buffers = trainer.buffers
    head = torch.zeros_like(buffers.head_grad)
    head[buffers.own_vocab] = buffers.head_grad[buffers.own_vocab]
    found = {HEAD: head}
    for bucket in trainer.optimizer.owned:
        for name in bucket.names:
            found[name] = buffers.gradient(name).clone()
    trainer.drain()
    return found, stats


def summed(by_rank: Iterable[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Gradients of all ranks together, by name."""
    total: dict[str, Tensor] = {}
    for found in by_rank:
        for name, gradient in found.items():
            total[name] = total.get(name, torch.zeros_like(gradient)) + gradient
    return total


def held_by(trainer: Trainer) -> tuple[list[int], list[Tensor]]:
    """Checksums of all that a checkpoint of this rank's has, and the weights; collective."""
    trainer.gather_weights()
    for name in SHARDED:
        trainer.state.all_gather(name)
    weights = [parameter.detach().clone() for parameter in trainer.buffers.parameters.values()]
    held = [*weights, *trainer.optimizer.exp_avg.values(), *trainer.optimizer.exp_avg_sq.values()]
    return [checksum(tensor) for tensor in held], weights
