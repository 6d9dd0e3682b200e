"""Notices to a person who is not looking, to a real server and by a real command."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.launch.bootstrap import notify
from yoked.launch.bootstrap.notify import Notifier
from yoked.launch.bootstrap.outcome import Attempt, Failure, RunOutcome, Status

SECRET = "topic-of-mine"
STOPPED = Failure(
    host="beta",
    node=1,
    rank=1,
    cause="rank-stopped",
    found=True,
    what="its process 383 was stopped",
    time_s=0.0,
)


@contextmanager
def server(status: int = 200, wait_s: float = 0.0) -> Iterator[tuple[str, list[tuple[Any, ...]]]]:
    """A URL, and what came there: path, title and text."""
    came: list[tuple[Any, ...]] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            text = self.rfile.read(int(self.headers["Content-Length"])).decode()
            came.append((self.path, self.headers["Title"], text))
            time.sleep(wait_s)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Takes) as found:
        serving = threading.Thread(target=found.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{found.server_port}/{SECRET}", came
        finally:
            found.shutdown()
            serving.join()


def notifier(folder: Path, **receiver: Any) -> Notifier:
    """Of node 0 of a run of two hosts. receiver: who is told; nobody where nothing is given."""
    if receiver:
        (folder / "notify.json").write_text(json.dumps({"run": "night", **receiver}))
    return Notifier(made_up_job(folder, run="night.2"))


def outcome(status: Status, failure: Failure | None = None) -> RunOutcome:
    return RunOutcome(status, (Attempt(0, 0.0, 1.0, failure),))


def test_a_verdict_and_the_end_are_posted_each_once(tmp_path: Path) -> None:
    with server() as (url, came):
        of = notifier(tmp_path, url=url)
        for failure in (None, STOPPED, STOPPED, None, STOPPED):
            of.held_up(failure)
        of.ended(outcome("failed", STOPPED))
        of.close()

    what = "rank 1 on beta: its process 383 was stopped"
    assert came == [
        (f"/{SECRET}", "yoked: run night is hung", f"run night is hung: {what}"),
        (f"/{SECRET}", "yoked: run night failed", f"run night failed: {what}"),
    ]


def test_a_command_gets_the_text_and_no_shell(tmp_path: Path) -> None:
    takes = "import pathlib, sys; pathlib.Path(sys.argv[1]).write_text(sys.stdin.read())"
    target = tmp_path / "it; rm $(x)"

    of = notifier(tmp_path, command=[sys.executable, "-c", takes, str(target)])
    of.ended(outcome("finished"))
    of.close()

    assert target.read_text() == "run night is finished\n"


def test_a_run_that_ends_well_with_a_warning_is_told_with_it(tmp_path: Path) -> None:
    with server() as (url, came):
        of = notifier(tmp_path, url=url)
        of.warn("its ranks share nothing")
        of.ended(outcome("finished"))
        of.close()

    assert [text for _, _, text in came] == ["run night is finished: its ranks share nothing"]


@pytest.mark.parametrize("status", ["stopped", "interrupted"])
def test_of_a_run_that_a_person_ended_nobody_is_told(tmp_path: Path, status: Status) -> None:
    with server() as (url, came):
        of = notifier(tmp_path, url=url)
        of.ended(outcome(status))
        of.close()

    assert came == []


def test_words_of_a_program_stay_one_short_line(tmp_path: Path) -> None:
    failure = Failure("beta", 1, f"\x1b[2Jlong\nwords {'x' * 1000}", 0.0, rank=1)
    with server() as (url, came):
        of = notifier(tmp_path, url=url)
        of.ended(outcome("failed", failure))
        of.close()

    ((_, _, text),) = came
    assert text.startswith("run night failed: rank 1 on beta: \\x1b[2Jlong words xxx")
    assert len(text) == 400


@pytest.mark.parametrize(
    ("answer", "said"),
    [({"status": 403}, "the answer is HTTP 403"), ({"status": 302}, "the answer is HTTP 302"),
     ({"wait_s": 1.0}, "no answer within 0 s")],
)  # fmt: skip
def test_what_was_not_taken_is_a_line_without_the_url(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: dict[str, Any],
    said: str,
) -> None:
    monkeypatch.setattr(notify, "LIMIT_S", 0.3 if "wait_s" in answer else 5.0)
    with server(**answer) as (url, came):
        of = notifier(tmp_path, url=url)
        of.ended(outcome("finished"))
        of.close()

    # Where another address is named, nothing is sent there.
    assert len(came) == 1
    assert capsys.readouterr().err == f"no notice was sent: {said}\n"


@pytest.mark.parametrize(
    ("receiver", "said"),
    [
        ({"url": f"http://127.0.0.1:1/{SECRET}"}, "Connection refused"),
        ({"url": f"http://no.such.host.invalid/{SECRET}"}, ""),
        ({"command": ["/no/such/program", SECRET]}, "No such file or directory"),
        ({"command": [sys.executable, "-c", "exit(7)", SECRET]}, "the command ended with status 7"),
        ({"command": [sys.executable, "-c", "input(); input(); 'waits'"]}, "status 1"),
    ],
)
def test_who_cannot_be_told_costs_the_run_a_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], receiver: dict[str, Any], said: str
) -> None:
    of = notifier(tmp_path, **receiver)
    of.ended(outcome("finished"))
    of.close()

    err = capfd.readouterr().err
    assert "no notice was sent: " in err
    assert said in err
    assert SECRET not in err


def test_a_receiver_that_stands_is_left_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "LIMIT_S", 0.2)
    release = threading.Event()
    monkeypatch.setattr(notify, "_send", lambda *_: release.wait(20))
    of = notifier(tmp_path, command=["x"])
    of.ended(outcome("finished"))

    of.close()

    # It returned, though nothing was taken.
    assert not release.is_set()
    release.set()


def test_without_a_receiver_nothing_is_begun(tmp_path: Path) -> None:
    before = threading.enumerate()

    of = notifier(tmp_path)
    of.held_up(STOPPED)
    of.ended(outcome("finished"))

    assert not set(threading.enumerate()) - set(before)
