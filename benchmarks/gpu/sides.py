"""Training steps of both programs on one device, on the same tokens.

nanochat's is made of its own gpt.py and optim.py, imported from a checkout that the caller names;
the loop over micro-batches is that of its scripts/base_train.py, without schedules.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.decisions.compute import ComputeChoices, choose_attention
from yoked.train.device import DTYPES
from yoked.train.model.attention import ATTENTION_PATHS
from yoked.train.model.linear import MatmulBackends
from yoked.train.profile_step import RandomRows, StepProfiler
from yoked.train.trainer import Trainer

# Takes a step of the number given, and returns its loss in nats a token once the device has it.
Step = Callable[[int], float]


@dataclass(frozen=True)
class Options:
    """What is measured, and where. deadline: by time.monotonic."""

    device: torch.device
    dtype: str
    windows: str
    nanochat: Path | None
    depths: tuple[int, ...]
    rows: tuple[int, ...]
    step_rows: int
    ways: tuple[str, ...]
    seconds: float
    rounds: int
    data: str
    tiny: bool
    deadline: float

    @classmethod
    def of(cls, args: argparse.Namespace) -> Options:
        """As the command line has them."""
        return cls(
            device=torch.device(args.device, 0) if args.device == "cuda" else torch.device("cpu"),
            dtype=args.dtype,
            windows=args.windows,
            nanochat=args.nanochat,
            depths=tuple(args.depth),
            rows=tuple(args.rows),
            step_rows=max(args.step_rows, *args.rows),
            ways=tuple(args.ways),
            seconds=args.seconds,
            rounds=args.rounds,
            data=args.data,
            tiny=args.tiny,
            deadline=time.monotonic() + 60 * args.minutes,
        )

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def late(self) -> bool:
        """Whether the time is over."""
        return time.monotonic() > self.deadline

    def shape(self, depth: int) -> ModelShape:
        """nanochat's of a depth; tiny: of the same parts."""
        aspect, head_dim, tokens, vocab = (32, 32, 64, 512) if self.tiny else (64, 128, 2048, 32768)
        return ModelShape.from_depth(
            depth,
            aspect_ratio=aspect,
            head_dim=head_dim,
            sequence_len=tokens,
            vocab_size=vocab,
            window_pattern=self.windows,
        )


def yoked_trainer(
    shape: ModelShape,
    device: torch.device,
    dtype: str,
    *,
    rows: int,
    step_rows: int,
    compiled: bool = False,
) -> Trainer:
    """The trainer of a run, on random rows. rows: at once; step_rows: of a step."""
    profiler = StepProfiler(TrainConfig(), shape, device)
    libraries, threads = MatmulBackends(), torch.get_num_threads()
    chosen = choose_attention(shape, device, DTYPES[dtype]).value
    path = next(path for path in ATTENTION_PATHS if path == chosen)
    profiler.compute_by(
        ComputeChoices(dtype, dtype, libraries, libraries, path, compiled, threads, ())
    )
    return Trainer(
        profiler.model,
        profiler.optimizer,
        profiler.head,
        Communicator(),
        RandomRows(shape),
        rows=[step_rows],
        batch_sizes=[rows],
    )


def yoked_step(options: Options, depth: int, rows: int, *, compiled: bool) -> Step:
    """yoked's step."""
    trainer = yoked_trainer(
        options.shape(depth),
        options.device,
        options.dtype,
        rows=rows,
        step_rows=options.step_rows,
        compiled=compiled,
    )

    def step(number: int) -> float:
        stats = trainer.step(number)
        return stats.nats / stats.tokens

    return step


def nanochat_step(options: Options, depth: int, rows: int, *, compiled: bool) -> Step:
    """nanochat's step."""
    assert options.nanochat is not None
    # It reads its dtype when it is imported.
    os.environ["NANOCHAT_DTYPE"] = options.dtype
    if str(options.nanochat) not in sys.path:
        sys.path.insert(0, str(options.nanochat))
    gpt = importlib.import_module("nanochat.gpt")
    shape = options.shape(depth)
    names = ("sequence_len", "vocab_size", "n_layer", "n_head", "n_kv_head", "n_embd")
    sizes = {name: getattr(shape, name) for name in (*names, "window_pattern")}
    with torch.device("meta"):
        model = gpt.GPT(gpt.GPTConfig(**sizes))
    model.to_empty(device=options.device)
    model.init_weights()
    optimizer = model.setup_optimizer()
    trained = torch.compile(model, dynamic=False) if compiled else model
    stream = RandomRows(shape)

    def step(number: int) -> float:
        # Its optimizer compiles itself.
        with torch.compiler.set_stance("default" if compiled else "force_eager"):
            first, losses = number * options.step_rows, []
            batch = torch.from_numpy(stream.batch(first, first + options.step_rows))
            for part in batch.to(options.device).split(rows):
                inputs, targets = part[:, :-1].contiguous(), part[:, 1:].contiguous()
                loss = trained(inputs, targets) * (len(part) / options.step_rows)
                loss.backward()
                losses.append(loss.detach())
            optimizer.step()
            model.zero_grad(set_to_none=True)
        return float(torch.stack(losses).sum())

    return step


def peak_bytes(device: torch.device) -> int:
    """The largest allocation since it was last asked for; 0: not known, on a CPU."""
    if device.type != "cuda":
        return 0
    peak = torch.cuda.max_memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    return peak


def element_bytes(dtype: str) -> int:
    """Bytes of a number."""
    return DTYPES[dtype].itemsize
