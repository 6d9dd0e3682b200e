"""How deep a model, and how many rows at once, the memory of a GPU allows. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from yoked.costmodel.memory import GPU_HEAD_CHUNK_TOKENS, rank_memory
from yoked.costmodel.model_shape import ModelShape
from yoked.units import format_bytes

# What a GPU is taken to have free where nobody has looked at it: that of 12 GB is a common one.
TYPICAL_BYTES = 0.85 * 12e9
# Rows of a micro-batch that keep a GPU busy: no model is made deeper at their cost.
FEWEST_ROWS = 4
DEPTHS = range(20, 2, -2)
LESS = "--checkpoint-activations"


@dataclass(frozen=True)
class GpuFit:
    """What was chosen. need_bytes: of a rank; least_bytes: with layers computed again."""

    depth: int
    rows: int
    need_bytes: float
    least_bytes: float
    usable_bytes: float

    @property
    def fits(self) -> bool:
        """Whether the GPU has what is needed."""
        return self.need_bytes <= self.usable_bytes

    @property
    def reason(self) -> str:
        """Such as `needs 9.7 GB of the 10.2 GB that the GPU has for it`."""
        amounts = f"{format_bytes(self.need_bytes)} of the {format_bytes(self.usable_bytes)}"
        told = f"needs {amounts} that the GPU has for it"
        if self.fits:
            return told
        if self.least_bytes <= self.usable_bytes:
            return f"{told}: too much; {format_bytes(self.least_bytes)} with {LESS}"
        return f"{told}: too much"


def head_logits(shape: ModelShape, rows: int) -> int:
    """Logits that are there at a time, of a micro-batch of so many rows."""
    tokens = min(rows * shape.sequence_len, GPU_HEAD_CHUNK_TOKENS)
    return tokens * shape.padded_vocab_size


def fit_gpu(
    shape_of: Callable[[int], ModelShape],
    depths: Sequence[int],
    rows: Sequence[int],
    usable_bytes: float,
    *,
    dtype: str,
    step_rows: int,
    checkpointed: bool,
) -> GpuFit:
    """The first of depths, and of rows, that fits; where none does, the last of both.

    shape_of: the model of a depth. depths, rows: the largest first. step_rows: of all ranks, which
    one rank may have for itself.
    """

    def tried() -> Iterable[GpuFit]:
        for depth in depths:
            shape = shape_of(depth)
            for count in rows:
                if count < min(FEWEST_ROWS, rows[0]) and depth != depths[-1]:
                    continue
                need, least = (
                    rank_memory(
                        shape,
                        dtype=dtype,
                        rows=count,
                        step_rows=step_rows,
                        owned_fraction=1.0,
                        payload_bytes=0.0,
                        checkpointed=again,
                        logits=head_logits(shape, count),
                    )
                    for again in (checkpointed, True)
                )
                yield GpuFit(depth, count, need, least, usable_bytes)

    last = None
    for last in tried():
        if last.fits:
            break
    assert last is not None, "there is a depth, and a number of rows"
    return last
