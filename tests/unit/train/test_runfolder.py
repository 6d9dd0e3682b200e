from __future__ import annotations

import json
import os
import resource
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked import journal
from yoked.agent.verdict import is_of_launch
from yoked.errors import UsageError, YokedError
from yoked.train.runfolder import RunFolder, write_json
from yoked.train.trainer import StepStats


def make_run(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.claim()
    folder.open({"config": {"depth": 4}}, attempt=1)
    return folder


def test_a_new_run_has_its_facts_and_its_journals(tmp_path: Path):
    folder = make_run(tmp_path / "runs/first")
    folder.step(0, [StepStats(600, 100, 1.0, 0.1, 0.2, 7), StepStats(0, 0, 0.0, 0.3, 0.4, 9)], 1.5)
    folder.evaluation(1, 2.5)
    folder.resumed(1)
    folder.event("saved", step=1)
    folder.close()

    assert folder.name == "first"
    assert folder.read() == {"config": {"depth": 4}, "attempt": 1, "launch_id": None}
    assert list(journal.read(folder.path / "metrics.jsonl")) == [
        {
            "attempt": 1,
            "step": 0,
            "loss": 6.0,
            "dt_s": 1.5,
            "tokens": [100, 0],
            "extra_tokens": [0, 0],
            "compute_s": [1.0, 0.0],
            "head_s": [0.0, 0.0],
            "comm_s": [0.1, 0.3],
            "wait_s": [0.2, 0.4],
            "bytes_sent": [7, 9],
        },
        {"attempt": 1, "step": 1, "val_bpb": 2.5},
        {"attempt": 1, "resumed_at": 1},
    ]
    (event,) = journal.read(folder.path / "events.jsonl")
    assert (event["event"], event["step"], event["attempt"]) == ("saved", 1, 1)
    assert event["time_s"] > 0


def test_a_new_run_and_the_folder_of_runs_are_for_its_owner_alone(tmp_path: Path):
    before = os.umask(0)
    try:
        make_run(tmp_path / "runs/first").close()
    finally:
        os.umask(before)

    assert (tmp_path / "runs").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "runs/first").stat().st_mode & 0o777 == 0o700


def test_a_name_is_not_claimed_twice(tmp_path: Path, snapshot: SnapshotAssertion):
    make_run(tmp_path / "first").close()

    with pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "first").claim()
    assert str(caught.value) == snapshot


def test_a_folder_with_a_persons_own_files_is_no_place_for_a_run(
    tmp_path: Path, snapshot: SnapshotAssertion
):
    (tmp_path / "mine/launch-notes").mkdir(parents=True)
    (tmp_path / "mine/launch-notes/idea.txt").write_text("mine")
    (tmp_path / "mine/.run.json.backup").write_text("mine")

    with pytest.raises(UsageError) as caught:
        RunFolder(tmp_path / "mine").claim()
    assert str(caught.value) == snapshot

    assert sorted(path.name for path in (tmp_path / "mine").rglob("*")) == [
        ".run.json.backup",
        "idea.txt",
        "launch-notes",
    ]


def test_an_empty_folder_and_what_a_start_left_that_was_ended_early_can_be_claimed(tmp_path: Path):
    (tmp_path / "first").mkdir()
    RunFolder(tmp_path / "first").claim()
    (tmp_path / "first/checkpoints").mkdir()

    RunFolder(tmp_path / "first").claim()


def test_a_run_removes_what_it_left_unfinished_and_nothing_else(tmp_path: Path):
    make_run(tmp_path / "first").close()
    own = [".run.json.backup", ".my.json.old", "launch-notes", ".x.unfinished"]
    for name in (*own, ".run.json.4711.tmp", ".result.json.4711.tmp"):
        (tmp_path / "first" / name).write_text("here")

    folder = RunFolder(tmp_path / "first")
    folder.open(folder.read(), attempt=2)
    folder.close()

    left = {path.name for path in (tmp_path / "first").iterdir()}
    assert left.issuperset(own)
    assert not [name for name in left if name.endswith(".tmp")]


def test_a_run_that_goes_on_has_no_result_of_an_earlier_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    make_run(tmp_path / "first").close()
    write_json(tmp_path / "first/result.json", {"state": "failed"})
    monkeypatch.setenv("YOKED_LAUNCH_ID", "c0ffee")

    folder = RunFolder(tmp_path / "first")
    folder.open(folder.read(), attempt=2)
    folder.close()

    assert not (tmp_path / "first/result.json").exists()
    assert is_of_launch(tmp_path / "first", "c0ffee")
    assert not is_of_launch(tmp_path / "first", "another")


