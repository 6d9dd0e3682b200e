"""A job starts on a host or leaves nothing, and is found again by its files."""

from __future__ import annotations

import errno
import json
import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any, cast

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.agent.job_acts import (
    PARENT,
    PATIENT,
    SLEEPER,
    job_request,
    kill,
    launch,
    says,
    until,
)

from yoked.agent import jobs
from yoked.agent.folders import checkout_tree
from yoked.agent.jobfolder import JobFolder
from yoked.agent.listeners import listener_owners, listening_sockets
from yoked.agent.server import Call, Server
from yoked.core.proc import ProcessId, processes_of
from yoked.errors import JobError, YokedError
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


def status(agent: AgentClient, run: str = "try") -> dict[str, Any]:
    found: dict[str, Any] = agent.call("job_status", run=run)
    return found


def state_is(agent: AgentClient, *states: str) -> Any:
    return lambda: status(agent)["state"] in states


def test_a_job_is_prepared_then_runs_then_ends_with_its_status(
    agent: AgentClient, root: Path
) -> None:
    request = job_request(root, "import sys; sys.exit(7)")
    agent.call("job_start", **request)
    prepared = status(agent)["state"]

    agent.call("job_go", run="try")
    until(state_is(agent, "failed"), "the end")

    assert prepared == "prepared"
    assert status(agent)["end"]["exit_status"] == 7
    assert "status 7" in status(agent)["failure"]["what"]


def test_a_variable_that_is_withheld_is_in_no_process_of_the_job(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "of the shell")
    program = "import os, sys; sys.exit('HF_TOKEN' in os.environ)"
    request = job_request(root, program)
    with connect_here() as agent:
        agent.call("job_start", **{**request, "env": {**request["env"], "HF_TOKEN": None}})
        agent.call("job_go", run="try")
        until(state_is(agent, "failed", "finished"), "the end")

        # No outcome was left, so the end is told by the exit status alone.
        assert status(agent)["end"]["exit_status"] == 0


def test_the_verdict_of_the_host_program_is_the_state(agent: AgentClient, root: Path) -> None:
    verdict = {"status": "finished", "exit_code": 0, "attempts": [{"attempt": 2}]}
    program = (
        "import os; open(os.environ['YOKED_JOB_FOLDER'] + '/outcome.json', 'w')"
        f".write({json.dumps(json.dumps(verdict))})"
    )

    launch(agent, root, program)
    until(state_is(agent, "finished"), "the end")

    assert status(agent)["attempt"] == 2


def test_a_training_can_be_resumed_once_its_folder_is_open(agent: AgentClient, root: Path) -> None:
    launch(agent, root, "pass", trains="night")
    until(state_is(agent, "failed", "finished"), "the end")
    before = status(agent)["can_resume"]

    folder = root / "runs" / "night"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")

    assert (before, status(agent)["can_resume"]) == (False, True)


# Node 0 of two hosts hears the other at a port of its own.
PAIR = [{"host": name, "address": "127.0.0.1", "ranks": 1} for name in ("attic", "cellar")]


def test_a_host_alone_opens_no_port(agent: AgentClient, root: Path) -> None:
    assert agent.call("job_start", **job_request(root, SLEEPER)) == 0

    assert JobFolder(root / "jobs" / "try").read("job.json")["control_fd"] is None


def test_node_0_hands_down_a_socket_that_listens_on_the_port_it_told(
    agent: AgentClient, root: Path
) -> None:
    program = (
        "import json, os, socket; spec = json.load(open(os.environ['YOKED_JOB_FOLDER'] + "
        "'/job.json')); listener = socket.socket(fileno=spec['control_fd']); "
        "listener.accept()[0].sendall(b'host program')"
    )
    port = agent.call("job_start", **job_request(root, program, nodes=PAIR))
    agent.call("job_go", run="try")

    with socket.create_connection(("127.0.0.1", port), 10) as connection:
        connection.settimeout(10)
        assert connection.recv(100) == b"host program"


def test_a_key_that_travels_with_a_job_is_for_its_owner_alone(
    agent: AgentClient, root: Path
) -> None:
    request = job_request(root, SLEEPER)

    agent.call("job_start", **request, files={"key.pem": "secret"})

    key = root / "jobs" / "try" / "key.pem"
    assert key.read_text() == "secret"
    assert key.stat().st_mode & 0o777 == 0o600
    agent.call("job_remove", run="try")
    assert not key.exists()


