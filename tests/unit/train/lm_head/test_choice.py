from __future__ import annotations

import dataclasses

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.errors import UsageError
from yoked.train.choose import Choice
from yoked.train.lm_head.choice import HeadAsked, choose_lm_head

D4 = ModelShape.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)


def choose(
    asked: str = "auto",
    *,
    config: ModelShape = D4,
    tokens: int = 2048,
    ranks: int = 2,
    on_cpus: bool = True,
) -> Choice:
    return choose_lm_head(asked, HeadAsked(config, tokens, 2, ranks, on_cpus=on_cpus))


def test_it_is_vocab_parallel_in_small_steps_between_cpus():
    vocab_parallel = [choose(), choose("vocab-parallel"), choose(tokens=4096), choose(ranks=4)]

    assert {choice.value for choice in vocab_parallel} == {"vocab-parallel"}


@pytest.mark.parametrize(
    "given", [{"asked": "replicated"}, {"tokens": 16_384}, {"ranks": 1}, {"on_cpus": False}]
)
def test_otherwise_every_rank_has_the_whole(given):
    assert choose(**given).value == "replicated"


def test_the_reason_is_the_one_that_counts():
    d8 = dataclasses.replace(D4, n_layer=8, n_embd=512)

    assert "would weigh as much" in choose(tokens=16_384).reason
    # 4,096 tokens weigh less than its gradient, but eight layers keep much of each.
    assert "activations of 4,096 tokens" in choose(config=d8, tokens=4096).reason


@pytest.mark.parametrize(
    ("asked", "given", "why"),
    [
        ("vocab-parallel", {"tokens": 16_384}, "16,384 tokens would weigh as much"),
        ("vocab-parallel", {"ranks": 1}, "one rank"),
        ("vocab-parallel", {"on_cpus": False}, "not all ranks compute on a CPU"),
    ],
)
def test_what_cannot_be_is_refused(asked, given, why):
    with pytest.raises(UsageError, match=why) as refused:
        choose(asked, **given)

    assert "leave --lm-head out" in str(refused.value)
