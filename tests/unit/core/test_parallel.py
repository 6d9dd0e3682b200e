"""Several hosts at the same time."""

from __future__ import annotations

import signal
import threading
import time

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.core.parallel import at_once, gather_within, map_hosts
from yoked.errors import HostError


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


def test_hosts_answer_or_fail_by_name_in_their_order() -> None:
    def ask(delay_s: float) -> float:
        if delay_s < 0:
            raise HostError("it is gone")
        time.sleep(delay_s)
        return delay_s

    answers, failures = map_hosts(ask, {"attic": 0.05, "cellar": -1.0, "garage": 0.0})

    assert list(answers.items()) == [("attic", 0.05), ("garage", 0.0)]
    assert [(name, problem.what) for name, problem in failures.items()] == [
        ("cellar", "it is gone")
    ]


def test_what_takes_longer_than_all_may_is_left_behind(snapshot: SnapshotAssertion) -> None:
    over = threading.Event()
    acts = {"late": lambda: over.wait(30), "quick": lambda: 1, "wrong": lambda: 1 / 0}

    results, why_not = gather_within(0.2, acts)
    over.set()

    assert results == {"quick": 1}
    assert why_not == snapshot


def test_where_the_system_gives_no_thread_the_acts_under_way_are_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ended = threading.Event()
    start = threading.Thread.start

    def start_but_one(thread: threading.Thread) -> None:
        if thread.name == "1":
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_but_one)

    def act(item: int) -> None:
        time.sleep(0.05)
        ended.set()

    with pytest.raises(RuntimeError, match="new thread"):
        at_once(act, [0, 1])
    assert ended.is_set()
