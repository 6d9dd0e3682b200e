"""Processes of other people's programs, looked at as they run."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from yoked.diagnosis.outside import causes_outside
from yoked.errors import UsageError
from yoked.launch import outside
from yoked.launch.outside import look_outside

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")

RANK = """
import os, socket, sys
end = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
# Both ranks have one pipe: only what is written at once stays together.
os.write(1, b"begun\\n")
end.recv(1)
"""
PARENT = """
import os, subprocess, sys, time
ranks = [
    subprocess.Popen([sys.executable, "-c", sys.argv[1], sys.argv[2]],
                     env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2",
                          "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[2]})
    for rank in (0, 1)
]
print(*(rank.pid for rank in ranks), flush=True)
ranks[0].wait()
"""


@contextmanager
def program() -> Iterator[tuple[int, list[int], list[socket.socket]]]:
    """A process that starts two ranks, those, and the other ends of their connections."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        command = [sys.executable, "-c", PARENT, RANK, port]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
            assert parent.stdout is not None
            ranks: list[int] = []
            ends: list[socket.socket] = []
            try:
                ranks = sorted(map(int, parent.stdout.readline().split()))
                ends = [listener.accept()[0] for _ in ranks]
                assert [parent.stdout.readline() for _ in ranks] == ["begun\n"] * 2
                yield parent.pid, ranks, ends
            finally:
                for pid in (*ranks, parent.pid):
                    os.kill(pid, signal.SIGKILL)
                for end in ends:
                    end.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer looks; a rank must be seen to be stopped for a second."""
    monkeypatch.setattr(outside, "_LOOKS", 7)


def test_the_ranks_of_a_launcher_are_found_with_whom_they_wait_for() -> None:
    with program() as (parent, ranks, _):
        time.sleep(1.0)
        seen = look_outside(parent)

    assert [(one.rank, one.world_size) for one in seen.ranks] == [(0, 2), (1, 2)]
    assert sorted(one.vitals.pid for one in seen.ranks) == ranks
    assert [one.vitals.pid for one in seen.processes if one.launches] == [parent]
    for one in seen.ranks:
        (peer,) = one.peers
        assert (peer.address, peer.link.connections) == ("127.0.0.1", 1)
    assert [cause.code for cause in causes_outside(seen)] == ["cannot-tell"]


def test_a_rank_is_enough_to_find_that_another_is_stopped() -> None:
    with program() as (_, ranks, _ends):
        os.kill(ranks[1], signal.SIGSTOP)
        time.sleep(0.1)
        seen = look_outside(ranks[0])

    (cause,) = causes_outside(seen)
    assert cause.code == "rank-stopped"
    assert seen.processes[cause.rank or 0].vitals.pid == ranks[1]


def test_a_process_that_is_not_there_is_told_with_how_to_find_one() -> None:
    with pytest.raises(UsageError, match="there is no such process") as raised:
        look_outside(2**22 + 1)

    assert raised.value.fix == ("pgrep -af python    lists those of Python",)


def test_what_is_no_python_names_the_python_that_it_started() -> None:
    script = f"{sys.executable} -c 'print(1, flush=True); input()'; true"
    with subprocess.Popen(
        ["sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdin is not None
        assert shell.stdout is not None
        try:
            shell.stdout.readline()
            with pytest.raises(UsageError, match="it is no Python: sh -c") as raised:
                look_outside(shell.pid)
        finally:
            shell.stdin.close()

    assert raised.value.fix[0].startswith("yoked diagnose --pid ")


def test_a_process_of_another_user_is_told_with_the_line_that_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12_345)

    with pytest.raises(UsageError, match="not yours to look into") as raised:
        look_outside(os.getpid())

    assert raised.value.fix == (f'sudo "$(command -v yoked)" diagnose --pid {os.getpid()}',)
