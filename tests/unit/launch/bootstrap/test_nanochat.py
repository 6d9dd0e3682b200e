from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.errors import YokedError
from yoked.launch.bootstrap import nanochat, substitutions
from yoked.launch.bootstrap.job import Job, Program
from yoked.launch.bootstrap.nanochat import Compute, choose_dtype


@pytest.fixture(autouse=True)
def nothing_set_or_told(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("NANOCHAT_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(substitutions, "_told", set())


def cpu(float32_s: float, bfloat16_s: float) -> Compute:
    return Compute(None, {"float32": float32_s, "bfloat16": bfloat16_s})


def job(folder: Path) -> Job:
    program = Program("module", "scripts.base_train", ())
    return made_up_job(folder, nodes=(), program=program, bootstrap=True)


def test_the_slowest_rank_decides_on_the_dtype(snapshot: SnapshotAssertion) -> None:
    fast_in_bfloat16, slow_in_it = cpu(0.010, 0.002), cpu(0.012, 0.060)

    assert choose_dtype([fast_in_bfloat16]) == snapshot
    assert choose_dtype([fast_in_bfloat16, slow_in_it]) == snapshot


def test_timings_that_hardly_differ_choose_the_same_dtype_at_each_start() -> None:
    chosen = {choose_dtype([cpu(0.0100, other_s)]) for other_s in (0.0095, 0.0100, 0.0105)}

    assert chosen == {("float32", "bfloat16 multiplies about as fast on this CPU")}


def test_ranks_on_gpus_do_not_vote_on_the_dtype() -> None:
    gpu = Compute(None, {})

    assert choose_dtype([gpu, gpu]) is None
    chosen = choose_dtype([gpu, cpu(0.01, 0.05)])
    assert chosen is not None
    assert chosen[0] == "float32"


def test_a_dtype_that_one_rank_has_set_is_that_of_all(snapshot: SnapshotAssertion) -> None:
    chosen = choose_dtype([cpu(0.010, 0.002), Compute("float32", {})])

    assert chosen == snapshot


def test_ranks_that_have_unlike_dtypes_set_are_named(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(YokedError) as caught:
        choose_dtype([Compute("float32", {}), Compute("bfloat16", {})])
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("args", "on_cpu"),
    [
        (["--device-type=cpu", "--depth=4"], True),
        (["--device-type", "cpu"], True),
        (["--device-type=cuda"], False),
        (["--device-type", "mps"], False),
    ],
)
def test_the_device_is_the_one_that_the_flags_name(args: list[str], on_cpu: bool) -> None:
    assert nanochat._computes_on_cpu(args) is on_cpu


def test_only_a_version_that_reads_a_setting_has_it(tmp_path: Path) -> None:
    package = tmp_path / "nanochat"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "data.py").write_text("import os\nD = os.environ.get('NANOCHAT_DATA_DIR')\n")

    assert nanochat._package([tmp_path]) == package
    assert nanochat._settings(package) == {"NANOCHAT_DATA_DIR"}


def test_a_program_beside_which_no_nanochat_lies_is_not_nanochats(tmp_path: Path) -> None:
    assert nanochat._package([tmp_path]) is None


def test_the_base_folder_is_set_only_where_nanochats_own_cannot_be_written(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    nanochat._set_base_dir(job(tmp_path / "state" / "jobs" / "r"))
    assert "NANOCHAT_BASE_DIR" not in os.environ

    # A file in its place stands in for a home that is read-only, which root could write.
    (tmp_path / "home").write_text("")
    nanochat._set_base_dir(job(tmp_path / "state" / "jobs" / "r"))

    assert os.environ["NANOCHAT_BASE_DIR"] == str(tmp_path / "state" / "nanochat")
    assert capsys.readouterr().err == snapshot


def test_the_data_folder_is_set_only_where_there_is_no_choice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.environ["NANOCHAT_BASE_DIR"] = str(tmp_path)
    for name in ("base_data_climbmix", "base_data_small"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard_00000.parquet").write_bytes(b"")

    nanochat._set_data_dir()
    assert "NANOCHAT_DATA_DIR" not in os.environ

    (tmp_path / "base_data_climbmix" / "shard_00000.parquet").unlink()
    nanochat._set_data_dir()
    assert os.environ["NANOCHAT_DATA_DIR"] == str(tmp_path / "base_data_small")


def test_what_a_person_has_set_is_kept(capsys: pytest.CaptureFixture[str]) -> None:
    os.environ["NANOCHAT_DTYPE"] = "float16"

    nanochat._set("NANOCHAT_DTYPE", "float32", "it is faster")

    assert os.environ["NANOCHAT_DTYPE"] == "float16"
    assert capsys.readouterr().err == ""


def test_a_choice_is_told_once_and_by_rank_0(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(os.environ, "RANK", "1")
    substitutions.log_substitution("did this", "of that")
    assert capsys.readouterr().err == ""

    monkeypatch.setitem(os.environ, "RANK", "0")
    substitutions.log_substitution("did this", "of that")
    substitutions.log_substitution("did this", "of that")

    assert capsys.readouterr().err == "yoked: did this, because of that\n"


def test_a_home_that_may_not_be_entered_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, stat = tmp_path / "home", os.stat
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))

    def refuse(path: Any, **more: Any) -> os.stat_result:
        if str(path).startswith(f"{home}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **more)

    # Root may enter any.
    monkeypatch.setattr(os, "stat", refuse)
    monkeypatch.setattr(os, "access", lambda path, mode: path != home)

    nanochat._set_base_dir(job(tmp_path / "state" / "jobs" / "r"))

    assert os.environ["NANOCHAT_BASE_DIR"] == str(tmp_path / "state" / "nanochat")
