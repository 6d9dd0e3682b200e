"""Whether a Mac trains on its GPU or on its CPU: by what a row takes on each.

Products alone would flatter the GPU: what lies between them is eager there, and fused on the CPU.

Shape legend: T tokens of a row, C n_embd, K kv_width, V vocabulary.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from yoked.costmodel.model_shape import ModelShape
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions.compute import RECORDED, configure_block, measured_compute
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.products import choose_dtype, measure_dtypes
from yoked.train.decisions.threads import set_threads
from yoked.train.decisions.timing import time_interleaved
from yoked.train.device import DTYPES, is_left_open, pick_device
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import Block, rotary_tables
from yoked.train.resolve import resolve

CPU = torch.device("cpu")


def choose_device(
    config: TrainConfig, rank_info: RankInfo, recorded: Sequence[dict[str, Any]] = ()
) -> tuple[torch.device, Decision | None]:
    """The device that trains, and why, where there was a choice. Raises DeviceError.

    recorded: run.json's entry of each rank, where the run goes on from an earlier attempt.
    """
    device = pick_device(config.device_type, rank_info.local_rank)
    # One for CUDA is a card of its own, and faster than any CPU.
    if device.type in ("cpu", "cuda") or not is_left_open(config.device_type):
        return device, None
    if len(recorded) == rank_info.world_size:
        mine = recorded[rank_info.rank]
        earlier = mine.get("device")
        if mine.get("name") == socket.gethostname() and earlier in (CPU.type, device.type):
            return torch.device(earlier), Decision("device", earlier, RECORDED)
    threads = set_threads(config, rank_info)
    shape = resolve(config, device.type).model_shape(config.vocab_size)
    taken_s = {each.type: row_time_s(config, shape, each, threads) for each in (CPU, device)}
    chosen = faster_device(taken_s)
    return torch.device(chosen.value), chosen


def faster_device(row_s: Mapping[str, float]) -> Decision:
    """The device on which a row takes less. row_s: seconds by type of device."""
    best, other = sorted(row_s, key=lambda name: row_s[name])
    reason = f"{other} would take {row_s[other] / row_s[best]:.1f}x as long"
    return Decision("device", best, reason, {f"{name}_s_per_row": s for name, s in row_s.items()})


def row_time_s(
    config: TrainConfig, shape: ModelShape, device: torch.device, threads: Decision
) -> float:
    """Seconds of one row, forward and backward, in all layers and the lm_head, as a run there would
    compute them.
    """
    measured = measure_dtypes(shape, device, dtype=config.dtype, matmul=config.matmul)
    dtype = choose_dtype([measured.best_s], config.dtype)
    compute = measured_compute(config, shape, device, dtype, measured, threads)
    kind, tokens = DTYPES[compute.dtype], shape.sequence_len

    def drawn(*sizes: int) -> torch.Tensor:
        return torch.randn(sizes, device=device).to(kind)

    block = Block(shape, layer=0).to(device)
    configure_block(block, compute.layers, compute.attention)
    for parameter in block.parameters():
        nn.init.normal_(parameter, std=0.02)
    cos, sin = (table.to(kind) for table in rotary_tables(tokens, shape.head_dim, device))
    x, dy = drawn(1, tokens, shape.n_embd).requires_grad_(), drawn(1, tokens, shape.n_embd)
    ve = None if block.attn.ve_gate is None else drawn(1, tokens, shape.kv_width)
    hidden, weight = drawn(tokens, shape.n_embd), drawn(shape.padded_vocab_size, shape.n_embd)
    weight_grad = torch.zeros(weight.shape, device=device)
    targets = torch.arange(tokens, device=device) % shape.vocab_size
    head = FusedLinearCrossEntropy(shape.vocab_size, compute.head)
    taken_s = time_interleaved(
        {
            "layer": lambda: block(x, ve, cos, sin).backward(dy),
            "lm_head": lambda: head.loss(
                hidden, weight, targets, grad_scale=1 / tokens, weight_grad_VC=weight_grad
            ),
        },
        device,
    )
    return shape.n_layer * taken_s["layer"] + taken_s["lm_head"]
