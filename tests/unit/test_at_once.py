"""Several hosts at the same time."""

from __future__ import annotations

import threading

import pytest

from yoked.at_once import at_once


def test_results_come_in_the_order_of_the_items() -> None:
    assert at_once(str, range(5)) == ["0", "1", "2", "3", "4"]
    assert at_once(str, ()) == []


def test_all_are_under_way_together() -> None:
    meeting = threading.Barrier(3)

    assert sorted(at_once(lambda _: meeting.wait(timeout=10), "abc")) == [0, 1, 2]


def test_a_failure_is_raised_when_all_have_ended() -> None:
    ended = []

    def act(item: int) -> None:
        if item == 0:
            raise ValueError("the first")
        ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        at_once(act, range(4))

    assert sorted(ended) == [1, 2, 3]
