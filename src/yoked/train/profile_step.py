"""What a training step costs on this host: `python -m yoked.train.profile_step --depth 4 ...`.

It takes the flags of `yoked train`, builds what a run would, and takes the parts of a step on
random tokens, in each dtype that is worth a try. No data is needed. Prints one JSON object: host,
compute and step_costs as yoked.records.measurement has them, and the choices that were made.

Shape legend: b rows of a micro-batch, T tokens a row.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor

from yoked.agent import processors
from yoked.costmodel.model_shape import ModelShape
from yoked.records.measurement import Compute, ProbedModel, StepCost
from yoked.train import choose, kernels
from yoked.train.comm.rank_info import RankInfo
from yoked.train.compute import ComputeChoices, measured_compute, set_threads
from yoked.train.config import TrainConfig
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.model.linear import MatmulBackend, mm_nt
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.groups import LearningRates, build_groups
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule
from yoked.train.resolve import ResolvedConfig, common_device_type, resolve

# A dtype is not tried where one micro-batch would take longer in it.
MOST_BATCH_S = 4.0
# Repetitions of one thing: until that many, or until they took so long; the optimizer is the
# smaller part of a step.
MOST_RUNS = 6
LIMIT_S = 0.8
OPTIMIZER_LIMIT_S = 0.25
# The first of them, which warms up, counts where it takes so long.
LONG_S = 1.0
# Beside a row that takes so long, what does not grow with the rows is nothing.
SLOW_ROW_S = 2.0
# A product that takes so long is large enough.
PRODUCT_S = 0.01
LARGEST_PRODUCT = 8192
# Out of the caches of all but the largest servers, and of one core there.
COPY_BYTES = 128_000_000
_STEPS = 1000
T = TypeVar("T")


class MicroBatch(NamedTuple):
    """Seconds of the parts of one micro-batch."""

    forward_s: float
    head_s: float
    backward_s: float

    @property
    def total_s(self) -> float:
        """All of it."""
        return self.forward_s + self.head_s + self.backward_s


class Known(NamedTuple):
    """What one dtype tells of another: a micro-batch's time besides its rows, and about a row's."""

    overhead_s: float
    row_s: float


def prepare() -> None:
    """Load what the first backward pass would load: sympy, half a second of work."""
    ones = torch.ones(1, requires_grad=True)
    torch.autograd.grad(2 * ones, ones, ones.detach())


def report(
    args: list[str], of_all: Callable[[str], Sequence[str]] = lambda mine: [mine]
) -> dict[str, Any]:
    """Rehearse with the flags of `yoked train`; returns what `main` prints.

    of_all: the words of all ranks of the run that is rehearsed, for this one's; else it is alone.
    """
    from yoked.train.__main__ import parse

    config = parse(args)
    rank_info = RankInfo.from_environment()
    device = choose.pick_device(config.device_type, rank_info.local_rank)
    kind = common_device_type(of_all(device.type))
    if device.type == "cpu":
        choose.keep_freed_memory()
    threads = set_threads(config, rank_info)
    resolved = resolve(config, kind)
    model_config = model_config_of(resolved)
    host = socket.gethostname()
    # Ranks that are profiled at the same time are no group: each chooses for itself.
    measured = choose.measure_dtypes(model_config, device, dtype=config.dtype, matmul=config.matmul)
    rehearsal = StepProfiler(config, model_config, device)
    costs: list[StepCost] = []
    choices: dict[str, list[str]] = {}
    if device.type == "cpu":
        # Compiled once on each host: no part of what a dtype takes.
        kernels.kernels()
    times = {name: each.best_s for name, each in measured.times.items()}
    for dtype in dtypes_to_try(times, lambda: costs[0].batch_s):
        chosen = choose.choose_dtype([times], dtype)
        compute = measured_compute(config, model_config, device, chosen, measured, threads)
        rehearsal.compute_by(compute)
        known = _known(costs[0], times, dtype) if costs else None
        costs.append(rehearsal.cost(host, resolved.device_batch_size, known))
        choices[dtype] = [str(choice) for choice in compute.choices]
    return {
        "host": host,
        "compute": [dataclasses.asdict(each) for each in rates(host, device, threads[0])],
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
        if dtype == "float32" or foreseen_s < MOST_BATCH_S:
            yield dtype


def _known(first: StepCost, times_s: dict[str, float], dtype: str) -> Known:
    """What the fastest dtype tells of another. times_s: as `worth_a_try` has them.

    The overhead is not of products, so not of the dtype.
    """
    rows = first.tokens // first.model.sequence_len
    slower = times_s[dtype] / times_s[first.dtype]
    return Known(first.overhead_s, first.batch_s / rows * slower)


def model_config_of(resolved: ResolvedConfig) -> ModelShape:
    """The model that training would build from these shapes."""
    return ModelShape.from_depth(
        resolved.depth,
        aspect_ratio=resolved.aspect_ratio,
        head_dim=resolved.head_dim,
        sequence_len=resolved.max_seq_len,
        vocab_size=resolved.config.vocab_size,
        window_pattern=resolved.window_pattern,
    )


class StepProfiler:
    """The live parts of a run of one rank, and what they take, in one dtype at a time.

    `compute_by` says first in which.
    """

    compute: ComputeChoices
    head: FusedLinearCrossEntropy
    head_weight: Tensor

    def __init__(self, config: TrainConfig, model_config: ModelShape, device: torch.device) -> None:
        self.device = device
        self.model = GPT(model_config)
        self.model.init_weights(config.seed)
        self.model.to(device)
        groups = build_groups(self.model, LearningRates(), batch_lr_scale=1, muon_weight_decay=0)
        self.buffers = ParamBuffers(self.model, groups, [1.0])

    def compute_by(self, compute: ComputeChoices) -> None:
        """From now on in this dtype and in this way."""
        self.compute = compute
        self.model.compute_dtype = choose.DTYPES[compute.dtype]
        self.model.finish()
        choose.configure_model(
            self.model, compute.layers, compute.attention, compile_blocks=compute.compile_blocks
        )
        self.head = FusedLinearCrossEntropy(self.model.config.vocab_size, compute.head)
        self.head_weight = self._cast_head()

    def new_optimizer(self) -> MuonAdamW:
        """One at its first step, for the dtype that is computed in."""
        return MuonAdamW(
            self.buffers,
            Schedule(_STEPS),
            0,
            backend=self.compute.layers.forward,
            in_bfloat16=self.compute.dtype == "bfloat16",
        )

    def cost(self, host: str, device_batch_size: int, known: Known | None = None) -> StepCost:
        """What a step costs here, with micro-batches of device_batch_size rows."""
        config = self.model.config
        taken = self._micro_batches(device_batch_size, known)
        rows = device_batch_size if device_batch_size in taken else min(taken)
        whole = taken[rows]
        totals_s = {rows: each.total_s for rows, each in taken.items()}
        adamw_s, muon_s = self._optimizer_step(rows)
        return StepCost(
            host=host,
            device=self.device.type,
            dtype=self.compute.dtype,
            threads=self.compute.threads,
            model=ProbedModel(
                config.n_layer,
                config.n_embd,
                config.n_head,
                config.vocab_size,
                config.sequence_len,
            ),
            tokens=rows * config.sequence_len,
            forward_s=whole.forward_s,
            head_s=whole.head_s,
            backward_s=whole.backward_s,
            overhead_s=known.overhead_s if known else overhead_s(totals_s),
            adamw_s=adamw_s,
            muon_s=muon_s,
        )

    def _micro_batches(self, device_batch_size: int, known: Known | None) -> dict[int, MicroBatch]:
        """By rows: one size where the overhead is known; one row where that takes long already."""
        if self.compute.compile_blocks:
            # Every size is compiled by itself, for many seconds: the one that trains is enough.
            batch = self.tokens(device_batch_size)
            self._run(batch, self._tables(batch))
            return {device_batch_size: self._micro_batch(device_batch_size)}
        if known is not None:
            rows = device_batch_size if known.row_s < SLOW_ROW_S else 1
            return {rows: self._micro_batch(rows)}
        taken = {1: self._micro_batch(1)}
        if taken[1].total_s < SLOW_ROW_S:
            # What does not grow with the rows shows in a second size.
            more = max(2, device_batch_size)
            taken[more] = self._micro_batch(more)
        return taken

    def _micro_batch(self, rows: int) -> MicroBatch:
        batch = self.tokens(rows)
        tables = self._tables(batch)
        return _typical(lambda: self._run(batch, tables), lambda taken: taken.total_s)

    def _optimizer_step(self, rows: int) -> tuple[float, float]:
        """(AdamW's, Muon's) seconds, with table rows of a micro-batch of so many rows.

        AdamW's have what else a step does once: gradients set to zero, the head's weight cast.
        """
        tables = self._tables(self.tokens(rows))
        optimizer = self.new_optimizer()

        def adamw() -> None:
            optimizer.step_adamw(0, tables)
            self.buffers.zero_grad()
            self.head_weight = self._cast_head()

        # First, on the gradients that the micro-batches left.
        muon_s = _typical(
            lambda: self._timed(lambda: optimizer.step_muon(0)), float, OPTIMIZER_LIMIT_S
        )
        return _typical(lambda: self._timed(adamw), float, OPTIMIZER_LIMIT_S), muon_s

    def _run(self, batch: Tensor, tables: RowGrads) -> MicroBatch:
        """One micro-batch, as the trainer has it. batch: (b, T + 1)."""
        results: list[Any] = []
        forward_s = self._timed(lambda: results.append(self.model(batch[:, :-1], tables)))
        hidden = results.pop()
        head_s = self._timed(
            lambda: results.append(
                self.head.loss(
                    hidden.detach().flatten(0, 1),
                    self.head_weight,
                    batch[:, 1:].flatten(),
                    grad_scale=1.0 / batch[:, 1:].numel(),
                    weight_grad_VC=self.buffers.head_grad,
                )
            )
        )
        gradient = results.pop().hidden_grad
        backward_s = self._timed(lambda: hidden.backward(gradient.view_as(hidden)))
        return MicroBatch(forward_s, head_s, backward_s)

    def _timed(self, run: Callable[[], object]) -> float:
        began_s = time.perf_counter()
        run()
        choose.synchronize(self.device)
        return time.perf_counter() - began_s

    def _tables(self, batch: Tensor) -> RowGrads:
        vocab = self.model.config.padded_vocab_size
        return RowGrads.for_ids(batch[:, :-1], self.buffers.table_widths, vocab)

    def _cast_head(self) -> Tensor:
        return self.model.lm_head.weight.detach().to(self.model.compute_dtype)

    def tokens(self, rows: int) -> Tensor:
        """(b, T + 1) ids, of which some are frequent, as words are: id k as often as 1 / k."""
        config = self.model.config
        draw = torch.Generator().manual_seed(rows)
        uniform = torch.rand(rows, config.sequence_len + 1, generator=draw)
        ids = torch.exp(uniform * math.log(config.vocab_size)).long() - 1
        return ids.clamp(0, config.vocab_size - 1).to(self.device)


def overhead_s(total_s_by_rows: dict[int, float]) -> float:
    """The part of a micro-batch's time that does not grow with its rows; 0 for one size alone."""
    if len(total_s_by_rows) == 1:
        return 0.0
    few, many = sorted(total_s_by_rows)
    slope_s = (total_s_by_rows[many] - total_s_by_rows[few]) / (many - few)
    return max(0.0, total_s_by_rows[few] - few * slope_s)


