"""When the lm_head is vocab-parallel: where a step has few tokens.

Summed, its gradient is most of what a step sends: V * C numbers, however few the tokens. Instead,
each rank computes a part of the vocabulary for the tokens of all ranks. Then what travels belongs
to tokens: hidden states there, their gradient back, and for each token two sums over a part.

    layers forward -> hidden states -> | own part: logits | -> sums -> | gradients of hidden states
    -> | own part: weight's gradient | layers backward

Sum and softmax of a vocabulary in parts: Megatron-LM (Shoeybi et al. 2019), section 3. Here each
rank's part is as large as its share of the step's work, to VOCAB_GRANULARITY.
"""

from __future__ import annotations

# A part of the vocabulary has a multiple of so many tokens' rows.
VOCAB_GRANULARITY = 16
# Logits of all of a step's tokens are kept until their sums have come.
MOST_TOKENS = 4096
# With more tokens than this part of the vocabulary has, hidden states would be as much as the
# gradient in the smallest payload dtype, and layers of several micro-batches could not hide it.
LEAST_IDS_PER_TOKEN = 8


def is_vocab_parallel(tokens: int, vocab_size: int, micro_batches: int, deferred: int) -> bool:
    """Whether the lm_head is, in steps of so many tokens: so many micro-batches on one rank.

    deferred: as `max_deferred_backwards` says: all activations are kept until the head is done.
    """
    few = tokens <= min(MOST_TOKENS, vocab_size // LEAST_IDS_PER_TOKEN)
    return few and micro_batches <= deferred
