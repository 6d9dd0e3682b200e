"""Who computes how much of Muon, beside the AdamW that all compute."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.costmodel.matrix_owners import ADAMW_FLOPS, owner_fractions, owner_speeds

SPEEDS = st.lists(st.sampled_from([0.0]) | st.floats(0.05, 20), min_size=1, max_size=6).filter(any)


@given(speeds=SPEEDS, muon_flops=st.floats(1e6, 1e12), adamw_numbers=st.floats(0, 1e9))
def test_all_owners_are_done_at_once_and_no_other_could_have_helped(
    speeds, muon_flops, adamw_numbers
):
    parts = owner_fractions(speeds, muon_flops, adamw_numbers)
    speeds = owner_speeds(speeds)

    assert sum(parts) == pytest.approx(1, rel=1e-6)
    assert min(parts) >= 0
    beside = ADAMW_FLOPS * adamw_numbers
    work = [beside + part * muon_flops for part in parts]
    done = [w / s for w, s, part in zip(work, speeds, parts, strict=True) if part > 0]
    assert done == pytest.approx([done[0]] * len(done), rel=1e-6)
    for speed, part in zip(speeds, parts, strict=True):
        assert part or beside >= speed * done[0] * (1 - 1e-6)


def test_a_slower_rank_has_enough_of_what_all_compute():
    assert owner_fractions([3.0, 2.0], 1e9, 0) == pytest.approx([0.6, 0.4])

    assert owner_fractions([3.0, 2.0], 1e9, 4e9 / ADAMW_FLOPS) == [1.0, 0.0]


def test_a_much_slower_rank_owns_nothing_and_one_half_as_fast_its_part():
    assert owner_fractions([5.0, 1.9, 2.5], 1e9, 0) == pytest.approx([2 / 3, 0, 1 / 3])


def test_without_matrices_parts_are_the_speeds():
    assert owner_fractions([3.0, 2.0], 0, 1e6) == [0.6, 0.4]
