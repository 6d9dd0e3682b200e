"""Whether a host computes a model as fast as it multiplies, or as fast as its memory moves.

The roofline model: a computation that makes fewer FLOPs out of each byte than the machine could
(its balance) waits for the memory. Source: Williams, Waterman and Patterson 2009,
doi:10.1145/1498765.1498785. The counts below are of what leaves the caches of a CPU.

Legend: T tokens of a micro-batch, C n_embd, L layers, V vocabulary, b bytes of a number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from yoked.records.measurement import Compute, ModelShape, StepCost

Side = Literal["arithmetic", "memory"]
BYTES = {"float32": 4, "bfloat16": 2}
# Numbers of width C that a token reads or writes in a layer: the forward products 18 (c_q, c_k and
# c_v 2 each, c_proj 2, the MLP's two 5 each), the backward ones twice that; the rest in passes.
_NUMBERS_PER_LAYER = 18 * 3 + 20
# The head writes a block of logits, and reads it for each of its two gradients.
_LOGIT_PASSES = 3
# Of a step; less is not worth a line.
_NOTABLE_FRACTION = 0.1


@dataclass(frozen=True)
class Roofline:
    """What holds one dtype of one host back, for one micro-batch.

    intensity: FLOPs that the model makes of each byte; balance: those that the device could.
    reached: the part of the device's fastest products that the layers and the head come to.
    optimizer_share: AdamW's part of a step of one such micro-batch; it waits for memory always.
    """

    host: str
    dtype: str
    side: Side
    intensity: float
    balance: float
    reached: float
    optimizer_share: float
    suggestions: tuple[str, ...]


def product_flops(shape: ModelShape, tokens: int) -> float:
    """FLOPs of the products of a micro-batch, forward and backward: 6 a parameter and token, and
    the attention's, of which the causal mask leaves half.
    """
    matrices = 12 * shape.depth * shape.n_embd**2
    head = shape.vocab_size * shape.n_embd
    attention = 6 * shape.depth * shape.n_embd * shape.sequence_len
    return float(tokens * (6 * (matrices + head) + attention))


def moved_bytes(shape: ModelShape, tokens: int, dtype: str) -> float:
    """Bytes that a micro-batch moves: weights twice, their fp32 gradients read and written, what
    layers hand each other, and the logits.
    """
    size = BYTES[dtype]
    dense = 12 * shape.depth * shape.n_embd**2 + shape.vocab_size * shape.n_embd
    weights = dense * (2 * size + 2 * 4)
    layers = tokens * shape.depth * shape.n_embd * _NUMBERS_PER_LAYER * size
    logits = tokens * shape.vocab_size * _LOGIT_PASSES * size
    return float(weights + layers + logits)


def roofline(cost: StepCost, compute: Compute, alternatives: tuple[Compute, ...]) -> Roofline:
    """The verdict for one dtype of one host. alternatives: its other dtypes.

    cost is that of one rank, compute that of all ranks that share the device's threads.
    """
    own_fraction = cost.threads / compute.threads
    flops = product_flops(cost.model, cost.tokens)
    intensity = flops / moved_bytes(cost.model, cost.tokens, cost.dtype)
    balance = compute.flops_per_s / compute.copy_bytes_per_s
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
    """What would make this host faster, most first."""
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
