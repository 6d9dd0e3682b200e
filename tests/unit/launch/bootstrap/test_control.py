"""Notices between hosts, with seats in one process."""

from __future__ import annotations

import contextlib
import errno
import functools
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.unit.launch.bootstrap.jobs import LAUNCH_ID, made_up_job

from yoked.agent.jobfolder import JobFolder
from yoked.channel.credentials import make_credentials
from yoked.channel.frames import WORD_LIMIT_BYTES
from yoked.channel.names import KEY
from yoked.core.schema import decode
from yoked.errors import HostError
from yoked.launch.bootstrap import control
from yoked.launch.bootstrap.control import REFUSED_NAME, Control
from yoked.launch.bootstrap.coordinator import Beat, CutOff, Event, Joined, Left
from yoked.launch.bootstrap.job import Job, Node
from yoked.launch.bootstrap.notice import Notice
from yoked.launch.bootstrap.outcome import Decision, Failure

DEADLINE_S = 20.0


@functools.cache
def credentials(launch_id: str) -> list[dict[str, str]]:
    return make_credentials(launch_id, 2)


def job(
    folder: Path, node_rank: int, port: int, address: str = "127.0.0.1", made_for: str = ""
) -> Job:
    """The job of a node. made_for: of an authority of its own, with names of that launch."""
    folder.mkdir(exist_ok=True)
    files = make_credentials(made_for, 2) if made_for else credentials(LAUNCH_ID)
    for name, text in files[node_rank].items():
        (folder / name).write_text(text)
    return made_up_job(
        folder,
        node_rank=node_rank,
        nodes=(Node("alpha", address, 1), Node("beta", "127.0.0.2", 2)),
        control_port=port,
    )


@pytest.fixture
def port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


class Seat:
    """A host among the hosts, and the events that came of it."""

    def __init__(self, job: Job) -> None:
        self.events: list[Event] = []
        self.own = Notice()
        self.control = Control(job, self.events.append)

    def say(self, **changes: Any) -> None:
        self.own = replace(self.own, **changes)
        self.control.say(self.own)

    def said(self, node: int) -> Notice:
        """What a node was last heard to say."""
        heard = [one.notice for one in self.events if isinstance(one, Beat) and one.node == node]
        return heard[-1] if heard else Notice(attempt=-2)

    @property
    def trouble(self) -> HostError | None:
        return next((one.problem for one in self.events if isinstance(one, CutOff)), None)

    @property
    def joined(self) -> bool:
        return Joined() in self.events

    def on_loop(self, act: Callable[[], object]) -> None:
        self.control._loop.call_soon_threadsafe(act)


@pytest.fixture
def seats(tmp_path: Path, port: int) -> Iterator[list[Seat]]:
    pair = [Seat(job(tmp_path, 0, port)), Seat(job(tmp_path / "beta", 1, port))]
    yield pair
    for seat in pair[::-1]:
        seat.control.close(DEADLINE_S)


