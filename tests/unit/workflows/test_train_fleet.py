"""`yoked train` on a fleet: what is sent, and how a run goes on."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.agent.job_acts import launch, no_job_left

from yoked.cli.commands import train
from yoked.cli.flags import JobFlags, check_run_name
from yoked.cli.output import Output
from yoked.core.names import RUN_NAME
from yoked.errors import CheckpointError, HostError, UsageError
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.attach import JobEnd
from yoked.launch.following import Reconnect
from yoked.launch.handle import RunHandle
from yoked.launch.registry import Record
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here
from yoked.train.checkpoint_files import (
    CheckpointFolder,
    find_model_folder,
    find_tokenizer,
    meta_name,
    model_name,
)
from yoked.train.config import TrainConfig
from yoked.workflows import train_fleet
from yoked.workflows.fetching import bring_ended

FLEET = '[fleet]\nname = "home"\n[[host]]\nname = "i9"\n[[host]]\nname = "laptop"\n'


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


class FakeClient:
    def __init__(self, runs: list[str]) -> None:
        self.runs = runs

    def call(self, name: str, **args: Any) -> Any:
        if name == "file_list":
            run = args["folder"].rpartition("/state/runs/")[2]
            return [["run.json", 7, 0]] if run in self.runs else []
        raise AssertionError(name)


@dataclasses.dataclass
class FakeNode:
    client: FakeClient | AgentClient
    host: Host = dataclasses.field(default_factory=lambda: Host("i9"))
    facts: dict[str, Any] = dataclasses.field(default_factory=lambda: {"state": "/home/me/state"})
    device_type: str = "cpu"


FAILURE = {"host": "i9", "rank": 0, "cause": "out-of-memory", "what": "killed", "fix": []}


def ended(state: str) -> JobEnd:
    failure = FAILURE if state == "failed" else None
    told = {"state": state, "node_rank": 0, "trains": "night", "failure": failure, "folder": "/j"}
    return JobEnd(Record("night.2", "an id", {"i9": told}))


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    with connect_here("i9") as client:
        yield client


def folder_of(path: Path, launch_id: str, result: str | None = None) -> Path:
    path.mkdir(parents=True)
    (path / "run.json").write_text(json.dumps({"launch_id": launch_id}))
    if result is not None:
        (path / "result.json").write_text(json.dumps({"state": result}))
    return path


def gone(host: str, patience_s: int) -> AgentClient:
    raise HostError(f"{host} does not answer")


def brought(
    host: AgentClient, there: Path, night: Path, state: str, reconnect: Reconnect = gone
) -> tuple[str | None, list[str]]:
    """What the folder here says of the run's end, once it is brought home, and what was noted."""
    notes: list[str] = []
    job = RunHandle("night.2", {"i9": host}, reconnect)
    fleet_file = there / "yoked.toml"
    bring_ended(
        job, "i9", str(there), night, ended(state), fleet_file=fleet_file, note=notes.append
    )
    result = night / "result.json"
    return json.loads(result.read_text())["state"] if result.exists() else None, notes


@pytest.mark.parametrize(
    ("launch_id", "had", "state", "has"),
    [
        # Its supervisor was killed before it could write there.
        ("an id", None, "failed", "failed"),
        ("an id", "interrupted", "interrupted", "interrupted"),
        # A start that came to grief before the run had begun again.
        ("another", "finished", "failed", "finished"),
    ],
)
def test_a_folder_that_is_brought_home_says_how_the_run_ended(
    tmp_path: Path, host: AgentClient, launch_id: str, had: str | None, state: str, has: str
) -> None:
    there = folder_of(tmp_path / "there" / "night", launch_id, had)

    assert brought(host, there, tmp_path / "runs" / "night", state) == (has, [])


def test_a_host_that_is_gone_takes_no_verdict_with_it(tmp_path: Path, host: AgentClient) -> None:
    night = folder_of(tmp_path / "runs" / "night", "an earlier one", "interrupted")
    host.close()

    result, (note,) = brought(host, tmp_path / "there" / "night", night, "failed")

    assert result == "failed"
    assert "could not be copied" in note
    with pytest.raises(HostError):
        brought(host, tmp_path / "there" / "night", night, "finished")


@pytest.mark.parametrize("state", ["finished", "failed"])
def test_a_folder_comes_home_though_the_connection_of_the_launch_was_cut(
    tmp_path: Path, host: AgentClient, state: str
) -> None:
    there = folder_of(tmp_path / "there" / "night", "an id", state)
    (there / "metrics.jsonl").write_text('{"step": 0}\n')
    host._process.kill()

    night = tmp_path / "runs" / "night"
    found = brought(host, there, night, state, lambda name, patience_s: connect_here(name))

    assert found == (state, [])
    assert (night / "metrics.jsonl").read_text() == '{"step": 0}\n'


