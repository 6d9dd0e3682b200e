"""What a model costs, from its shape alone: parameters by group, FLOPs, rows of its tables.

The model is `yoked.train.model.gpt`'s; here nothing imports torch, so that a plan takes no time.
Tests hold both to the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from yoked.records.measurement import ModelShape

VOCAB_MULTIPLE = 64
SMEAR_CHANNELS = 24
VE_GATE_CHANNELS = 12
SHORT_WINDOW_TILE = 128
POLAR_EXPRESS_STEPS = 5


@dataclass(frozen=True)
class Shape:
    """A model. vocab_size: of the tokenizer; window_pattern: as in --window-pattern."""

    depth: int
    n_embd: int
    n_head: int
    vocab_size: int
    sequence_len: int
    window_pattern: str = "L"

    @classmethod
    def from_flags(
        cls,
        depth: int,
        *,
        aspect_ratio: int,
        head_dim: int,
        vocab_size: int,
        sequence_len: int,
        window_pattern: str,
    ) -> Shape:
        """The width that a depth implies: depth * aspect_ratio, rounded up to whole heads."""
        n_head = math.ceil(depth * aspect_ratio / head_dim)
        return cls(depth, n_head * head_dim, n_head, vocab_size, sequence_len, window_pattern)

    @classmethod
    def from_record(cls, record: ModelShape, window_pattern: str) -> Shape:
        """The shape of a measurement, which does not keep the pattern."""
        return cls(
            record.depth,
            record.n_embd,
            record.n_head,
            record.vocab_size,
            record.sequence_len,
            window_pattern,
        )

    @property
    def padded_vocab_size(self) -> int:
        """Rows of the tables and of the lm_head."""
        return math.ceil(self.vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def value_tables(self) -> int:
        """Every second layer has a table of value embeddings, the last one too."""
        return (self.depth + 1) // 2

    @property
    def embedding_row_numbers(self) -> int:
        """Numbers that a token looks up in all tables together."""
        return (1 + self.value_tables) * self.n_embd

    def window(self, layer: int) -> int:
        """How many tokens a layer attends to."""
        letter = self.window_pattern.upper()[layer % len(self.window_pattern)]
        if letter == "L" or layer == self.depth - 1:
            return self.sequence_len
        short = math.ceil(self.sequence_len / 4 / SHORT_WINDOW_TILE) * SHORT_WINDOW_TILE
        return min(short, self.sequence_len)


@dataclass(frozen=True)
class ParameterCounts:
    """Numbers of parameters by group, named as in the report of a run."""

    wte: int
    value_embeds: int
    lm_head: int
    transformer_matrices: int
    scalars: int

    @property
    def tables(self) -> int:
        """What travels as rows."""
        return self.wte + self.value_embeds

    @property
    def adamw(self) -> int:
        """What AdamW updates but for the scalars, whole in every step."""
        return self.lm_head + self.tables

    @property
    def dense(self) -> int:
        """What travels whole: the lm_head and the layers' matrices."""
        return self.lm_head + self.transformer_matrices

    @property
    def total(self) -> int:
        """All of the model."""
        return self.tables + self.dense + self.scalars


def count_parameters(shape: Shape) -> ParameterCounts:
    """Parameters by group."""
    width, vocab = shape.n_embd, shape.padded_vocab_size
    gates = shape.value_tables * VE_GATE_CHANNELS * shape.n_head
    return ParameterCounts(
        wte=vocab * width,
        value_embeds=shape.value_tables * vocab * width,
        lm_head=vocab * width,
        transformer_matrices=shape.depth * 12 * width * width + gates,
        scalars=2 * shape.depth + SMEAR_CHANNELS + 2,
    )


def layer_flops_per_token(shape: Shape) -> float:
    """Forward and backward through the layers: 6 a parameter, 12 * width * window a layer.

    Source: PaLM, arXiv 2204.02311, appendix B.
    """
    matrices = count_parameters(shape).transformer_matrices + SMEAR_CHANNELS
    attention = sum(12 * shape.n_embd * shape.window(layer) for layer in range(shape.depth))
    return float(6 * matrices + attention)


def head_flops_per_token(shape: Shape) -> float:
    """Forward and backward through the lm_head."""
    return 6.0 * count_parameters(shape).lm_head


def flops_per_token(shape: Shape) -> float:
    """Forward and backward through the model."""
    return layer_flops_per_token(shape) + head_flops_per_token(shape)


def muon_flops(shape: Shape) -> float:
    """One step's orthogonalisations: the products of five Polar Express steps a matrix."""
    width = shape.n_embd
    square = 4 * width**3 + 2 * width**3
    wide = 4 * width * width * (4 * width) + 2 * width**3
    return float(POLAR_EXPRESS_STEPS * shape.depth * (4 * square + 2 * wide))
