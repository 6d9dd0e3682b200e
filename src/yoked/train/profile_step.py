"""What a training step costs on this host: `python -m yoked.train.profile_step --depth 4 ...`.

It takes the flags of `yoked train`, builds what a run would, and times steps of it on random
tokens, in each dtype that is worth a try. No data is needed. Prints one JSON object: host, compute
and step_costs as yoked.records.measurement has them, and the choices that were made.

Shape legend: b rows of a micro-batch, T tokens a row.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.records.measurement import Compute, StepCost
from yoked.train import kernels
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.rank_info import RankInfo
from yoked.train.comm.step_clock import Phase, StepClock
from yoked.train.config import TrainConfig
from yoked.train.decisions.compute import (
    ComputeChoices,
    configure_model,
    measured_compute,
    why_no_windows,
)
from yoked.train.decisions.device import choose_device
from yoked.train.decisions.products import choose_dtype, libraries_for, measure_dtypes
from yoked.train.decisions.threads import set_threads
from yoked.train.decisions.timing import best_time_s
from yoked.train.device import (
    DTYPES,
    device_name,
    keep_freed_memory,
    synchronize,
    usable_gpu_bytes,
)
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.model.linear import mm_nt
from yoked.train.optim.groups import group_settings
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule
from yoked.train.resolve import resolve
from yoked.train.trainer import Rows, Trainer

# A dtype is not tried where one micro-batch would take so long in it; where the first step takes
# longer, no second one is taken.
LONG_S = 4.0
# Steps of one kind after a first one: that many, or until they took so long.
MOST_STEPS = 6
LIMIT_S = 1.0
# Beside a row that takes so long, what does not grow with the rows is nothing.
SLOW_ROW_S = 2.0
# A product that takes so long is large enough.
PRODUCT_S = 0.01
LARGEST_PRODUCT = 8192
# Out of the caches of all but the largest servers, and of one core there.
COPY_BYTES = 128_000_000
_STEPS = 1000


class PhaseTimes(NamedTuple):
    """Seconds of the parts of one step. adamw_s: with what else a step does once, such as setting
    gradients to zero and casting the lm_head's weight.
    """

    forward_s: float
    head_s: float
    backward_s: float
    muon_s: float
    adamw_s: float

    @classmethod
    def of(cls, phase_s: Mapping[Phase, float], step_s: float) -> PhaseTimes:
        """phase_s: as the step's clock has them. step_s: of all of it."""
        forward_s, head_s = phase_s["forward"], phase_s["lm_head"]
        backward_s, muon_s = phase_s["backward"], phase_s["muon"]
        rest_s = step_s - forward_s - head_s - backward_s - muon_s
        return cls(forward_s, head_s, backward_s, muon_s, rest_s)

    @property
    def batch_s(self) -> float:
        """Of the micro-batch alone."""
        return self.forward_s + self.head_s + self.backward_s

    @property
    def total_s(self) -> float:
        """Of the step."""
        return sum(self)


class Known(NamedTuple):
    """What one dtype tells of another: a micro-batch's time besides its rows, and about a row's."""

    overhead_s: float
    row_s: float


def profile(
    args: list[str], of_all: Callable[[str], Sequence[str]] = lambda mine: [mine]
) -> dict[str, Any]:
    """Profile a step of what `yoked train` trains with these flags; returns what `main` prints.

    of_all: an all-gather of words over the ranks that are profiled together; else there is one.
    """
    from yoked.train.__main__ import parse

    config = parse(args)
    rank_info = RankInfo.from_environment()
    device, why_there = choose_device(config, rank_info)
    if device.type == "cpu":
        keep_freed_memory()
    threads = set_threads(config, rank_info)
    gpu_bytes = min(map(float, of_all(str(usable_gpu_bytes(device) or math.inf))))
    no_windows = next(filter(None, of_all(why_no_windows(config, device) or "")), None)
    # Each rank with the shapes that suit it: a laptop would take minutes for a step of a GPU's
    # model, and the plan scales by FLOPs.
    resolved = resolve(config, device.type, gpu_bytes, no_windows)
    model_config = resolved.model_shape(config.vocab_size)
    host = socket.gethostname()
    # Ranks that are profiled at the same time are no group: each chooses for itself.
    measured = measure_dtypes(model_config, device, dtype=config.dtype, matmul=config.matmul)
    on_host = resolved.tables == "host"
    profiler = StepProfiler(config, model_config, device, tables_on_host=on_host)
    costs: list[StepCost] = []
    choices: dict[str, list[str]] = {}
    if device.type == "cpu":
        # Compiled once on each host: no part of what a dtype takes.
        kernels.kernels()
    times = {name: each.best_s for name, each in measured.times.items()}
    for dtype in dtypes_to_try(times, lambda: costs[0].batch_s):
        chosen = choose_dtype([times], dtype)
        compute = measured_compute(config, model_config, device, chosen, measured, threads)
        profiler.compute_by(compute)
        known = _known(costs[0], times, dtype) if costs else None
        costs.append(profiler.cost(host, resolved.device_batch_size, known))
        choices[dtype] = [str(choice) for choice in (*compute.choices, why_there) if choice]
    return {
        "host": host,
        "compute": [dataclasses.asdict(each) for each in rates(host, device, int(threads.value))],
        "step_costs": [dataclasses.asdict(each) for each in costs],
        "choices": choices,
    }


