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


class Own(torch.optim.SGD):
    """A program's own, which may look for a group in its step."""


@pytest.mark.parametrize(
    ("kind", "started"), [(torch.optim.SGD, False), (torch.optim.AdamW, False), (Own, True)]
)
def test_a_group_is_started_for_optimizers_that_may_use_it(
    monkeypatch: pytest.MonkeyPatch, kind: Any, started: bool
) -> None:
    reasons: list[str] = []
    monkeypatch.setattr(group.Starter, "start", lambda _, because: reasons.append(because))
    starter = group.Starter(cast(Any, SimpleNamespace(count=2)))

    starter._before_a_step(kind([torch.zeros(1)]), (), {})

    assert bool(reasons) == started
