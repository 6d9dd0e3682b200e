from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import torch

from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.decisions import device
from yoked.train.decisions.compute import RECORDED
from yoked.train.decisions.device import choose_device, faster_device

ALONE = RankInfo(rank=0, local_rank=0, world_size=1, local_world_size=1)
CPU, MPS = torch.device("cpu"), torch.device("mps")


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A Mac whose GPU takes 1.4 times as long as its CPU; the devices that were timed."""
    seen: list[str] = []

    def row_time_s(config: TrainConfig, shape: object, on: torch.device, threads: object) -> float:
        seen.append(on.type)
        return {"cpu": 1.0, "mps": 1.4}[on.type]

    monkeypatch.delenv("YOKED_DEVICE", raising=False)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(device, "row_time_s", row_time_s)
    before = torch.get_num_threads()
    yield seen
    torch.set_num_threads(before)


def test_the_device_on_which_a_row_takes_less_is_chosen_with_the_ratio() -> None:
    by_cpu, by_gpu = faster_device({"cpu": 1.0, "mps": 1.4}), faster_device({"cpu": 3, "mps": 1})

    assert str(by_cpu) == "device: cpu (mps would take 1.4x as long)"
    assert str(by_gpu) == "device: mps (cpu would take 3.0x as long)"
    assert by_cpu.measured == {"cpu_s_per_row": 1.0, "mps_s_per_row": 1.4}


def test_a_mac_trains_where_a_row_takes_less(timed: list[str]) -> None:
    found, why = choose_device(TrainConfig(), ALONE)

    assert (found, str(why)) == (CPU, "device: cpu (mps would take 1.4x as long)")
    assert timed == ["cpu", "mps"]


@pytest.mark.parametrize("said_by", ["flag", "yoked.toml"])
def test_a_device_that_is_asked_for_is_not_measured(
    timed: list[str], monkeypatch: pytest.MonkeyPatch, said_by: str
) -> None:
    if said_by == "yoked.toml":
        monkeypatch.setenv("YOKED_DEVICE", "mps")
    config = TrainConfig(device_type="mps" if said_by == "flag" else "auto")

    assert choose_device(config, ALONE) == (MPS, None)
    assert not timed


def test_a_run_goes_on_where_it_trained_before(timed: list[str]) -> None:
    here, other = ({"name": name, "device": "mps"} for name in (socket.gethostname(), "another"))

    kept, why = choose_device(TrainConfig(), ALONE, [here])
    assert (kept, why and why.reason, timed) == (MPS, RECORDED, [])
    assert choose_device(TrainConfig(), ALONE, [other])[0] == CPU