def record(run: str, *, state: str = "finished", trains: str = "night") -> Record:
    told = {"state": state, "node_rank": 0, "trains": trains}
    return Record(run, "an id", {"i9": told})


def test_ctrl_c_while_a_run_is_brought_home_says_how_it_comes(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    view: Any = SimpleNamespace(live=None, note=said.append)
    job: Any = SimpleNamespace(end=ended("finished"), started=SimpleNamespace(run="r", nodes=()))
    job.started.launch_id = "a"

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train_fleet, "run_job", lambda *_, after, **__: after(job))
    monkeypatch.setattr(train_fleet, "_bring_home", interrupted)

    with pytest.raises(KeyboardInterrupt):
        train_fleet.train_fleet(
            TrainConfig(run="r"),
            Fleet("home", (Host("i9"),), here / "yoked.toml"),
            view,
            detach=False,
            doctor=False,
            restarts=0,
            on_fault="stop",
            nice=None,
            share=lambda _: True,
            fleet_flag=" --fleet home.toml",
        )

    assert said == ["run r is over; `yoked fetch r --fleet home.toml` brings what it learned"]


def test_without_a_file_this_machine_trains(here: Path) -> None:
    assert train.named_fleet(JobFlags()) is None


def test_the_file_of_this_folder_counts_and_a_dot_is_this_machine(here: Path) -> None:
    (here / "yoked.toml").write_text(FLEET)

    found = train.named_fleet(JobFlags())

    assert found is not None
    assert [host.name for host in found.hosts] == ["i9", "laptop"]
    assert train.named_fleet(JobFlags(fleet=Path("."))) is None  # noqa: PTH201 - as typed


