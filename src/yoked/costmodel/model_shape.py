"""A model's shape, and what follows from it: parameters by group, FLOPs, embedding rows.

The one description of a model, for the trainer that builds it and for the planner, which does not
import torch.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

# nanochat's numbers.
VOCAB_MULTIPLE = 64
SMEAR_CHANNELS = 24  # channels that the smear gate reads
VE_GATE_CHANNELS = 12  # channels that a value embedding's gate reads
SHORT_WINDOW_TILE = 128
POLAR_EXPRESS_STEPS = 5


@dataclass(frozen=True)
class ModelShape:
    """The fields are the keys of nanochat's meta files. vocab_size: of the tokenizer.

    window_pattern: as in --window-pattern.
    """

    sequence_len: int
    vocab_size: int
    n_layer: int
    n_head: int
    n_kv_head: int
    n_embd: int
    window_pattern: str = "SSSL"

    @classmethod
    def from_depth(
        cls,
        depth: int,
        *,
        aspect_ratio: int = 64,
        head_dim: int = 128,
        sequence_len: int = 2048,
        vocab_size: int = 32_768,
        window_pattern: str = "SSSL",
    ) -> ModelShape:
        """The width is depth * aspect_ratio, rounded up to whole heads."""
        n_head = math.ceil(depth * aspect_ratio / head_dim)
        return cls(
            sequence_len=sequence_len,
            vocab_size=vocab_size,
            n_layer=depth,
            n_head=n_head,
            n_kv_head=n_head,
            n_embd=n_head * head_dim,
            window_pattern=window_pattern,
        )

    @property
    def head_dim(self) -> int:
        """Channels of a head."""
        return self.n_embd // self.n_head

    @property
    def kv_width(self) -> int:
        """Channels of all keys, and of all values, of a token."""
        return self.n_kv_head * self.head_dim

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the embedding tables and of the lm_head."""
        return math.ceil(self.vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    def has_value_embedding(self, layer: int) -> bool:
        """True for every second layer, counted back from the last."""
        return layer % 2 == (self.n_layer - 1) % 2

    @property
    def value_tables(self) -> int:
        """Number of value embedding tables."""
        return sum(self.has_value_embedding(layer) for layer in range(self.n_layer))

    @property
    def table_widths(self) -> tuple[int, ...]:
        """Of the embedding tables: of tokens, and of values."""
        return (self.n_embd, *(self.kv_width,) * self.value_tables)

    @property
    def embedding_row_numbers(self) -> int:
        """Numbers of one embedding row, over all tables."""
        return sum(self.table_widths)

    def window(self, layer: int) -> int:
        """Number of tokens that a layer attends to; sequence_len in a full layer."""
        letter = self.window_pattern.upper()[layer % len(self.window_pattern)]
        if letter == "L" or layer == self.n_layer - 1:
            return self.sequence_len  # the last layer is full, whatever the pattern
        short = math.ceil(self.sequence_len / 4 / SHORT_WINDOW_TILE) * SHORT_WINDOW_TILE
        return min(short, self.sequence_len)

    @property
    def has_windows(self) -> bool:
        """Whether some layer does not see the whole row."""
        return any(self.window(layer) < self.sequence_len for layer in range(self.n_layer))


# More than any model has. Sums go layer by layer: what another host tells must not take for ever.
MOST_LAYERS = 10_000


def check_shape(shape: ModelShape) -> None:
    """Raise ValueError for a shape that no model has: a file or another host may tell any."""
    sizes = dataclasses.astuple(shape)[:-1]  # all but the window pattern
    fits = min(sizes) >= 1 and shape.n_embd % shape.n_head == 0 and shape.n_layer <= MOST_LAYERS
    if not fits or not shape.window_pattern:
        raise ValueError(f"no model has this shape: {shape}")


@dataclass(frozen=True)
class ParameterCounts:
    """Number of parameters by group, named as in run.json."""

    wte: int
    value_embeds: int
    lm_head: int
    transformer_matrices: int
    scalars: int

    @property
    def tables(self) -> int:
        """All embedding tables; their gradients are sent as rows."""
        return self.wte + self.value_embeds

    @property
    def adamw(self) -> int:
        """What AdamW updates in every step, without the scalars."""
        return self.lm_head + self.tables

    @property
    def dense(self) -> int:
        """The lm_head and the layers' matrices; their gradients are dense."""
        return self.lm_head + self.transformer_matrices

    @property
    def total(self) -> int:
        """All parameters."""
        return self.tables + self.dense + self.scalars


def count_parameters(shape: ModelShape) -> ParameterCounts:
    """Parameters by group; no model is built."""
    width, vocab = shape.n_embd, shape.padded_vocab_size
    # c_q and c_proj (C, C), c_k and c_v (K, C), the MLP's two (4C, C).
    per_layer = 2 * width * width + 2 * width * shape.kv_width + 8 * width * width
    gates = shape.value_tables * VE_GATE_CHANNELS * shape.n_kv_head
    return ParameterCounts(
        wte=vocab * width,
        value_embeds=shape.value_tables * vocab * shape.kv_width,
        lm_head=vocab * width,
        transformer_matrices=shape.n_layer * per_layer + gates,
        scalars=2 * shape.n_layer + SMEAR_CHANNELS + 2,  # resid, x0; smear_gate; smear, backout
    )


def layer_flops_per_token(shape: ModelShape) -> float:
    """FLOPs of the layers, forward and backward: 6 a parameter, 12 * width * window a layer.

    Source: appendix B of PaLM (Chowdhery et al. 2022).
    """
    matrices = count_parameters(shape).transformer_matrices + SMEAR_CHANNELS
    attention = sum(12 * shape.n_embd * shape.window(layer) for layer in range(shape.n_layer))
    return float(6 * matrices + attention)


def head_flops_per_token(shape: ModelShape) -> float:
    """FLOPs of the lm_head, forward and backward."""
    return 6.0 * count_parameters(shape).lm_head


def flops_per_token(shape: ModelShape) -> float:
    """FLOPs of the model, forward and backward."""
    return layer_flops_per_token(shape) + head_flops_per_token(shape)


def muon_flops(shape: ModelShape) -> float:
    """FLOPs of Muon in one step, where each head has keys of its own; without the small gates."""
    width = shape.n_embd
    square, wide = matrix_muon_flops(width, width), matrix_muon_flops(width, 4 * width)
    # square: c_q, c_k, c_v and c_proj; wide: the MLP's two.
    return shape.n_layer * (4 * square + 2 * wide)


def matrix_muon_flops(rows: int, columns: int) -> float:
    """FLOPs of one orthogonalisation in float32 on a CPU, as `train.optim.muon` computes it.

    Three quarters of a symmetric product are computed, and a matrix at least twice as long as it
    is wide takes its five steps on the Gram matrix.
    """
    small, large = sorted((rows, columns))
    square = 2.0 * small**3
    across = 2.0 * small * small * large
    if large < 2 * small:
        # A = X X^T and A^2 are symmetric; the product of their polynomial with X is not.
        return POLAR_EXPRESS_STEPS * ((0.75 + 1) * across + 0.75 * square)
    # X X^T twice, and P X twice; 11 symmetric products of squares, and 3 whole ones.
    return 2 * (0.75 + 1) * across + (0.75 * 11 + 3) * square
