"""An agent answers each call by itself, until its controller is gone."""

from __future__ import annotations

import contextlib
import errno
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.agent import server
from yoked.agent.protocol import ProtocolError, read_message, write_message
from yoked.agent.server import Call, Server
from yoked.errors import HostError

DEADLINE_S = 10


class Controller:
    """The other end of a server's streams."""

    def __init__(self, handlers: dict[str, Any]) -> None:
        (source, self._to), (self._from, sink) = os.pipe(), os.pipe()
        self.to = os.fdopen(self._to, "wb")
        self.answers = os.fdopen(self._from, "rb")
        self._ends = [os.fdopen(source, "rb"), os.fdopen(sink, "wb")]
        server = Server(self._ends[0], self._ends[1], handlers)
        self.refused: list[ProtocolError] = []
        self.thread = threading.Thread(target=self._serve, args=(server,))
        self.thread.start()

    def _serve(self, server: Server) -> None:
        try:
            server.serve()
        except ProtocolError as problem:
            self.refused.append(problem)

    def ask(self, number: int, name: str, data: bytes = b"", **args: Any) -> None:
        write_message(self.to, {"id": number, "call": name, "args": args}, data)

    def next(self) -> tuple[dict[str, Any], bytes]:
        found = read_message(self.answers)
        assert found is not None
        return found

    def leave(self) -> None:
        """Hang up; twice is harmless."""
        self.to.close()
        self.thread.join(DEADLINE_S)
        assert not self.thread.is_alive()


@pytest.fixture
def controller() -> Iterator[Controller]:
    made = Controller(
        {
            "echo": lambda call: [call.args, len(call.data)],
            "count": count,
            "wait": wait,
            "expected": refuse,
            "bug": lambda call: 1 / 0,
            "poor": starve,
            "full": fill,
            "lost": lose,
        }
    )
    yield made
    made.leave()
    for stream in (made.answers, *made._ends):
        # Closing flushes, and the other end may be gone.
        with contextlib.suppress(OSError):
            stream.close()


def fill(call: Call) -> None:
    raise OSError(errno.ENOSPC, "No space left on device", "/tmp/job")


def lose(call: Call) -> None:
    raise ModuleNotFoundError("No module named 'yoked.agent.facts'")


def count(call: Call) -> str:
    for number in range(3):
        call.send(number, bytes([number]))
    return "counted"


cancelled = threading.Event()


def wait(call: Call) -> None:
    if call.cancelled.wait(DEADLINE_S):
        cancelled.set()


def refuse(call: Call) -> None:
    raise HostError("the disk is full", fix="empty it")


def starve(_: object) -> None:
    raise RuntimeError("can't start new thread")


def test_a_call_gets_its_result(controller: Controller) -> None:
    controller.ask(7, "echo", b"abc", word="hello")

    message, _ = controller.next()

    assert (message["id"], message["result"]) == (7, [{"word": "hello"}, 3])


def test_parts_come_in_order_and_before_the_result(controller: Controller) -> None:
    controller.ask(1, "count")

    parts = [controller.next() for _ in range(4)]

    assert [(m.get("part"), data) for m, data in parts[:3]] == [
        (0, b"\0"),
        (1, b"\1"),
        (2, b"\2"),
    ]
    assert parts[3][0]["result"] == "counted"


def test_an_expected_failure_keeps_its_kind_and_fix(
    controller: Controller, snapshot: SnapshotAssertion
) -> None:
    controller.ask(1, "expected")

    error = controller.next()[0]["error"]

    assert (error["kind"], error["what"], error["fix"]) == snapshot


def test_a_host_that_gives_no_thread_is_no_bug(controller: Controller) -> None:
    controller.ask(1, "poor")

    error = controller.next()[0]["error"]

    assert error["kind"] == "HostError"
    assert "ulimit -a" in error["what"]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="a system call of Linux")
