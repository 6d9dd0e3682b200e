"""The worker in two real ranks: all meet, one tells."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")

# Each rank imports torch.
pytestmark = [pytest.mark.distributed, pytest.mark.slow]

SOURCE = Path(__file__).parents[3] / "src"
LIMIT_S = 120.0
PROFILER = """
import os, time

rank = os.environ["RANK"]

def profile(args, of_all):
    told = {"args": args, "device_types": of_all("device-of-" + rank), "rank": int(rank)}
    # Rank 0 asks again before rank 1 has.
    time.sleep(0.3 * int(rank))
    return {**told, "bytes": of_all("bytes-of-" + rank)}
"""
# A group's deadline is far shorter than what rank 1 has to do; it is heard of by then.
LONG_PROFILER = """
import os, time
from yoked.probe import collective_bench
from yoked.ranks import heartbeat

collective_bench.COLLECTIVE_TIMEOUT_S = 5
heartbeat.BEAT_S = 0.5

def profile(args, of_all):
    time.sleep(10 * int(os.environ["RANK"]))
    return {}
"""


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port: int = server.getsockname()[1]
        return port


def run_ranks(
    folder: Path, spec: dict[str, Any], profiler: str = PROFILER
) -> list[tuple[int, str, str]]:
    """(exit status, stdout, stderr) of two ranks."""
    (folder / "profiler_of_two.py").write_text(profiler)
    shared = {
        **os.environ,
        "PYTHONPATH": f"{SOURCE}:{folder}",
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": "2",
        "GLOO_SOCKET_IFNAME": "lo",
    }
    ranks = [
        subprocess.Popen(
            [sys.executable, "-m", "yoked.probe.worker", json.dumps(spec)],
            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        said = [rank.communicate(timeout=LIMIT_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    return [(rank.returncode, *each) for rank, each in zip(ranks, said, strict=True)]


def test_two_ranks_profile_and_time_every_collective_and_rank_0_alone_tells(
    tmp_path: Path,
) -> None:
    spec = {
        "profile": {"module": "profiler_of_two", "args": ["--depth=2"]},
        "collectives": {"largest_bytes": 16_000, "limit_s": 0.5, "gpus": False},
    }

    first, second = run_ranks(tmp_path, spec)

    assert (first[0], second[0]) == (0, 0), (first[2], second[2])
    assert second[1] == ""
    *progress, last = [json.loads(line) for line in first[1].splitlines()]
    assert all("doing" in line for line in progress)
    result = last["result"]
    assert [each["rank"] for each in result["profiles"]] == [0, 1]
    assert result["profiles"][1]["args"] == ["--depth=2"]
    everyones = ["device-of-0", "device-of-1"]
    assert [each["device_types"] for each in result["profiles"]] == [everyones] * 2
    sizes = ["bytes-of-0", "bytes-of-1"]
    assert [each["bytes"] for each in result["profiles"]] == [sizes] * 2
    timed = [(each["op"], each["payload_bytes"]) for each in result["collectives"]]
    assert timed == [
        (op, size)
        for op in ("all_reduce", "all_gather", "reduce_scatter")
        for size in (1_000, 4_000, 16_000)
    ]
    assert all(each["time_s"] > 0 for each in result["collectives"])
    assert result["left_out"] == []
    assert {each["backend"] for each in result["collectives"]} == {"gloo"}


def test_a_rank_that_compiles_for_long_is_waited_for(tmp_path: Path) -> None:
    spec = {"profile": {"module": "profiler_of_two", "args": []}, "collectives": None}

    first, second = run_ranks(tmp_path, spec, LONG_PROFILER)

    assert (first[0], second[0]) == (0, 0), (first[2], second[2])
    assert json.loads(first[1].splitlines()[-1])["result"]["profiles"] == [{}, {}]
