"""How ranks compute the lm_head and its loss: replicated, or each a part of the vocabulary."""
