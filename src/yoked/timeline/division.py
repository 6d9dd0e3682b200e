"""The lm_head divided between ranks by its vocabulary, where a step has few tokens.

Summed, its gradient is most of what a step sends: V * C numbers, however few the tokens. Divided,
each rank computes its part of the vocabulary for the tokens of all ranks, and what travels is what
belongs to tokens: hidden states there, their gradient back, and for each token two sums over
a rank's part.

    layers forward -> hidden states -> | own part: logits | -> sums -> | gradients of hidden states
    -> | own part: weight's gradient | layers backward

Sum and softmax of a vocabulary in parts: Megatron-LM (Shoeybi et al. 2019), section 3. Here each
rank's part is as large as its share of the step's work, to GRAIN_IDS.
"""

from __future__ import annotations

# A part of the vocabulary has a multiple of so many tokens' rows.
GRAIN_IDS = 16
# Logits of all of a step's tokens are kept until their sums have come.
MOST_TOKENS = 4096
# With more tokens than this part of the vocabulary has, hidden states would be as much as the
# gradient in the smallest payload dtype, and layers of several micro-batches could not hide it.
LEAST_IDS_PER_TOKEN = 8


def is_divided(tokens: int, vocab_size: int, micro_batches: int, deferred: int) -> bool:
    """Whether it is, in steps of so many tokens, which are so many micro-batches on one rank.

    deferred: as `deferred_backwards` says: all activations are kept until the head is done.
    """
    few = tokens <= min(MOST_TOKENS, vocab_size // LEAST_IDS_PER_TOKEN)
    return few and micro_batches <= deferred