def dtypes_to_try(times_s: dict[str, float], batch_s: Callable[[], float]) -> Iterator[str]:
    """The dtypes, the fastest first, and no other one that would take long.

    times_s: what a token's products take in each; batch_s: a micro-batch in the fastest, once it is
    known. float32 always gets its turn: hosts that have no dtype in common cannot be compared.
    """
    fastest, *others = sorted(times_s, key=lambda dtype: times_s[dtype])
    yield fastest
    for dtype in others:
        foreseen_s = batch_s() * times_s[dtype] / times_s[fastest]
        if dtype == "float32" or foreseen_s < LONG_S:
            yield dtype


def _known(first: StepCost, times_s: dict[str, float], dtype: str) -> Known:
    """What the fastest dtype tells of another. times_s: as `dtypes_to_try` has them.

    The overhead is not of products, so not of the dtype.
    """
    rows = first.tokens // first.model.sequence_len
    slower = times_s[dtype] / times_s[first.dtype]
    return Known(first.overhead_s, first.batch_s / rows * slower)


class StepProfiler:
    """A run of one rank on random rows, in one dtype at a time: `compute_by` says first in which.

    What it times are steps of the run's own `Trainer`.
    """

    compute: ComputeChoices
    head: FusedLinearCrossEntropy
    optimizer: MuonAdamW

    def __init__(
        self,
        config: TrainConfig,
        model_config: ModelShape,
        device: torch.device,
        *,
        tables_on_host: bool = False,
    ) -> None:
        self.device = device
        self.model = GPT(model_config)
        self.model.init_weights(config.seed)
        self.model.place(device, tables_on_host=tables_on_host)
        self.buffers = ParamBuffers(self.model, [1.0])
        self.settings = group_settings(
            config, model_config.n_embd, batch_lr_scale=1, muon_weight_decay=0
        )

    def compute_by(self, compute: ComputeChoices) -> None:
        """From now on in this dtype and in this way, by an optimizer at its first step."""
        self.compute = compute
        self.model.compute_dtype = DTYPES[compute.dtype]
        self.model.finish()
        configure_model(
            self.model, compute.layers, compute.attention, compile_blocks=compute.compile_blocks
        )
        self.head = FusedLinearCrossEntropy(
            self.model.config.vocab_size, compute.head, compiled=compute.compile_blocks
        )
        self.optimizer = MuonAdamW(
            self.buffers,
            self.settings,
            Schedule(_STEPS),
            0,
            backend=compute.layers.forward,
            in_bfloat16=compute.dtype == "bfloat16",
        )

    def cost(self, host: str, device_batch_size: int, known: Known | None = None) -> StepCost:
        """What a step costs here, with micro-batches of device_batch_size rows."""
        config = self.model.config
        taken = self._step_times(device_batch_size, known)
        rows = device_batch_size if device_batch_size in taken else min(taken)
        whole = taken[rows]
        totals_s = {rows: each.batch_s for rows, each in taken.items()}
        return StepCost(
            host=host,
            device=self.device.type,
            dtype=self.compute.dtype,
            threads=self.compute.threads,
            model=config,
            tokens=rows * config.sequence_len,
            forward_s=whole.forward_s,
            head_s=whole.head_s,
            backward_s=whole.backward_s,
            overhead_s=known.overhead_s if known else overhead_s(totals_s),
            adamw_s=whole.adamw_s,
            muon_s=whole.muon_s,
        )

    def _step_times(self, device_batch_size: int, known: Known | None) -> dict[int, PhaseTimes]:
        """By rows: one size where the overhead is known; one row where that takes long already."""
        if self.compute.compile_blocks:
            # Every size is compiled by itself, for many seconds: the one that trains is enough.
            self._profile(device_batch_size, most_steps=1)
            return {device_batch_size: self._profile(device_batch_size)}
        if known is not None:
            rows = device_batch_size if known.row_s < SLOW_ROW_S else 1
            return {rows: self._profile(rows)}
        taken = {1: self._profile(1)}
        if taken[1].batch_s < SLOW_ROW_S:
            # What does not grow with the rows shows in a second size.
            more = max(2, device_batch_size)
            taken[more] = self._profile(more)
        return taken

    def _profile(self, rows: int, most_steps: int | None = None) -> PhaseTimes:
        """The typical one of a few steps, each of one micro-batch of so many rows."""
        comm = Communicator()
        # Phases end when the device has computed them, not when it was told to.
        comm.clock = StepClock(functools.partial(synchronize, self.device))
        trainer = Trainer(
            self.model,
            self.optimizer,
            self.head,
            comm,
            RandomRows(self.model.config),
            rows=[rows],
            batch_sizes=[rows],
        )
        first = self.optimizer.num_updates
        times: list[PhaseTimes] = []
        spent_s = 0.0
        while len(times) < (most_steps or 1 + MOST_STEPS) and spent_s < LIMIT_S:
            step_s = trainer.step(first + len(times)).compute_s
            times.append(PhaseTimes.of(comm.clock.phase_s, step_s))
            spent_s += step_s if len(times) > 1 or step_s > LONG_S else 0.0
        trainer.close()
        return typical(times)


