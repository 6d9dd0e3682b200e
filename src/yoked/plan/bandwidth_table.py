"""Time to exchange a step's gradients at four line rates, without overlap: 2(N-1)/N * S."""

from __future__ import annotations

from typing import Any

from yoked.costmodel.messages import ring_bytes
from yoked.costmodel.model_shape import ModelShape, count_parameters
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.costmodel.work import DENSE_BYTES, rows_compression

# Three of homes, and that of a cluster (`h100-roce`).
LINE_RATES_BIT_PER_S = (1e9, 2.5e9, 10e9, 400e9)
# Ethernet, IP and TCP headers leave 94.9% of the line at an MTU of 1,500; TCP timestamps, which
# Linux has on, take another 0.8%.
GOODPUT_FRACTION = 0.949


def transfer_times(shape: ModelShape, ranks: int, tokens_per_rank: float) -> list[dict[str, Any]]:
    """Bytes that each rank sends in a step, and their time without overlap, by scheme.

    As `yoked plan --json` has them: what, bytes_per_step, and time_s by the line's bit/s as text.
    """
    counts = count_parameters(shape)
    rows = (
        expected_unique_tokens(round(tokens_per_rank), shape.vocab_size)
        * shape.embedding_row_numbers
    )
    schemes = [
        # nn.Embedding's gradient is dense, so DDP sums whole tables.
        ("every gradient in float32, as plain DDP does", ring_bytes(4.0 * counts.total, ranks))
    ]
    for sync, number in DENSE_BYTES.items():
        row = DENSE_BYTES[rows_compression(sync, shape.table_widths)]
        # Rows go to each other rank as they are; all else as in a ring.
        sent = ring_bytes(number * counts.dense, ranks) + (ranks - 1) * rows * row
        schemes.append((sync, sent))
    return [
        {
            "what": scheme,
            "bytes_per_step": sent,
            "time_s": {
                str(rate): 8 * sent / (rate * GOODPUT_FRACTION) for rate in LINE_RATES_BIT_PER_S
            },
        }
        for scheme, sent in schemes
    ]
