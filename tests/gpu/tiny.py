"""A small trainer, to be run on a device and on the CPU."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pytest
import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.train import kernels
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule
from yoked.train.trainer import Trainer

VOCAB = 2000
TOKENS = 256  # twice a window


@pytest.fixture
def plain_passes() -> Iterator[None]:
    """What a device computes, on the CPU too: plain PyTorch instead of the passes in C."""
    kernels.switch_off("to compare with a device")
    yield
    kernels.switch_on()


class Rows:
    """Row i is fixed."""

    def batch(self, start: int, stop: int) -> np.ndarray:
        """(B, T + 1) int64."""
        return np.stack(
            [np.random.default_rng(i).integers(0, VOCAB, TOKENS + 1) for i in range(start, stop)]
        )


def tiny_model(dtype: torch.dtype = torch.float32, windows: str = "L") -> GPT:
    """Four layers with weights that are always the same; every layer adds something."""
    config = ModelShape.from_depth(
        4,
        aspect_ratio=16,
        head_dim=32,
        sequence_len=TOKENS,
        vocab_size=VOCAB,
        window_pattern=windows,
    )
    model = GPT(config, dtype)
    model.init_weights(1)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "c_proj" in name:  # drawn as zeros
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=generator))
    return model


def tiny_trainer(
    device: torch.device | str,
    dtype: torch.dtype = torch.float32,
    windows: str = "L",
    *,
    rows: Sequence[int] = (8,),
    batch: int = 2,
    comm: Communicator | None = None,
    tables_on_host: bool = False,
) -> Trainer:
    """One rank's. rows: of a step by rank; batch: rows of a micro-batch."""
    model = tiny_model(dtype, windows)
    model.place(torch.device(device), tables_on_host=tables_on_host)
    settings = group_settings(
        TrainConfig(), model.config.n_embd, batch_lr_scale=0.1, muon_weight_decay=0.1
    )
    comm = Communicator() if comm is None else comm
    buffers = ParamBuffers(model, [float(count) for count in rows])
    return Trainer(
        model,
        MuonAdamW(
            buffers,
            settings,
            Schedule(100),
            comm.rank,
            in_bfloat16=dtype == torch.bfloat16,
        ),
        FusedLinearCrossEntropy(VOCAB),
        comm,
        Rows(),
        rows=list(rows),
        batch_sizes=[batch] * len(rows),
    )
