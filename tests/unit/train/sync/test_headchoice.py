from __future__ import annotations

import pytest

from yoked.errors import UsageError
from yoked.train.choose import Choice
from yoked.train.model.gpt import ModelConfig
from yoked.train.sync.headchoice import HeadAsked, choose_lm_head, one_head

D4 = ModelConfig.from_depth(
    4, aspect_ratio=64, head_dim=64, sequence_len=512, vocab_size=32768, window_pattern="L"
)
EQUAL, UNEQUAL = (1.0, 1.0), (1.0, 4.0)


def choose(
    asked: str = "auto",
    speeds: tuple[float, ...] = EQUAL,
    tokens: int = 2048,
    on_cpus: bool = True,
    by_gloo: bool = True,
) -> Choice:
    about = HeadAsked(D4, tokens, 2, len(speeds), on_cpus=on_cpus, by_gloo=by_gloo)
    return choose_lm_head(asked, about, speeds)


def test_it_is_divided_in_small_steps_between_cpus():
    divided = [choose(), choose("divided"), choose(tokens=4096), choose(speeds=UNEQUAL)]

    assert {choice.value for choice in divided} == {"divided"}


def test_the_fastest_rank_has_it_in_larger_steps_where_it_is_much_faster():
    choice = choose(speeds=UNEQUAL, tokens=16_384)

    assert (choice.value, choice.measured) == ("fastest", {"rank": 1})
    assert "rank 1" in choice.reason
    assert one_head(choice, D4).rank == 1
    assert one_head(choose(), D4) is None
    # As asked for, whatever it gives.
    assert choose("fastest", EQUAL, 16_384).measured == {"rank": 0}


@pytest.mark.parametrize(
    "given",
    [
        {"asked": "whole"},
        {"tokens": 16_384},
        {"speeds": (1.0,)},
        {"on_cpus": False},
        # Not much faster than all others together.
        {"speeds": (2.0, 1.0), "tokens": 16_384},
        {"speeds": (4.0, 1.0, 1.0, 1.0), "tokens": 16_384},
        # As many hidden states as the gradient has rows.
        {"speeds": UNEQUAL, "tokens": 131_072},
        {"speeds": UNEQUAL, "tokens": 16_384, "by_gloo": False},
    ],
)
def test_otherwise_every_rank_has_the_whole(given):
    assert choose(**given).value == "whole"


@pytest.mark.parametrize(
    ("asked", "given", "why"),
    [
        ("divided", {"tokens": 16_384}, "16,384 tokens would weigh as much"),
        ("divided", {"speeds": (1.0,)}, "one rank"),
        ("divided", {"on_cpus": False}, "not all ranks compute on a CPU"),
        ("fastest", {"speeds": (1.0,)}, "one rank"),
        ("fastest", {"by_gloo": False}, "NCCL"),
    ],
)
def test_what_cannot_be_is_refused(asked, given, why):
    with pytest.raises(UsageError, match=why) as refused:
        choose(asked, **given)

    assert "leave --lm-head out" in str(refused.value)
