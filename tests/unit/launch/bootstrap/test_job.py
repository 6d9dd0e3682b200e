from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import YokedError
from yoked.launch.bootstrap.job import Job, read_job


def content(**changes: Any) -> dict[str, Any]:
    return {
        "version": 1,
        "run": "first",
        "launch_id": "0123456789ab",
        "folder": "/state/jobs/first",
        "node_rank": 1,
        "nodes": [
            {"host": "i9", "address": "192.168.77.10", "ranks": 1},
            {"host": "laptop", "address": "192.168.77.11", "ranks": 2},
        ],
        "control_port": 41234,
        "control_fd": None,
        "restarts": 1,
        "resume_args": ["--resume"],
        "program": {"kind": "module", "name": "train", "args": ["--depth=4"]},
        "cwd": "/home/ann/code",
        "bootstrap": True,
        **changes,
    }


def read(tmp_path: Path, **changes: Any) -> Job:
    path = tmp_path / "job.json"
    path.write_text(json.dumps(content(**changes)))
    return read_job(path)


def test_ranks_are_numbered_by_the_order_of_hosts(tmp_path: Path) -> None:
    job = read(tmp_path)

    assert job.world_size == 3
    assert job.node.host == "laptop"
    assert list(job.local_ranks) == [1, 2]


def test_only_later_attempts_resume(tmp_path: Path) -> None:
    job = read(tmp_path)

    assert job.arguments(0) == ("--depth=4",)
    assert job.arguments(1) == ("--depth=4", "--resume")


def test_files_of_attempts_and_ranks_lie_apart(tmp_path: Path) -> None:
    job = read(tmp_path)

    paths = {
        path
        for attempt in (0, 1)
        for rank in (0, 1)
        for path in (
            job.log_file(attempt, rank, "out"),
            job.log_file(attempt, rank, "err"),
            job.error_file(attempt, rank),
            job.launch_dir(attempt) / f"error.{rank}.json",
        )
    }

    assert len(paths) == 16
    assert all(path.is_relative_to("/state/jobs/first") for path in paths)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2}, "version is 2, this yoked reads 1"),
        ({"node_rank": 2}, "node_rank is 2, but there are 2 nodes"),
        ({"node_rank": -1}, "node_rank is -1, not at least 0"),
        ({"restarts": True}, "restarts is True, not a whole number"),
        ({"control_fd": "3"}, "control_fd is '3', not a whole number"),
        ({"folder": "jobs"}, "folder is 'jobs', not an absolute path"),
        ({"nodes": [{"host": "i9", "ranks": 1}]}, "nodes[0].address missing"),
        ({"nodes": ["i9"]}, "nodes[0] is 'i9', not an object"),
        ({"resume_args": [1]}, "resume_args[0] is 1, not a text"),
        (
            {"program": {"kind": "shell", "name": "x", "args": []}},
            "program.kind is 'shell', not one of module, script",
        ),
        ({"bootstrap": 1}, "bootstrap is 1, not true or false"),
    ],
)
def test_a_wrong_field_is_named(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    with pytest.raises(YokedError) as problem:
        read(tmp_path, **changes)

    assert words in problem.value.what
    assert str(tmp_path / "job.json") in problem.value.what
    assert problem.value.fix


def test_a_file_that_is_missing_or_torn_is_named(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "torn.json").write_text('{"version": 1, "run"')

    for name in ("none.json", "torn.json"):
        with pytest.raises(YokedError) as caught:
            read_job(tmp_path / name)
        assert str(caught.value) == snapshot
