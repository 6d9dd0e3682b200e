"""Two host programs on two addresses of this machine, with 1 and 2 ranks."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import psutil
import pytest

from yoked.channel.credentials import make_credentials
from yoked.channel.names import SECRET
from yoked.core.schema import decode
from yoked.launch.bootstrap.outcome import RunOutcome

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
]

HERE = Path(__file__).parent
ACTS = HERE / "host_acts.py"
SOURCE = HERE.parents[1] / "src"
DEADLINE_S = 60.0
HOSTS = ({"host": "alpha", "address": "127.0.0.1"}, {"host": "beta", "address": "127.0.0.2"})
RANKS = (1, 2)


@dataclass
class Pair:
    """Hosts alpha (rank 0) and beta (ranks 1 and 2), and what became of a run on them."""

    root: Path
    launch_id: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    programs: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @cached_property
    def credentials(self) -> list[dict[str, str]]:
        return make_credentials(self.launch_id, len(HOSTS))

    @contextmanager
    def port(self) -> Iterator[socket.socket]:
        """The port at which host 0 will answer; whoever asks before waits."""
        with socket.socket() as listener:
            listener.bind((HOSTS[0]["address"], 0))
            listener.listen(8)
            yield listener

    def start(self, act: str, *words: str, **more: Any) -> None:
        """words: arguments after the act. more: as in `start_one`."""
        with self.port() as listener:
            for node in range(len(HOSTS)):
                self.start_one(node, act, listener, words=words, **more)

    def start_one(
        self,
        node: int,
        act: str,
        listener: socket.socket,
        *,
        restarts: int = 0,
        program: Path = ACTS,
        words: Sequence[str] = (),
        bootstrap: bool = False,
        ends_held_up: bool = False,
    ) -> None:
        folder = self.folder(node)
        (folder / "logs").mkdir(parents=True)
        job = {
            "version": 1,
            "run": "r",
            "launch_id": self.launch_id,
            "folder": str(folder),
            "node_rank": node,
            "nodes": [{**host, "ranks": n} for host, n in zip(HOSTS, RANKS, strict=True)],
            "control_port": listener.getsockname()[1],
            "control_fd": None if node else listener.fileno(),
            "restarts": restarts,
            "ends_held_up": ends_held_up,
            "resume_args": ["--resume"],
            "program": {"kind": "script", "name": str(program), "args": [act, *words]},
            "cwd": str(self.root),
            "bootstrap": bootstrap,
        }
        for name, text in self.credentials[node].items():
            # Each act says by itself which secret its ranks have.
            if name != SECRET:
                (folder / name).write_text(text)
        (folder / "job.json").write_text(json.dumps(job))
        with (folder / "logs" / "launcher.out").open("wb") as log:
            # Tied to this process: a test that is killed leaves nothing behind.
            tether = [sys.executable, "-m", "yoked.parent_death", str(os.getpid())]
            module = "yoked.launch.bootstrap.host"
            program = subprocess.Popen(
                [*tether, sys.executable, "-m", module, str(folder / "job.json")],
                env={
                    **os.environ,
                    "PYTHONPATH": str(SOURCE),
                    "GLOO_SOCKET_IFNAME": "lo",
                    "YOKED_LAUNCH_ID": self.launch_id,
                },
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=() if node else (listener.fileno(),),
            )
        self.programs.append(program)

    def folder(self, node: int) -> Path:
        return self.root / str(HOSTS[node]["host"])

    def exit(self, node: int) -> RunOutcome:
        """Wait for a host program, which has left no process behind."""
        status = self.programs[node].wait(DEADLINE_S)
        path = self.folder(node) / "outcome.json"
        assert path.exists(), self.printed(node)
        outcome = decode(RunOutcome, json.loads(path.read_text()))
        assert status == outcome.exit_code
        return outcome

    def printed(self, node: int) -> str:
        return (self.folder(node) / "logs" / "launcher.out").read_text()

    def mark(self, rank: int, attempt: int = 0) -> str:
        """What a rank has left; waits for it."""
        path = self.root / f"{rank}.{attempt}.mark"
        self.until(path.exists)
        return path.read_text()

    def until(self, condition: Callable[[], bool]) -> None:
        deadline_s = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline_s, [self.printed(node) for node in (0, 1)]
            time.sleep(0.05)

    def processes(self) -> list[psutil.Process]:
        """All that is alive of this run."""
        return [one for one in psutil.process_iter() if self.launch_id == _launch_id(one)]


def _launch_id(process: psutil.Process) -> str | None:
    try:
        return process.environ().get("YOKED_LAUNCH_ID")
    except psutil.Error:
        return None


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    hosts = Pair(tmp_path)
    yield hosts
    for process in hosts.processes():
        process.kill()
    for program in hosts.programs:
        program.wait()


def failure(outcome: RunOutcome) -> dict[str, Any]:
    assert outcome.failure is not None
    return {"host": outcome.failure.host, "rank": outcome.failure.rank}


def test_ranks_are_numbered_by_host_and_reduce_together(pair: Pair) -> None:
    pair.start("all_reduce")

    assert [pair.exit(node).status for node in (0, 1)] == ["finished", "finished"]
    assert [pair.mark(rank) for rank in (0, 1, 2)] == ["3 0 7", "3 0 7", "3 1 7"]
    assert pair.printed(1).startswith("attempt 0: 2 hosts, 3 ranks")
    assert pair.printed(1).endswith("attempt 0: finished\n")
    assert pair.processes() == []


def test_a_killed_rank_ends_all_hosts_which_name_it(pair: Pair) -> None:
    pair.start("collectives_beside_a_worker")
    pids = [int(pair.mark(rank)) for rank in (0, 1, 2)]

    os.kill(pids[2], signal.SIGKILL)
    outcomes = [pair.exit(node) for node in (0, 1)]

    assert outcomes[0].failure == outcomes[1].failure
    assert failure(outcomes[0]) == {"host": "beta", "rank": 2}
    assert outcomes[0].failure is not None
    assert outcomes[0].failure.signal == "SIGKILL"
    assert outcomes[0].failure.pid == pids[2]
    assert outcomes[0].status == "failed"
    pair.until(lambda: pair.processes() == [])
    assert "Traceback" not in pair.printed(0) + pair.printed(1)


def test_what_was_forked_twice_ends_before_the_next_attempt_though_it_has_no_variables(
    pair: Pair,
) -> None:
    pair.start("leaves_a_daemon", restarts=1)

    assert [pair.exit(node).status for node in (0, 1)] == ["finished", "finished"]
    left = [int(pair.mark(rank, attempt)) for rank in (0, 1, 2) for attempt in (0, 1)]
    assert not any(psutil.pid_exists(pid) for pid in left)
    assert "ended what ranks left behind: " in pair.printed(0)


def test_an_exception_is_the_cause_and_not_what_its_peers_complain_of(pair: Pair) -> None:
    pair.start("rank_0_divides")

    outcomes = [pair.exit(node) for node in (0, 1)]

    assert outcomes[0].failure == outcomes[1].failure
    cause = outcomes[1].failure
    assert cause is not None
    assert (cause.host, cause.rank, cause.kind) == ("alpha", 0, "ZeroDivisionError")
    assert "about to divide" in cause.last_lines
    assert cause.traceback is not None
    assert "host_acts.py" in cause.traceback


def test_a_rank_that_runs_out_of_memory_is_told_with_how_its_memory_grew(pair: Pair) -> None:
    pair.start("takes_more_and_more")

    cause = pair.exit(0).failure

    assert cause is not None
    assert (cause.host, cause.rank, cause.cause) == ("beta", 1, "out-of-memory")
    assert "; its memory grew from " in cause.what


def test_a_second_attempt_resumes_with_its_arguments_and_meets_its_own_ranks(pair: Pair) -> None:
    pair.start("first_attempt_fails", restarts=1)

    outcomes = [pair.exit(node) for node in (0, 1)]

    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    first, second = outcomes[0].attempts
    assert first.failure is not None
    assert (first.failure.rank, first.failure.exit_code) == (1, 7)
    assert second.failure is None
    assert pair.mark(2, attempt=0) == "first_attempt_fails 0"
    assert pair.mark(2, attempt=1) == "first_attempt_fails --resume 1"


def test_a_start_that_a_stranger_spoiled_is_tried_once_more_as_if_it_were_the_first(
    pair: Pair,
) -> None:
    pair.start("a_stranger_at_first", restarts=0)

    outcomes = [pair.exit(node) for node in (0, 1)]

    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    first, second = outcomes[1].attempts
    assert first.failure is not None
    assert first.failure.kind == "MeetingError"
    assert second.failure is None
    assert pair.mark(2, attempt=1) == "a_stranger_at_first 0"


def test_a_rank_that_gloo_aborts_while_ranks_meet_is_started_once_more(pair: Pair) -> None:
    pair.start("abort_in_the_first_meeting", restarts=0)

    outcomes = [pair.exit(node) for node in (0, 1)]

    assert [outcome.status for outcome in outcomes] == ["finished", "finished"]
    first = outcomes[0].attempts[0].failure
    assert first is not None
    assert (first.rank, first.signal, first.kind) == (1, "SIGABRT", "MeetingError")


@pytest.mark.slow
@pytest.mark.parametrize("gone", [0, 1])
def test_a_host_program_that_is_killed_is_named_by_the_other(pair: Pair, gone: int) -> None:
    pair.start("collectives")
    for rank in (0, 1, 2):
        pair.mark(rank)

    pair.programs[gone].kill()
    outcome = pair.exit(1 - gone)

    assert failure(outcome) == {"host": HOSTS[gone]["host"], "rank": None}
    assert outcome.status == "failed"
    pair.until(lambda: pair.processes() == [])


@pytest.mark.parametrize("asked", [[1], [0, 1]], ids=["one host", "all hosts"])
@pytest.mark.slow
def test_an_interrupt_lets_all_ranks_save(pair: Pair, asked: list[int]) -> None:
    pair.start("save_when_interrupted")
    for rank in (0, 1, 2):
        pair.mark(rank)

    for node in asked:
        pair.programs[node].send_signal(signal.SIGINT)
    outcomes = [pair.exit(node) for node in (0, 1)]

    assert [outcome.status for outcome in outcomes] == ["interrupted", "interrupted"]
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert [pair.mark(rank) for rank in (0, 1, 2)] == ["saved 1"] * 3


@pytest.mark.slow
def test_a_stop_of_one_host_kills_the_ranks_of_all_that_do_not_obey(pair: Pair) -> None:
    pair.start("deaf")
    for rank in (0, 1, 2):
        pair.mark(rank)

    pair.programs[0].send_signal(signal.SIGTERM)
    outcomes = [pair.exit(node) for node in (0, 1)]

    assert [outcome.status for outcome in outcomes] == ["stopped", "stopped"]
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert pair.processes() == []


def test_a_host_program_does_not_load_torch() -> None:
    modules = "yoked.launch.bootstrap.host, yoked.launch.bootstrap.control"
    program = f"import sys, {modules}; print('torch' in sys.modules)"

    said = subprocess.check_output([sys.executable, "-c", program], text=True)

    assert said == "False\n"


def test_a_job_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "yoked.launch.bootstrap.host", str(tmp_path / "job.json")],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"yoked: {tmp_path / 'job.json'} ")