def test_a_filter_that_knows_no_clone3_is_told(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A number that is none, as of a kernel that is older: no filter, and a limit is the likely one.
    monkeypatch.setattr(server, "_CLONE3", 100_000)
    controller.ask(1, "poor")
    of_old_kernel = controller.next()[0]["error"]
    # As if a filter had answered.
    monkeypatch.setattr(server, "errno", SimpleNamespace(errorcode={errno.ENOSYS: "EPERM"}))
    controller.ask(2, "poor")
    of_filter = controller.next()[0]["error"]

    assert "ulimit" in of_old_kernel["params"]["why"]
    assert of_filter["code"] == "host-exhausted"
    assert "clone3 with EPERM" in of_filter["params"]["why"]
    assert "seccomp" in of_filter["what"]


def test_a_disk_that_is_full_is_no_bug(controller: Controller) -> None:
    controller.ask(1, "full")

    error = controller.next()[0]["error"]

    assert (error["kind"], error["code"]) == ("HostError", "disk-full")
    assert error["params"]["path"] == "/tmp/job"


def test_an_agent_whose_own_files_are_removed_says_so(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller.ask(1, "lost")
    bug = controller.next()[0]["error"]
    monkeypatch.setattr(server, "__file__", "/home/ada/.cache/yoked/agent/0a/server.py")
    controller.ask(2, "lost")

    error = controller.next()[0]["error"]

    assert bug["kind"] == "bug"
    assert (error["kind"], error["code"]) == ("HostError", "cache-emptied")
    assert error["params"]["source"] == "/home/ada/.cache/yoked/agent/0a"


def test_a_call_for_which_there_is_no_thread_is_refused(
    controller: Controller, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(threading.Thread, "start", starve)
    controller.ask(1, "echo")
    error = controller.next()[0]["error"]
    monkeypatch.undo()
    controller.ask(2, "echo")

    assert error["kind"] == "HostError"
    assert controller.next()[0]["id"] == 2


@pytest.mark.parametrize("name", ["bug", "no such call"])
def test_a_bug_is_answered_with_its_trace(controller: Controller, name: str) -> None:
    controller.ask(1, name)

    error = controller.next()[0]["error"]

    assert error["kind"] == "bug"
    assert "Traceback" in error["trace"]


def test_a_slow_call_does_not_hold_up_the_next(controller: Controller) -> None:
    controller.ask(1, "wait")
    controller.ask(2, "echo")

    assert controller.next()[0]["id"] == 2
    write_message(controller.to, {"cancel": 1})
    assert controller.next()[0]["id"] == 1


def test_calls_are_cancelled_when_the_controller_leaves(controller: Controller) -> None:
    cancelled.clear()
    controller.ask(1, "wait")

    controller.leave()

    assert cancelled.wait(DEADLINE_S)


@pytest.mark.parametrize(
    "message",
    [
        {"call": "echo"},
        {"id": 2},
        {"id": 2, "call": 5},
        {"id": 2, "call": ["echo"]},
        {"id": 2, "call": "echo", "args": [1]},
        {"id": 1, "call": "echo"},
    ],
)
def test_what_is_no_call_ends_the_agent_and_what_it_was_at(
    controller: Controller, message: dict[str, Any]
) -> None:
    cancelled.clear()
    controller.ask(1, "wait")

    write_message(controller.to, message)
    controller.thread.join(DEADLINE_S)

    assert len(controller.refused) == 1
    assert cancelled.wait(DEADLINE_S)


@pytest.mark.parametrize("number", [[1], {"a": 1}, "1", True, None, 99])
def test_a_cancel_of_no_call_is_passed_over(controller: Controller, number: Any) -> None:
    write_message(controller.to, {"cancel": number})
    controller.ask(1, "echo")

    assert controller.next()[0]["id"] == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prlimit is Linux's")
def test_calls_at_once_need_few_addresses() -> None:
    words = [sys.executable, "-m", "yoked.agent", "serve", "token"]
    calls = range(1, 13)
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agent:
        assert agent.stdin is not None
        assert agent.stdout is not None
        assert agent.stdout.readline() == b"yoked-agent token\n"
        # 36 threads have stacks of 8 MB each; with arenas of 64 MB they would need 1.3 GB.
        limit = (500 << 20, 500 << 20)
        resource.prlimit(agent.pid, resource.RLIMIT_AS, limit)

        for number in calls:
            args = {"argv": ["sleep", "0.5"]}
            write_message(agent.stdin, {"id": number, "call": "run", "args": args})
        answers = [read_message(agent.stdout) for _ in calls]

    told = [answer[0] for answer in answers if answer is not None]
    assert sorted(each["id"] for each in told) == list(calls)
    assert [each for each in told if "result" not in each] == []


def test_an_agent_comes_up_without_ctypes() -> None:
    act = "import sys; sys.modules['ctypes'] = None; import yoked.agent.__main__ as agent; "
    act += "sys.exit(agent.main(['serve', 'token']))"

    done = subprocess.run(
        [sys.executable, "-c", act], stdin=subprocess.DEVNULL, capture_output=True, check=False
    )

    assert (done.returncode, done.stdout) == (0, b"yoked-agent token\n"), done.stderr
