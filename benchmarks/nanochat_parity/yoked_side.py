"""yoked's part of the comparison: the parts of a real run, fed with rows in a chosen order."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from yoked.train.checkpoint import CheckpointStore
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.progress import NullProgress
from yoked.train.data.rows import RowFile, SampleStream
from yoked.train.decisions.compute import configure_model
from yoked.train.decisions.working import Working
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy, LossAndGrads
from yoked.train.model.gpt import GPT
from yoked.train.resume import RunOrigin, build_trainer, load_checkpoint
from yoked.train.sample import generate
from yoked.train.setup import RunSetup, setup_fleet, setup_run
from yoked.train.tokenizer import Tokenizer
from yoked.train.trainer import Trainer

STEPS = 20
ALONE = RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)
Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A model and its training. flags: those that both programs take, by yoked's field names.

    steady_steps: from a fresh start, rounding alone does not yet decide the loss (see README.md).
    """

    name: str
    title: str
    vocab_size: int
    flags: dict[str, Any]
    steady_steps: int = STEPS

    def command_line(self) -> list[str]:
        """The flags as both programs read them."""
        return [f"--{name.replace('_', '-')}={value}" for name, value in self.flags.items()]

    def config(self, data: Path, dtype: str, tokenizer: Path | None = None) -> TrainConfig:
        """yoked's configuration: nanochat's packing, no evaluation."""
        return TrainConfig(
            **self.flags,
            data=str(data),
            tokenizer=tokenizer,
            vocab_size=self.vocab_size,
            packing="bestfit",
            dtype=dtype,  # type: ignore[arg-type]
            num_iterations=STEPS,
            threads="1",
            eval_every=-1,
        )


class InOrder:
    """The rows of a file as nanochat's loader gives them: one after the other."""

    def __init__(self, rows: RowFile) -> None:
        self.rows = rows

    def batch(self, start: int, stop: int) -> Rows:
        return self.rows.rows(np.arange(start, stop, dtype=np.int64))


@dataclass(frozen=True)
class Continued:
    """The shuffled stream of a run up to a place, then another file's rows in order."""

    first: SampleStream
    until: int
    then: RowFile

    def batch(self, start: int, stop: int) -> Rows:
        if stop <= self.until:
            return self.first.batch(start, stop)
        return InOrder(self.then).batch(start - self.until, stop - self.until)


@dataclass
class RecordingHead(FusedLinearCrossEntropy):
    """A head that keeps the mean loss of every micro-batch."""

    inner: FusedLinearCrossEntropy
    losses: list[float] = field(default_factory=list)

    def loss(self, hidden_NC: Tensor, *args: Any, **kwargs: Any) -> LossAndGrads:
        result = self.inner.loss(hidden_NC, *args, **kwargs)
        self.losses.append(float(result.loss_sum) / hidden_NC.size(0))
        return result


def open_session(config: TrainConfig) -> RunSetup:
    """Everything that a run of this configuration would settle first."""
    fleet = setup_fleet(config, ALONE, NullProgress())
    return setup_run(fleet, fleet.comm, Working((0,)))


def train(trainer: Trainer, steps: range) -> list[float]:
    """Take steps; the loss of each one's last micro-batch, which is what nanochat reports."""
    head = RecordingHead(trainer.lm_head.head)
    trainer.lm_head.head = head
    last_losses = []
    for step in steps:
        trainer.step(step)
        last_losses.append(head.losses[-1])
    trainer.lm_head.head = head.inner
    return last_losses


def started_from(setup: RunSetup, checkpoint: Path) -> Trainer:
    """A run's trainer with weights and optimizer state of the one checkpoint in a folder."""
    trainer = build_trainer(setup)
    origin = RunOrigin(setup.config, checkpoint)
    loaded, _ = load_checkpoint(origin, setup, trainer, CheckpointStore(checkpoint))
    assert loaded is not None
    return trainer


def compute_as_in_training(model: GPT, setup: RunSetup) -> None:
    """Let a loaded model use the products and the attention path that were chosen to train."""
    compute = setup.compute
    configure_model(model, compute.layers, compute.attention, compile_blocks=False)


@torch.no_grad()
def logits_of(model: GPT, ids_BT: Tensor) -> Tensor:
    """(B, T, vocabulary) float32."""
    return model.logits(model(ids_BT))


def continuations(model: GPT, tokenizer: Tokenizer, prompts: list[str]) -> list[list[int]]:
    """The prompt's tokens and the likeliest ones after it, as nanochat's engine returns them."""
    results = []
    for prompt in prompts:
        ids = [tokenizer.bos_id, *tokenizer.encode(prompt)]
        stops = {tokenizer.bos_id, tokenizer.special_id("<|assistant_end|>")}
        drawn = generate(model, ids, max_tokens=48, temperature=0, stop_ids=stops)
        results.append([*ids, *drawn])
    return results
