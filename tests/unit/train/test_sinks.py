"""Trackers of a run: what they are told is what they have, and one that fails costs no run."""

from __future__ import annotations

import json
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yoked.errors import UsageError
from yoked.train import sinks
from yoked.train.config import TrainConfig
from yoked.train.sinks import Sinks, require_trackers, trackers_of


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "runs" / "night"
    found.mkdir(parents=True)
    (found / "events.jsonl").write_text('{"event":"start"}\n')
    return found


def told_of(names: tuple[str, ...], folder: Path, first_step: int = 0) -> list[str]:
    """Log five steps and an evaluation; what was said of trackers meanwhile."""
    trackers = Sinks(names, folder, {"depth": 4}, first_step)
    for step in range(first_step + 1, first_step + 6):
        trackers.log(step, {"train/loss": 9.0 - step, "train/dt": 0.5})
    trackers.log(first_step + 5, {"val/bpb": 1.5})
    trackers.close()
    return trackers.news()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard reads."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    read = accumulator.EventAccumulator(str(folder / "tensorboard"))
    read.Reload()
    return {
        name: [(each.step, each.value) for each in read.Scalars(name)]
        for name in read.Tags()["scalars"]
    }


def test_tensorboard_reads_back_what_was_written(folder: Path) -> None:
    pytest.importorskip("tensorboard")

    said = told_of(("tensorboard",), folder)

    assert said == []
    assert scalars(folder) == {
        "train/loss": [(step, 9.0 - step) for step in range(1, 6)],
        "train/dt": [(step, 0.5) for step in range(1, 6)],
        "val/bpb": [(5, 1.5)],
    }


def test_a_start_that_resumes_hides_in_tensorboard_what_it_takes_again(folder: Path) -> None:
    pytest.importorskip("tensorboard")

    told_of(("tensorboard",), folder)
    told_of(("tensorboard",), folder, first_step=3)

    assert [step for step, _ in scalars(folder)["train/loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]


def test_wandb_has_offline_what_was_written(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")

    monkeypatch.setenv("WANDB_MODE", "offline")
    said = told_of(("wandb",), folder)

    (file,) = (folder.parent / "wandb").glob("offline-run-*/run-*.wandb")
    rows = [
        {
            (item.key or ".".join(item.nested_key)): json.loads(item.value_json)
            for item in record.history.item
        }
        for record in written_by_wandb(file)
        if record.WhichOneof("record_type") == "history"
    ]
    assert said == []
    losses = [(row["step"], row["train/loss"]) for row in rows if "train/loss" in row]
    assert losses == [(step, 9.0 - step) for step in range(1, 6)]
    assert [(row["step"], row["val/bpb"]) for row in rows if "val/bpb" in row] == [(5, 1.5)]


def written_by_wandb(file: Path) -> list[Any]:
    """Its records up to the run's end. finish() does not wait until its service has closed them."""
    from wandb.proto import wandb_internal_pb2

    deadline = time.monotonic() + 30.0
    while True:
        records = []
        for data in log_records(file.read_bytes()):
            records.append(wandb_internal_pb2.Record())
            records[-1].ParseFromString(data)
        if records and records[-1].WhichOneof("record_type") == "exit":
            return records
        assert time.monotonic() < deadline, f"{len(records)} records, and no end of the run"
        time.sleep(0.05)


def log_records(content: bytes) -> Iterator[bytes]:
    """Records of a file of wandb's: a log of LevelDB behind seven bytes of its own.

    Source: github.com/google/leveldb, doc/log_format.md: a block has 32,768 bytes, a part of a
    record a header of seven: checksum, length, and 1 the whole, 2 the first, 3 a middle or 4 the
    last of it.
    """
    place, parts = 7, b""
    while place + 7 <= len(content):
        if 32_768 - place % 32_768 < 7:
            place += 32_768 - place % 32_768
            continue
        length, kind = struct.unpack_from("<HB", content, place + 4)
        if place + 7 + length > len(content):
            return  # its end is not written yet
        parts += content[place + 7 : place + 7 + length]
        place += 7 + length
        if kind in (1, 4):
            yield parts
            parts = b""


class FakeRun:
    """Of a tracker with wandb's calls."""

    def __init__(self, fails_at: int | None, waits: threading.Event | None) -> None:
        self.rows: list[tuple[int | None, dict[str, Any]]] = []
        self._fails_at, self._waits = fails_at, waits

    def define_metric(self, name: str, **more: Any) -> None:
        del name, more

    def log(self, figures: dict[str, Any], step: int | None = None) -> None:
        if self._waits is not None:
            self._waits.wait()
        if len(self.rows) == self._fails_at:
            raise ConnectionError("no route to host")
        self.rows.append((step, figures))

    def finish(self) -> None:
        self.rows.append((None, {}))


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A trackio that notes what it is told. fails_at, waits: see FakeRun; init: its words."""
    module = SimpleNamespace(fails_at=None, waits=None, runs=[], words=[])

    def init(**words: Any) -> FakeRun:
        module.words.append(words)
        module.runs.append(FakeRun(module.fails_at, module.waits))
        found: FakeRun = module.runs[-1]
        return found

    module.init = init
    monkeypatch.setitem(sys.modules, "trackio", module)
    return module


def test_trackio_is_called_as_it_asks(fake: SimpleNamespace, folder: Path) -> None:
    said = told_of(("trackio",), folder)

    assert said == []
    assert fake.words == [
        {"project": "yoked", "name": "night", "config": {"depth": 4}, "resume": "allow"}
    ]
    assert [step for step, _ in fake.runs[0].rows] == [1, 2, 3, 4, 5, 5, None]


def test_a_tracker_that_fails_is_told_once_and_costs_nothing_else(
    fake: SimpleNamespace, folder: Path
) -> None:
    pytest.importorskip("tensorboard")
    fake.fails_at = 2

    said = told_of(("trackio", "tensorboard"), folder)

    (line,) = said
    assert line.splitlines() == [
        "trackio takes no figures any more: ConnectionError: no route to host",
        "training goes on; metrics.jsonl has all of them",
    ]
    assert len(scalars(folder)["train/loss"]) == 5


def test_a_tracker_that_waits_holds_nobody_up_and_its_end_is_bounded(
    fake: SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.waits = threading.Event()
    monkeypatch.setattr(sinks, "_END_S", 0.05)

    said = told_of(("trackio",), folder)
    fake.waits.set()

    assert said[0].startswith("trackio takes no figures any more: it has not taken all within")


def test_a_tracker_that_does_not_keep_up_is_left(
    fake: SimpleNamespace, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.waits = threading.Event()
    monkeypatch.setattr(sinks, "_MOST_WAITING", 2)

    said = told_of(("trackio",), folder)
    fake.waits.set()

    assert "it does not keep up" in said[0]


@pytest.mark.parametrize("log_to", ["", "wandb,", "wandb, tensorboard", "mlflow"])
def test_an_unknown_tracker_is_refused(log_to: str) -> None:
    with pytest.raises(UsageError, match="is no tracker that yoked knows"):
        TrainConfig(log_to=log_to)


def test_several_trackers_are_named_with_commas() -> None:
    assert trackers_of(TrainConfig(log_to="wandb,tensorboard,wandb").log_to) == (
        "wandb",
        "tensorboard",
    )
    assert trackers_of(None) == ()


def test_one_that_is_not_installed_is_said_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)

    with pytest.raises(UsageError) as caught:
        require_trackers(("wandb",))

    assert caught.value.fix == (f"{sys.executable} -m pip install wandb",)