def test_a_second_attempt_appends_to_the_journals(tmp_path: Path):
    make_run(tmp_path / "first").close()
    folder = RunFolder(tmp_path / "first")
    folder.open(folder.read(), attempt=2)
    folder.evaluation(3, 1.0)
    folder.close()

    assert folder.read()["attempt"] == 2
    assert [line["attempt"] for line in journal.read(folder.path / "metrics.jsonl")] == [2]


def test_a_folder_that_cannot_be_made_is_named_with_the_way_out(
    tmp_path: Path, snapshot: SnapshotAssertion
):
    (tmp_path / "file").write_text("")

    with pytest.raises(YokedError) as caught:
        RunFolder(tmp_path / "file/first").claim()
    assert str(caught.value) == snapshot


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_may_not_be_written_is_named(tmp_path: Path):
    tmp_path.chmod(0o500)

    with pytest.raises(YokedError) as caught:
        RunFolder(tmp_path / "first").claim()
    assert "Permission denied" in caught.value.what


def test_a_folder_without_run_json_cannot_be_resumed(tmp_path: Path, snapshot: SnapshotAssertion):
    with pytest.raises(UsageError) as caught:
        RunFolder(tmp_path).read()
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", [b"{ torn", b"\xff\xfe", b"[1, 2]"])
def test_a_run_json_that_is_damaged_is_named_with_the_way_out(
    tmp_path: Path, content: bytes, snapshot: SnapshotAssertion
):
    (tmp_path / "run.json").write_bytes(content)

    with pytest.raises(YokedError) as caught:
        RunFolder(tmp_path).read()
    assert str(caught.value) == snapshot


def test_run_json_is_whole_when_writing_it_fails(
    tmp_path: Path, monkeypatch, snapshot: SnapshotAssertion
):
    path = tmp_path / "run.json"
    write_json(path, {"whole": True})

    def full(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(YokedError) as caught:
        write_json(path, {"whole": False})
    assert str(caught.value) == snapshot

    assert json.loads(path.read_text()) == {"whole": True}
    assert [entry.name for entry in tmp_path.iterdir()] == ["run.json"]


def test_nothing_but_the_file_remains_after_writing(tmp_path: Path):
    write_json(tmp_path / "result.json", {"a": [1, 2]})

    assert [entry.name for entry in tmp_path.iterdir()] == ["result.json"]
    assert (tmp_path / "result.json").read_text().endswith("}\n")


def test_a_full_disk_is_told_once_and_again_when_it_is_well(
    tmp_path: Path, snapshot: SnapshotAssertion
):
    folder = make_run(tmp_path / "first")
    stats = [StepStats(600, 100, 1.0, 0.1, 0.2, 7)]
    told: list[str | None] = []
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        for step in range(3):
            folder.step(step, stats, 1.5)
            folder.event("save_failed", what="the disk is full")
            told.append(folder.news())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    folder.step(3, stats, 1.5)
    folder.event("saved")
    told += [folder.news(), folder.news(), folder.close()]

    assert told[0] is not None
    assert told[0] == snapshot
    assert told[1:3] == [None, None]
    assert told[3] == snapshot
    assert told[4:] == [None, None]
    steps = [line["step"] for line in journal.read(folder.path / "metrics.jsonl")]
    events = [line["event"] for line in journal.read(folder.path / "events.jsonl")]
    assert steps == [0, 1, 2, 3]
    assert events == ["save_failed"] * 3 + ["saved"]


def test_lines_that_find_no_room_until_the_end_are_told(
    tmp_path: Path, snapshot: SnapshotAssertion
):
    folder = make_run(tmp_path / "first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        folder.evaluation(1, 2.5)
        told = folder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert told == snapshot


def test_lines_that_were_too_many_to_wait_count_among_those_that_are_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(journal, "_MOST_WAITING_BYTES", 80)
    folder = make_run(tmp_path / "first")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        for step in range(9):
            folder.evaluation(step, 2.5)
        told = folder.close()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert told is not None
    assert told.startswith("LOST: 9 lines of ")


def test_checkpoints_lie_where_nanochat_looks_for_them(tmp_path: Path):
    folder = RunFolder(tmp_path / "first")

    assert folder.checkpoint_folder("d4") == tmp_path / "first/checkpoints/base_checkpoints/d4"


def test_a_run_that_was_never_opened_is_closed_and_silent(tmp_path: Path):
    folder = RunFolder(tmp_path)

    folder.event("nobody listens")
    folder.close()

    assert list(tmp_path.iterdir()) == []
