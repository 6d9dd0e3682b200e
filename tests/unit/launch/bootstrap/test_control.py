"""Notices between hosts, with two seats in one process."""

from __future__ import annotations

import errno
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from yoked.errors import HostError
from yoked.launch.bootstrap import control
from yoked.launch.bootstrap.control import Control, Notice, connect
from yoked.launch.bootstrap.job import Job, Node, Program
from yoked.launch.bootstrap.verdict import Decision, Failure

DEADLINE_S = 20.0


def job(folder: Path, node_rank: int, port: int, address: str = "127.0.0.1") -> Job:
    return Job(
        run="r",
        launch_id="0123456789ab",
        folder=folder,
        node_rank=node_rank,
        nodes=(Node("alpha", address, 1), Node("beta", "127.0.0.2", 2)),
        control_port=port,
        control_fd=None,
        restarts=0,
        resume_args=(),
        program=Program("script", "x.py", ()),
        cwd=folder,
        bootstrap=False,
    )


@pytest.fixture
def port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.fixture
def seats(tmp_path: Path, port: int) -> Iterator[list[Control]]:
    pair = [Control(job(tmp_path, node, port)) for node in (0, 1)]
    yield pair
    for seat in pair[::-1]:
        seat.close(DEADLINE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def test_a_notice_survives_its_way() -> None:
    failure = Failure("beta", 1, "killed", 1.5, rank=2, fix=("x",), last_lines=("y",))
    notice = Notice(1, True, (failure,), "stopped", Decision(0, "failed", failure, True), True)

    assert Notice.from_json(notice.to_json(beat=3)) == notice


def test_what_one_host_says_the_other_hears(seats: list[Control]) -> None:
    failure = Failure("beta", 1, "killed", 1.5, rank=2)

    seats[1].say(attempt=0, failing=True, report=(failure,))
    until(lambda: 1 in seats[0].notices and seats[0].notices[1].failing)

    assert seats[0].notices[1].report == (failure,)
    assert seats[1].notices[1].report == (failure,)
    assert seats[0].silent_s(1) is not None
    until(lambda: seats[1].silent_s(0) is not None)


def test_the_end_of_the_server_is_trouble_that_names_its_host(seats: list[Control]) -> None:
    until(lambda: seats[1].silent_s(0) is not None)

    seats[0].close(DEADLINE_S)
    until(lambda: seats[1].trouble is not None)

    assert "launcher on alpha was lost" in str(seats[1].trouble)


def test_the_store_listens_on_its_own_address_alone(seats: list[Control], port: int) -> None:
    until(lambda: seats[0].connected)

    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", port)) == errno.ECONNREFUSED


def test_a_store_that_is_not_there_is_refused_in_words(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_S", 0.3)

    with pytest.raises(HostError) as caught:
        connect(job(tmp_path, 1, port))

    assert f"beta did not reach alpha at 127.0.0.1 port {port}" in caught.value.what
    assert "Connection refused" in caught.value.what
    assert len(caught.value.fix) == 3


def test_an_address_of_another_host_cannot_be_served(tmp_path: Path, port: int) -> None:
    # 192.0.2.0/24 is for documentation: no machine has it.
    with pytest.raises(HostError, match=r"alpha cannot listen on 192\.0\.2\.1 port"):
        connect(job(tmp_path, 0, port, address="192.0.2.1"))