@pytest.mark.parametrize("flags", [JobFlags(restarts=1), JobFlags(detach=True)])
def test_what_needs_a_job_is_refused_where_there_can_be_none(
    here: Path, monkeypatch: pytest.MonkeyPatch, flags: JobFlags, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr("yoked.launch.here.has_proc", lambda: False)

    with pytest.raises(UsageError) as caught:
        train.train_here(TrainConfig(run="r"), flags, Output(json_mode=True))
    assert str(caught.value) == snapshot


def test_restarts_below_zero_are_refused(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        JobFlags(restarts=-1).checked_restarts()
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("name", ["night", "2026.11-a_b", "a" * 80])
def test_a_run_may_have_a_plain_name(name: str) -> None:
    assert check_run_name(name) == name


@pytest.mark.parametrize("name", ["", ".", "../x", "a b", "-x", "a" * 81, "a\n", "ü"])
def test_a_name_that_is_no_plain_folders_is_refused(name: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        check_run_name(name)
    assert str(caught.value) == snapshot


def test_the_ranks_get_a_configuration_without_what_is_of_this_machine(here: Path) -> None:
    (here / "tok").mkdir()
    config = TrainConfig(
        run="night", ranks=3, runs_dir=here / "runs", tokenizer=here / "tok", data="sotu-abc"
    )

    train_fleet.write_config(config, here)
    sent = TrainConfig.from_dict(json.loads((here / "config.json").read_text()))

    assert (sent.run, sent.data, sent.ranks, sent.tokenizer) == ("night", "sotu-abc", None, None)
    # <state>/jobs/<run>/work leads to <state>/runs.
    assert (Path("/state/jobs/night/work") / sent.runs_dir).resolve() == Path("/state/runs")


def test_a_checkpoint_of_this_machine_travels_with_the_run(here: Path) -> None:
    model = here / "old" / "checkpoints" / "base_checkpoints" / "d4"
    (here / "old" / "checkpoints" / "tokenizer").mkdir(parents=True)
    (here / "old" / "checkpoints" / "tokenizer" / "tokenizer.pkl").write_text("tokens")
    model.mkdir(parents=True)
    for step in (50, 100):
        folder = CheckpointFolder(model)
        folder.lock()
        names = (model_name(step), meta_name(step))
        folder.save(step, {name: lambda file: file.write(b"weights") for name in names})
        folder.unlock()

    train_fleet.write_config(TrainConfig(run="night", start_from=here / "old"), here)

    sent = TrainConfig.from_dict(json.loads((here / "config.json").read_text()))
    travels = {path.relative_to(here / "from").as_posix() for path in (here / "from").rglob("*.*")}
    assert sent.start_from == Path("from")
    assert travels >= {"manifest_000100.json", "meta_000100.json", "model_000100.pt"}
    assert not any("000050" in name for name in travels)
    assert find_model_folder(here / "from") == here / "from"
    assert (find_tokenizer(here / "from") / "tokenizer.pkl").read_text() == "tokens"
    CheckpointFolder(here / "from").verify(CheckpointFolder(here / "from").complete()[0])


def test_a_folder_without_a_checkpoint_is_told_before_anything_is_sent(
    here: Path, snapshot: SnapshotAssertion
) -> None:
    (here / "old").mkdir()

    with pytest.raises(CheckpointError) as caught:
        train_fleet.write_config(TrainConfig(run="night", start_from=here / "old"), here)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("more", "there", "name"),
    [
        ({}, ["night"], "night"),
        ({"resume": True}, [], "night"),
        ({"resume": True}, ["night"], "night.2"),
        ({"resume": True}, ["night", "night.2", "day"], "night.3"),
        ({"dry_run": True}, [], "dry-run"),
        ({"dry_run": True}, ["dry-run"], "dry-run.2"),
    ],
)
def test_a_resumed_run_is_a_job_of_its_own_and_a_dry_run_none_of_the_runs(
    more: dict[str, bool], there: list[str], name: str
) -> None:
    config = TrainConfig(run="night", **more)

    assert train_fleet._job_name(config, [record(run) for run in there]) == name


def test_a_run_of_the_longest_name_is_resumed_again_and_again() -> None:
    config = TrainConfig(run="n" * 80, resume=True)
    records = [record("n" * 80)]

    for _ in range(3):
        records.append(record(train_fleet._job_name(config, records)))

    assert len({each.run for each in records}) == 4
    assert all(RUN_NAME.fullmatch(each.run) for each in records)


@pytest.mark.parametrize("resume", [True, False])
def test_a_run_that_goes_on_is_not_started_once_more(
    resume: bool, snapshot: SnapshotAssertion
) -> None:
    config = TrainConfig(run="night", resume=resume)
    over, goes_on = record("night", state="failed"), record("night.2", state="running")

    train_fleet._require_idle(config, [over, record("day", state="running", trains="day")], "")
    with pytest.raises(UsageError) as caught:
        train_fleet._require_idle(config, [goes_on, over], " --fleet home.toml")
    assert str(caught.value) == snapshot


def test_a_run_that_rank_0s_host_does_not_have_cannot_be_resumed(
    snapshot: SnapshotAssertion,
) -> None:
    node: Any = FakeNode(FakeClient(["night"]))

    train_fleet._require_run(TrainConfig(run="night"), node)
    with pytest.raises(UsageError) as caught:
        train_fleet._require_run(TrainConfig(run="day"), node)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("run", "resume", "alone"),
    [
        ("night", True, True),
        ("day", True, False),
        ("night", False, False),
    ],
)
def test_a_run_of_another_controller_is_looked_for_on_its_host(
    here: Path, run: str, resume: bool, alone: bool
) -> None:
    (here / "runs" / "day").mkdir(parents=True)

    assert train._known_to_hosts_alone(TrainConfig(run=run, resume=resume)) is alone


def test_the_run_that_hosts_began_last_goes_on_where_none_is_named(
    here: Path, host: AgentClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # It was fetched once; the one that hosts began since has no folder here.
    (here / "runs" / "old").mkdir(parents=True)
    (here / "runs" / "old" / "run.json").write_text("{}")
    fleet = Fleet("here", (Host(HERE),), here / "yoked.toml")
    with no_job_left():
        launch(host, here / "state", "pass", run="old", trains="old")
        launch(host, here / "state", "pass", run="night", trains="night")
        launch(host, here / "state", "pass", run="alone", trains="alone", run_dir=str(here))
        launch(host, here / "state", "pass", run="program")
        launch(host, here / "state", "pass", run="failed", trains="failed")
    for begun in ("old", "night"):
        (here / "state" / "runs" / begun).mkdir(parents=True)
        (here / "state" / "runs" / begun / "run.json").write_text("{}")
    asked: list[str | None] = []

    def train_nothing(config: TrainConfig, *_: Any, **__: Any) -> Any:
        asked.append(config.run)
        raise UsageError("enough")

    monkeypatch.setattr(train_fleet, "train_fleet", train_nothing)
    with pytest.raises(UsageError, match="enough"):
        train.run_on_fleet(TrainConfig(resume=True), fleet, JobFlags(), Output(json_mode=True))

    assert asked == ["night"]


def test_built_in_data_is_prepared_by_every_host_itself() -> None:
    assert train_fleet.ship_data(TrainConfig(data="sotu"), [], None) == "sotu"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "row_tokens"),
    [(["cpu", "cpu"], 512), (["cuda", "cuda"], 2048)],
)
def test_rows_are_as_long_as_the_devices_of_the_hosts_will_ask_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, devices: list[str], row_tokens: int
) -> None:
    asked: list[int] = []

    def prepare(*_: Any, max_seq_len: int, **__: Any) -> Any:
        asked.append(max_seq_len)
        return SimpleNamespace(folder=tmp_path / "rows")

    monkeypatch.setattr("yoked.train.data.prepare.prepare", prepare)
    monkeypatch.setattr(train_fleet, "push_data", lambda client, folder: 0)
    nodes = [FakeNode(FakeClient([]), device_type=device) for device in devices]

    train_fleet.ship_data(TrainConfig(data=str(tmp_path)), nodes, print)  # type: ignore[arg-type]

    assert asked == [row_tokens]
