"""The rank whose call does not fit, from what ranks called last."""

from __future__ import annotations

from dataclasses import replace

import pytest

from yoked.diagnosis.calls import Calls, Mismatch, mismatch_of

A, B, C = "all_reduce of [1000]", "all_reduce of [50]", "all_reduce of [7]"
STEPS = (A, B) * 6


def calls(*more: str) -> Calls:
    made = (*STEPS, *more)
    return Calls("0", len(made), made)


def blamed(found: Mismatch | None) -> tuple[int, ...] | None:
    return None if found is None else found.ranks


@pytest.mark.parametrize(
    ("made", "unknown", "ranks"),
    [
        pytest.param({0: calls(A), 1: calls(A)}, (), None, id="all-fits"),
        pytest.param({0: calls(A), 1: calls(A, B)}, (), None, id="one-is-ahead"),
        pytest.param({0: calls(A), 1: calls(B)}, (), (1,), id="rank-1-left-one-out"),
        pytest.param({0: calls(A, A), 1: calls(A, B)}, (), (0,), id="rank-0-called-twice"),
        pytest.param({0: calls(C), 1: calls(A)}, (), (0,), id="another-shape"),
        pytest.param({0: calls(A), 1: calls(A), 2: calls(C)}, (), (2,), id="one-of-three"),
        pytest.param({0: calls(A)}, (1,), (1,), id="the-other-left-no-word"),
        pytest.param({0: calls(B)}, (1,), (0,), id="the-one-that-is-left-left-one-out"),
        pytest.param({0: calls(B, A)}, (1,), (0,), id="it-left-one-out-and-went-on"),
        pytest.param({0: calls(A), 2: calls(A)}, (1,), (1,), id="two-agree-one-left-no-word"),
        pytest.param({0: calls(C), 2: calls(C)}, (1,), (1,), id="two-agree-on-something-new"),
        pytest.param({}, (0, 1), None, id="nothing-is-known"),
    ],
)
def test_the_rank_whose_call_does_not_fit(
    made: dict[int, Calls], unknown: tuple[int, ...], ranks: tuple[int, ...] | None
) -> None:
    assert blamed(mismatch_of(made, unknown)) == ranks


def test_the_call_is_told_with_its_number() -> None:
    found = mismatch_of({0: calls(A), 1: calls(B)})

    assert found == Mismatch((1,), 13, {0: A, 1: B})
    assert found.words == f"its collective 13 is {B}, and rank 0's {A}"


def test_calls_of_unlike_groups_are_not_compared() -> None:
    assert mismatch_of({0: calls(A), 1: replace(calls(B), group="1")}) is None
