"""How deep a model, and how many rows at once, the memory of a GPU allows. No torch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from yoked.costmodel.memory import GPU_HEAD_CHUNK_TOKENS, rank_memory
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.work import ON_TIME, Delays
from yoked.units import format_bytes

# What a GPU is taken to have free where nobody has looked at it: that of 12 GB is a common one.
TYPICAL_BYTES = 0.85 * 12e9
# Rows of a micro-batch that keep a GPU busy: no model is made deeper at their cost.
FEWEST_ROWS = 4
DEPTHS = range(20, 2, -2)
# Ways to need less memory, the cheapest in speed first: where tables are, and whether layers are
# computed again.
LESS = {
    "--tables host": ("host", False),
    "--checkpoint-activations": ("device", True),
    "--tables host --checkpoint-activations": ("host", True),
}


@dataclass(frozen=True)
class GpuFit:
    """What was chosen. need_bytes: of a rank; less: flags with which it would fit, and its bytes
    then; device_bytes: those with tables on the GPU.
    """

    depth: int
    rows: int
    tables: str
    need_bytes: float
    usable_bytes: float
    less: tuple[str, float] | None
    device_bytes: float

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
        if self.less is None:
            return f"{told}: too much"
        flags, need_bytes = self.less
        return f"{told}: too much; {format_bytes(need_bytes)} with {flags}"


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
    tables: str,
    payload_bytes: float = 0.0,
    late: Delays = ON_TIME,
) -> GpuFit:
    """The first of depths, and of rows, that fits; where none does, the last of both.

    shape_of: the model of a depth. depths, rows: the largest first. step_rows: of all ranks, which
    one rank may have for itself. tables: as `--tables`; auto: on the host where only so one fits.
    payload_bytes: of a number that is sent encoded. late: whose gradients wait for a step.
    """

    def need(place: str, depth: int, count: int, again: bool = checkpointed) -> float:
        shape = shape_of(depth)
        return rank_memory(
            shape,
            dtype=dtype,
            rows=count,
            step_rows=step_rows,
            owned_fraction=1.0,
            payload_bytes=payload_bytes,
            late=late,
            checkpointed=again,
            tables_on_host=place == "host",
            logits=head_logits(shape, count),
        )

    places = ("device", "host") if tables == "auto" else (tables,)
    tried = (
        (place, depth, count)
        for place in places
        for depth in depths
        for count in rows
        if count >= min(FEWEST_ROWS, rows[0]) or depth == depths[-1]
    )
    fitting = (each for each in tried if need(*each) <= usable_bytes)
    place, depth, count = next(fitting, (places[0], depths[-1], rows[-1]))
    ways = ((flags, need(less, depth, count, again)) for flags, (less, again) in LESS.items())
    return GpuFit(
        depth,
        count,
        place,
        need(place, depth, count),
        usable_bytes,
        next((way for way in ways if way[1] <= usable_bytes), None),
        need("device", depth, count),
    )
