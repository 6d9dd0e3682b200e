"""Ranks that prove to each other that they belong to one launch, and strangers among them."""

from __future__ import annotations

import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import psutil
import pytest
from torch.distributed import TCPStore

from yoked.ranks.secret import FILE_VARIABLE, TEXT_VARIABLE

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="reads who listens where in /proc"),
]

HERE = Path(__file__).parent
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 60.0
SECRET = "0123456789abcdef of this launch"
OTHER = "fedcba9876543210 of another one"
WEIGHT = 7.5


@dataclass
class Meeting:
    """Starts ranks that meet in one folder; all that still lives in the end is killed."""

    folder: Path
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def start(
        self, rank: int, of: int, act: str, secret: str | None, **more: str
    ) -> subprocess.Popen[str]:
        environment = {
            **{name: value for name, value in os.environ.items() if name != TEXT_VARIABLE},
            "PYTHONPATH": str(SOURCE),
            "GLOO_SOCKET_IFNAME": "lo",
            "RANK": str(rank),
            "WORLD_SIZE": str(of),
            **({} if secret is None else {TEXT_VARIABLE: secret}),
            **more,
        }
        program = [str(HERE / "programs" / "meets.py"), act, str(self.folder)]
        # Tied to this process: a test that is killed leaves nothing behind.
        tether = [sys.executable, "-m", "yoked.parent_death", str(os.getpid())]
        process = subprocess.Popen(
            [*tether, sys.executable, *program],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.started.append(process)
        return process

    def all(self, act: str, secrets: Sequence[str | None]) -> list[dict[str, Any]]:
        """What each rank said, started with its secret."""
        for rank, secret in enumerate(secrets):
            self.start(rank, len(secrets), act, secret)
        return self.said()

    def said(self) -> list[dict[str, Any]]:
        return [_said(process) for process in self.started]

    def clean_up(self) -> None:
        for process in self.started:
            process.kill()
            process.communicate()


def _said(process: subprocess.Popen[str]) -> dict[str, Any]:
    stdout, stderr = process.communicate(timeout=DEADLINE_S)
    if not stdout:
        return {"status": process.returncode, "stderr": stderr}
    found: dict[str, Any] = json.loads(stdout)
    return found


@pytest.fixture
def meeting(tmp_path: Path) -> Iterator[Meeting]:
    started = Meeting(tmp_path)
    yield started
    started.clean_up()


@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_of_one_secret_meet_and_train(meeting: Meeting, ranks: int) -> None:
    said = meeting.all("proved", [SECRET] * ranks)

    assert said == [{"weight": WEIGHT, "ranks": list(range(ranks))}] * ranks


def test_ranks_without_a_secret_meet_too(meeting: Meeting) -> None:
    said = meeting.all("proved", [None, None])

    assert said == [{"weight": WEIGHT, "ranks": [0, 1]}] * 2


def test_a_secret_comes_from_a_file_of_the_job_as_well(meeting: Meeting, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("ab" * 32)
    secret.chmod(0o600)
    for rank in range(2):
        meeting.start(rank, 2, "proved", None, **{FILE_VARIABLE: str(secret)})

    said = meeting.said()

    assert said == [{"weight": WEIGHT, "ranks": [0, 1]}] * 2


def test_a_rank_of_another_secret_is_refused_by_all_and_gets_no_weights(meeting: Meeting) -> None:
    said = meeting.all("proved", [SECRET, SECRET, OTHER])

    assert [one.get("kind") for one in said] == ["MeetingError"] * 3
    assert all("rank 2 " in one["what"] for one in said[:2])
    assert "weight" not in said[2]


@pytest.mark.parametrize("without", [0, 1])
def test_a_rank_without_the_secret_is_refused_and_named(meeting: Meeting, without: int) -> None:
    secrets: list[str | None] = [SECRET, SECRET]
    secrets[without] = None

    said = meeting.all("proved", secrets)

    assert [one.get("kind") for one in said] == ["MeetingError"] * 2
    words = f"rank {without} has no secret, and rank {1 - without} has one"
    assert [words in one["what"] for one in said] == [True] * 2


def test_a_second_group_of_ours_is_proved_as_the_first_one(meeting: Meeting) -> None:
    said = meeting.all("second", [SECRET, SECRET])

    assert [one.get("kind") for one in said] == ["MeetingError"] * 2


def test_a_stranger_in_a_ranks_place_of_the_store_gets_no_weights(meeting: Meeting) -> None:
    first = meeting.start(0, 2, "proved", SECRET)
    stranger = meeting.start(1, 2, "stranger", None)

    assert _said(first)["kind"] == "MeetingError"
    assert _said(stranger)["kind"] == "RuntimeError"


# --- whoever dials a port at which ranks connect


def _ports(process: subprocess.Popen[str]) -> list[int]:
    """Where a rank waits for the others. The tether becomes the rank's own process."""
    connections = psutil.Process(process.pid).net_connections("tcp")
    ports = [one.laddr.port for one in connections if one.status == psutil.CONN_LISTEN]
    assert ports, "it does not listen"
    return ports


def _await(path: Path) -> None:
    deadline_s = time.monotonic() + DEADLINE_S
    while not path.exists():
        assert time.monotonic() < deadline_s, f"{path.name} did not come"
        time.sleep(0.02)


def _seat(number: int) -> bytes:
    """What Gloo expects first: which of the rank's pairs is meant, counted from 0."""
    return struct.pack("=q", number)


# A message of Gloo to a buffer that nobody has announced: its length, opcode, slot, offset,
# length of the content, offset there.
UNEXPECTED = struct.pack("=6Q", 48 + 8, 1, 0x77, 0, 8, 0) + bytes(8)


def dialled(meeting: Meeting, speak: Callable[[socket.socket, int], None]) -> list[dict[str, Any]]:
    """What two ranks say, with a stranger at all their seats before they know of each other."""
    ranks = [meeting.start(rank, 2, "held", SECRET) for rank in range(2)]
    lines = []
    try:
        for rank, process in enumerate(ranks):
            _await(meeting.folder / f"listens.{rank}")
            (port,) = _ports(process)
            for number in range(4):
                line = socket.create_connection(("127.0.0.1", port), DEADLINE_S)
                lines.append(line)
                speak(line, number)
        time.sleep(0.2)
        (meeting.folder / "dialled").touch()
        return meeting.said()
    finally:
        for line in lines:
            line.close()


def test_garbage_at_a_port_of_gloo_disturbs_no_start(meeting: Meeting) -> None:
    said = dialled(meeting, lambda line, number: line.sendall(b"\xff" * 512))

    assert said == [{"weight": WEIGHT}] * 2


def test_a_stranger_who_says_nothing_disturbs_no_start(meeting: Meeting) -> None:
    said = dialled(meeting, lambda line, number: None)

    assert said == [{"weight": WEIGHT}] * 2


def test_a_stranger_who_holds_a_ranks_seat_ends_the_start_and_gets_nothing(
    meeting: Meeting,
) -> None:
    lines: list[socket.socket] = []

    def speak(line: socket.socket, number: int) -> None:
        line.sendall(_seat(number))
        lines.append(line.dup())

    said = dialled(meeting, speak)

    assert [one["kind"] for one in said] == ["MeetingError"] * 2
    assert " 2 s " in said[0]["what"] + said[1]["what"]
    # Gloo's own words for "ready to receive", and no byte of the run.
    heard = [_heard(line) for line in lines]
    assert max(map(len, heard)) <= 2 * 48
    assert not any(struct.pack("=f", WEIGHT) in words for words in heard)


def _heard(line: socket.socket) -> bytes:
    with closing(line):
        line.settimeout(DEADLINE_S)
        words = b""
        try:
            while more := line.recv(65536):
                words += more
        except ConnectionResetError:
            pass
        return words


def test_a_stranger_can_make_gloo_abort_but_the_rank_is_known_to_have_been_meeting(
    meeting: Meeting, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))

    said = dialled(meeting, lambda line, number: line.sendall(_seat(number) + UNEXPECTED))

    assert all("weight" not in one for one in said)
    aborted = [(tmp_path / f"meeting.{rank}").exists() for rank in range(2)]
    assert any(aborted)
    # Where one aborted before the other had read those bytes, that one was told so; and where Gloo
    # read them while the rank still dialled, Gloo said so itself.
    told = [
        one.get("kind") == "MeetingError"
        or (one.get("kind") == "HostError" and "the ranks did not connect" in one["what"])
        for one in said
    ]
    assert [one or other for one, other in zip(aborted, told, strict=True)] == [True] * 2, said


def test_a_stranger_who_opens_connection_upon_connection_ends_no_run_that_has_met(
    meeting: Meeting,
) -> None:
    ranks = [meeting.start(rank, 2, "flooded", SECRET) for rank in range(2)]
    lines = []
    try:
        for rank, process in enumerate(ranks):
            _await(meeting.folder / f"met.{rank}")
            for port in _ports(process):
                for _ in range(60):
                    line = socket.socket()
                    lines.append(line)
                    line.setblocking(False)
                    line.connect_ex(("127.0.0.1", port))
        time.sleep(0.5)
        (meeting.folder / "flooded").touch()
        said = meeting.said()
    finally:
        for line in lines:
            line.close()

    assert said == [{"weight": WEIGHT}] * 2


# --- `yoked train` itself, and a stranger in the place of its second rank


STRANGER = """
import os, sys
from datetime import timedelta
import torch, torch.distributed as dist
from yoked.ranks.proof import prove_ranks

class Harmful:
    def __reduce__(self):
        return os.mkdir, (sys.argv[1],)

dist.init_process_group("gloo", timeout=timedelta(seconds=20))
try:
    prove_ranks(None, "")
    for _ in range(3):
        dist.all_gather_object([None, None], Harmful())
except Exception as problem:
    print(problem)
os._exit(0)
"""


@pytest.fixture
def world(lab: Any) -> Iterator[dict[str, str]]:
    """What torchrun tells ranks of two, each on a host of its own; the store is on loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        store = TCPStore(
            "127.0.0.1",
            listener.getsockname()[1],
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=DEADLINE_S),
            master_listen_fd=listener.detach(),
        )
        yield {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "LOCAL_RANK": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        del store


@pytest.mark.parametrize("secret", [SECRET, None])
def test_a_stranger_as_a_rank_of_a_run_executes_nothing_on_its_first_rank(
    lab: Any, world: dict[str, str], secret: str | None
) -> None:
    made = lab.root / "made-by-the-stranger"
    known = {} if secret is None else {TEXT_VARIABLE: secret}
    rank = lab.start(["-m", "yoked.train", *lab.flags()], {**world, "RANK": "0", **known})
    stranger = lab.start(["-c", STRANGER, str(made)], {**world, "RANK": "1"})

    ended = rank.end()

    stranger.end()
    assert not made.exists()
    assert ended.status == 1
    assert ("rank 1 has no secret" if secret else "what cannot be read") in ended.stderr
    assert ("ranks are not proved to each other" in ended.stderr) == (secret is None)
