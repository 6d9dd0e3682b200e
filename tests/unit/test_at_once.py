"""Several hosts at the same time."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from yoked.at_once import at_once


def test_results_come_in_the_order_of_the_items() -> None:
    assert at_once(str, range(5)) == ["0", "1", "2", "3", "4"]
    assert at_once(str, ()) == []


def test_all_are_under_way_together() -> None:
    meeting = threading.Barrier(3)

    assert sorted(at_once(lambda _: meeting.wait(timeout=10), "abc")) == [0, 1, 2]


@pytest.mark.parametrize("leave", [False, True])
def test_an_interrupt_waits_for_what_is_under_way_unless_that_may_be_left(leave: bool) -> None:
    raised, ended = threading.Event(), threading.Event()
    main = threading.main_thread().ident
    assert main is not None

    def act(item: int) -> None:
        # All have begun, and are waited for.
        time.sleep(0.1)
        signal.pthread_kill(main, signal.SIGINT)
        # It is raised before this ends only where this may be left.
        raised.wait(5.0 if leave else 0.2)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        at_once(act, [0], leave=leave)

    assert ended.is_set() == (not leave)
    raised.set()
    ended.wait()


def test_a_failure_is_raised_when_all_have_ended() -> None:
    ended = []

    def act(item: int) -> None:
        if item == 0:
            raise ValueError("the first")
        ended.append(item)

    with pytest.raises(ValueError, match="the first"):
        at_once(act, range(4))

    assert sorted(ended) == [1, 2, 3]
