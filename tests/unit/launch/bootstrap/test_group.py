"""A program's steps, as its optimizers take them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch

from yoked.launch.bootstrap import group
from yoked.ranks.recorder import Recorder


@pytest.mark.parametrize(("optimizers", "last"), [(1, "all"), (2, "all"), (3, "all"), (3, "some")])
def test_a_step_is_one_of_all_optimizers(
    monkeypatch: pytest.MonkeyPatch, optimizers: int, last: str
) -> None:
    counted = Recorder()
    monkeypatch.setattr(group, "RECORDER", counted)
    monkeypatch.setattr(group.Starter, "start", lambda *_: None)
    starter = group.Starter(cast(Any, SimpleNamespace(count=2)))
    own = [torch.optim.SGD([torch.zeros(1)]) for _ in range(optimizers)]
    before_a_step = starter._before_a_step

    for step in range(10):
        for number, optimizer in enumerate(own):
            # Such as one for a part of the model that is trained every other step.
            if last == "all" or number < optimizers - 1 or step % 2:
                before_a_step(optimizer, (), {})

    assert counted.steps == 10
