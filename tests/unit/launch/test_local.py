from __future__ import annotations

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.launch.local import LocalLaunch, _split_at_report, rank_environment, torchrun_argv

LAUNCH = LocalLaunch(run_dir=Path("runs/r"), ranks=3, config={}, threads=2)


def test_the_command_is_plain_torchrun_on_loopback() -> None:
    argv = torchrun_argv(LAUNCH, Path("c.json"))

    assert argv[:3] == [sys.executable, "-m", "torch.distributed.run"]
    assert argv[argv.index("--nproc-per-node") + 1] == "3"
    assert argv[argv.index("--local-addr") + 1] == "127.0.0.1"
    assert argv[-4:] == ["-m", "yoked.train", "--config-file", "c.json"]


@pytest.mark.skipif(sys.platform != "linux", reason="names Linux's loopback interface")
def test_ranks_get_their_threads_and_the_loopback_interface() -> None:
    base = {"HOME": "/home/x", "OMP_NUM_THREADS": "8"}

    env = rank_environment(LAUNCH, base, "abc", Path("/runs/r/launch-abc"))

    assert env["OMP_NUM_THREADS"] == "2"
    assert env["GLOO_SOCKET_IFNAME"] == "lo"
    assert env["YOKED_LAUNCH_ID"] == "abc"
    assert env["HOME"] == "/home/x"


def test_torchruns_report_is_parted_from_what_the_ranks_say() -> None:
    said = b"step 8\nstep 9\n"
    report = b"Traceback (most recent call last):\n  File x\n"

    assert _split_at_report(said + report, True) == (said, report)
    assert _split_at_report(report, True) == (b"", report)


def test_the_word_traceback_in_the_middle_of_a_line_is_no_report() -> None:
    chunk = b"rank says Traceback (most recent call last)\n"

    assert _split_at_report(chunk, True) == (chunk, b"")
    assert _split_at_report(b"Traceback (most recent call last)", False)[1] == b""


@given(st.binary(max_size=300))
def test_nothing_is_lost_between_shown_and_held_back(chunk: bytes) -> None:
    shown, held = _split_at_report(chunk, True)
    assert shown + held == chunk