class RandomRows:
    """An endless stream of rows of which some tokens are frequent, as words are."""

    def __init__(self, config: ModelShape) -> None:
        self.config = config

    def batch(self, start: int, stop: int) -> Rows:
        """(b, T + 1) ids: id k as often as 1 / k."""
        draw = np.random.default_rng(start)
        uniform = draw.random((stop - start, self.config.sequence_len + 1))
        ids = np.exp(uniform * math.log(self.config.vocab_size)).astype(np.int64) - 1
        return ids.clip(0, self.config.vocab_size - 1)


def typical(times: Sequence[PhaseTimes]) -> PhaseTimes:
    """The median step after the first, which warms up but counts where it is the only one.

    Not the fastest: training takes its steps beside whatever else this host has to do.
    """
    counted = sorted(times[1:] or times, key=lambda each: each.total_s)
    return counted[len(counted) // 2]


def overhead_s(total_s_by_rows: dict[int, float]) -> float:
    """The part of a micro-batch's time that does not grow with its rows; 0 for one size alone."""
    if len(total_s_by_rows) == 1:
        return 0.0
    few, many = sorted(total_s_by_rows)
    slope_s = (total_s_by_rows[many] - total_s_by_rows[few]) / (many - few)
    return max(0.0, total_s_by_rows[few] - few * slope_s)


def rates(host: str, device: torch.device, threads: int) -> list[Compute]:
    """How fast this device multiplies in each dtype, and how fast it copies."""
    copied = copy_bytes_per_s(device)
    return [
        Compute(
            host=host,
            device=str(device),
            device_name=device_name(device),
            dtype=name,
            threads=threads,
            flops_per_s=flops_per_s(device, name),
            copy_bytes_per_s=copied,
        )
        for name in DTYPES
    ]


def flops_per_s(device: torch.device, dtype: str) -> float:
    """FLOP/s of a square product, twice as large until it takes long enough; the best library's."""
    kind = DTYPES[dtype]
    size = 256
    while True:
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        took_s = min(
            best_time_s(functools.partial(mm_nt, a, b, backend), device)
            for backend in libraries_for(device, kind, "auto")
        )
        if took_s >= PRODUCT_S or size >= LARGEST_PRODUCT:
            return 2.0 * size**3 / took_s
        size *= 2


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes read plus written a second, of a copy that the caches do not hold."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.nbytes / best_time_s(lambda: target.copy_(source), device)


def main(argv: list[str]) -> int:
    """Print the profile of this process; returns the exit status."""
    sys.stdout.write(json.dumps(profile(argv)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
