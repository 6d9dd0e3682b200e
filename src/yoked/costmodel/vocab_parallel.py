"""What a vocab-parallel lm_head is, and why it pays where a step has few tokens.

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
