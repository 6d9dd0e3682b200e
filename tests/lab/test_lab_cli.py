"""The lab by its command line, as a person uses it: real hosts, real streams, real signals."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import select
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.lab.commands import SOURCES, YOKED
from tests.schemas import conforms

from yoked.lab.lab import Lab
from yoked.lab.process import until as became

DEADLINE_S = 60.0


class Cli:
    """`yoked lab ...` in processes of its own, with a state folder of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.state = folder / "state"
        self.environment = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "YOKED_STATE": str(self.state),
            "SHELL": "/bin/sh",
        }

    def __call__(self, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*YOKED, "lab", *words],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.folder,
            env=self.environment,
            timeout=DEADLINE_S,
        )

    def json(self, *words: str) -> dict[str, Any]:
        done = self(*words, "--json")
        found: dict[str, Any] = json.loads(done.stdout)
        return conforms("lab-status", found) if words[0] == "status" else found

    def start(self, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [*YOKED, "lab", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment,
        )

    def labs(self) -> list[str]:
        """Folders of labs, up or not."""
        return [path.name for path in self.state.glob("lab/*/")]


class Terminal:
    """A command on a terminal, as a person types at it."""

    def __init__(self, cli: Cli, *words: str) -> None:
        self._pid, self._master = pty.fork()
        if self._pid == 0:
            os.execve(sys.executable, [*YOKED, "lab", *words], cli.environment)
        self._seen = ""
        self._status: int | None = None

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is None:
            os.kill(self._pid, signal.SIGKILL)
            os.waitpid(self._pid, 0)
        os.close(self._master)

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def wait_for(self, text: str) -> None:
        until(lambda: text in self._read())

    def status(self) -> int:
        until(self._has_ended)
        assert self._status is not None
        return self._status

    def _has_ended(self) -> bool:
        self._read()
        pid, status = os.waitpid(self._pid, os.WNOHANG)
        if pid:
            self._status = os.waitstatus_to_exitcode(status)
        return bool(pid)

    def _read(self) -> str:
        while select.select([self._master], [], [], 0.02)[0]:
            try:
                self._seen += os.read(self._master, 4096).decode(errors="replace")
            except OSError:
                break
        return self._seen


def until(condition: Callable[[], bool]) -> None:
    assert became(condition, DEADLINE_S, 0.02), "waited in vain"


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """With one lab up, two-hosts-1gbe; its faults are healed by each test."""
    commands = Cli(tmp_path_factory.mktemp("cli"))
    try:
        done = commands("up", "two-hosts-1gbe", "--json")
        assert done.returncode == 0, done.stderr
        conforms("lab-up", json.loads(done.stdout))
        yield commands
    finally:
        commands("down", "--all")


@pytest.fixture
def empty_cli(tmp_path: Path) -> Iterator[Cli]:
    """Without a lab."""
    commands = Cli(tmp_path)
    yield commands
    commands("down", "--all")


def test_up_leaves_a_fleet_logins_and_hosts_that_answer(cli: Cli) -> None:
    payload = cli.json("status")

    logins = {
        host["name"]: subprocess.run(
            ["ssh", "-F", payload["ssh_config"], host["name"], "hostname"],
            capture_output=True,
            text=True,
            check=True,
            timeout=DEADLINE_S,
        ).stdout
        for host in payload["hosts"]
    }

    assert logins == {host["name"]: f"{host['name']}\n" for host in payload["hosts"]}
    assert Path(payload["fleet"]).is_file()
    assert all(host["up"] and host["address"] for host in payload["hosts"])


def test_exec_has_the_programs_own_streams_and_status(cli: Cli) -> None:
    done = cli(
        "exec", "beta", "--", "sh", "-c", "cat; hostname; echo oops >&2; exit 7", stdin="hi\n"
    )

    assert (done.stdout, done.stderr, done.returncode) == ("hi\nbeta\n", "oops\n", 7)


def test_exec_takes_all_after_the_host_for_the_program(cli: Cli) -> None:
    done = cli("exec", "alpha", "echo", "--json", "-x", "--", "--lab")

    assert done.stdout == "--json -x -- --lab\n"


def test_exec_of_a_program_that_is_not_there_ends_as_in_a_shell(cli: Cli) -> None:
    assert cli("exec", "alpha", "--", "no-such-program").returncode == 127


def test_a_pipe_that_is_closed_ends_the_program_quietly(cli: Cli) -> None:
    with cli.start("exec", "alpha", "--", "yes") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "y\n"
        process.stdout.close()
        said = process.stderr.read()

    assert process.returncode == -signal.SIGPIPE
    assert said == ""


def test_a_signal_to_exec_reaches_the_program(cli: Cli) -> None:
    script = "trap 'echo ended; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    with cli.start("exec", "alpha", "--", "sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        said = process.stdout.read()

    assert (said, process.returncode) == ("ended\n", 5)


def test_ctrl_c_on_the_terminal_reaches_the_program(cli: Cli) -> None:
    script = "trap 'echo stopped; exit 6' INT; echo ready; while :; do sleep 0.05; done"
    with Terminal(cli, "exec", "alpha", "--", "sh", "-c", script) as terminal:
        terminal.wait_for("ready")
        terminal.type("\x03")
        terminal.wait_for("stopped")

        assert terminal.status() == 6


def test_a_shell_has_a_terminal_of_the_host_and_ends_with_its_status(cli: Cli) -> None:
    with Terminal(cli, "shell", "beta") as terminal:
        terminal.type("echo on $(hostname) at $(tty)\n")
        terminal.wait_for("on beta at /dev/pts/")
        terminal.type("echo asleep; sleep 60\n")
        terminal.wait_for("\nasleep")
        terminal.type("\x03")
        terminal.type("exit 3\n")

        assert terminal.status() == 3


def test_a_shell_without_a_terminal_reads_its_input(cli: Cli) -> None:
    done = cli("shell", "beta", stdin="hostname\nexit 4\n")

    assert (done.stdout, done.returncode) == ("beta\n", 4)


def test_a_fault_is_shown_until_it_is_healed(cli: Cli) -> None:
    fault = cli.json("fault", "hosts-loopback", "alpha")
    resolved = cli("exec", "alpha", "--", "getent", "hosts", "alpha").stdout
    shown = {host["name"]: host["faults"] for host in cli.json("status")["hosts"]}
    healed = cli.json("heal", fault["id"])

    assert resolved.startswith("127.0.1.1")
    assert [entry["id"] for entry in shown["alpha"]] == [fault["id"]]
    assert shown["beta"] == []
    assert [entry["id"] for entry in healed["healed"]] == [fault["id"]]
    assert "0 faults" in cli("status").stdout
    assert not cli("exec", "alpha", "--", "getent", "hosts", "alpha").stdout.startswith("127.")


def test_a_host_without_power_is_shown_as_switched_off(
    cli: Cli, snapshot: SnapshotAssertion
) -> None:
    cli("fault", "kill", "beta")

    shown = {host["name"]: host["up"] for host in cli.json("status")["hosts"]}
    refused = cli("exec", "beta", "--", "hostname")
    cli("heal", "beta")

    assert shown == {"alpha": True, "beta": False}
    assert (refused.returncode, refused.stderr) == snapshot
    assert cli("exec", "beta", "--", "hostname").stdout == "beta\n"


def test_a_second_up_of_one_name_is_refused_and_changes_nothing(
    cli: Cli, snapshot: SnapshotAssertion
) -> None:
    done = cli("up", "two-hosts-1gbe")

    assert (done.returncode, done.stderr) == snapshot
    assert cli("exec", "alpha", "--", "hostname").stdout == "alpha\n"


def test_of_several_labs_one_must_be_named(cli: Cli) -> None:
    assert cli("up", "two-hosts-100mbit", "--name", "other").returncode == 0

    asked = cli("exec", "alpha", "--", "true")
    named = cli("exec", "--lab", "other", "alpha", "--", "hostname")
    unsure = cli("down")
    down = cli("down", "other")

    assert (asked.returncode, "other, two-hosts-1gbe" in asked.stderr) == (2, True)
    assert named.stdout == "alpha\n"
    assert (unsure.returncode, "yoked lab down other" in unsure.stderr) == (2, True)
    assert down.stdout == "down: other\n"
    assert cli.labs() == ["two-hosts-1gbe"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_up_leaves_nothing(empty_cli: Cli, number: signal.Signals) -> None:
    # In the middle of bringing a lab up, its keys are made.
    script = f'#!/bin/sh\nkill -{number} $PPID\nexec {shutil.which("ssh-keygen")} "$@"\n'
    (empty_cli.folder / "ssh-keygen").write_text(script)
    (empty_cli.folder / "ssh-keygen").chmod(0o755)
    empty_cli.environment["PATH"] = f"{empty_cli.folder}:{os.environ['PATH']}"
    # What is ignored (by nohup, say) stays so in children, and yoked leaves it so.
    before = signal.signal(number, signal.SIG_DFL)

    try:
        done = empty_cli("up", "four-hosts", "--json")
    finally:
        signal.signal(number, before)

    assert done.returncode == 130
    assert json.loads(done.stdout)["error"]["kind"] == "interrupted"
    assert empty_cli.labs() == []


def test_what_a_killed_lab_left_is_cleared_by_down_all(empty_cli: Cli) -> None:
    assert empty_cli("up", "two-hosts-1gbe").returncode == 0
    (keeper,) = empty_cli.state.glob("lab/*/keeper.json")
    os.kill(json.loads(keeper.read_text())["pid"], signal.SIGKILL)
    until(lambda: "yoked lab up" in empty_cli("status").stderr)

    done = empty_cli("down", "--all")

    assert done.stdout == "down: two-hosts-1gbe\n"
    assert empty_cli.labs() == []


@pytest.mark.lab("two-hosts-100mbit")
def test_the_lab_fixture_is_a_lab_with_its_hosts_up(lab: Lab) -> None:
    assert lab.topology.name == "two-hosts-100mbit"
    assert {host.run(["hostname"]).stdout for host in lab.hosts.values()} == {"alpha\n", "beta\n"}


PLUGIN_TEST = """
import os, signal
import pytest

@pytest.mark.lab("two-hosts-100mbit")
def test_the_marked_lab_is_up(lab):
    assert lab.topology.name == "two-hosts-100mbit"
    assert lab.host("beta").run(["hostname"]).stdout == "beta\\n"

def test_two_labs_at_once(lab_up):
    first, second = lab_up(), lab_up("two-hosts-1gbe")
    assert first.name != second.name
    for lab in (first, second):
        assert lab.host("alpha").run(["hostname"]).stdout == "alpha\\n"

@pytest.mark.lab_needs("ip")
def test_a_killed_test_process_leaves_nothing(lab):
    os.kill(os.getpid(), int(os.environ.get("KILL", "0")))
"""


@pytest.mark.parametrize("number", [0, signal.SIGKILL])
def test_the_fixtures_bring_labs_up_and_leave_nothing(empty_cli: Cli, number: int) -> None:
    (empty_cli.folder / "conftest.py").write_text('pytest_plugins = ["yoked.lab.pytest_plugin"]\n')
    (empty_cli.folder / "test_it.py").write_text(PLUGIN_TEST)

    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--strict-markers"],
        capture_output=True,
        text=True,
        check=False,
        cwd=empty_cli.folder,
        env={**empty_cli.environment, "KILL": str(int(number))},
        timeout=DEADLINE_S,
    )

    assert done.returncode == -number, done.stdout
    with contextlib.suppress(FileNotFoundError):
        until(lambda: empty_cli.labs() == [])
    assert empty_cli.labs() == []
