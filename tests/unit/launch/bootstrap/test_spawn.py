"""Ranks of a generation, without any of yoked's in them."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
from pathlib import Path

import pytest
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.launch.bootstrap.job import Node
from yoked.launch.bootstrap.spawn import LocalRanks


def test_workers_of_a_rank_that_died_end_though_it_was_interrupted_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, held = os.pipe()
    rank = subprocess.Popen(
        ["sh", "-c", "sleep 60 & exit 3"], start_new_session=True, pass_fds=(held,)
    )
    os.close(held)
    job = made_up_job(tmp_path, nodes=(Node("alpha", "127.0.0.1", 1),), file_store=True)
    monkeypatch.setattr(LocalRanks, "_spawn", lambda self, number: rank)
    try:
        # Dead, and not reaped yet.
        os.waitid(os.P_PID, rank.pid, os.WEXITED | os.WNOWAIT)
        ranks = LocalRanks(job, 0, restarts=0, on_death=lambda: None)

        ranks.interrupt()

        assert ranks.over
        # Only the worker still held the pipe.
        assert select.select([reads], [], [], 10)[0]
    finally:
        os.close(reads)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)
        rank.wait()
