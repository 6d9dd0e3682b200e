from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
import torch.distributed as dist  # noqa: E402
from torch._C._distributed_c10d import ProcessGroup  # noqa: E402

from yoked.ranks.instruments import Instruments  # noqa: E402
from yoked.ranks.spans import SPANS  # noqa: E402

PLACES = ("allreduce", "barrier", "send", "recv", "broadcast", "_allgather_base")


def methods() -> dict[str, Any]:
    return {name: vars(ProcessGroup).get(name) for name in PLACES}


@pytest.fixture
def group() -> Iterator[None]:
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[None]:
    SPANS.ask(1000, 600.0)
    yield
    SPANS.write(tmp_path / "0.trace", 0)


def test_what_was_put_around_torch_is_gone_after_and_torch_works(group: None, asked: None) -> None:
    """pybind's methods are other things in their class than what getattr has of them: a barrier
    raised TypeError once they had been put back as that, and the run ended.
    """
    before = methods(), torch.autograd.backward, torch.save
    instruments = Instruments(own_steps=False)

    instruments.install()
    during = methods()
    dist.barrier()
    instruments.remove()
    dist.barrier()
    dist.all_reduce(torch.ones(2))

    assert (methods(), torch.autograd.backward, torch.save) == before
    assert all(during[name] is not before[0][name] for name in PLACES)


def test_where_the_program_puts_its_own_around_ours_ours_stay_and_are_silent(
    group: None, asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    instruments = Instruments(own_steps=False)
    instruments.install()
    ours = torch.autograd.backward

    def theirs(*args: Any, **kwargs: Any) -> Any:
        return ours(*args, **kwargs)

    monkeypatch.setattr(torch.autograd, "backward", theirs)
    instruments.remove()
    assert torch.autograd.backward is theirs
    before = len(SPANS._rows)

    torch.ones(1, requires_grad=True).sum().backward()

    assert len(SPANS._rows) == before
    torch.autograd.backward = ours.__wrapped__.__wrapped__


def test_a_program_alone_has_backward_and_the_steps_of_its_first_optimizer(
    asked: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORLD_SIZE", "1")
    instruments = Instruments(own_steps=False)
    weight = torch.ones(3, requires_grad=True)
    optimizers = [torch.optim.SGD([weight], lr=0.1), torch.optim.Adam([weight])]

    instruments.install()
    for _ in range(3):
        weight.sum().backward()
        for optimizer in optimizers:
            optimizer.step()
    instruments.remove()
    weight.sum().backward()
    optimizers[0].step()

    names = [row[1] for row in SPANS._rows]
    assert names.count("backward") == 3
    assert names.count("optimizer: SGD") == names.count("optimizer: Adam") == 3
    assert [name for name in names if name.startswith("step")] == ["step 2", "step 3"]
