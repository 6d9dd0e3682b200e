"""How much memory a rank of a plan needs, from the model's shape."""

from __future__ import annotations

from dataclasses import dataclass

from yoked.plan.shape import Shape, count_parameters
from yoked.timeline.schedule import activation_numbers
from yoked.timeline.token_stats import expected_unique_tokens

# A process that has imported torch, chosen its products and holds its work buffers. With it the
# whole is within 4% of the peak that rehearsals of depth 4 with 2 and 8 rows had (1.02, 1.38 GB).
PROCESS_BYTES = 350_000_000
HEAD_CHUNK_TOKENS = 1024
# More of a machine's memory than that, and its owner notices.
USABLE_FRACTION = 0.9


@dataclass(frozen=True)
class MemoryNeed:
    """Bytes of one rank. buffers: payloads, residuals, the logits of a chunk."""

    weights: float
    gradients: float
    moments: float
    activations: float
    buffers: float

    @property
    def total(self) -> float:
        """With what the process itself takes."""
        parts = self.weights + self.gradients + self.moments + self.activations + self.buffers
        return PROCESS_BYTES + parts


def rank_memory(
    shape: Shape,
    *,
    dtype: str,
    rows: int,
    owned_fraction: float,
    lossy: bool,
    payload_bytes: float,
    deferred_rows: int = 0,
    logits: int | None = None,
) -> MemoryNeed:
    """What one rank holds at the height of a step. rows: of a micro-batch; deferred_rows: of those
    whose backward passes are deferred; owned_fraction: of Muon's matrices; payload_bytes: of a
    number on the wire, 0 for a rank alone; logits: that are held, where it is not those of a chunk.
    """
    counts = count_parameters(shape)
    number = 2 if dtype == "bfloat16" else 4
    tokens = rows * shape.sequence_len
    kept_tokens = tokens + deferred_rows * shape.sequence_len
    tables = counts.tables * number
    row_numbers = expected_unique_tokens(tokens, shape.vocab_size) * shape.embedding_row_numbers
    if logits is None:
        logits = min(tokens, HEAD_CHUNK_TOKENS) * shape.padded_vocab_size
    # The lm_head is cast once a step.
    cast = counts.lm_head * number if number != 4 else 0
    travelling = counts.dense * payload_bytes
    return MemoryNeed(
        weights=4.0 * counts.dense + tables,
        gradients=4.0 * counts.dense + 4 * row_numbers,
        moments=8.0 * counts.lm_head
        + 2 * tables
        + 4 * owned_fraction * counts.transformer_matrices,
        activations=float(number * activation_numbers(kept_tokens, shape.n_embd, shape.depth)),
        buffers=logits * number + cast + travelling + (4.0 * counts.dense if lossy else 0.0),
    )
