from __future__ import annotations

import itertools

import pytest
import torch

from yoked.costmodel.model_shape import ModelShape
from yoked.train import speeds
from yoked.train.comm.communicator import Communicator

TINY = ModelShape.from_depth(
    1, aspect_ratio=64, head_dim=64, sequence_len=32, vocab_size=300, window_pattern="L"
)
ROUND_S = 0.05


@pytest.mark.parametrize(("cores", "rounds"), [(1.0, 6), (0.95, 6), (0.5, 20), (0.25, 20)])
def test_a_host_that_is_stopped_now_and_then_is_measured_for_longer(
    cores: float, rounds: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ticks, used = itertools.count(), itertools.count()
    monkeypatch.setattr(speeds.time, "perf_counter", lambda: ROUND_S * next(ticks))
    per_round_s = cores * ROUND_S * torch.get_num_threads()
    monkeypatch.setattr(speeds.time, "process_time", lambda: per_round_s * next(used))
    done: list[None] = []
    monkeypatch.setattr(speeds, "_multiply", lambda *_: done.append(None))

    (speed,) = speeds.measure_speeds(
        TINY, torch.device("cpu"), "float32", ("default", "default"), Communicator()
    )

    warm_up = 1
    assert len(done) - warm_up == pytest.approx(rounds, abs=1)
    assert speed.flops_per_s > 0
    assert speed.own_cores == pytest.approx(cores)
