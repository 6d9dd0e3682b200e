"""A model's costs from its shape: parameters by group, FLOPs, embedding rows.

The model is that of `yoked.train.model.gpt`. This module does not import torch, so that a plan
starts at once. Tests compare the numbers of both.
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
    """A model's shape. vocab_size: of the tokenizer; window_pattern: as in --window-pattern."""

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
        """The shape for a depth: width is depth * aspect_ratio, rounded up to whole heads."""
        n_head = math.ceil(depth * aspect_ratio / head_dim)
        return cls(depth, n_head * head_dim, n_head, vocab_size, sequence_len, window_pattern)

    @classmethod
    def from_record(cls, record: ModelShape, window_pattern: str) -> Shape:
        """The shape of a measured model. A measurement does not record the window pattern."""
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
        """Rows of the embedding tables and of the lm_head."""
        return math.ceil(self.vocab_size / VOCAB_MULTIPLE) * VOCAB_MULTIPLE

    @property
    def value_tables(self) -> int:
        """Number of value embedding tables: every second layer has one, also the last layer."""
        return (self.depth + 1) // 2

    @property
    def embedding_row_numbers(self) -> int:
        """Numbers of one embedding row, over all tables."""
        return (1 + self.value_tables) * self.n_embd

    def window(self, layer: int) -> int:
        """Number of tokens that a layer attends to."""
        letter = self.window_pattern.upper()[layer % len(self.window_pattern)]
        if letter == "L" or layer == self.depth - 1:
            return self.sequence_len
        short = math.ceil(self.sequence_len / 4 / SHORT_WINDOW_TILE) * SHORT_WINDOW_TILE
        return min(short, self.sequence_len)


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
    """FLOPs of the layers, forward and backward: 6 a parameter, 12 * width * window a layer.

    Source: PaLM, arXiv 2204.02311, appendix B.
    """
    matrices = count_parameters(shape).transformer_matrices + SMEAR_CHANNELS
    attention = sum(12 * shape.n_embd * shape.window(layer) for layer in range(shape.depth))
    return float(6 * matrices + attention)


def head_flops_per_token(shape: Shape) -> float:
    """FLOPs of the lm_head, forward and backward."""
    return 6.0 * count_parameters(shape).lm_head


def flops_per_token(shape: Shape) -> float:
    """FLOPs of the model, forward and backward."""
    return layer_flops_per_token(shape) + head_flops_per_token(shape)


def muon_flops(shape: Shape) -> float:
    """FLOPs of Muon in one step: five Polar Express iterations for each matrix."""
    width = shape.n_embd
    square = 4 * width**3 + 2 * width**3
    wide = 4 * width * width * (4 * width) + 2 * width**3
    return float(POLAR_EXPRESS_STEPS * shape.depth * (4 * square + 2 * wide))
