"""The roofline model: is a training step bound by arithmetic, or by memory bandwidth?

The arithmetic intensity of a computation is its FLOPs per byte moved. If it is below the machine's
balance (peak FLOP/s over memory bandwidth), the computation waits for memory. Source: Williams,
Waterman and Patterson 2009, doi:10.1145/1498765.1498785. Bytes are those that leave a CPU's caches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from yoked.costmodel.model_shape import ModelShape, count_parameters, flops_per_token
from yoked.records.measurement import Compute, StepCost

Side = Literal["arithmetic", "memory"]
BYTES = {"float32": 4, "bfloat16": 2}
# Numbers that a token reads or writes in a layer, over n_embd: 18 in the forward products (c_q,
# c_k, c_v and c_proj 2 each, the MLP's two 5 each), twice that in the backward ones, 20 elsewhere.
_NUMBERS_PER_LAYER = 18 * 3 + 20
# The lm_head writes a block of logits, and reads it for each of its two gradients.
_LOGIT_PASSES = 3
# A smaller fraction of a step is not worth a line.
_NOTABLE_FRACTION = 0.1


@dataclass(frozen=True)
class Roofline:
    """The bound of one micro-batch on one host in one dtype.

    side: what binds it. intensity: FLOPs per byte of the model; balance: of the device.
    reached: speed of layers and lm_head, as a fraction of the device's fastest products.
    optimizer_share: AdamW's fraction of a step of one micro-batch; AdamW is always memory-bound.
    """

    host: str
    dtype: str
    side: Side
    intensity: float
    balance: float
    reached: float
    optimizer_share: float
    suggestions: tuple[str, ...]


def moved_bytes(shape: ModelShape, tokens: int, dtype: str) -> float:
    """Bytes that a micro-batch moves through memory.

    Weights are read twice, their fp32 gradients read and written; then activations and logits.
    """
    size = BYTES[dtype]
    weights = count_parameters(shape).dense * (2 * size + 2 * 4)
    layers = tokens * shape.n_layer * shape.n_embd * _NUMBERS_PER_LAYER * size
    logits = tokens * shape.padded_vocab_size * _LOGIT_PASSES * size
    return float(weights + layers + logits)


def roofline(cost: StepCost, compute: Compute, alternatives: tuple[Compute, ...]) -> Roofline:
    """The bound of one host in one dtype. alternatives: its other dtypes.

    cost: of one rank. compute: of all ranks that share the device's threads.
    """
    own_fraction = cost.threads / compute.threads
    flops = cost.tokens * flops_per_token(cost.model)
    intensity = flops / moved_bytes(cost.model, cost.tokens, cost.dtype)
    balance = compute.flops_per_s / compute.copy_bytes_per_s  # FLOPs per byte
    side: Side = "arithmetic" if intensity >= balance else "memory"
    micro_s = cost.batch_s
    step_s = micro_s + cost.adamw_s + cost.muon_s
    return Roofline(
        host=cost.host,
        dtype=cost.dtype,
        side=side,
        intensity=intensity,
        balance=balance,
        reached=flops / micro_s / (own_fraction * compute.flops_per_s),
        optimizer_share=cost.adamw_s / step_s,
        suggestions=tuple(_suggestions(side, cost, compute, alternatives, cost.adamw_s / step_s)),
    )


def _suggestions(
    side: Side,
    cost: StepCost,
    compute: Compute,
    alternatives: tuple[Compute, ...],
    optimizer_share: float,
) -> list[str]:
    """Changes that would make this host faster, the most effective first."""
    suggestions = []
    faster = [each for each in alternatives if each.flops_per_s > 1.1 * compute.flops_per_s]
    if side == "arithmetic":
        suggestions += [
            f"--dtype {each.dtype}: its products are "
            f"{each.flops_per_s / compute.flops_per_s:.1f}x as fast here"
            for each in faster
        ]
        if cost.device == "cpu":
            suggestions.append("more or faster cores, or a GPU; faster memory would not help")
    else:
        if cost.dtype == "float32" and faster:
            suggestions.append("--dtype bfloat16: half the bytes")
        suggestions.append("a larger --device-batch-size: weights are read once for more tokens")
        if cost.device == "cpu":
            suggestions.append("a second memory module in the other channel, or faster ones")
    if optimizer_share > _NOTABLE_FRACTION:
        suggestions.append(
            f"a larger --total-batch-size: AdamW, {100 * optimizer_share:.0f}% of a step of "
            f"{cost.tokens:,} tokens, waits for memory"
        )
    return suggestions