def _typical(run: Callable[[], T], seconds: Callable[[T], float], limit_s: float = LIMIT_S) -> T:
    """The median of a few runs after one to warm up, which counts where it is long.

    Not the fastest: training takes its steps beside whatever else this host has to do.
    """
    first = run()
    taken = [first] if seconds(first) > LONG_S else []
    spent_s = seconds(first)
    while not taken or (spent_s < limit_s and len(taken) < MOST_RUNS):
        taken.append(run())
        spent_s += seconds(taken[-1])
    return sorted(taken, key=seconds)[len(taken) // 2]


def rates(host: str, device: torch.device, threads: int) -> list[Compute]:
    """How fast this device multiplies in each dtype, and how fast it copies."""
    copied = copy_bytes_per_s(device)
    return [
        Compute(
            host=host,
            device=str(device),
            device_name=_name_of(device),
            dtype=name,
            threads=threads,
            flops_per_s=flops_per_s(device, name),
            copy_bytes_per_s=copied,
        )
        for name in choose.DTYPES
    ]


def flops_per_s(device: torch.device, dtype: str) -> float:
    """FLOP/s of a square product, twice as large until it takes long enough; the best library's."""
    kind = choose.DTYPES[dtype]
    size = 256
    while True:
        a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
        took_s = min(
            choose.best_time_s(functools.partial(mm_nt, a, b, backend), device)
            for backend in _libraries(device, kind)
        )
        if took_s >= PRODUCT_S or size >= LARGEST_PRODUCT:
            return 2.0 * size**3 / took_s
        size *= 2


def _libraries(device: torch.device, dtype: torch.dtype) -> tuple[MatmulBackend, ...]:
    return choose.libraries_for(device, dtype, "auto")


def copy_bytes_per_s(device: torch.device) -> float:
    """Bytes read plus written a second, of a copy that the caches do not hold."""
    source = torch.ones(COPY_BYTES // 4, device=device)
    target = torch.empty_like(source)
    return 2.0 * source.nbytes / choose.best_time_s(lambda: target.copy_(source), device)


def _name_of(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return str(processors.facts()["cpu_model"])


def main(argv: list[str]) -> int:
    """Print the rehearsal of this process; returns the exit status."""
    sys.stdout.write(json.dumps(report(argv)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
