"""A program on a host gets exactly what it was given, and ends with its call."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.agent.programs import run_program
from yoked.errors import HostError
from yoked.remote.transport import connect_here

DEADLINE_S = 20.0
SLEEP = "import time; time.sleep(600)"
# Starts a child that would outlive it, says its number, and waits or ends.
PARENT = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(f"{child.pid}\\n")
time.sleep(float(sys.argv[2]))
"""


def python(script: str, *args: str) -> list[str]:
    return [sys.executable, "-c", script, *args]


def await_text(path: Path) -> str:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError):
            if (text := path.read_text()).endswith("\n"):
                return text.strip()
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written in {DEADLINE_S} s")


def await_end_of(pid: int) -> None:
    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return
        if state == "Z":
            return
        time.sleep(0.01)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f"process {pid} was still there after {DEADLINE_S} s")


def test_words_reach_a_program_as_they_are() -> None:
    words = ["$HOME", "a b", "; exit 3", "*", "'", '"', "", "ä\n"]

    outcome = run_program(python("import sys; print(sys.argv[1:])", *words))

    assert outcome.ok
    assert outcome.stdout.decode() == f"{words}\n"


def test_a_program_gets_input_environment_and_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GONE", "here")
    script = "import os, sys; print(os.getcwd(), os.environ['NEW'], os.environ.get('GONE'))"

    outcome = run_program(
        python(script + "; print(len(sys.stdin.read()))"),
        env={"NEW": "new", "GONE": None},
        cwd=str(tmp_path),
        stdin=b"x" * 300_000,
    )

    assert outcome.stdout.decode() == f"{tmp_path} new None\n300000\n"


def test_a_program_that_reads_nothing_is_no_failure() -> None:
    assert run_program(python("pass"), stdin=b"x" * 300_000).ok


def test_a_program_below_home_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    program = tmp_path / "hello"
    program.write_text("#!/bin/sh\necho hello\n")
    program.chmod(0o755)

    assert run_program(["~/hello"]).stdout == b"hello\n"


def test_status_signal_and_the_end_of_what_was_said_come_back() -> None:
    script = "import os, sys; print('x' * 90_000 + 'end'); print('oops', file=sys.stderr)"

    ended = run_program(python(script + "; sys.exit(7)"))
    killed = run_program(python("import os; os.kill(os.getpid(), 15)"))

    assert (ended.exit_status, ended.signal, ended.stderr) == (7, None, b"oops\n")
    assert ended.stdout == b"x" * 19_996 + b"end\n"
    assert (killed.exit_status, killed.signal) == (None, signal.SIGTERM)


def test_lines_are_told_as_they_come() -> None:
    lines: list[str] = []

    run_program(python("print('one'); print('two')"), on_line=lines.append)

    assert lines == ["one", "two"]


def test_a_program_past_its_time_is_killed() -> None:
    outcome = run_program(python(SLEEP), limit_s=0.05)

    assert outcome.late
    assert outcome.signal == signal.SIGKILL


def test_a_cancelled_program_ends_with_its_children(tmp_path: Path) -> None:
    cancelled = threading.Event()
    note = tmp_path / "child"
    thread = threading.Thread(
        target=run_program,
        args=(python(PARENT, str(note), "600"),),
        kwargs={"cancelled": cancelled},
    )
    thread.start()
    child = int(await_text(note))

    cancelled.set()
    thread.join(timeout=DEADLINE_S)

    assert not thread.is_alive()
    await_end_of(child)


def test_what_a_program_leaves_running_ends_too(tmp_path: Path) -> None:
    note = tmp_path / "child"

    assert run_program(python(PARENT, str(note), "0")).ok

    await_end_of(int(await_text(note)))


def test_a_program_ends_when_the_controller_is_gone(tmp_path: Path) -> None:
    note = tmp_path / "child"
    agent = connect_here()

    def run() -> None:
        with contextlib.suppress(HostError):
            agent.call("run", argv=python(PARENT, str(note), "600"))

    call = threading.Thread(target=run)
    call.start()
    child = int(await_text(note))
    agent.close()
    call.join(timeout=DEADLINE_S)

    assert not call.is_alive()
    await_end_of(child)


@pytest.mark.parametrize("program", ["no-such-program", os.devnull])
def test_what_cannot_be_started_is_named(program: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(HostError) as caught:
        run_program([program])
    assert str(caught.value) == snapshot
