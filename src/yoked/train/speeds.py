"""How fast each rank is before the first step: products of the model, while all ranks compute.

Sustained for longer than a burst: a host with a quota of its CPU, or one that slows down when it
is warm or has to share its cores, would look faster in a few milliseconds than it trains.

Shape legend: N tokens, I inputs, O outputs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from yoked.costmodel.compute_cost import COPY_BYTES_PER_S, RankSpeed
from yoked.costmodel.model_shape import ModelShape
from yoked.ranks.exchange import read_nothing, read_number, read_table
from yoked.train.comm.communicator import Communicator
from yoked.train.decisions.products import SAMPLE_TOKENS, sample_tokens
from yoked.train.decisions.timing import best_time_s
from yoked.train.device import DTYPES, synchronize
from yoked.train.model.cross_entropy import block_columns
from yoked.train.model.linear import MatmulBackend, mm_nt

MEASURE_S = 0.3
COPIED_BYTES = 64_000_000
# A quota is given out ten times a second, as a burst: one more or less is a third of MEASURE_S.
STOPPED_MEASURE_S = 1.0
# Threads that had less of their cores than this were stopped, or shared them.
WHOLE_CORES = 0.9


def measure_speeds(
    config: ModelShape,
    device: torch.device,
    dtype: str,
    libraries: tuple[MatmulBackend, MatmulBackend],
    comm: Communicator,
) -> list[RankSpeed]:
    """How fast each rank is in the model's products, by rank. Collective; see `measure_speed`."""

    def all_are_here() -> None:
        # So that ranks of one host share it as they will.
        comm.all_gather_json(None, read_nothing)

    mine = measure_speed(config, device, dtype, libraries, all_are_here)
    return comm.all_gather_json(asdict(mine), read_speed)


def measure_speed(
    config: ModelShape,
    device: torch.device,
    dtype: str,
    libraries: tuple[MatmulBackend, MatmulBackend],
    ready: Callable[[], None] = lambda: None,
) -> RankSpeed:
    """How fast this rank is in the model's products. Takes MEASURE_S, up to STOPPED_MEASURE_S where
    it does not have its cores for itself.

    libraries: those of the layers' and of the head's products. ready: called before the clock runs.
    """
    columns = block_columns(device, DTYPES[dtype])
    width, block = config.n_embd, min(columns, config.padded_vocab_size)
    rounds = [
        (*_operands(inputs, outputs, device, DTYPES[dtype]), backend)
        for inputs, outputs, backend in (
            (width, 4 * width, libraries[0]),
            (width, block, libraries[1]),
        )
    ]
    _multiply(rounds, device)
    ready()
    started_s, cpu_started_s, count = time.perf_counter(), time.process_time(), 0
    while True:
        _multiply(rounds, device)
        count += 1
        took_s = time.perf_counter() - started_s
        cpu_s = time.process_time() - cpu_started_s
        own_cores = 1.0
        if device.type == "cpu":
            own_cores = min(1.0, cpu_s / (torch.get_num_threads() * took_s))
        if took_s >= (MEASURE_S if own_cores >= WHOLE_CORES else STOPPED_MEASURE_S):
            break
    flops = sum(2 * a.size(0) * a.size(1) * b.size(0) for a, b, _ in rounds)
    return RankSpeed(count * flops / took_s, own_cores, _copy_rate(device))


def _copy_rate(device: torch.device) -> float:
    """Bytes a second read and written by a copy in the device's memory."""
    if device.type == "cpu":
        return COPY_BYTES_PER_S
    source = torch.zeros(COPIED_BYTES // 4, device=device)
    target = torch.zeros_like(source)
    return 2 * COPIED_BYTES / best_time_s(lambda: target.copy_(source), device)


def read_speed(value: Any) -> RankSpeed:
    """What a rank tells of its speed."""
    told = read_table(value)
    return RankSpeed(
        read_number(told["flops_per_s"]),
        read_number(told["own_cores"]),
        read_number(told["copy_bytes_per_s"]),
    )


def _operands(
    inputs: int, outputs: int, device: torch.device, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """(N, I) and (O, I)."""
    on_cpu = device.type == "cpu"
    tokens = SAMPLE_TOKENS if on_cpu else sample_tokens(device, inputs * outputs)
    a = torch.randn(tokens, inputs, device=device).to(dtype)
    return a, torch.randn(outputs, inputs, device=device).to(dtype)


def _multiply(rounds: list[tuple[Tensor, Tensor, MatmulBackend]], device: torch.device) -> None:
    for a, b, backend in rounds:
        mm_nt(a, b, backend)
    synchronize(device)
