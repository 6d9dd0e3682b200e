"""Gloo's ports, once the ranks have connected."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has filters of sockets"),
]

HERE = Path(__file__).parent
DEADLINE_S = 60.0


@pytest.fixture
def ranks() -> Iterator[list[subprocess.Popen[str]]]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    tether = [sys.executable, "-m", "yoked.tether", str(os.getpid())]
    started = [
        subprocess.Popen(
            [*tether, sys.executable, str(HERE / "programs" / "closes_behind.py")],
            env={
                **os.environ,
                "PYTHONPATH": str(HERE.parents[1] / "src"),
                "RANK": str(rank),
                "WORLD_SIZE": "2",
                "GLOO_SOCKET_IFNAME": "lo",
                "MASTER_ADDR": "127.0.0.1",
                "MASTER_PORT": str(port),
            },
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in (0, 1)
    ]
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_nobody_is_let_in_once_all_ranks_have_connected(
    ranks: list[subprocess.Popen[str]],
) -> None:
    for rank in ranks:
        assert rank.stdout is not None
        ports = json.loads(rank.stdout.readline())
        assert ports
        for address, port in ports:
            with pytest.raises(TimeoutError):
                socket.create_connection((address, port), 0.3)

    for rank in ranks:
        assert rank.stdin is not None
        rank.stdin.write("\n")
        rank.stdin.flush()
    said = [rank.communicate(timeout=DEADLINE_S)[0] for rank in ranks]

    # Ones of two ranks, and twos of two: the second group has connected too.
    assert said == ["4\n", "4\n"]
