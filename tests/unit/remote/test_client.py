"""A host that says what no agent says is named; nobody waits for it, and nothing of it is run."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.failures import raises_fault

from yoked.errors import FleetError, HostError, JobError, YokedError
from yoked.remote import client
from yoked.remote.client import AgentClient, RemoteBug, host_wrote, remote_error

# Says what is in each file after another line from the controller, and goes on listening.
HOST = """
import sys
for path in sys.argv[1:]:
    sys.stdin.buffer.readline()
    sys.stdout.buffer.write(open(path, "rb").read())
    sys.stdout.buffer.flush()
sys.stdin.buffer.read()
"""
PATIENCE_S = 20


@contextlib.contextmanager
def host_that_says(tmp_path: Path, *said: bytes) -> Iterator[AgentClient]:
    """An agent that says one of these after each line that it gets."""
    files = [tmp_path / f"said-{number}" for number in range(len(said))]
    for file, words in zip(files, said, strict=True):
        file.write_bytes(words)
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", HOST, *map(str, files)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    with AgentClient("attic", process, lambda: HostError("attic: cut off")) as client:
        yield client


def line(**message: Any) -> bytes:
    return json.dumps({"size": 0, **message}).encode() + b"\n"


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize(
    "said",
    [
        b"Welcome to Debian\n",
        b"[1]\n",
        b"\xff\xfe\n",
        line(result=1),
        line(id=None, result=1),
        line(id=[1], result=1),
        line(id={"a": 1}, result=1),
        line(id=1.0, result=1),
        line(id=True, result=1),
        line(id=7, result=1),
        line(id=0, result=1),
        line(id=10**400, result=1),
        line(id=1),
        line(id=1, result=1, error=None),
        line(id=1, result=1, size=-1),
        line(id=1, result=1, size=10**15),
        line(id=1, result=1, size="1"),
        line(id=1, result=1, size=True),
        line(id=1, error="no"),
        line(id=1, error={"kind": "HostError"}),
        line(id=1, error={"kind": "HostError", "what": 1, "fix": [], "trace": ""}),
        line(id=1, error={"kind": ["HostError"], "what": "", "fix": [], "trace": ""}),
        line(id=1, error={"kind": "HostError", "what": "", "fix": "rm", "trace": ""}),
        b'{"id":1,"size":0,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}\n",
        b'{"id":1,"size":0,"result":' + b"[" * 900 + b"]" * 900 + b"}\n",
        b'{"id":1,"size":0,"result":' + b"9" * 100_000 + b"}\n",
    ],
    ids=lambda said: said[:60].decode(errors="replace").strip(),
)
def test_what_is_no_message_closes_the_connection_and_is_told_at_once(
    tmp_path: Path, said: bytes
) -> None:
    with host_that_says(tmp_path, said) as client:
        with raises_fault("odd-message"):
            client.call("trial_go", timeout_s=PATIENCE_S)
        with raises_fault("odd-message"):
            client.call("trial_go", timeout_s=PATIENCE_S)


def test_all_that_wait_are_told_those_too_that_would_wait_for_ever(tmp_path: Path) -> None:
    problems: list[Exception] = []

    with host_that_says(tmp_path, line(part=1)) as client:

        def follow() -> None:
            try:
                list(client.stream("job_logs", timeout_s=None))
            except HostError as problem:
                problems.append(problem)

        waiting = [threading.Thread(target=follow, daemon=True) for _ in range(3)]
        for thread in waiting:
            thread.start()
        for thread in waiting:
            thread.join(PATIENCE_S)

    assert len(problems) == 3


def test_a_second_answer_and_one_to_a_call_that_was_given_up_are_passed_over(
    tmp_path: Path,
) -> None:
    thrice = line(id=1, result=True) * 3

    with host_that_says(tmp_path, thrice, line(id=2, result=False)) as client:
        first = client.call("trial_go", timeout_s=PATIENCE_S)
        second = client.call("trial_go", timeout_s=PATIENCE_S)

    assert (first, second) == (True, False)


def test_a_call_does_not_wait_on_while_parts_come(tmp_path: Path) -> None:
    with (
        host_that_says(tmp_path, line(id=1, part=1) * 5) as client,
        raises_fault("odd-answer"),
    ):
        client.call("facts", timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    ("call", "result"),
    [
        ("facts", "none"),
        ("facts", {}),
        ("job_list", {}),
        ("blobs_missing", {"a": -1}),
        ("blob_append", "8"),
        ("folder_put", ["/etc"]),
        ("run", {"exit_status": "0; rm"}),
        ("file_list", [["a", 1]]),
        ("interfaces", [{"name": "lo", "kind": "loopback"}]),
        ("job_go", {"host_program": 10**30}),
        ("job_go", {"host_program": "\x1b]0;title\x07"}),
    ],
)
def test_a_result_of_another_form_names_the_host(tmp_path: Path, call: str, result: Any) -> None:
    with (
        host_that_says(tmp_path, line(id=1, result=result)) as client,
        raises_fault("odd-answer"),
    ):
        client.call(call, timeout_s=PATIENCE_S)


@pytest.mark.parametrize(
    "part",
    [
        {"begin": {"0.0.out": "x"}},
        {"rank": 0, "attempt": 0, "stream": "../err", "time_s": 1.0, "offset": 0},
        {"rank": 0, "attempt": 0, "stream": "out", "time_s": 1e300, "offset": 0},
        {"rank": "0", "attempt": 0, "stream": "out", "time_s": 1.0, "offset": 0},
        "text",
    ],
)
def test_a_part_of_another_form_names_the_host(tmp_path: Path, part: Any) -> None:
    with (
        host_that_says(tmp_path, line(id=1, part=part)) as client,
        raises_fault("odd-answer"),
    ):
        list(client.stream("job_logs", timeout_s=PATIENCE_S))


def test_a_host_has_to_wait_for_a_reader_who_is_slower(tmp_path: Path) -> None:
    parts = line(id=1, part=None, size=1000) + bytes(1000)

    with host_that_says(tmp_path, parts * 2000 + line(id=1, result=True)) as client:
        stream = client.stream("file_read", path="x", timeout_s=PATIENCE_S)
        next(stream)
        until_s = time.monotonic() + PATIENCE_S
        waiting = next(iter(client._pending.values()))
        while len(waiting._waiting) < 64 and time.monotonic() < until_s:
            time.sleep(0.01)
        most = len(waiting._waiting)
        rest = sum(len(part.data) for part in stream)

    assert (most, rest) == (64, 1999 * 1000)


def test_a_stream_that_nobody_reads_to_its_end_does_not_keep_the_connection(
    tmp_path: Path,
) -> None:
    parts = line(id=1, part=None) * 500 + line(id=1, result=True)

    # It is told that the first call is over, and then of the second.
    with host_that_says(tmp_path, parts, b"", line(id=2, result=True)) as client:
        for _ in client.stream("file_read", timeout_s=PATIENCE_S):
            break
        answer = client.call("trial_go", timeout_s=PATIENCE_S)

    assert answer is True


# As an agent tells an error that has no code.
UNCODED = {"trace": "", "code": "", "params": {}}


@pytest.mark.parametrize(
    ("kind", "raised"),
    [
        ("JobError", JobError),
        ("YokedError", YokedError),
        ("FleetError", FleetError),
        ("Sequence", HostError),
        ("annotations", HostError),
        ("__builtins__", HostError),
        ("_rebuild", HostError),
        ("OSError", HostError),
    ],
)
def test_the_kind_of_an_error_is_one_of_a_list(kind: str, raised: type[Exception]) -> None:
    error = {**UNCODED, "kind": kind, "what": "no", "fix": ["a", "b"]}

    problem = remote_error("attic", error)

    assert type(problem) is raised
    assert str(problem) == "attic: no\nfix: a\nfix: b"


def test_an_errors_words_carry_no_control_characters() -> None:
    hostile = "full\x1b]52;c;cm0gLXJm\x07\x9b2J\r\u202e"

    problem = remote_error(
        "attic", {**UNCODED, "kind": "JobError", "what": hostile, "fix": [hostile]}
    )
    bug = remote_error("attic", {"kind": "bug", "what": hostile, "fix": [], "trace": hostile})

    shown = r"full\x1b]52;c;cm0gLXJm\x07\x9b2J\x0d\u202e"
    assert str(problem) == f"attic: {shown}\nfix: {shown}"
    assert isinstance(bug, RemoteBug)
    assert str(bug) == f"on attic: {shown}\n{shown}"
    assert bug.what == f"on attic: {shown}"


@pytest.mark.parametrize(
    "use", [lambda: {}["a"], lambda: [1][int("1")], lambda: int("x"), lambda: 1 / 0]
)
def test_what_a_hosts_program_wrote_in_another_form_names_the_host(use: Any) -> None:
    with (
        raises_fault("odd-content"),
        host_wrote("attic", "its result"),
    ):
        use()


def test_a_connection_that_nobody_asks_anything_of_is_never_silent_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(client, "_BEAT_S", 0.02)
    heard = "import sys; sys.stdin.buffer.readline(); sys.stdin.buffer.readline()"
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", heard],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )

    with AgentClient("attic", process, lambda: HostError("attic: cut off")):
        # It ends when it has heard two messages.
        assert process.wait(PATIENCE_S) == 0