def test_a_name_that_is_taken_is_told_with_what_to_do(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    launch(agent, root, SLEEPER)

    with pytest.raises(JobError) as told:
        agent.call("job_start", **job_request(root, SLEEPER))
    assert str(told.value) == snapshot

    assert any("attach try" in line for line in told.value.fix)
    assert status(agent)["state"] == "running"


def test_of_controllers_that_launch_at_once_one_wins(agent: AgentClient, root: Path) -> None:
    outcomes: list[str] = []

    def start() -> None:
        try:
            agent.call("job_start", **job_request(root, SLEEPER))
            outcomes.append("started")
        except JobError:
            outcomes.append("taken")

    threads = [threading.Thread(target=start) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(outcomes) == ["started", "taken", "taken", "taken"]


@pytest.mark.parametrize(
    "change",
    [
        {"argv": ["no-such-python"]},
        {"cwd": "/no/such/folder"},
        {"tree": "0" * 64},
    ],
)
def test_a_job_that_cannot_start_leaves_nothing(
    agent: AgentClient, root: Path, change: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(YokedError) as caught:
        agent.call("job_start", **{**job_request(root, SLEEPER), **change})
    assert str(caught.value) == snapshot

    assert agent.call("job_list") == []
    assert not (root / "jobs").exists() or list((root / "jobs").iterdir()) == []


def test_an_address_of_another_machine_is_told(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    nodes = [{**host, "address": "192.0.2.1"} for host in PAIR]

    with pytest.raises(JobError) as caught:
        agent.call("job_start", **job_request(root, SLEEPER, nodes=nodes))
    assert str(caught.value) == snapshot

    assert list((root / "jobs").iterdir()) == []


@pytest.mark.parametrize("name", ["../up", ".hidden", "a b", "", "x" * 81])
def test_a_name_that_is_no_folders_is_refused(
    agent: AgentClient, root: Path, name: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(JobError) as caught:
        agent.call("job_start", **job_request(root, SLEEPER, run=name))
    assert str(caught.value) == snapshot


def test_a_prepared_job_vanishes_when_its_controller_dies(root: Path) -> None:
    agent = connect_here("attic")
    request = job_request(root, SLEEPER, nodes=PAIR)
    port = agent.call("job_start", **request)

    agent._process.kill()
    agent.close()
    until(lambda: list((root / "jobs").iterdir()) == [], "removal")

    assert processes_of(request["spec"]["launch_id"]) == []
    until(lambda: listening_sockets(port) == {}, "a free port")


def test_a_prepared_job_that_is_not_wanted_is_removed(agent: AgentClient, root: Path) -> None:
    launch_id = job_request(root, SLEEPER)["spec"]["launch_id"]
    agent.call("job_start", **job_request(root, SLEEPER))

    others = agent.call("job_remove", run="try", launch_id=launch_id)
    assert (others, status(agent)["state"]) == (False, "prepared")

    assert agent.call("job_remove", run="try")
    assert agent.call("job_list") == []


def test_a_name_is_not_free_while_another_controller_prepares_it(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    folder = root / "jobs" / "try"
    folder.mkdir(parents=True)

    with pytest.raises(JobError) as caught:
        agent.call("job_start", **job_request(root, SLEEPER))
    assert str(caught.value) == snapshot

    hours_ago_s = time.time() - 7200
    os.utime(folder, (hours_ago_s, hours_ago_s))
    assert status(agent)["state"] == "lost"


def test_a_job_that_was_stopped_before_it_began_is_told_so(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    agent.call("job_start", **job_request(root, SLEEPER))

    agent.call("job_stop", run="try", how="checkpoint")

    with pytest.raises(JobError) as caught:
        agent.call("job_go", run="try")
    assert str(caught.value) == snapshot
    assert list((root / "jobs").iterdir()) == []


def test_a_job_that_is_stopped_while_it_is_prepared_is_told_so(
    agent: AgentClient, root: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def stopped_by_another(tree: str, folder: Path) -> None:
        with connect_here("attic") as other:
            other.call("job_stop", run="try", how="kill")
        checkout_tree(tree, folder)

    monkeypatch.setattr(jobs, "checkout_tree", stopped_by_another)
    args = {**job_request(root, SLEEPER), "tree": "0" * 64}

    with pytest.raises(JobError) as caught:
        jobs.answer_job_start(Call(1, args, b"", cast("Server", None)))
    assert str(caught.value) == snapshot

    assert agent.call("job_list") == []


def test_a_job_that_starts_while_it_is_stopped_is_ended_and_keeps_its_folder(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, SLEEPER)
    started = job.read("supervisor.json")

    def record_once_it_is_aborted() -> None:
        until((job.path / "abort").exists, "the word of who stops it")
        job.write("supervisor.json", started)

    # As it is between the word to go and the record of what was started.
    job.write("supervisor.json", {**started, "host_program": None})
    recording = threading.Thread(target=record_once_it_is_aborted)
    recording.start()
    answer = agent.call("job_stop", run="try", how="terminate")
    recording.join()
    until(state_is(agent, "stopped"), "the end")

    assert answer == [started["host_program"]["pid"]]
    assert job.logs.exists()


def test_a_job_that_was_started_survives_its_controller(root: Path) -> None:
    with connect_here("attic") as agent:
        job = launch(agent, root, SLEEPER)
        program = job.host_program
        agent._process.kill()

    with connect_here("attic") as another:
        found = status(another)

    assert program is not None
    assert program.alive
    assert (found["state"], found["host_program"]) == ("running", program.to_json())


def test_a_killed_supervisor_leaves_the_job_unharmed_and_is_replaced(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, PATIENT)
    until(says(job.logs / "launcher.out", "ready"), "the program")
    first = status(agent)["supervisor"]

    kill(first)
    status(agent)
    until(lambda: job.supervised, "another supervisor")
    until(lambda: job.read("supervisor.json")["pid"] != first, "its record")
    program = job.host_program
    assert program is not None
    assert program.alive
    agent.call("job_stop", run="try", how="checkpoint")
    until(lambda: job.read("end.json"), "the end")

    assert status(agent)["state"] == "interrupted"


def test_an_end_while_no_supervisor_looked_on_is_told_by_the_verdict(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, SLEEPER)
    kill(status(agent)["supervisor"])
    program = job.host_program
    assert program is not None
    kill(program.pid)

    assert status(agent)["state"] in ("running", "lost")
    until(state_is(agent, "lost"), "the end")

    assert "nobody saw" in status(agent)["failure"]["what"]


def test_stop_asks_then_terminates_then_kills(agent: AgentClient, root: Path) -> None:
    stubborn = "import signal; signal.signal(2, signal.SIG_IGN); signal.signal(15, signal.SIG_IGN);"
    job = launch(agent, root, stubborn + SLEEPER)
    until(says(job.logs / "launcher.out", "ready"), "the program")
    program = job.host_program
    assert program is not None

    for how in ("checkpoint", "terminate"):
        assert agent.call("job_stop", run="try", how=how) == [program.pid]
        assert program.alive
    agent.call("job_stop", run="try", how="kill")
    until(state_is(agent, "stopped"), "the end")

    assert status(agent)["end"]["signal"] == 9


def test_who_asks_for_a_checkpoint_again_waits_for_the_same_one(
    agent: AgentClient, root: Path
) -> None:
    counts = (
        "import signal, sys, time; say = lambda *_: print('asked', flush=True); "
        "signal.signal(2, say); signal.signal(15, lambda *_: sys.exit(say())); "
    )
    job = launch(agent, root, counts + SLEEPER)
    until(says(job.logs / "launcher.out", "ready"), "the program")

    asked = [agent.call("job_stop", run="try", how="checkpoint") for _ in range(2)]
    until(says(job.logs / "launcher.out", "asked"), "the first")
    agent.call("job_stop", run="try", how="terminate")
    until(state_is(agent, "stopped"), "the end")

    assert [len(pids) for pids in asked] == [1, 0]
    assert (job.logs / "launcher.out").read_text().count("asked") == 2


def test_what_a_dead_host_program_leaves_is_swept_and_a_decoy_lives(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, PARENT)
    until(lambda: len(processes_of(job.launch_id)) == 2, "the rank")
    program = job.host_program
    assert program is not None
    decoy_env = {name: value for name, value in os.environ.items() if name != "YOKED_LAUNCH_ID"}
    words = Path(f"/proc/{program.pid}/cmdline").read_bytes().decode().split("\0")[:-1]
    with subprocess.Popen(words, env=decoy_env, stdout=subprocess.DEVNULL) as decoy:
        try:
            kill(program.pid)
            until(state_is(agent, "failed"), "the end")

            assert processes_of(job.launch_id) == []
            assert decoy.poll() is None
        finally:
            decoy_children = subprocess.run(
                ["pgrep", "-P", str(decoy.pid)], capture_output=True, text=True, check=False
            ).stdout.split()
            for pid in [*decoy_children, decoy.pid]:
                os.kill(int(pid), 9)


def test_a_process_of_another_launch_or_start_gets_no_signal(root: Path) -> None:
    env = {**os.environ, "YOKED_LAUNCH_ID": "theirs"}
    with subprocess.Popen([sys.executable, "-c", SLEEPER], env=env, stdout=-1) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            found = ProcessId.of(process.pid)
            later = ProcessId(found.pid, found.start_ticks + 1)

            assert not found.signal(9, "ours")
            assert not later.signal(9, "theirs")
            assert process.poll() is None
            assert found.signal(9, "theirs")
        finally:
            process.kill()


def test_a_process_whose_job_is_gone_is_shown_then_reaped(agent: AgentClient, root: Path) -> None:
    job = launch(agent, root, SLEEPER)
    live = job.host_program
    env = {
        **os.environ,
        "YOKED_LAUNCH_ID": "0123456789ab",
        "YOKED_RUN": "old",
        "YOKED_JOB_FOLDER": str(root / "jobs" / "old"),
    }
    listening = (
        "import socket, time; s = socket.socket(); s.bind(('127.0.0.1', 0)); s.listen(); "
        "print(s.getsockname()[1], flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", listening], env=env, stdout=-1) as stale:
        assert stale.stdout is not None
        port = int(stale.stdout.readline())
        try:
            shown = [one for one in agent.call("job_reap")["processes"] if one["run"] == "old"]
            owners = listener_owners(port)
            assert stale.poll() is None
            agent.call("job_reap", kill=True)
            stale.wait(10)
        finally:
            stale.kill()

    assert [(one["pid"], one["ports"], one["killed"]) for one in shown] == [
        (stale.pid, [port], False)
    ]
    assert [(one["pid"], one["run"]) for one in owners] == [(stale.pid, "old")]
    assert live is not None
    assert live.alive


def test_another_launch_of_that_name_is_neither_ended_nor_removed(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, SLEEPER)

    stopped = agent.call("job_stop", run="try", how="kill", launch_id="0123456789ab")
    removed = agent.call("job_remove", run="try", launch_id="0123456789ab")

    assert (stopped, removed) == ([], False)
    assert job.host_program is not None
    assert job.host_program.alive


def test_a_running_job_is_not_removed(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    launch(agent, root, SLEEPER)

    with pytest.raises(JobError) as caught:
        agent.call("job_remove", run="try")
    assert str(caught.value) == snapshot

    agent.call("job_stop", run="try", how="kill")
    until(state_is(agent, "stopped"), "the end")
    assert agent.call("job_remove", run="try")
    assert not JobFolder(root / "jobs" / "try").path.exists()


def test_a_run_that_is_not_there_is_told_with_the_nearest_name(
    agent: AgentClient, root: Path, snapshot: SnapshotAssertion
) -> None:
    launch(agent, root, SLEEPER, run="tuesday")

    with pytest.raises(JobError) as told:
        status(agent, "tusday")
    assert str(told.value) == snapshot

    assert told.value.fix == snapshot


@pytest.mark.parametrize(
    ("program", "said", "fix"),
    [
        ("import gone_module", "ended with status 1: ModuleNotFoundError: No mod", "yoked install"),
        ("import sys; sys.exit(3)", "ended with status 3 and said nothing", "tail /"),
        ("import os; os.kill(os.getpid(), 9)", "killed by SIGKILL; if you did not", "journalctl"),
        ("import os; os.kill(os.getpid(), 11)", "killed by SIGSEGV", "tail /"),
    ],
)
def test_a_launcher_without_a_verdict_is_told_with_its_end_and_last_words(
    agent: AgentClient, root: Path, program: str, said: str, fix: str
) -> None:
    launch(agent, root, program)
    until(state_is(agent, "failed"), "the end")

    failure = status(agent)["failure"]

    assert failure["cause"] == "launcher-died"
    assert f"its launcher {'was ' * said.startswith('killed')}{said}" in failure["what"]
    assert failure["fix"][0].startswith(fix)


def test_only_a_run_that_goes_on_is_told_that_another_host_is_over(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, SLEEPER)
    failure = {"host": "beta"}

    def tell(launch_id: str) -> bool:
        told: bool = agent.call("job_failed", run="try", launch_id=launch_id, failure=failure)
        return told

    assert not tell("another")
    assert tell(job.launch_id)
    assert job.read("failed.json") == failure
    agent.call("job_stop", run="try", how="kill")
    assert not tell(job.launch_id)


def test_what_the_doctor_said_is_kept_with_the_job_of_that_launch(
    agent: AgentClient, root: Path
) -> None:
    job = launch(agent, root, SLEEPER)
    said = {"asked": True, "findings": []}

    another = agent.call("job_doctor", run="try", launch_id="another", said=said)
    nothing = job.read("doctor.json")
    kept = agent.call("job_doctor", run="try", launch_id=job.launch_id, said=said)

    assert (another, nothing, kept) == (False, {}, True)
    assert job.read("doctor.json") == said


def test_how_it_ended_is_noted_on_a_full_disk_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    job = JobFolder(tmp_path)
    job.keep_room()
    monkeypatch.setattr(JobFolder, "write", no_room)
    ended = {"exit_status": None, "signal": 9, "time_s": 1.0, "swept": list(range(100))}

    job.write_end(ended)

    assert job.read("end.json") == ended
