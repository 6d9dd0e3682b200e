"""Flags from a file: below those of the command line, above the defaults."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.flags import JobFlags
from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.train.config_file import flag_names, with_config_file
from yoked.train.flags import parse_flags


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def read(content: str, name: str = "train.toml", *flags: str) -> TrainConfig:
    Path(name).write_text(content)
    return parse_flags(["--config", name, *flags])


def test_a_flag_comes_before_the_file_and_the_file_before_the_default(here: Path) -> None:
    config = read("depth = 8\nmax-seq-len = 256\nmatrix_lr = 1\n", "train.toml", "--depth=6")

    assert (config.depth, config.max_seq_len, config.matrix_lr) == (6, 256, 1.0)
    assert config.vocab_size == TrainConfig().vocab_size
    assert config.config_file is None
    assert config.given().keys() == {"depth", "max_seq_len", "matrix_lr"}


def test_a_flag_with_its_default_comes_before_the_file_too(here: Path) -> None:
    assert read("keep-last = 9", "train.toml", "--keep-last=3").keep_last == 3


def test_json_and_toml_say_the_same(here: Path) -> None:
    flags = {"for": "8h", "from": "runs/old", "threads": 2, "fp8": False, "tokenizer": None}

    toml = read('for = "8h"\nfrom = "runs/old"\nthreads = 2\nfp8 = false')

    assert read(json.dumps(flags), "train.json") == toml
    assert read(json.dumps(flags), "train.conf") == toml, "the name need not say it"
    assert (toml.duration, toml.start_from, toml.threads) == ("8h", Path("runs/old"), "2")


def test_a_length_on_the_command_line_takes_the_place_of_the_files(here: Path) -> None:
    config = read("num-iterations = 500", "train.toml", "--for=2h")

    assert (config.duration, config.num_iterations) == ("2h", None)


@pytest.mark.parametrize(
    "content",
    [
        "depth = 8\ndeth = 8",
        "zzzzzz = 1",
        'config = "other.toml"',
        "json = true",
        "depth = 8.5",
        "depth = true",
        '# sizes\n\nsync = "int9"',
        'keep-last = "three"',
        "data = 3.5",
        "[train]\ndepth = 8",
        "depth = [8]",
        "depth 8",
        "depth = 0",
    ],
)
def test_what_a_file_cannot_mean_is_an_error_with_its_line(
    here: Path, content: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        read(content)

    assert str(caught.value) == snapshot


@pytest.mark.parametrize("content", ["[1, 2]", '{"depth": 8', '{"config": {}, "hosts": 3}'])
def test_a_json_file_without_flags_is_an_error(
    here: Path, content: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        read(content, "train.json")

    assert str(caught.value) == snapshot


def test_a_file_that_is_not_there_is_an_error(here: Path, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        parse_flags(["--config", "none.toml"])

    assert str(caught.value) == snapshot


def test_a_folder_that_is_no_run_is_named_as_it_was_typed(here: Path) -> None:
    with pytest.raises(UsageError, match=r"--config \.: this folder has no run\.json"):
        parse_flags(["--config", "."])


def test_the_record_of_a_program_is_no_configuration(here: Path) -> None:
    (here / "sweep").mkdir()
    (here / "sweep" / "run.json").write_text('{"trains": false, "hosts": []}')

    with pytest.raises(UsageError, match="run sweep is a program of `yoked run`"):
        with_config_file(TrainConfig(config_file=here / "sweep"))


def test_every_flag_of_training_may_stand_in_a_file() -> None:
    names = flag_names(TrainConfig)

    assert {"depth", "for", "from", "matrix-lr", "lm-head", "num-iterations"} <= names.keys()
    assert not {"planned", "passed", "repeats", "duration", "start-from"} & names.keys()


def test_flags_of_the_job_may_stand_there_too_and_the_command_line_comes_first(
    here: Path,
) -> None:
    Path("train.toml").write_text('depth = 8\nfleet = "home.toml"\nrestarts = 2\ndoctor = false\n')

    config, others = with_config_file(TrainConfig(config_file=Path("train.toml")), JobFlags)
    flags = JobFlags(restarts=0).on_top_of(others)

    assert config.depth == 8
    assert (flags.fleet, flags.restarts, flags.doctor) == (Path("home.toml"), 0, False)
    with pytest.raises(UsageError, match="fleet"):
        with_config_file(TrainConfig(config_file=Path("train.toml")))


def record(**changes: Any) -> dict[str, Any]:
    """A run's run.json, as far as it is read."""
    config = TrainConfig(run="old", runs_dir=Path("elsewhere"), seed=7, verbose=True)
    backends = {"forward": "default", "grad_input": "default", "grad_weight": "onednn"}
    host = {
        "name": "i9",
        "dtype": "bfloat16",
        "tables_dtype": "float32",
        "compute": {"layers": backends, "head": backends, "attention": "sdpa"},
    }
    return {
        "attempt": 1,
        "config": config.to_dict(),
        "hosts": [{**host, "rank": rank} for rank in range(2)],
        "idle_hosts": [],
        "rows": [5, 3],
        "model": {
            "n_layer": 6,
            "n_embd": 384,
            "n_head": 6,
            "sequence_len": 256,
            "window_pattern": "L",
        },
        "horizon": {"total_batch_size": 2048, "num_iterations": 77},
        **changes,
    }


