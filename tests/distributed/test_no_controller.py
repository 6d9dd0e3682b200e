"""Why a run stands or ended is told though its controller was killed, or left, or comes back.

Two hosts are folders of this machine (test_launch_failures), and the controller is a process of its
own. Who comes back types commands; the ssh that they find picks a host's folder.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.distributed.conftest import DEADLINE_S, SOURCE, YOKED, until
from tests.distributed.test_launch_failures import NAMES, Fleet, Follower
from tests.unit.agent.job_acts import says

from yoked.agent.verdict import fault_of
from yoked.core.shared_json import read_shared_json
from yoked.launch.start import OnFault

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
]
CONTROLLER = (
    "import sys; from tests.distributed.test_no_controller import control; control(*sys.argv[1:])"
)
SSH = """#!/bin/sh
[ "$1" = -V ] && { echo OpenSSH_9.9 >&2; exit; }
while [ "$1" != -- ]; do shift; done
YOKED_STATE="$HOSTS/$2" exec sh -c "$3"
"""
REDUCES = """
import time, torch, torch.distributed as dist
torch.set_num_threads(1)
dist.init_process_group("gloo")
while True:
    dist.all_reduce(torch.ones(1000))
    print("step", flush=True)
    time.sleep(0.02)
"""


def control(root: str, on_fault: OnFault, then: str) -> None:
    """What `yoked run` does: start, and look on, or leave with --detach."""
    fleet = Fleet(Path(root), pytest.MonkeyPatch())
    run = fleet.start(text=REDUCES, on_fault=on_fault)
    if then == "follows":
        Follower(run).end()


class Hosts:
    """Two hosts, a run on them, and commands of whoever comes to look."""

    def __init__(self, root: Path, fleet: Fleet) -> None:
        self.root, self.job = root, fleet.job
        programs = root / "bin"
        programs.mkdir()
        (programs / "ssh").write_text(SSH)
        (programs / "ssh").chmod(0o755)
        self._file = root / "yoked.toml"
        self._file.write_text("".join(f'[[host]]\nname = "{name}"\n' for name in NAMES))
        python = Path(sys.executable).parent
        self._environment = {
            **os.environ,
            "PATH": f"{programs}{os.pathsep}{python}{os.pathsep}{os.environ['PATH']}",
            "PYTHONPATH": f"{SOURCE}{os.pathsep}{SOURCE.parent}",
            "HOSTS": str(root),
            "YOKED_STATE": str(root / "controller"),
            "YOKED_CACHE": str(root / "cache"),
        }

    def start(self, on_fault: OnFault, then: str) -> subprocess.Popen[str]:
        """A controller; returns once the ranks take steps."""
        controller = self._python(CONTROLLER, str(self.root), on_fault, then)
        log = self.job("alpha").logs / "0.0.out"
        until(lambda: log.exists() and log.read_text().count("step") >= 20)
        return controller

    def send(self, rank: int, number: signal.Signals) -> None:
        record = read_shared_json(self.job(NAMES[rank]).path / "errors" / f"0.{rank}.record")
        assert record is not None
        os.kill(record["pid"], number)

    def yoked(self, *words: str, **streams: Any) -> subprocess.Popen[str]:
        return self._python(YOKED, *words, "--fleet", str(self._file), **streams)

    def ask(self, command: str) -> dict[str, Any]:
        told, _ = self.yoked(command, "r", "--json").communicate(timeout=DEADLINE_S)
        found: dict[str, Any] = json.loads(told)
        return found

    def _python(self, program: str, *words: str, **streams: Any) -> subprocess.Popen[str]:
        # Tied to this process: a test that is killed leaves nothing behind.
        tether = [sys.executable, "-m", "yoked.parent_death", str(os.getpid())]
        return subprocess.Popen(
            [*tether, sys.executable, "-c", program, *words],
            env=self._environment,
            cwd=self.root,
            text=True,
            **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **streams},
        )


@pytest.fixture
def hosts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    fleet = Fleet(tmp_path, monkeypatch)
    try:
        yield Hosts(tmp_path, fleet)
    finally:
        fleet.close()


def kill(command: subprocess.Popen[str]) -> None:
    """A command that runs, with the agents through which it speaks to the hosts."""
    for each in (*psutil.Process(command.pid).children(recursive=True), command):
        each.kill()
    command.communicate()


@pytest.mark.parametrize(
    ("then", "number", "cause"),
    [("follows", signal.SIGSTOP, "rank-stopped"), ("leaves", signal.SIGKILL, "rank-killed")],
    ids=["killed", "detached"],
)
def test_a_run_without_its_controller_ends_with_its_cause_and_tells_whoever_comes(
    hosts: Hosts, then: str, number: signal.Signals, cause: str
) -> None:
    controller = hosts.start("stop", then)
    if then == "follows":
        kill(controller)
    else:
        said, complained = controller.communicate(timeout=DEADLINE_S)
        assert controller.returncode == 0, said + complained

    hosts.send(1, number)
    until(lambda: all(hosts.job(name).read("end.json") for name in NAMES))
    failures = [hosts.job(name).failure() for name in NAMES]
    attached = hosts.ask("attach")
    diagnosed = hosts.ask("diagnose")

    expected = {"host": "beta", "rank": 1, "cause": cause}
    for failure in (*failures, *attached["faults"]):
        assert failure is not None
        assert {name: failure[name] for name in expected} == expected
    assert failures[0] == failures[1]
    assert (attached["state"], diagnosed["state"]) == ("failed", "failed")
    assert diagnosed["faults"] == attached["faults"] == [fault_of(failures[0])]


def test_a_controller_that_comes_back_hears_why_the_run_stands_and_when_that_has_passed(
    hosts: Hosts,
) -> None:
    kill(hosts.start("report", "follows"))
    hosts.send(1, signal.SIGSTOP)
    # Each host judges by itself.
    until(lambda: all(causes(hosts, name) for name in NAMES))

    notes = hosts.root / "notes"
    with notes.open("w") as file:
        attached = hosts.yoked("attach", "r", stderr=file)
    until(says(notes, "held up: rank 1 on beta: its process "))
    stands = hosts.ask("diagnose")
    hosts.send(1, signal.SIGCONT)
    until(says(notes, "it gets on again"))
    goes_on = hosts.ask("diagnose")
    kill(attached)

    (fault,) = stands["faults"]
    assert (stands["state"], fault["cause"], fault["rank"]) == ("hung", "rank-stopped", 1)
    assert fault["host"] == "beta"
    assert (goes_on["state"], goes_on["faults"]) == ("healthy", [])


def causes(hosts: Hosts, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = hosts.job(name).read("diagnosis.json").get("causes", [])
    return found
