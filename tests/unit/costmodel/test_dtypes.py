"""In which dtype each rank computes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from yoked.costmodel.dtypes import compute_dtypes, dtype_name, speed_of_all

NAMES = "float32", "bfloat16"
FAST_GPU = {"float32": 1.0, "bfloat16": 0.25}
OLDER_GPU = {"float32": 2.0, "bfloat16": 9.0}
LAPTOP = {"float32": 100.0, "bfloat16": 3500.0}


def test_a_rank_that_is_much_faster_in_another_dtype_computes_in_that() -> None:
    assert compute_dtypes([FAST_GPU, OLDER_GPU], "bfloat16") == ["bfloat16", "float32"]


def test_a_rank_that_adds_next_to_nothing_computes_as_all_do() -> None:
    assert compute_dtypes([FAST_GPU, LAPTOP], "bfloat16") == ["bfloat16", "bfloat16"]


def test_ranks_that_are_a_little_unlike_compute_alike() -> None:
    one, other = {"float32": 1.0, "bfloat16": 0.8}, {"float32": 1.0, "bfloat16": 1.2}

    assert compute_dtypes([one, other], "float32") == ["float32", "float32"]


def test_a_rank_without_the_dtype_of_the_run_computes_in_what_it_has() -> None:
    assert compute_dtypes([FAST_GPU, {"float32": 1000.0}], "bfloat16") == ["bfloat16", "float32"]


def test_a_name_for_all_ranks_says_whether_they_are_alike() -> None:
    assert dtype_name(["float32", "float32"]) == "float32"
    assert dtype_name(["float32", "bfloat16"]) == "by host"


@given(
    st.lists(
        st.fixed_dictionaries({name: st.floats(1e-6, 1e3) for name in NAMES}),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from(NAMES),
)
def test_together_ranks_are_never_slower_than_in_one_dtype(
    times_s: list[dict[str, float]], common: str
) -> None:
    found = compute_dtypes(times_s, common)

    assert speed_of_all(times_s, found) >= speed_of_all(times_s, [common] * len(times_s))
