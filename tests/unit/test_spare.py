"""Work in spare time: in a thread of its own, whose policy nothing else takes over."""

from __future__ import annotations

import gc
import os
import sys
import threading

import pytest

from yoked.spare import in_spare_time, without_collector


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_IDLE is Linux's")
def test_only_the_work_gives_way_to_others() -> None:
    policies: list[int] = []

    in_spare_time(lambda: policies.append(os.sched_getscheduler(0)))

    assert policies == [os.SCHED_IDLE]
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_it_is_waited_for_and_what_it_raises_comes_through() -> None:
    where: list[threading.Thread] = []

    def fail() -> None:
        where.append(threading.current_thread())
        raise ValueError("none")

    with pytest.raises(ValueError, match="none"):
        in_spare_time(fail)

    assert where[0] is not threading.current_thread()
    assert not where[0].is_alive()


@pytest.mark.parametrize("was_on", [True, False])
def test_the_collector_is_off_while_loading_and_then_as_it_was(was_on: bool) -> None:
    before = gc.isenabled()
    try:
        (gc.enable if was_on else gc.disable)()
        with without_collector():
            assert not gc.isenabled()

        assert gc.isenabled() is was_on
    finally:
        (gc.enable if before else gc.disable)()
