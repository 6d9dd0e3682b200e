"""Launchers that die, on two hosts that are folders of this machine: a controller tells it at once.

Agents, supervisors, host programs and ranks are real; what ssh would carry comes by a pipe.
"""

from __future__ import annotations

import os
import shlex
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.unit.agent.job_acts import no_job_left, until

from yoked.agent.jobfolder import JobFolder
from yoked.cli.commands.diagnose import faults_of
from yoked.core.proc import kill_all
from yoked.fleet.model import Host
from yoked.launch import launching, start
from yoked.launch.attach import JobEnd
from yoked.launch.handle import RunHandle
from yoked.launch.program import Program
from yoked.launch.start import (
    Home,
    JobRequest,
    NodePlan,
    OnFault,
    Started,
    rank_environment,
    start_job,
)
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here

pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(sys.platform != "linux", reason="only Linux has all of 127.0.0.0/8"),
]
NAMES = ("alpha", "beta")
CRASHES = "exec {python} -c 'import a_module_that_nobody_has'"
SLEEPS = "echo loading >&2; exec sleep 90"
IN_PEACE = (
    "import time, torch.distributed as dist; dist.init_process_group('gloo'); dist.barrier(); "
    "print('begun', flush=True); time.sleep(90)"
)


def _with_own_id(request: Any, node: NodePlan, launch_id: str, *rest: Any) -> dict[str, str | None]:
    return rank_environment(request, node, f"{launch_id}-{node.host.name}", *rest)


class Fleet:
    """Two hosts, each with an agent and a state folder of its own."""

    def __init__(self, root: Path, patch: pytest.MonkeyPatch) -> None:
        self.root, self._patch = root, patch
        self._stack = ExitStack()
        self.clients = {name: self.connect(name) for name in NAMES}
        self.started: Started | None = None
        # A host's supervisor ends all of the launch on its machine, and here both share one.
        patch.setattr(start, "rank_environment", _with_own_id)

    def connect(self, name: str, patience_s: int = 0) -> AgentClient:
        del patience_s
        self._patch.setenv("YOKED_STATE", str(self.root / name))
        return self._stack.enter_context(connect_here(name))

    def start(
        self,
        launchers: dict[str, str] | None = None,
        *,
        text: str = IN_PEACE,
        on_fault: OnFault = "report",
    ) -> RunHandle:
        """Start a run. launchers: what stands in the place of the Python of a host, in sh."""
        program = self.root / "program.py"
        program.write_text(text)
        request = JobRequest(
            run="r",
            program=Program("script", str(program), (), None),
            on_fault=on_fault,
            bootstrap=False,
            home=Home(self.root, None),
        )
        nodes = [
            NodePlan(
                host=Host(name),
                client=self.clients[name],
                facts=self.clients[name].call("facts"),
                ranks=1,
                python=self._python(name, (launchers or {}).get(name)),
                interface="lo",
                address=f"127.0.0.{number}",
            )
            for number, name in enumerate(NAMES, 1)
        ]
        self.started = start_job(request, nodes, lambda _: None)
        return self.handle()

    def handle(self) -> RunHandle:
        assert self.started is not None
        return RunHandle.of(self.started, self.connect)

    def job(self, name: str) -> JobFolder:
        return JobFolder(self.root / name / "jobs" / "r")

    def kill_launcher(self, name: str) -> None:
        program = self.job(name).host_program
        assert program is not None
        os.kill(program.pid, 9)

    def close(self) -> None:
        self._stack.close()
        for name in NAMES:
            # Whoever started it may have been another process.
            if launch_id := self.job(name).launch_id:
                kill_all(f"{launch_id}-{name}")
            self._patch.setenv("YOKED_STATE", str(self.root / name))
            with no_job_left():
                pass

    def _python(self, name: str, script: str | None) -> str:
        if script is None:
            return sys.executable
        path = self.root / f"python-of-{name}"
        path.write_text("#!/bin/sh\n" + script.format(python=shlex.quote(sys.executable)) + "\n")
        path.chmod(0o755)
        return str(path)


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fleet]:
    made = Fleet(tmp_path, monkeypatch)
    try:
        yield made
    finally:
        made.close()


class Follower:
    """`yoked attach`, as a thread."""

    def __init__(self, run: RunHandle) -> None:
        self.notes: list[str] = []
        self.ends: list[JobEnd] = []
        self.printed = ""
        view: Any = SimpleNamespace(live=None, note=self.notes.append, rank_output=self._print)
        self._thread = threading.Thread(target=lambda: self.ends.append(run.follow(view)))
        self._thread.start()

    def end(self) -> JobEnd:
        self._thread.join(90)
        return self.ends[0]

    def _print(self, stream: str, text: str) -> None:
        del stream
        self.printed += text


def failure_of(end: JobEnd) -> dict[str, Any]:
    (fault,) = end.to_dict()["faults"]
    return {name: fault[name] for name in ("host", "rank", "cause")}


@pytest.mark.parametrize("gone", NAMES)
def test_a_launcher_that_crashes_before_it_joins_ends_the_run_with_its_last_words(
    fleet: Fleet, gone: str
) -> None:
    run = fleet.start({gone: CRASHES})

    end = Follower(run).end()

    assert (end.state, end.exit_code) == ("failed", 1)
    assert failure_of(end) == {"host": gone, "rank": None, "cause": "launcher-died"}
    said = "ModuleNotFoundError: No module named 'a_module_that_nobody_has'"
    assert end.evidence[0] == f"{gone}: its launcher ended with status 1: {said}"
    assert f"  {said}" in end.evidence
    assert faults_of(end.record)[0]["cause"] == "launcher-died"


def test_a_launcher_that_is_killed_before_it_joins_is_told_by_the_other_host_too(
    fleet: Fleet,
) -> None:
    follower = Follower(fleet.start({"beta": SLEEPS}))
    until(lambda: fleet.job("alpha").read("stage.json").get("hosts"), "the wait of alpha")

    fleet.kill_launcher("beta")
    killed_s = time.monotonic()
    end = follower.end()
    print(f"told {time.monotonic() - killed_s:.2f} s after the kill")

    assert failure_of(end) == {"host": "beta", "rank": None, "cause": "launcher-died"}
    assert end.evidence[0].startswith("beta: its launcher was killed by SIGKILL")
    assert end.evidence[-1] == "  loading"
    # Whoever asks later, while beta is switched off, hears the same.
    alone = RunHandle("r", {"alpha": fleet.clients["alpha"]}, fleet.connect).look()
    assert (alone.state, alone.failure) == ("failed", end.record.failure)


def test_a_launcher_that_is_killed_in_the_run_is_told_in_the_same_words(fleet: Fleet) -> None:
    follower = Follower(fleet.start())
    until(lambda: "begun" in follower.printed, "the first line")

    fleet.kill_launcher("beta")
    end = follower.end()

    assert failure_of(end) == {"host": "beta", "rank": None, "cause": "launcher-died"}
    assert end.evidence[0].startswith("beta: its launcher was killed by SIGKILL")


def test_a_launch_says_what_it_waits_for_where_and_since_when(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launching, "SAY_EVERY_S", 0.0)
    follower = Follower(fleet.start({"beta": SLEEPS}))

    words = "the launcher on beta"
    until(lambda: any(words in note for note in follower.notes), "a word of beta")
    until(lambda: any(note.endswith(" s)") for note in follower.notes), "since when")
    fleet.kill_launcher("beta")
    follower.end()
