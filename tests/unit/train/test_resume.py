"""Where a run starts from: a resumed one is the run that it was, wherever it goes on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import PeerError, UsageError
from yoked.ranks.exchange import decode, encode
from yoked.train.config import TrainConfig
from yoked.train.resume import RunOrigin, resolve_origin

MODEL = {"n_layer": 4, "n_embd": 256, "n_head": 4, "sequence_len": 512, "window_pattern": "L"}
HORIZON = {"total_batch_size": 4096, "num_iterations": 500}


def begun(folder: Path, **given: Any) -> Path:
    """A run that was begun with these flags, on a CPU."""
    run = folder / "night"
    run.mkdir()
    backends = {"forward": "default", "grad_input": "default", "grad_weight": "default"}
    host = {
        "dtype": "float32",
        "tables_dtype": "float32",
        "compute": {"layers": backends, "head": backends, "attention": "sdpa"},
    }
    recorded = {
        "config": TrainConfig(run="night", runs_dir=folder, **given).to_dict(),
        "model": MODEL,
        "horizon": HORIZON,
        "hosts": [{"name": "laptop", "rank": 1, **host}],
        "idle_hosts": [{"name": "attic", "rank": 0, **host}],
        "attempt": 1,
    }
    (run / "run.json").write_text(json.dumps(recorded))
    return run


def resumed(folder: Path, **given: Any) -> TrainConfig:
    config = TrainConfig(run="night", runs_dir=folder, resume=True, **given)
    return resolve_origin(config, world_size=1).config


@pytest.mark.parametrize(
    "damage", [{"hosts": 3}, {"model": {}}, {"attempt": "first"}, {"config": {"depth": "deep"}}]
)
def test_a_record_that_no_run_wrote_is_not_resumed(tmp_path: Path, damage: dict[str, Any]) -> None:
    record = begun(tmp_path) / "run.json"
    record.write_text(json.dumps({**json.loads(record.read_text()), **damage}))

    with pytest.raises(UsageError, match=r"no run's record|no configuration of a run"):
        resumed(tmp_path)


def test_what_a_device_decided_stays_on_another(tmp_path: Path) -> None:
    begun(tmp_path)

    found = resumed(tmp_path, device_type="cuda")

    assert (found.depth, found.head_dim, found.max_seq_len) == (4, 64, 512)
    assert (found.window_pattern, found.total_batch_size, found.num_iterations) == ("L", 4096, 500)
    assert found.device_type == "cuda"
    # How many rows fit at once is the device's to say.
    assert found.device_batch_size is None


def test_paths_are_kept_such_that_a_run_can_be_resumed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    origin = RunOrigin(TrainConfig(run="night", data="text", tokenizer=Path("tok")))

    alone = origin.persistent_config(["laptop", "laptop"])
    # Each host of several may have the text in another place, where its own rank stands.
    together = origin.persistent_config(["laptop", "attic"])

    assert (alone.data, alone.tokenizer) == (str(tmp_path / "text"), tmp_path / "tok")
    assert (together.data, together.tokenizer) == ("text", Path("tok"))


def test_another_length_is_worked_out_anew(tmp_path: Path) -> None:
    begun(tmp_path)

    assert resumed(tmp_path, num_iterations=800).num_iterations == 800
    assert resumed(tmp_path, target_flops=1e15).num_iterations is None


def test_a_length_that_was_asked_for_stays_as_it_was_asked_for(tmp_path: Path) -> None:
    begun(tmp_path, target_param_data_ratio=8.0)

    found = resumed(tmp_path)

    assert (found.num_iterations, found.target_param_data_ratio) == (None, 8.0)


@pytest.mark.parametrize(
    "flags",
    [
        {"depth": 6},
        {"max_seq_len": 1024},
        {"window_pattern": "SL"},
        {"aspect_ratio": 32},
        {"vocab_size": 512},
        {"model_tag": "x"},
    ],
)
def test_another_model_is_not_trained_in_a_runs_folder(
    tmp_path: Path, flags: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    begun(tmp_path)

    with pytest.raises(UsageError) as caught:
        resumed(tmp_path, **flags)
    assert str(caught.value) == snapshot


def test_saying_again_what_a_run_began_with_is_fine(tmp_path: Path) -> None:
    begun(tmp_path, depth=4)

    assert resumed(tmp_path, depth=4, model_tag="d4", vocab_size=32_768).depth == 4


def test_the_weights_of_another_dtype_are_named_by_their_folder(tmp_path: Path) -> None:
    run = begun(tmp_path)

    with pytest.raises(UsageError) as refused:
        resumed(tmp_path, dtype="bfloat16")

    assert f"--from {run}" in refused.value.fix[0]


def test_the_other_ranks_begin_where_the_first_one_found_it(tmp_path: Path) -> None:
    begun(tmp_path, tokenizer=tmp_path / "tokenizer", shares="2:1")
    config = TrainConfig(run="night", runs_dir=tmp_path, resume=True, passed=frozenset({"data"}))
    new = TrainConfig(run="new", runs_dir=tmp_path, start_from=tmp_path)

    for asked in (config, new):
        found = resolve_origin(asked, world_size=2)
        arrived = decode(encode(found.to_dict()), 0, RunOrigin.from_dict)
        assert arrived == found
        assert [host["rank"] for host in found.recorded_ranks] == ([0, 1] if found.resumes else [])
        assert (arrived.config.passed or frozenset()) == (found.config.passed or frozenset())


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("config", []),
        ("config", {"depth": "x"}),
        ("start_from", 1),
        ("recorded", [1]),
        ("attempt", ""),
    ],
)
def test_an_origin_that_is_none_is_refused(tmp_path: Path, name: str, value: object) -> None:
    told = resolve_origin(TrainConfig(run="new", runs_dir=tmp_path), world_size=2).to_dict()

    with pytest.raises((PeerError, UsageError)):
        decode(encode({**told, name: value}), 0, RunOrigin.from_dict)
