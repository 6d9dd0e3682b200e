"""What ranks agree on before they train."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from yoked.errors import DataError, UsageError
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.progress import NullProgress
from yoked.train.decisions.compute import RECORDED
from yoked.train.decisions.decision import Decision
from yoked.train.setup import load_data, settled, setup_model

_T = TypeVar("_T")


class WithOtherRows(Communicator):
    """A second rank on another host, whose rows have another digest."""

    def all_gather_json(self, value: Any, read: Callable[[Any], _T]) -> list[_T]:
        other = value
        if isinstance(value, list) and len(value) == 4:
            _, fingerprint, _, val = value
            other = ["attic", fingerprint, "0" * 64, val]
        return [read(value), read(other)]


def test_hosts_whose_rows_differ_do_not_start_together(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "farm.txt").write_text("the oxen pull\n" * 500)
    config = dataclasses.replace(
        TrainConfig(), data=str(tmp_path / "farm.txt"), vocab_size=280, max_seq_len=16
    )

    with pytest.raises(DataError) as caught:
        load_data(config, 16, WithOtherRows(), RankInfo(0, 0, 1, 1), NullProgress())
    assert str(caught.value) == snapshot


class WithAnOldGpu(Communicator):
    """Both ranks train on GPUs; the other one's is too old for PyTorch's flash kernel."""

    def all_gather_json(self, value: Any, read: Callable[[Any], _T]) -> list[_T]:
        told = {"cpu": ["cuda", "cuda"], "": ["", "too old a GPU"]}
        both = told.get(value, [value, value]) if isinstance(value, str) else [value, value]
        return [read(each) for each in both]


def test_one_rank_without_windows_decides_for_all(tmp_path: Path) -> None:
    (tmp_path / "farm.txt").write_text("the oxen pull\n" * 500)
    config = TrainConfig(data=str(tmp_path / "farm.txt"), vocab_size=280, max_seq_len=16, depth=4)

    model = setup_model(
        config, RankInfo(0, 0, 1, 1), WithAnOldGpu(), torch.device("cpu"), NullProgress()
    )

    assert model.model_config.window_pattern == "L"
    assert model.resolved.reasons["window_pattern"] == "too old a GPU"


def test_a_run_keeps_what_it_decided_on_the_same_hosts_and_decides_anew_on_others() -> None:
    recorded = [{"sync": "exact", "lm_head": "vocab-parallel"}]

    assert settled("sync", "auto", "", recorded) == Decision("sync", "exact", RECORDED)
    assert settled("sync", "auto", "", ()) is None
    assert settled("sync", "int8", "as asked", recorded) == Decision("sync", "int8", "as asked")


@pytest.mark.parametrize("device", ["cpu", "mps"])
def test_tables_are_not_sent_from_the_memory_in_which_they_are_used(
    device: str, snapshot: SnapshotAssertion
) -> None:
    config, alone = TrainConfig(tables="host"), RankInfo(0, 0, 1, 1)

    with pytest.raises(UsageError) as caught:
        setup_model(config, alone, Communicator(), torch.device(device), NullProgress())
    assert str(caught.value) == snapshot
