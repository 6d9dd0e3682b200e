"""A tiny trainer on fixed rows and weights, for tests of what ranks exchange."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from yoked.train.head import Head
from yoked.train.model import GPT, ModelConfig
from yoked.train.optim.groups import LearningRates, build_groups
from yoked.train.optim.layout import Layout
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.schedule import Schedule
from yoked.train.sync.payload import PAYLOADS
from yoked.train.sync.wire import Wire
from yoked.train.trainer import Trainer

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
            Head(VOCAB),
            wire,
            self,
            rows_per_step=self.rows,
            device_batch_size=batch,
            shares=shares,
            payload=PAYLOADS[payload],
            divided=divided,
            head_rank=head_rank,
        )
