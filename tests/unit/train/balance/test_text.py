from __future__ import annotations

from yoked.train.balance.balancer import Assignment, Reassignment
from yoked.train.balance.text import describe_change, idle_note, rank_names

NOW = Assignment((29, 3), (29, 3))


def change(why: str, rank: int | None, now: Assignment = NOW) -> Reassignment:
    before = Assignment((26, 6), (26, 6))
    return Reassignment(now, before, why, rank, 2.0, 1.0, ())  # type: ignore[arg-type]


def test_a_change_is_told_with_the_host_that_it_is_about() -> None:
    names = rank_names(["desk", "laptop"])

    assert describe_change(change("slower", 1), names) == "laptop slows: 26:6 -> 29:3 rows"
    assert describe_change(change("faster", 0), names) == "desk is faster: 26:6 -> 29:3 rows"
    assert describe_change(change("measured", None), names).startswith("by the steps measured: 26")


def test_where_rows_stay_the_parts_of_the_lm_head_are_told() -> None:
    told = describe_change(
        change("slower", 1, Assignment((26, 6), (28.8, 3.2))), ["desk", "laptop"]
    )

    assert told == "laptop slows: 81:19 -> 90:10 % of the lm_head's vocabulary"


def test_ranks_of_one_host_are_told_apart() -> None:
    assert rank_names(["desk", "laptop", "desk"]) == ["desk (rank 0)", "laptop", "desk (rank 2)"]


def test_at_the_start_too_few_rows_and_too_slow_ranks_are_different_things() -> None:
    names = ["desk", "laptop"]

    assert idle_note([1, 1], [1.0, 1.0], names) is None
    assert "a step has 1 row for 2 ranks: rank 1 has none" in str(
        idle_note([1, 0], [1.0, 1.0], names)
    )
    assert "laptop computes none of a step's 8 rows" in str(idle_note([8, 0], [9.0, 0.1], names))
