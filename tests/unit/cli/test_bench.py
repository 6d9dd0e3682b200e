"""`yoked bench`: what it refuses, and which runs it starts; those are told, not taken."""

from __future__ import annotations

import dataclasses
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands import bench
from yoked.cli.output import Output
from yoked.errors import JobError, UsageError, YokedError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import connected
from yoked.launch.start import NodePlan, plan_nodes
from yoked.report.bench_table import BenchRow
from yoked.train.config import TrainConfig
from yoked.workflows import bench as workflow
from yoked.workflows.bench_trials import Trial

SMALL = TrainConfig(depth=1, max_seq_len=64, vocab_size=512, total_batch_size=256)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def node(here: Path) -> Iterator[NodePlan]:
    fleet = open_fleet(None)
    with connected(fleet) as clients:
        yield plan_nodes(fleet, clients, None, dict)[0]


class Told:
    """Stands in for `measure`: every trial is as fast as it has ranks."""

    def __init__(self) -> None:
        self.groups: list[list[Trial]] = []

    def __call__(self, trials: Sequence[Trial], *_: object) -> list[BenchRow]:
        self.groups.append(list(trials))
        return [
            BenchRow(
                name=trial.name,
                hosts=tuple(node.host.name for node in trial.nodes),
                ranks=trial.ranks,
                device="cpu",
                dtype="float32",
                sync=trial.sync,
                tokens_per_second=100.0 * trial.ranks,
                step_s=(1.0,),
                loss=9.0,
            )
            for trial in trials
        ]


