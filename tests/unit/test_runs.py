from __future__ import annotations

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.runs import find_run, holds_runs, is_program, list_runs, new_run_name, require_new


def make_run(runs_dir: Path, name: str, *, alive_s: int) -> Path:
    folder = runs_dir / name
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    os.utime(folder / "run.json", (alive_s, alive_s))
    return folder


def test_the_latest_run_is_the_one_that_was_last_alive(tmp_path: Path) -> None:
    make_run(tmp_path, "b", alive_s=100)
    older = make_run(tmp_path, "a", alive_s=50)
    (older / "metrics.jsonl").write_text("")
    os.utime(older / "metrics.jsonl", (200, 200))
    (tmp_path / "not-a-run").mkdir()

    assert find_run(None, tmp_path) == older
    assert [run.name for run in list_runs(tmp_path)] == ["a", "b"]


def test_a_folder_of_somebody_else_hides_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, stat = make_run(tmp_path, "mine", alive_s=50), Path.stat
    make_run(tmp_path, "theirs", alive_s=100)

    def refuse(path: Path, **more: bool) -> os.stat_result:
        if path.parent.name == "theirs":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, **more)

    monkeypatch.setattr(Path, "stat", refuse)

    assert list_runs(tmp_path) == [mine]
    assert find_run(None, tmp_path) == mine
    assert holds_runs(tmp_path)


def test_a_run_is_found_by_name_and_by_path(tmp_path: Path) -> None:
    run = make_run(tmp_path, "a", alive_s=50)

    assert find_run("a", tmp_path) == run
    assert find_run(str(run), Path("elsewhere")) == run


def test_an_unknown_run_is_answered_with_the_nearest(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    make_run(tmp_path, "first-try", alive_s=50)

    with pytest.raises(UsageError) as caught:
        find_run("frist-try", tmp_path)
    assert str(caught.value) == snapshot
    with pytest.raises(UsageError) as caught:
        find_run("zebra", tmp_path)
    assert str(caught.value) == snapshot


def test_no_run_at_all_says_how_to_make_one(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        find_run(None, tmp_path / "absent")
    assert str(caught.value) == snapshot


def test_two_runs_in_one_second_get_two_names(tmp_path: Path) -> None:
    now = datetime(2026, 7, 1, 12, 30, 5, tzinfo=UTC)
    (tmp_path / "20260701-123005").mkdir()

    assert new_run_name(tmp_path, now) == "20260701-123005-2"


def test_a_program_is_a_run_and_no_training(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    training = make_run(tmp_path, "night", alive_s=50)
    program = make_run(tmp_path, "sweep", alive_s=100)
    (program / "run.json").write_text('{"trains": false}')

    assert [run.name for run in list_runs(tmp_path)] == ["sweep", "night"]
    assert find_run(None, tmp_path) == training
    for named in ("sweep", str(program)):
        with pytest.raises(UsageError) as caught:
            find_run(named, tmp_path)
        assert str(caught.value) == snapshot
    with pytest.raises(UsageError) as caught:
        require_new(program)
    assert "--resume" not in str(caught.value)
    (training / "run.json").unlink()
    with pytest.raises(UsageError, match=r"there is no training in .*programs of"):
        find_run(None, tmp_path)


@pytest.mark.parametrize("content", ["[]", "{", '{"trains": "false"}', '{"trains": 0}'])
def test_what_does_not_say_that_it_is_a_program_is_none(tmp_path: Path, content: str) -> None:
    run = make_run(tmp_path, "given", alive_s=50)
    (run / "run.json").write_text(content)

    assert not is_program(run)


def test_a_pipe_is_not_asked_whether_it_is_a_program(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "run.json")

    assert not is_program(tmp_path)


@pytest.mark.parametrize("kind", ["file", "folder", "pipe"])
def test_a_run_that_leads_out_of_its_folder_is_neither_read_nor_written(
    tmp_path: Path, kind: str, snapshot: SnapshotAssertion
) -> None:
    run = make_run(tmp_path / "runs", "given", alive_s=50)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "authorized_keys").write_text("ssh-ed25519 A")
    if kind == "file":
        (run / "metrics.jsonl").symlink_to(tmp_path / "mine" / "authorized_keys")
    elif kind == "folder":
        (run / "checkpoints").symlink_to(tmp_path / "mine")
    else:
        os.mkfifo(run / "events.jsonl")

    with pytest.raises(UsageError) as caught:
        find_run("given", tmp_path / "runs")
    assert str(caught.value) == snapshot
    (run / "run.json").unlink()
    if kind == "folder":
        (run / ".yoked-run").touch()
    with pytest.raises(UsageError) as caught:
        require_new(run)
    assert str(caught.value) == snapshot


def test_the_folder_of_a_run_may_itself_be_a_link_of_a_persons_own(tmp_path: Path) -> None:
    make_run(tmp_path / "large disk", "a", alive_s=50)
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "a").symlink_to(tmp_path / "large disk" / "a")

    assert find_run("a", tmp_path / "runs") == tmp_path / "runs" / "a"


def test_a_folder_without_runs_is_answered_with_the_flag_that_names_another(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as problem:
        find_run("night", tmp_path / "elsewhere")

    assert problem.value.fix[0].startswith("yoked fetch night ")
    assert "--runs-dir" in problem.value.fix[1]
