"""A run that failed leaves its verdict in its folder, by whoever looks on to its end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.schemas import conforms
from tests.unit.agent.job_acts import launch, until

from yoked.agent.jobfolder import JobFolder
from yoked.agent.verdict import failed, write_verdict
from yoked.remote.client import AgentClient

FAILURE = {
    "host": "attic",
    "node": 0,
    "rank": 1,
    "cause": "rank-killed",
    "what": "killed by SIGKILL",
    "at": "train.py:41 in main",
    "fix": ["journalctl -k    names the process"],
    "last_lines": ["step 7"],
}
# Trains, as far as its folder shows, and ends with a status and a verdict. argv: the run's folder,
# what the folder has, outcome.json.
TRAINS = """
import json, os, sys
for name, content in json.loads(sys.argv[2]).items():
    content = content.replace("LAUNCH", os.environ["YOKED_LAUNCH_ID"])
    open(f"{sys.argv[1]}/{name}", "w").write(content)
if sys.argv[3]:
    open(os.environ["YOKED_JOB_FOLDER"] + "/outcome.json", "w").write(sys.argv[3])
sys.exit(1)
"""
BEGUN = {"run.json": '{"launch_id": "LAUNCH"}'}
EARLIER = {"run.json": '{"launch_id": "another"}', "result.json": '{"state": "finished"}'}


def outcome(status: str, failure: dict[str, Any] | None = FAILURE) -> str:
    return json.dumps({"status": status, "attempts": [{"attempt": 0, "failure": failure}]})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs" / "night").mkdir(parents=True)
    return tmp_path / "runs" / "night"


def train(
    agent: AgentClient, root: Path, folder: Path, files: dict[str, str], told: str, **spec: Any
) -> JobFolder:
    spec = {"trains": "night", "run_dir": str(folder), **spec}
    job = launch(agent, root, TRAINS, str(folder), json.dumps(files), told, **spec)
    until(lambda: job.read("end.json"), "the end")
    return job


def test_a_run_that_failed_ends_with_its_verdict_as_its_result(
    agent: AgentClient, root: Path, folder: Path
) -> None:
    train(agent, root, folder, BEGUN, outcome("failed"))

    # It is there once the job is over, and no later.
    found = conforms("diagnose", json.loads((folder / "result.json").read_text()))
    assert found == failed("night", FAILURE)
    assert (found["run"], found["state"]) == ("night", "failed")
    (fault,) = found["faults"]
    assert (fault["cause"], fault["host"], fault["rank"]) == ("rank-killed", "attic", 1)
    assert fault["evidence"] == ["killed by SIGKILL", "at train.py:41 in main", "step 7"]


def test_a_launcher_that_left_no_verdict_is_the_result(
    agent: AgentClient, root: Path, folder: Path
) -> None:
    train(agent, root, folder, BEGUN, "")

    (fault,) = json.loads((folder / "result.json").read_text())["faults"]
    assert fault["cause"] == "launcher-died"


def test_a_run_on_a_fleet_has_its_folder_beside_the_jobs(agent: AgentClient, root: Path) -> None:
    folder = root / "runs" / "night"
    folder.mkdir(parents=True)

    train(agent, root, folder, BEGUN, outcome("failed"), run_dir=None)

    assert json.loads((folder / "result.json").read_text())["state"] == "failed"


@pytest.mark.parametrize(
    ("files", "told", "spec"),
    [
        pytest.param(EARLIER, outcome("failed"), {}, id="a start that did not begin it"),
        pytest.param({}, outcome("failed"), {}, id="a start before there was a run"),
        pytest.param(BEGUN, outcome("finished", None), {}, id="a run that finished"),
        pytest.param(BEGUN, outcome("stopped", None), {}, id="a run that a person ended"),
        pytest.param(BEGUN, outcome("failed"), {"trains": None}, id="another program"),
        pytest.param(
            {**BEGUN, "result.json": '{"state": "interrupted"}'},
            outcome("interrupted"),
            {},
            id="a run that had saved",
        ),
    ],
)
def test_nothing_else_is_overwritten(
    agent: AgentClient,
    root: Path,
    folder: Path,
    files: dict[str, str],
    told: str,
    spec: dict[str, Any],
) -> None:
    train(agent, root, folder, files, told, **spec)

    result = folder / "result.json"
    assert (result.read_text() if result.exists() else None) == files.get("result.json")


def test_a_host_without_rank_0_has_no_folder_of_the_run(
    agent: AgentClient, root: Path, folder: Path
) -> None:
    nodes = [{"host": name, "address": "127.0.0.1", "ranks": 1} for name in ("cellar", "attic")]

    train(agent, root, folder, BEGUN, outcome("failed"), nodes=nodes, node_rank=1)

    assert not (folder / "result.json").exists()


def test_a_run_that_could_not_save_when_it_was_stopped_has_failed(
    agent: AgentClient, root: Path, folder: Path
) -> None:
    train(agent, root, folder, BEGUN, outcome("interrupted"))

    assert json.loads((folder / "result.json").read_text())["state"] == "failed"


def test_a_disk_that_takes_nothing_ends_nobody(folder: Path) -> None:
    (folder / "result.json").mkdir()

    write_verdict(folder, "night", FAILURE)

    assert [path.name for path in folder.iterdir()] == ["result.json"]
