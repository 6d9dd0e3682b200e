from __future__ import annotations

from syrupy.assertion import SnapshotAssertion

from yoked.train.balance.balancer import Assignment, Reassignment
from yoked.train.balance.text import describe_change, idle_note, rank_names

NOW = Assignment((29, 3), (29, 3))


def change(why: str, rank: int | None, now: Assignment = NOW) -> Reassignment:
    before = Assignment((26, 6), (26, 6))
    return Reassignment(now, before, why, rank, 2.0, 1.0, ())  # type: ignore[arg-type]


def test_a_change_is_told_with_the_host_that_it_is_about(snapshot: SnapshotAssertion) -> None:
    names = rank_names(["desk", "laptop"])

    assert describe_change(change("slower", 1), names) == snapshot
    assert describe_change(change("faster", 0), names) == snapshot
    assert describe_change(change("measured", None), names) == snapshot


def test_where_rows_stay_the_parts_of_the_lm_head_are_told(snapshot: SnapshotAssertion) -> None:
    told = describe_change(
        change("slower", 1, Assignment((26, 6), (28.8, 3.2))), ["desk", "laptop"]
    )

    assert told == snapshot


def test_ranks_of_one_host_are_told_apart() -> None:
    assert rank_names(["desk", "laptop", "desk"]) == ["desk (rank 0)", "laptop", "desk (rank 2)"]


def test_at_the_start_too_few_rows_and_too_slow_ranks_are_different_things(
    snapshot: SnapshotAssertion,
) -> None:
    names = ["desk", "laptop"]

    assert idle_note([1, 1], [1.0, 1.0], names) is None
    assert str(idle_note([1, 0], [1.0, 1.0], names)) == snapshot
    assert str(idle_note([8, 0], [9.0, 0.1], names)) == snapshot
