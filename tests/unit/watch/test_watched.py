"""The runs that can be watched: of this machine's hosts, and of its folder of runs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.unit.watch.jobs import job

from yoked.core.lines import lines_at
from yoked.errors import HostError, JobError, UsageError
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.hosts import Hosts, reach_hosts
from yoked.launch.registry import Record
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here
from yoked.watch import watched
from yoked.watch.files import GrowingJournal, HostFiles, read_object
from yoked.watch.view import Cost
from yoked.watch.watched import MOST_BYTES_PER_S, Watching


@pytest.fixture(scope="module")
def agent() -> Iterator[AgentClient]:
    with connect_here() as client:
        yield client


def run(runs: Path, name: str, **result: object) -> Path:
    folder = runs / name
    folder.mkdir(parents=True)
    line = {"attempt": 0, "step": 0, "loss": 2.5, "dt_s": 0.5, "tokens": [8]}
    (folder / "metrics.jsonl").write_text(json.dumps(line) + "\n")
    if result:
        (folder / "result.json").write_text(json.dumps(result))
    return folder


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of runs, and a machine that has started none."""
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    return tmp_path / "runs"


@pytest.fixture
def watching(runs: Path) -> Iterator[Watching]:
    with reach_hosts(Fleet("here", (Host(HERE),), Path("yoked.toml")), print) as hosts:
        each = Watching(hosts, runs)
        yield each
        each.close()


def test_runs_are_listed_and_one_that_is_over_is_shown(runs: Path, watching: Watching) -> None:
    run(runs, "night", state="finished")
    (row,) = watching.runs()
    assert (row.run, row.state, row.step, row.loss) == ("night", "finished", 1, 2.5)
    # None goes on: whoever named none chooses from the list.
    assert not watching.begin(None)
    assert watching.begin("night")
    view = watching.look()
    assert (view.run, view.state, view.active, view.cost) == ("night", "finished", False, None)
    assert view.progress.loss == 2.5


def test_a_folder_is_taken_as_it_is_named(tmp_path: Path, watching: Watching) -> None:
    folder = run(tmp_path / "elsewhere", "old", state="failed")
    watching.choose(str(folder))
    assert watching.look().state == "failed"


def test_a_folder_in_which_a_job_trains_is_that_run(
    runs: Path, watching: Watching, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(runs, "six")
    told = job("six", 0, [{"host": HERE, "ranks": 1}], run_dir=str(folder))
    monkeypatch.setattr(Hosts, "records", lambda _: [Record("six", "x", {HERE: told})])
    # By whatever way it is named.
    link = runs.parent / "link"
    link.symlink_to(folder)
    for named in (folder, link):
        watching.choose(str(named))
        view = watching.look()
        assert (view.run, view.state, view.active) == ("six", "running", True)
    # At its start there is none yet.
    folder.rename(runs / "away")
    watching.choose(str(folder))
    assert watching.look().active
    other = run(runs.parent / "elsewhere", "six", state="finished")
    watching.choose(str(other))
    assert watching.look().state == "finished"


def test_a_name_that_is_not_there_has_its_fix(runs: Path, watching: Watching) -> None:
    run(runs, "night")
    with pytest.raises(UsageError) as caught:
        watching.choose("nigt")
    assert any("night" in line for line in caught.value.fix)


@pytest.mark.parametrize("marks", [(), ("result.json",)])
def test_a_pipe_in_the_place_of_a_file_is_told(
    runs: Path, watching: Watching, marks: tuple[str, ...]
) -> None:
    folder = runs / "m-fifo"
    folder.mkdir(parents=True)
    os.mkfifo(folder / "metrics.jsonl")
    for mark in marks:
        (folder / mark).write_text('{"state": "finished"}')
    for named in ("m-fifo", str(folder)):
        with pytest.raises(UsageError, match=r"metrics\.jsonl is (a pipe|no file)") as caught:
            watching.choose(named)
        assert "in its place" in caught.value.fix[0]


def test_nothing_is_shown_before_a_run_is_chosen(watching: Watching) -> None:
    with pytest.raises(UsageError, match="no run"):
        watching.look()


def test_a_run_that_is_over_can_neither_save_nor_stop(runs: Path, watching: Watching) -> None:
    run(runs, "night")
    watching.choose("night")
    with pytest.raises(JobError, match="over"):
        watching.save()
    with pytest.raises(JobError, match="over"):
        watching.stop(now=True)
    with pytest.raises(JobError, match="output of rank 0"):
        watching.log(0, 5)


def test_files_of_a_host_are_read_as_those_of_a_folder(tmp_path: Path, agent: AgentClient) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b"".join(b'{"n":%d}\n' % number for number in range(1_000)) + b"torn")
    lines = HostFiles(lambda: agent, str(tmp_path)).journal("m.jsonl")
    offsets = range(0, 12_000, 500)
    assert lines.lines_at(list(offsets)) == lines_at(path, list(offsets))
    assert lines.part(3, 10) == path.read_bytes()[3:13]
    assert lines.part(99_999, 10) == b""


