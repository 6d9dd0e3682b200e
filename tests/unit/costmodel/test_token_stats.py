from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.costmodel.token_stats import expected_unique_tokens


@pytest.mark.parametrize(("tokens", "different"), [(512, 254), (1024, 460), (4096, 1355)])
def test_text_repeats_its_words(tokens: int, different: int) -> None:
    assert expected_unique_tokens(tokens, 32_768) == pytest.approx(different, rel=0.07)


@given(st.integers(0, 10**7), st.integers(300, 200_000))
def test_there_are_never_more_different_tokens_than_tokens_or_words(
    tokens: int, vocab: int
) -> None:
    assert 0 <= expected_unique_tokens(tokens, vocab) <= min(tokens, vocab)
