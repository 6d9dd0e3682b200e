"""A tiny trainer on fixed rows and weights, for tests of what ranks exchange."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT, ModelConfig
from yoked.train.optim.groups import LearningRates, build_groups
from yoked.train.optim.layout import HEAD, Layout
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.schedule import Schedule
from yoked.train.sync.agreement import checksum
from yoked.train.sync.payload import PAYLOADS
from yoked.train.sync.wire import Wire
from yoked.train.trainer import StepStats, Trainer

VOCAB = 60


@dataclass(frozen=True)
class Tiny:
    """Sizes that the trainers of a test have in common: tokens a row, layers, rows a step."""

    sequence_len: int
    n_layer: int
    rows: int

    def batch(self, start: int, stop: int) -> np.ndarray:
        """Row i is fixed."""
        return np.stack(
            [
                np.random.default_rng(i).integers(0, VOCAB, self.sequence_len + 1)
                for i in range(start, stop)
            ]
        )

    def trainer(
        self,
        wire: Wire,
        shares: list[float],
        payload: str = "exact",
        *,
        batch: int = 2,
        dtype: torch.dtype = torch.float32,
        divided: bool = False,
        head_rank: int | None = None,
    ) -> Trainer:
        """One rank's, with weights that are alike on all; batch: rows of a micro-batch; divided:
        the lm_head is; head_rank: the only one that has it.
        """
        config = ModelConfig(
            sequence_len=self.sequence_len,
            vocab_size=VOCAB,
            n_layer=self.n_layer,
            n_head=2,
            n_kv_head=2,
            n_embd=32,
            window_pattern="L",
        )
        model = GPT(config, dtype)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(0.1 * torch.randn(parameter.shape, generator=generator))
        model.finish()
        groups = build_groups(model, LearningRates(), batch_lr_scale=1.0, muon_weight_decay=0.1)
        layout = Layout(model, groups, shares)
        return Trainer(
            model,
            layout,
            MuonAdamW(layout, Schedule(100), wire.rank),
            FusedLinearCrossEntropy(VOCAB),
            wire,
            self,
            rows_per_step=self.rows,
            device_batch_size=batch,
            shares=shares,
            payload=PAYLOADS[payload],
            divided=divided,
            head_rank=head_rank,
        )


def one_step(trainer: Trainer) -> tuple[dict[str, Tensor], StepStats]:
    """All dense gradients that this rank applies, of the lm_head its part, and its figures."""
    stats = trainer.step(0)
    layout = trainer.layout
    head = torch.zeros_like(layout.head_grad)
    head[layout.head_rows] = layout.head_grad[layout.head_rows]
    found = {HEAD: head}
    for stack in trainer.optimizer.owned:
        for name in stack.names:
            found[name] = layout.gradient(name).clone()
    trainer.settle()
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
    trainer.settle(moments=True)
    weights = [parameter.detach().clone() for parameter in trainer.layout.parameters.values()]
    held = [*weights, *trainer.optimizer.first.values(), *trainer.optimizer.second.values()]
    return [checksum(tensor) for tensor in held], weights
