"""In which order a rank's micro-batches of a step go forward and back, and what leaves when.

The lm_head's gradient is most of what crosses the wire, and complete only when the head has seen
the step's last micro-batch. If then only that one's backward pass is left, a slow wire keeps all
ranks waiting. So the last few micro-batches go through the layers and the head first, and their
backward passes follow, while the head's gradient travels:

    F H B  F H B  F H  F H  F H | B  B  B          (F: layers forward, H: head, B: layers backward)
                                  head's gradient ->

It costs the activations of those micro-batches, and nothing else: gradients are added up in the
same order.

Where the head's gradient is not waited for (`--sync late`), the rows of the tables are all that is,
and no backward pass waits. Rows leave in four parts as they are made, each about half of what is
left, so that those of the last micro-batch alone are still to travel when it is through.
"""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import NamedTuple

# Numbers that the backward pass keeps for a token of a layer, in widths of the model: norms,
# queries, keys and values before and after rotation, attention's output, the MLP's 4 + 4.
ACTIVATIONS_PER_TOKEN = 22
# Where layers are computed again: a layer's input, the stream before it, and value embeddings; and
# of the layer that is computed again its own, with their gradients.
CHECKPOINTED_PER_TOKEN, AGAIN_PER_TOKEN = 2.5, 35
# Activations that may be held back. All ranks must come to the same number, so it does not depend
# on what a host has, nor on its dtype.
MOST_BYTES = 1_000_000_000
MOST_DEFERRED = 8
_FLOAT32_BYTES = 4


def activation_numbers(tokens: int, n_embd: int, n_layer: int) -> int:
    """Numbers that a micro-batch of so many tokens keeps for its backward pass."""
    return tokens * n_embd * n_layer * ACTIVATIONS_PER_TOKEN


def checkpointed_numbers(tokens: int, n_embd: int, n_layer: int) -> int:
    """The same where backward computes each layer again; those of one layer are there at a time."""
    return round(tokens * n_embd * (n_layer * CHECKPOINTED_PER_TOKEN + AGAIN_PER_TOKEN))


def max_deferred_backwards(tokens: int, n_embd: int, n_layer: int) -> int:
    """At most so many, the last one's among them; 1: none waits. tokens: of a micro-batch."""
    kept_bytes = _FLOAT32_BYTES * activation_numbers(tokens, n_embd, n_layer)
    return max(1, min(MOST_DEFERRED, MOST_BYTES // kept_bytes))


class MicroBatchSchedule(NamedTuple):
    """Micro-batches of a rank in a step, or their rows.

    early: forward, head and backward before the next one begins; deferred: backward behind the last
    head, in two parts, unless none waits; last: the last micro-batch, or 0.
    """

    early: int
    deferred: tuple[int, int]
    last: int
    waits: bool = True

    @property
    def row_buckets(self) -> list[range]:
        """Micro-batches whose embedding rows leave in one message, once all have gone back."""
        edges = accumulate((self.early, *self.deferred, self.last), initial=0)
        return [range(start, stop) for start, stop in pairwise(edges)]


def schedule_micro_batches(count: int, deferred: int) -> MicroBatchSchedule:
    """Of so many micro-batches. deferred: as `max_deferred_backwards` says; 0: none waits."""
    last = min(count, 1)  # 0 for a rank without rows
    if deferred == 0:
        half = count // 2
        quarter = (count - half) // 2
        return MicroBatchSchedule(half, (quarter, count - half - quarter - last), last, False)
    waiting = min(count, deferred) - last
    # The lm_head has the wire at first: rows of the first two thirds come in time behind it.
    first = -(-2 * waiting // 3)
    return MicroBatchSchedule(count - last - waiting, (first, waiting - first), last)


def schedule_rows(rows: int, device_batch_size: int, deferred: int) -> MicroBatchSchedule:
    """The same in rows: only the last micro-batch may have fewer than device_batch_size."""
    count = -(-rows // device_batch_size)
    schedule = schedule_micro_batches(count, deferred)
    first, second = schedule.deferred
    return MicroBatchSchedule(
        schedule.early * device_batch_size,
        (first * device_batch_size, second * device_batch_size),
        rows - (count - schedule.last) * device_batch_size,
        schedule.waits,
    )
