"""Memory that a rank needs, from the model's shape."""

from __future__ import annotations

from yoked.costmodel.model_shape import ModelShape, ParameterCounts, count_parameters
from yoked.costmodel.schedule import activation_numbers, checkpointed_numbers
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.costmodel.work import ON_TIME, Delays

# A process that has imported torch, chosen its libraries and allocated its work buffers. The
# total is within 4% of the peaks measured at depth 4 with 2 and 8 rows (1.02 and 1.38 GB).
PROCESS_BYTES = 350_000_000
# Tokens whose logits exist at once: the lm_head takes a micro-batch in chunks of these.
HEAD_CHUNK_TOKENS = 1024
GPU_HEAD_CHUNK_TOKENS = 4096  # with fewer it is not busy
# The rest is for the other programs of the person who owns the machine.
USABLE_FRACTION = 0.9
# Of what is free on a GPU: allocations leave gaps, and a desktop draws its windows there.
USABLE_GPU_FRACTION = 0.85
# Of a number in a checkpoint, each a float32: AdamW has two moments, Muon one and a few factors of
# rows.
_ADAMW_COPIES = 3
_MUON_COPIES = 2


def rank_memory(
    shape: ModelShape,
    *,
    dtype: str,
    rows: int,
    owned_fraction: float,
    payload_bytes: float,
    late: Delays = ON_TIME,
    deferred_rows: int = 0,
    step_rows: int = 0,
    checkpointed: bool = False,
    tables_on_host: bool = False,
    logits: int | None = None,
) -> float:
    """Peak memory of one rank in a step, in bytes; of a GPU's, on the GPU.

    rows: of a micro-batch; deferred_rows: of the micro-batches with deferred backward passes;
    step_rows: of all of a step's that this rank computes, where they are known.
    checkpointed: backward computes each layer again. tables_on_host: `tables_memory` is the host's.
    owned_fraction: of Muon's matrices.
    payload_bytes: of a number on the wire, 0 for a single rank. late: whose gradients
    wait for a step.
    logits: number of logits kept at once; None: those of a chunk.
    """
    counts = count_parameters(shape)
    number = 2 if dtype == "bfloat16" else 4  # bytes
    tokens = rows * shape.sequence_len
    kept_tokens = tokens + deferred_rows * shape.sequence_len
    if tables_on_host:
        # Of one table at a time, the micro-batch's rows and the sums of their gradients.
        micro_rows = expected_unique_tokens(tokens, shape.vocab_size)
        tables = micro_rows * max(shape.n_embd, shape.kv_width) * (number + 4)
    else:
        tables = tables_memory(shape, dtype=dtype, rows=max(rows, step_rows))
    weights = gradients = 4.0 * counts.dense
    # Muon has one momentum; its second moment (NorMuon) is one number a row or column.
    muon = 4 * owned_fraction * counts.transformer_matrices
    moments = 8.0 * counts.lm_head + muon
    kept = checkpointed_numbers if checkpointed else activation_numbers
    activations = float(number * kept(kept_tokens, shape.n_embd, shape.n_layer))
    if logits is None:
        logits = min(tokens, HEAD_CHUNK_TOKENS) * shape.padded_vocab_size
    # The lm_head is cast to the compute dtype once a step.
    cast = counts.lm_head * number if number != 4 else 0
    # Error feedback keeps what a payload of less than a float32 has lost.
    residuals = 4.0 * counts.dense if 0 < payload_bytes < 4 else 0.0
    # Gradients that wait, and new matrices beside the old ones.
    waiting = 4.0 * (2 * late.matrices * counts.transformer_matrices + late.head * counts.lm_head)
    buffers = logits * number + cast + counts.dense * payload_bytes + residuals + waiting
    return PROCESS_BYTES + (weights + gradients + moments + tables + activations + buffers)


def tables_memory(shape: ModelShape, *, dtype: str, rows: int) -> float:
    """Bytes of the embedding tables: weights, two moments, and gradients of a step of so many rows.

    A step's micro-batches add to the same rows of the tables, in float32; no others have a
    gradient.
    """
    used_rows = expected_unique_tokens(rows * shape.sequence_len, shape.vocab_size)
    number = 2 if dtype == "bfloat16" else 4  # bytes
    return (
        3.0 * number * count_parameters(shape).tables + 4 * used_rows * shape.embedding_row_numbers
    )


def checkpoint_bytes(counts: ParameterCounts, *, late: Delays = ON_TIME) -> int:
    """Bytes of one checkpoint: weights and the optimizer's state.

    late: whose gradients it has that the next step uses.
    """
    adamw = counts.adamw + counts.scalars
    gradients = late.head * counts.lm_head + late.matrices * counts.transformer_matrices
    return 4 * (_ADAMW_COPIES * adamw + _MUON_COPIES * counts.transformer_matrices + gradients)
