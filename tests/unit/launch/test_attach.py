"""Looking on at a real job: the output is whole though connections are cut, and the end is told."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.agent.job_acts import (
    COUNTER,
    PATIENT,
    SLEEPER,
    launch,
    no_job_left,
    says,
    until,
)

from yoked.cli.live import LiveView
from yoked.cli.output import Output
from yoked.core.faults import fault
from yoked.errors import HostError
from yoked.launch import attach, following
from yoked.launch.attach import left_running
from yoked.launch.following import HASTY_S, HostLog, reach_again
from yoked.launch.handle import RunHandle
from yoked.launch.registry import collect, pick
from yoked.liveline import LiveText
from yoked.paths import LIVE_NAME
from yoked.remote.client import AgentClient, RemoteBug
from yoked.remote.ssh import CONNECT_TIMEOUT_S
from yoked.remote.transport import connect_here

LINES = 300
VERDICT = json.dumps({"status": "finished", "exit_code": 0, "attempts": []})
COUNTS_AND_FINISHES = COUNTER + f"\nopen(folder + '/outcome.json', 'w').write({VERDICT!r})\n"
STUBBORN = (
    "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);" + SLEEPER
)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with no_job_left():
        yield tmp_path / "state"


@pytest.fixture
def agent(root: Path) -> Iterator[AgentClient]:
    with connect_here("attic") as client:
        yield client


@pytest.fixture(autouse=True)
def in_haste(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(following, "FIRST_S", 0.01)
    monkeypatch.setattr(following, "AGAIN_EVERY_S", 0.02)


SILENT: Any = SimpleNamespace(note=lambda line: None, rank_output=lambda stream, text: None)


class Unstarted:
    def start(self) -> None: ...


def reconnect(host: str, patience_s: int) -> AgentClient:
    return connect_here(host)


def test_ctrl_c_before_there_is_an_end_says_that_the_run_goes_on() -> None:
    said: list[str] = []

    with pytest.raises(KeyboardInterrupt), left_running("night", said.append, " --fleet home.toml"):
        raise KeyboardInterrupt

    assert "`yoked stop night --fleet home.toml` ends it" in said[0]


def test_output_is_shown_to_the_end_and_the_end_is_told(agent: AgentClient, root: Path) -> None:
    launch(agent, root, COUNTS_AND_FINISHES, "20", "0.01")
    shown = io.StringIO()

    view = LiveView(Output(json_mode=False, stdout=shown))
    end = RunHandle("try", {"attic": agent}, reconnect).follow(view)

    assert shown.getvalue() == "".join(f"out {number}\n" for number in range(20))
    assert (end.state, end.exit_code, end.evidence) == ("finished", 0, [])


def test_a_start_after_a_failure_is_told_with_its_cause(agent: AgentClient, root: Path) -> None:
    failure = {"host": "attic", "rank": 0, "what": "killed by SIGKILL"}
    earlier = json.dumps({"attempts": [{"attempt": 0, "failure": failure}]})
    again = (
        "import os; folder = os.environ['YOKED_JOB_FOLDER'];"
        f"open(folder + '/earlier.json', 'w').write({earlier!r});"
        "open(folder + '/logs/0.1.out', 'w').write('again\\n');"
        f"open(folder + '/outcome.json', 'w').write({VERDICT!r})"
    )
    launch(agent, root, again)
    notes: list[str] = []
    view: Any = SimpleNamespace(
        live=lambda line: None, note=notes.append, rank_output=lambda stream, text: None
    )

    end = RunHandle("try", {"attic": agent}, reconnect).follow(view)

    cause = "failed: rank 0 on attic: killed by SIGKILL"
    assert notes == [f"run try {cause}; it starts again: attempt 2"]
    assert end.evidence == [f"attempt 1 {cause}"]


def test_each_byte_is_shown_once_though_the_connection_is_cut(
    agent: AgentClient, root: Path
) -> None:
    launch(agent, root, COUNTS_AND_FINISHES, str(LINES), "0.005")
    connections = [agent]
    cuts: list[str] = []

    def connect_again(host: str, patience_s: int) -> AgentClient:
        connections.append(connect_here(host))
        return connections[-1]

    log = HostLog(
        agent,
        "try",
        connect_again,
        {"follow": True, "streams": ["out"], "tail_lines": 0},
        on_cut=lambda host, problem: cuts.append(host),
        on_back=lambda host: None,
    )
    came = b""
    for part in log.parts():
        came += part.data
        if len(cuts) < 3:
            log.client._process.kill()
    for connection in connections:
        connection.close()

    first = int(came.split()[1])
    expected = b"".join(b"out %d\n" % number for number in range(first, LINES))
    assert cuts == ["attic"] * 3
    assert came == expected


def test_a_stream_that_appears_during_a_cut_is_shown_whole(agent: AgentClient, root: Path) -> None:
    job = launch(agent, root, SLEEPER)
    (job.logs / "0.0.out").write_text("before\n")
    connections = [agent]

    def write_and_connect(host: str, patience_s: int) -> AgentClient:
        (job.logs / "0.1.out").write_text("one\ntwo\nthree\n")
        connections.append(connect_here(host))
        return connections[-1]

    log = HostLog(
        agent,
        "try",
        write_and_connect,
        {"follow": True, "tail_lines": 1},
        on_cut=lambda host, problem: None,
        on_back=lambda host: None,
    )
    came = b""
    for part in log.parts():
        came += part.data
        if len(connections) == 1:
            agent._process.kill()
        elif came.endswith(b"three\n"):
            break
    for connection in connections:
        connection.close()

    assert came == b"before\none\ntwo\nthree\n"


def test_attempts_come_one_at_a_time_and_a_slow_host_gets_more_time_in_the_end() -> None:
    tries: list[int] = []
    under_way = threading.Lock()

    def connect(patience_s: int) -> AgentClient:
        assert under_way.acquire(blocking=False), "two attempts at a time"
        with contextlib.ExitStack() as stack:
            stack.callback(under_way.release)
            tries.append(patience_s)
            if patience_s < CONNECT_TIMEOUT_S:
                raise HostError("attic: it did not answer")
            return connect_here("attic")

    with reach_again(connect, HostError("cut"), lambda: False) as client:
        assert client.call("facts")

    assert tries == [*[HASTY_S] * (len(tries) - 1), CONNECT_TIMEOUT_S]
    assert len(tries) > 2


def test_an_attempt_begins_so_long_after_the_one_before(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    now_s, pauses = [100.0], []

    class Hopeless(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            pauses.append(timeout)
            return len(pauses) == 5

    def connect(patience_s: int) -> AgentClient:
        now_s[0] += len(pauses) - 0.5
        raise HostError("attic: it did not answer")

    monkeypatch.setattr(following.threading, "Event", Hopeless)
    monkeypatch.setattr(following.threading, "Thread", lambda **_: Unstarted())
    monkeypatch.setattr(following.time, "monotonic", lambda: now_s[0])
    monkeypatch.setattr(following, "FIRST_S", 1.0)
    monkeypatch.setattr(following, "AGAIN_EVERY_S", 2.0)

    with pytest.raises(HostError) as caught:
        reach_again(connect, HostError("cut"), lambda: False)
    assert str(caught.value) == snapshot

    assert pauses == [1.0, 1.5, 0.5, 0.0, 0.0]


def test_waiting_for_a_host_ends_when_it_is_no_use(snapshot: SnapshotAssertion) -> None:
    def connect(patience_s: int) -> AgentClient:
        raise HostError("attic: it did not answer")

    with pytest.raises(HostError) as caught:
        reach_again(connect, HostError("attic: cable cut"), lambda: True)
    assert str(caught.value) == snapshot


def test_leaving_does_not_touch_the_job(
    agent: AgentClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = launch(agent, root, SLEEPER)
    (job.logs / "0.0.out").write_text("hello\n")
    output = Output(json_mode=False, stdout=io.StringIO())

    def interrupted(text: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(output, "text", interrupted)
    end = RunHandle("try", {"attic": agent}, reconnect).follow(LiveView(output))

    assert (end.state, end.verdict) == ("running", "run try goes on")
    assert agent.call("job_status", run="try")["state"] == "running"


def test_stop_takes_the_gentlest_way_that_works(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    clients = {"attic": agent}
    job = launch(agent, root, PATIENT, run="patient")
    until(says(job.logs / "launcher.out", "ready"), "the program")
    said: list[str] = []

    record = pick(collect(clients)[0], "patient")
    run = RunHandle("patient", clients, reconnect, record=record)
    did = run.stop(save_s=20, say=said.append)

    assert (run.record.state, did) == ("interrupted", ["checkpoint"])
    assert said == snapshot


def test_stop_kills_what_does_not_listen(
    agent: AgentClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.handle.TERMINATE_S", 0.2)
    clients = {"attic": agent}
    job = launch(agent, root, STUBBORN, run="stubborn")
    until(says(job.logs / "launcher.out", "ready"), "the program")

    record = pick(collect(clients)[0], "stubborn")
    run = RunHandle("stubborn", clients, reconnect, record=record)
    did = run.stop(save_s=0, say=lambda line: None)

    assert (run.record.state, did) == ("stopped", ["terminate", "kill"])


class FakeHost:
    """A host of a run. silent: it takes calls, and answers none."""

    def __init__(self, host: str, number: int, *, silent: bool = False) -> None:
        self.host, self.silent, self.waited_s = host, silent, 0.0
        self._told: dict[str, Any] = {"run": "night", "launch_id": "a", "state": "running"}
        self._told |= {"node_rank": number, "started_s": 1.0, "ended_s": None, "trains": None}
        self._told["nodes"] = [{"host": each, "ranks": 1} for each in ("desk", "attic")]

    def call(self, name: str, timeout_s: float = 30.0, **args: Any) -> Any:
        if self.silent:
            self.waited_s += timeout_s
            raise fault("no-answer", host=self.host, name=name, timeout_s=timeout_s)
        if name == "job_stop" and args["how"] == "terminate":
            self._told["state"] = "stopped"
        return dict(self._told)


def test_a_silent_host_does_not_hold_up_the_stop_of_the_others() -> None:
    attic = FakeHost("attic", 1, silent=True)
    clients: Any = {"desk": FakeHost("desk", 0), "attic": attic}
    run = RunHandle("night", clients, reconnect)

    did = run.stop(save_s=0.2, say=lambda line: None)
    run.remove()

    assert (run.record.state, did) == ("stopped", ["checkpoint", "terminate"])
    # Once as long as a connection may take; then a second each time.
    assert attic.waited_s < 20


def test_stopping_a_prepared_run_removes_it(agent: AgentClient, root: Path) -> None:
    from tests.unit.agent.job_acts import job_request

    agent.call("job_start", **job_request(root, SLEEPER))
    clients = {"attic": agent}

    run = RunHandle("try", clients, reconnect, record=pick(collect(clients)[0], "try"))
    run.stop(save_s=1, say=lambda line: None)

    assert run.record.state == "stopped"
    assert collect(clients)[0] == []


def test_two_that_look_on_do_not_disturb_each_other(agent: AgentClient, root: Path) -> None:
    launch(agent, root, COUNTS_AND_FINISHES, "40", "0.01")
    shown = [io.StringIO(), io.StringIO()]

    def look(at: io.StringIO) -> None:
        with connect_here("attic") as own:
            view = LiveView(Output(json_mode=False, stdout=at))
            RunHandle("try", {"attic": own}, reconnect).follow(view)

    threads = [threading.Thread(target=look, args=(each,)) for each in shown]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    expected = "".join(f"out {number}\n" for number in range(40))
    assert [each.getvalue() for each in shown] == [expected, expected]


def test_before_its_first_word_a_run_is_said_to_start(agent: AgentClient, root: Path) -> None:
    job = launch(agent, root, SLEEPER)
    viewer = attach.Viewer({"attic": agent}, "try", SILENT, reconnect, None, None)

    at_first = viewer.live_line()
    viewer.launch.look()
    waits = viewer.live_line()
    folder = job.path / "errors" / "0"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / LIVE_NAME).write_bytes(LiveText.of("step 3/60").encode())
    drawn = viewer.live_line()
    (folder / LIVE_NAME).write_bytes(b"\x1b[2J not a line")
    then = viewer.live_line()

    assert at_first == LiveText()
    assert waits == LiveText.of("starting the launcher")
    assert drawn == LiveText.of("step 3/60")
    assert then == waits


def test_a_host_that_is_cut_off_is_waited_for_by_name(agent: AgentClient, root: Path) -> None:
    launch(agent, root, SLEEPER)
    viewer = attach.Viewer({"attic": agent}, "try", SILENT, reconnect, None, None)

    viewer._on_cut("attic", HostError("attic: cable cut"))
    cut = viewer.live_line()
    viewer._on_back("attic")

    assert cut == LiveText.of("waiting for attic")
    assert viewer.live_line() != cut


def test_a_bug_of_an_agent_ends_neither_the_line_nor_the_wait_for_another_host(
    agent: AgentClient, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launch(agent, root, SLEEPER)
    viewer = attach.Viewer({"attic": agent}, "try", SILENT, reconnect, None, None)

    def broken(*args: Any, **more: Any) -> Any:
        raise RemoteBug("on attic: OSError(5, 'Input/output error')")

    monkeypatch.setattr(agent, "stream", broken)
    monkeypatch.setattr(agent, "call", broken)

    assert viewer.live_line() == viewer.launch.line
    assert not viewer._others_are_done("beta")
