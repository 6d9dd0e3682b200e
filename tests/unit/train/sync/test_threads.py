"""Gloo's network threads, told from others by their name."""

from __future__ import annotations

import os
import sys
import threading
from pathlib import Path

import pytest

from yoked.train.sync.threads import LOOP_NAME, batch_network_threads


@pytest.mark.skipif(sys.platform != "linux", reason="SCHED_BATCH is Linux's")
def test_only_gloos_threads_wait_for_the_end_of_a_slice() -> None:
    found: dict[str, int] = {}
    named, seen = threading.Barrier(3), threading.Event()

    def stand(name: str) -> None:
        tid = threading.get_native_id()
        Path(f"/proc/self/task/{tid}/comm").write_text(name)
        found[name] = tid
        named.wait()
        seen.wait()

    threads = [threading.Thread(target=stand, args=(name,)) for name in (LOOP_NAME, "other")]
    for thread in threads:
        thread.start()
    try:
        named.wait()

        assert batch_network_threads() >= 1

        assert os.sched_getscheduler(found[LOOP_NAME]) == os.SCHED_BATCH
        assert os.sched_getscheduler(found["other"]) == os.SCHED_OTHER
    finally:
        seen.set()
        for thread in threads:
            thread.join()


def test_a_machine_without_proc_is_left_as_it_is(tmp_path: Path) -> None:
    assert batch_network_threads(tmp_path / "task") == 0