def repeat(*flags: str, **changes: Any) -> TrainConfig:
    folder = Path("runs/old")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(json.dumps(record(**changes)))
    return parse_flags(["--config", "runs/old", *flags])


def test_a_runs_record_repeats_it_with_all_that_it_chose(here: Path) -> None:
    config = repeat()

    assert (config.depth, config.head_dim, config.max_seq_len) == (6, 64, 256)
    assert (config.total_batch_size, config.num_iterations, config.seed) == (2048, 77, 7)
    assert config.ranks == 2
    assert config.repeats is not None
    assert config.repeats["hosts"] == record()["hosts"]
    assert config.repeats["rows"] == [5, 3]


def test_a_repeated_run_is_another_run(here: Path) -> None:
    config = repeat("--run=again")

    assert (config.run, config.runs_dir, config.verbose) == ("again", Path("runs"), False)
    assert not config.goes_on


def test_of_a_fleet_the_hosts_say_how_many_ranks_there_are(here: Path) -> None:
    hosts = record()["hosts"]
    hosts[1]["name"] = "laptop"

    assert repeat(hosts=hosts).ranks is None


@pytest.mark.parametrize("flag", ["--depth=4", "--dtype=float32", "--max-seq-len=512"])
def test_what_was_measured_for_another_model_is_measured_anew(here: Path, flag: str) -> None:
    assert repeat(flag).repeats is None


@pytest.mark.parametrize("flag", ["--matrix-lr=0.01", "--num-iterations=500", "--depth=6"])
def test_what_does_not_change_a_step_leaves_the_choices_as_they_were(here: Path, flag: str) -> None:
    assert repeat(flag).repeats is not None


@pytest.mark.parametrize(
    "damage",
    [
        {"config": {"depth": "deep"}},
        {"config": {"passed": [["depth"]]}},
        {"config": {"warp_drive": 9}},
        {"config": {"data": ["books"]}},
        {"model": {**record()["model"], "n_head": 0}},
        {"model": {"n_layer": 6, "n_embd": 384, "n_head": 6, "sequence_len": 256}},
        {"hosts": [{"name": "i9", "rank": 0, "dtype": "float32", "compute": {}}]},
    ],
)
def test_a_record_that_no_run_wrote_is_refused(here: Path, damage: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=r"run\.json|another version of yoked: it has warp_drive"):
        repeat(**damage)


@pytest.mark.parametrize("content", ["depth = 8\r\n", '{"depth": 8}'])
def test_a_file_of_windows_is_read_as_any_other(here: Path, content: str) -> None:
    Path("train.conf").write_bytes(b"\xef\xbb\xbf" + content.encode())

    assert parse_flags(["--config", "train.conf"]).depth == 8