def until(condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


def test_a_notice_survives_its_way() -> None:
    failure = Failure("beta", 1, "killed", 1.5, rank=2, fix=("x",), last_lines=("y",))
    notice = Notice(1, True, (failure,), "stopped", Decision(0, "failed", failure, True), True)

    assert decode(Notice, json.loads(json.dumps(asdict(notice)))) == notice


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
FIELDS = st.sampled_from([*(field.name for field in fields(Notice)), "rank", "host", "status"])


@given(ANY_JSON | st.dictionaries(FIELDS, ANY_JSON))
def test_what_is_no_notice_is_refused_and_nothing_else_is_raised(content: Any) -> None:
    try:
        notice = decode(Notice, content)
    except ValueError:
        return
    assert decode(Notice, json.loads(json.dumps(asdict(notice)))) == notice


def test_a_notice_that_is_too_long_goes_in_brief(seats: list[Seat]) -> None:
    failure = Failure("beta", 1, "killed", 1.5, rank=2, traceback="x" * WORD_LIMIT_BYTES)

    seats[1].say(attempt=0, report=(failure,))
    until(lambda: seats[0].said(1).report is not None)

    assert seats[0].said(1).report == (replace(failure, traceback=None),)


def test_words_that_are_no_notice_are_counted_and_change_nothing(
    seats: list[Seat], tmp_path: Path
) -> None:
    seats[1].say(attempt=3)
    until(lambda: seats[0].said(1).attempt == 3)

    for word in ({}, {"notices": 3}, {"notices": {"1": {"attempt": "no"}}}):
        seats[1].on_loop(lambda word=word: seats[1].control._seat._peer.send_word(word))
    until(lambda: refused(tmp_path).get("words") == 3)

    assert seats[0].said(1).attempt == 3
    seats[1].say(attempt=4)
    until(lambda: seats[0].said(1).attempt == 4)


def test_a_host_that_sends_no_frame_loses_its_connection_alone(
    seats: list[Seat], tmp_path: Path
) -> None:
    until(lambda: seats[0].said(1) == Notice())

    garbage = b"garbage, and no frame at all"
    seats[1].on_loop(lambda: seats[1].control._seat._peer._writer.write(garbage))
    until(lambda: seats[1].trouble is not None)

    until(lambda: Left(1) in seats[0].events)
    until(lambda: "no frame" in refused(tmp_path).get("last", ""))
    assert seats[0].trouble is None


def test_a_thread_that_dies_is_trouble_at_once(seats: list[Seat]) -> None:
    until(lambda: seats[1].joined)

    def die() -> None:
        raise RuntimeError("a bug")

    seats[1].control._seat.check = die
    until(lambda: seats[1].trouble is not None)

    assert "RuntimeError('a bug')" in seats[1].trouble.what


def test_a_strangers_authority_is_refused_and_counted(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "CONNECT_S", 1.0)
    first = Seat(job(tmp_path / "0", 0, port))
    stranger = Seat(job(tmp_path / "1", 1, port, made_for=LAUNCH_ID))

    until(lambda: stranger.trouble is not None)
    until(lambda: refused(tmp_path / "0").get("connections", 0) > 0)

    assert first.events == [Joined()]
    assert not stranger.joined
    for seat in (stranger, first):
        seat.control.close(DEADLINE_S)


def refused(folder: Path) -> dict[str, Any]:
    return JobFolder(folder).read(REFUSED_NAME)


def test_what_one_host_says_the_other_hears(seats: list[Seat]) -> None:
    failure = Failure("beta", 1, "killed", 1.5, rank=2)

    seats[1].say(attempt=0, failing=True, report=(failure,))
    until(lambda: seats[0].said(1).failing)

    assert seats[0].said(1).report == (failure,)
    until(lambda: seats[1].said(0) == Notice())


def test_a_host_that_says_nothing_new_is_heard_again_and_again(seats: list[Seat]) -> None:
    for hearer, speaker in ((0, 1), (1, 0)):
        beats = seats[hearer].events
        until(lambda: beats.count(Beat(speaker, Notice())) >= 3)  # noqa: B023 - called at once


def test_node_0_alone_decides(seats: list[Seat]) -> None:
    decision = Decision(0, "finished", None, again=False)

    for seat in seats:
        seat.say(attempt=0, decision=decision)
    until(lambda: seats[0].said(1).attempt == seats[1].said(0).attempt == 0)

    assert seats[1].said(0).decision == decision
    assert seats[0].said(1).decision is None


def test_the_end_of_the_server_is_trouble_that_names_its_host(seats: list[Seat]) -> None:
    until(lambda: seats[1].said(0) == Notice())

    seats[0].control.close(DEADLINE_S)
    until(lambda: seats[1].trouble is not None)

    assert "launcher on alpha was lost" in str(seats[1].trouble)


def test_ranks_of_another_host_reach_the_store_of_node_0_once_it_is_there(
    seats: list[Seat], port: int
) -> None:
    until(lambda: seats[0].joined and seats[1].joined)
    there = seats[1].control.store_port
    assert there not in (None, port)
    with socket.socket() as other:
        assert other.connect_ex(("127.0.0.2", there)) == errno.ECONNREFUSED
    large = bytes(range(256)) * 20_000

    with socket.create_connection(("127.0.0.1", there)) as rank, echoing() as echo_port:
        rank.sendall(b"early")
        seats[0].control.store_port = echo_port

        assert receive(rank, 5) == b"early"
        threading.Thread(target=rank.sendall, args=(large,)).start()
        assert receive(rank, len(large)) == large


@contextlib.contextmanager
def echoing() -> Iterator[int]:
    """The port of a server that sends back what it gets, of one connection."""

    def echo() -> None:
        with listener.accept()[0] as connection:
            while content := connection.recv(65_536):
                connection.sendall(content)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=echo, daemon=True).start()
        yield listener.getsockname()[1]


def receive(connection: socket.socket, wanted: int) -> bytes:
    connection.settimeout(DEADLINE_S)
    content = b""
    while len(content) < wanted:
        content += connection.recv(65_536)
    return content


def test_a_node_0_that_is_not_there_is_told_in_words(
    tmp_path: Path, port: int, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(control, "CONNECT_S", 0.3)
    seat = Seat(job(tmp_path, 1, port))

    until(lambda: seat.trouble is not None)

    assert seat.trouble.what == snapshot
    assert "Connection refused" in seat.trouble.what
    assert len(seat.trouble.fix) == 4


def test_an_address_of_another_host_cannot_be_served(
    tmp_path: Path, port: int, snapshot: SnapshotAssertion
) -> None:
    # 192.0.2.0/24 is for documentation: no machine has it.
    seat = Seat(job(tmp_path, 0, port, address="192.0.2.1"))

    until(lambda: seat.trouble is not None)

    assert seat.trouble.what == snapshot


def test_credentials_that_are_missing_are_told(
    tmp_path: Path, port: int, snapshot: SnapshotAssertion
) -> None:
    wanted = job(tmp_path, 1, port)
    (tmp_path / KEY).unlink()

    seat = Seat(wanted)
    until(lambda: seat.trouble is not None)

    assert seat.trouble.what == snapshot