@pytest.mark.parametrize(
    "flags",
    [
        {"steps": 1},
        {"processes": 0},
        {"plot": Path("bench.gif")},
        {"plot": Path("nowhere/bench.png")},
        {"compare": ("int3",)},
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_runs(
    here: Path, flags: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        bench.command(**flags)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("given", "fix"),
    [
        ({"num_iterations": 5}, "--steps"),
        ({"ranks": 2}, "--processes"),
        ({"start_from": Path("old")}, "leave --from out"),
        ({"resume": True}, "leave --resume out"),
    ],
)
def test_flags_that_a_benchmark_decides_are_refused_with_what_to_say_instead(
    here: Path, given: dict[str, Any], fix: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as refused:
        bench.command(config=TrainConfig(**given))
    assert str(refused.value) == snapshot

    assert fix in " ".join(refused.value.fix)


def test_the_help_names_every_flag_that_is_refused() -> None:
    refused = {bench._flag(name) for name in bench._REFUSED}

    told = re.findall(r"--[a-z-]+", bench.command.__doc__ or "")

    assert set(told) == refused


def test_flags_of_train_that_have_no_use_here_are_told(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setattr(workflow, "measure", Told())

    bench.command(config=dataclasses.replace(SMALL, eval_every=5), processes=1)

    assert capsys.readouterr().err == snapshot


def test_two_forms_at_once_are_refused(here: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        bench.command(config=TrainConfig(json_output=True), markdown=True)
    assert str(caught.value) == snapshot


def test_one_machine_is_measured_by_one_process_and_by_several(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    told = Told()
    monkeypatch.setattr(workflow, "measure", told)
    config = dataclasses.replace(SMALL, json_output=True)

    status = bench.command(config=config, steps=7, processes=3, plot=here / "bench.svg")

    assert status == 0
    result = json.loads(capsys.readouterr().out)
    names = ["1 process on this machine", *(f"{n} processes on this machine" for n in (2, 3))]
    assert [row["name"] for row in result["rows"]] == names
    assert [row["speedup"] for row in result["rows"]] == [1.0, 2.0, 3.0]
    assert (result["speedup"], result["efficiency"]) == (None, None)
    assert result["plot"] == str(here / "bench.svg")
    assert (here / "bench.svg").is_file()
    configs = [trial.config for group in told.groups for trial in group]
    assert len({config.run for config in configs}) == 3
    for config in configs:
        assert (config.num_iterations, config.total_batch_size) == (7, 256)
        assert (config.eval_every, config.save_every) == (-1, -1)


def test_one_process_is_left_alone_where_several_are_not_wanted(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    told = Told()
    monkeypatch.setattr(workflow, "measure", told)

    bench.command(config=SMALL, processes=1, markdown=True)

    assert len(told.groups) == 1
    assert capsys.readouterr().out == snapshot


def test_what_a_host_says_that_it_measured_acts_on_no_terminal(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Hostile(Told):
        def __call__(self, *args: Any) -> list[BenchRow]:
            rows = super().__call__(*args)
            # Its sync is a part of the name.
            return [dataclasses.replace(row, name="1 host: \x1b[2Jint8") for row in rows]

    monkeypatch.setattr(workflow, "measure", Hostile())

    bench.command(config=SMALL, processes=1, markdown=True)

    said = capsys.readouterr().out
    assert "\x1b" not in said
    assert "\\x1b[2Jint8" in said


def test_rows_are_comparable_whatever_the_devices() -> None:
    same = workflow.comparable_config(TrainConfig(max_seq_len=1000), 20)

    # The smallest batch of whole rows that is not below the usual one.
    assert same.total_batch_size == 5000
    assert (same.depth, same.head_dim, same.device_batch_size) == (4, 64, 2)


def with_gpus(node: NodePlan, name: str, gpus: int) -> NodePlan:
    return dataclasses.replace(node, gpus=[{"name": name}] * gpus)


def test_each_gpu_is_measured_by_itself_on_all_hosts_at_once(
    node: NodePlan, snapshot: SnapshotAssertion
) -> None:
    two, three = with_gpus(node, "T4", 2), with_gpus(node, "A2", 3)
    config = dataclasses.replace(SMALL, num_iterations=5)

    groups = workflow.gpu_groups(open_fleet(None), [two, three], config, workflow.run_names())

    devices = [[trial.env["CUDA_VISIBLE_DEVICES"] for trial in group] for group in groups]
    assert devices == [["0", "0"], ["1", "1"], ["2"]]
    assert groups[2][0].name == snapshot
    assert {trial.config.device_type for group in groups for trial in group} == {"cuda"}
    assert {trial.ranks for group in groups for trial in group} == {1}


@pytest.mark.parametrize("gpus", [0, 1])
def test_a_gpu_that_is_measured_already_has_no_row(node: NodePlan, gpus: int) -> None:
    host = with_gpus(node, "T4", gpus)

    assert workflow.gpu_groups(open_fleet(None), [host], SMALL, workflow.run_names()) == []


def test_the_cpu_of_a_host_with_a_gpu_is_measured_beside_it(
    node: NodePlan, snapshot: SnapshotAssertion
) -> None:
    host = with_gpus(node, "T4", 1)
    alone = Told()(
        [workflow.single_host_trial(open_fleet(None), host, SMALL, workflow.run_names())],
        Output(json_mode=True),
    )
    on_gpu = [dataclasses.replace(alone[0], device="cuda")]

    groups = workflow.single_host_groups(
        open_fleet(None), [host], on_gpu, SMALL, 4, workflow.run_names()
    )

    assert alone[0].name == snapshot
    names = [trial.name for group in groups for trial in group]
    assert names == snapshot
    assert {trial.config.device_type for group in groups for trial in group} == {"cpu"}


@dataclasses.dataclass
class SeatOf:
    ranks: int


TWO_RANKS: Any = [SeatOf(1), SeatOf(1)]


def note(line: str) -> None:
    Output(json_mode=True).note(line)


def sends(hosts: tuple[str, ...], sent: int) -> BenchRow:
    row = BenchRow("x", hosts, len(hosts), "cpu", "float32", None, 1.0, (1.0,))
    return dataclasses.replace(row, bytes_sent_per_step=sent)


def test_rows_of_several_hosts_get_their_all_reduce_measured_and_predicted() -> None:
    rows = [sends(("a",), 0), sends(("a", "b"), 50_000_000), sends(("a", "b"), 5_000_000)]
    timed = [(1e6, 0.01), (100e6, 1.0)]

    # Of two ranks each sends as much as it has.
    assert workflow.largest_payload_bytes(rows, TWO_RANKS) == pytest.approx(50e6)
    found = workflow.with_allreduce(rows, timed, 100e6, TWO_RANKS)
    unknown = workflow.with_allreduce(rows, [], None, TWO_RANKS)

    assert found[0] == rows[0]
    assert [row.allreduce_s for row in found[1:]] == pytest.approx([0.5, 0.05])
    assert [row.predicted_allreduce_s for row in found[1:]] == pytest.approx([0.5, 0.05])
    assert unknown == rows


def test_the_worker_measures_the_bytes_of_a_step_and_the_next_larger_size(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Any] = []

    def run_worker(*args: Any) -> dict[str, Any]:
        asked.append(args[2])
        return {
            "collectives": [
                {"op": "all_reduce", "payload_bytes": 1000, "time_s": 0.1},
                {"op": "all_gather", "payload_bytes": 1000, "time_s": 0.2},
            ]
        }

    monkeypatch.setattr(workflow, "run_worker", run_worker)

    timed = workflow.time_allreduce(
        open_fleet(None), TWO_RANKS, 50e6, SMALL, Output(json_mode=True).note
    )

    assert timed == [(1000, 0.1)]
    assert asked[0]["collectives"]["largest_bytes"] == 64_000_000


def test_what_was_measured_is_not_lost_when_the_all_reduce_fails(
    here: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    def run_worker(*args: Any) -> dict[str, Any]:
        raise JobError("rank 1 on laptop: killed by SIGKILL", fix="look at dmesg")

    monkeypatch.setattr(workflow, "run_worker", run_worker)

    timed = workflow.time_allreduce(
        open_fleet(None), TWO_RANKS, 1e6, SMALL, Output(json_mode=True).note
    )

    assert timed == []
    assert capsys.readouterr().err == snapshot


def test_a_fleet_that_was_never_probed_has_no_prediction(
    here: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert workflow.slowest_link_bytes_per_s(open_fleet(None), note) is None
    assert capsys.readouterr().err == snapshot


def test_what_was_measured_is_reported_even_where_it_cannot_be_drawn(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "yoked.report.bench_plot", None)
    table: Any = None

    assert bench._draw(table, here / "t.png", Output(json_mode=True)) is None
    assert "no plot" in capsys.readouterr().err


def test_a_damaged_measurement_takes_nothing_but_the_prediction(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged(fleet: Any) -> None:
        raise YokedError("probe.json is damaged", fix="yoked probe")

    monkeypatch.setattr(workflow, "load_newest", damaged)

    assert workflow.slowest_link_bytes_per_s(open_fleet(None), note) is None
    assert "no prediction: probe.json is damaged" in capsys.readouterr().err
