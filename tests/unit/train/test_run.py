"""When a run compares the ranks' weights, by ranks that learn nothing."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from yoked.errors import WeightsApartError
from yoked.train.comm.communicator import Communicator
from yoked.train.run import TrainingRun
from yoked.train.state import Replicated, TrainState

OnRanks = Callable[..., list[Any]]


class Run(TrainingRun):
    """A rank's part. weight: what it holds; compared: how often; saved: after which steps."""

    def __init__(self, comm: Communicator, weight: float = 1.0, save_every: int = 2) -> None:
        weights = {"wte": torch.full((3,), weight)}
        state = TrainState(comm, torch.device("cpu"))
        state.register("wte", weights["wte"], Replicated())
        state.require_equal = self._note(state.require_equal)  # type: ignore[method-assign]
        self.compared: list[int] = []
        self.saved: list[int] = []
        self.comm, self.first_step = comm, 0
        parts: dict[str, Any] = {
            "trainer": SimpleNamespace(
                state=state,
                drain=lambda: None,
                buffers=SimpleNamespace(parameters=weights),
                model=SimpleNamespace(named_parameters=weights.items),
            ),
            "setup": SimpleNamespace(rank_info=SimpleNamespace(rank=comm.rank)),
            "schedule": SimpleNamespace(eval_every=None, save_every=save_every),
            "origin": SimpleNamespace(resumes=False),
            "store": SimpleNamespace(poll=lambda: None),
            "_pending_stats": None,
            "_compared_at": None,
            "save_agreed": False,
        }
        vars(self).update(parts)

    def _note(self, compare: Callable[..., None]) -> Callable[..., None]:
        def noted(names: list[str], step: int) -> None:
            self.compared.append(step)
            compare(names, step)

        return noted

    def _write(self, done: int, whole: dict[str, Tensor] | None, **_: Any) -> None:
        if whole is not None:
            self.saved.append(done)


def test_what_rank_0_alone_holds_is_not_saved(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[WeightsApartError, list[int]]:
        run = Run(comm, weight=2.0 if comm.rank == 0 else 1.0)
        with pytest.raises(WeightsApartError) as caught:
            run._save(7, background=True)
        return caught.value, run.saved

    for problem, saved in on_ranks(3, act):
        assert problem.of_ranks == (0,)
        assert saved == []


def test_weights_are_compared_once_after_the_first_step_and_before_each_save(
    on_ranks: OnRanks,
) -> None:
    progress: Any = None

    def act(comm: Communicator) -> tuple[list[int], list[int]]:
        run = Run(comm)
        for done in range(1, 6):
            run._after_step(done, done == 5, progress)
        run._save(5, background=False)
        return run.compared, run.saved

    first, second = on_ranks(2, act)

    assert first == ([1, 2, 4, 5], [2, 4, 5])
    assert second == ([1, 2, 4, 5], [])


def test_a_wish_to_save_is_granted_once_and_a_save_that_is_due_grants_it(
    on_ranks: OnRanks,
) -> None:
    def act(comm: Communicator) -> tuple[list[int], list[str]]:
        said: list[str] = []
        progress: Any = SimpleNamespace(say=said.append)
        run = Run(comm)
        for done in range(1, 8):
            run.save_agreed = run.save_agreed or done in (3, 6)
            run._after_step(done, False, progress)
        return run.saved, said

    first, second = on_ranks(2, act)

    assert first == ([2, 3, 4, 6], ["step 3: saving, as asked", "step 6: saving, as asked"])
    assert second[0] == []