def test_what_is_not_there_on_a_host_is_empty(tmp_path: Path, agent: AgentClient) -> None:
    files = HostFiles(lambda: agent, str(tmp_path))
    assert files.journal("m").lines_at([0]) == (0, [])
    assert files.journal("m").part(0, 10) == b""
    assert read_object(files, "run.json") is None


def test_a_folder_in_the_place_of_a_file_is_told(tmp_path: Path, agent: AgentClient) -> None:
    (tmp_path / "m").mkdir()
    lines = HostFiles(lambda: agent, str(tmp_path)).journal("m")
    with pytest.raises(HostError, match="cannot be read"):
        lines.lines_at([0])
    with pytest.raises(HostError, match="cannot be read"):
        lines.part(0, 10)


def test_what_an_agent_sends_is_counted(tmp_path: Path, agent: AgentClient) -> None:
    (tmp_path / "m").write_bytes(b"x" * 5_000)
    before = agent.received_bytes
    HostFiles(lambda: agent, str(tmp_path)).journal("m").part(0, 4_000)
    assert 4_000 <= agent.received_bytes - before < 4_500


def test_the_count_goes_on_over_a_new_connection(
    runs: Path, agent: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "reconnecting", lambda _: lambda *_: agent)
    with reach_hosts(Fleet("here", (Host(HERE),), Path("yoked.toml")), print) as hosts:
        agents = watched.Agents(hosts)
        hosts.connections.wait()
        hosts.records()
        before, of_the_new = agents.received_bytes, agent.received_bytes
        assert before
        agents.lost(HERE)
        while HERE not in agents.clients:
            time.sleep(0.01)
        assert agents.client(HERE) is agent
        assert agents.received_bytes == before + of_the_new


def test_of_a_long_journal_the_last_objects_are_kept(tmp_path: Path) -> None:
    from yoked.report.growing import LocalLines

    path = tmp_path / "m"
    path.write_bytes(b"".join(b'{"n":%d}\n' % number for number in range(100)) + b"[1]\nodd\n")
    journal = GrowingJournal(LocalLines(path), 60)
    journal.update()
    # The first line is cut, and no object.
    assert [each["n"] for each in journal.objects] == [95, 96, 97, 98, 99]
    with path.open("ab") as file:
        file.write(b'{"n":100}\n{"n":1')
    journal.update()
    assert journal.objects[-1] == {"n": 100}


def test_a_line_longer_than_all_is_passed_over(tmp_path: Path) -> None:
    from yoked.report.growing import LocalLines

    path = tmp_path / "m"
    path.write_bytes(b"")
    journal = GrowingJournal(LocalLines(path), 20)
    journal.update()
    path.write_bytes(b"x" * 50 + b'\n{"n":1}\n')
    for _ in range(5):
        journal.update()
    assert journal.objects == [{"n": 1}]


def test_what_comes_after_a_pause_is_of_the_pause_too(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = run(runs, "six")
    told = job("six", 0, [{"host": HERE, "ranks": 1}], run_dir=str(folder))
    monkeypatch.setattr(Hosts, "records", lambda _: [Record("six", "x", {HERE: told})])
    now_s, received = 0.0, 0
    monkeypatch.setattr(watched.Agents, "received_bytes", property(lambda _: received))
    fleet = Fleet("both", (Host(HERE), Host("away.invalid")), Path("yoked.toml"))
    with (
        reach_hosts(fleet, print) as hosts,
        closing(Watching(hosts, runs, clock=lambda: now_s)) as watching,
    ):
        watching.choose("six")

        def look(at_s: float, total: int) -> Cost:
            nonlocal now_s, received
            now_s, received = at_s, total
            cost = watching.look().cost
            assert cost is not None
            return cost

        assert look(0.0, 2_000) == Cost(0.0, MOST_BYTES_PER_S, 2_000)
        assert look(2.0, 5_000).bytes_per_s == 1_500
        # Nobody looked for a minute, and half a minute is what the mean is of.
        assert look(62.0, 155_000).bytes_per_s == 5_000
