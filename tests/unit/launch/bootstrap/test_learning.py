"""What a rank tells of how it learns: sums of its parameters, and what travelled until then."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import ProcessGroup
from torch.testing._internal.distributed.fake_pg import FakeStore

from yoked.core.schema import decode
from yoked.diagnosis import vitals
from yoked.launch.bootstrap import carried as counting
from yoked.launch.bootstrap.carried import Carried
from yoked.launch.bootstrap.gloo import METHODS
from yoked.launch.bootstrap.learning import Learning, checksum
from yoked.ranks.recorder import Recorder


class Rank:
    """A rank with a model, whose optimizers are looked at."""

    def __init__(self, seed: int = 0, carried: Carried | None = None) -> None:
        torch.manual_seed(seed)
        self.model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.learning = Learning(carried or Carried(), lambda: False)

    def step(self, optimizer: Any = None, rows: int = 0) -> None:
        dice = torch.Generator().manual_seed(rows)
        self.model(torch.randn(4, 16, generator=dice)).sum().backward()
        optimizer = optimizer or self.optimizer
        self.learning._before(optimizer, (), {})
        optimizer.step()
        self.learning._after(optimizer, (), {})
        optimizer.zero_grad()

    @property
    def told(self) -> vitals.Learning:
        # As it comes to another host.
        found: vitals.Learning = decode(
            vitals.Learning, json.loads(json.dumps(self.learning.told()))
        )
        return found

    def sums(self, number: int = 0) -> dict[int, int]:
        return dict(self.told.optimizers[number].sums)


def test_parameters_are_summed_before_the_first_step_and_after_1_2_4_8() -> None:
    one, other = Rank(), Rank()

    for step in range(11):
        one.step(rows=step)
        other.step(rows=step if step < 3 else -step)

    assert list(one.sums()) == [0, 1, 2, 4, 8]
    assert len(set(one.sums().values())) == 5
    same = {step for step, found in one.sums().items() if other.sums()[step] == found}
    assert same == {0, 1, 2}


def test_of_a_rank_that_has_taken_no_step_nothing_is_known() -> None:
    assert Rank().learning.told() is None


def test_each_optimizer_counts_its_own_steps() -> None:
    gan = Rank()
    other = torch.optim.Adam(gan.model[2].parameters())

    for step in range(8):
        gan.step()
        if step % 4 == 3:
            gan.step(other)

    assert [list(gan.sums(number)) for number in (0, 1)] == [[0, 1, 2, 4, 8], [0, 1, 2]]
    first, second = gan.told.optimizers
    assert (first.elements, first.largest) == (16 * 32 + 32 + 32 + 1, 16 * 32)
    assert (second.elements, second.largest) == (33, 32)
    assert first.layout != second.layout


def test_optimizers_without_end_leave_no_more_than_the_first() -> None:
    rank = Rank()

    for _ in range(20):
        rank.step(torch.optim.SGD(rank.model.parameters(), lr=0.1))

    assert [list(dict(each.sums)) for each in rank.told.optimizers] == [[0, 1]] * 4
    # Those of the program's are its own: they are gone once it has dropped them.
    assert len(rank.learning._known) <= 1


def test_a_model_of_any_size_and_layout_is_summed_by_a_sample_of_each_parameter() -> None:
    images = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
    half = torch.randn(100, 100).bfloat16()
    scalar, whole = torch.tensor(1.0), torch.randn(10_000)
    tensors = [images, half, scalar, whole]
    before = checksum(tensors)

    assert checksum([each.clone() for each in tensors]) == before
    # Where they lie does not count, what they are does.
    assert checksum([images.contiguous(), half, scalar, whole]) == before
    for changed in tensors:
        kept = changed.clone()
        changed.add_(1)
        assert checksum(tensors) != before
        changed.copy_(kept)


def test_a_sample_does_not_lie_in_one_column() -> None:
    weights = torch.zeros(128, 784)
    before = checksum([weights])
    weights[:, 300:500] = 1

    assert checksum([weights]) != before


class Odd(nn.Parameter):
    """As of a library that keeps weights in its own way."""

    def detach(self) -> torch.Tensor:
        raise NotImplementedError("no plain tensor")


def test_parameters_that_cannot_be_read_end_nothing_and_are_not_compared() -> None:
    rank = Rank()
    odd = Odd(torch.ones(2))
    odd.grad = torch.ones(2)

    rank.step(torch.optim.SGD([odd], lr=0.1, foreach=False))

    assert rank.sums() == {}


def test_a_part_of_a_parameter_that_is_cut_up_is_the_ranks_own() -> None:
    class Sharded(nn.Parameter):
        def to_local(self) -> torch.Tensor:
            return self.data[:3]

    rank = Rank()
    # Of some a rank may have no part.
    rank.step(torch.optim.SGD([Sharded(torch.ones(8)), nn.Parameter(torch.ones(0))], lr=0.1))

    assert rank.told.optimizers[0].elements == 3


def test_libraries_and_other_ways_are_those_that_are_loaded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rank = Rank()
    rank.step()
    plain = rank.told
    for name in ("accelerate", "lightning.pytorch", "mpi4py"):
        monkeypatch.setitem(sys.modules, name, sys)

    assert (plain.group, plain.floats, plain.wholes) == ("none", 0, 0)
    assert (plain.libraries, plain.other_ways) == ((), False)
    assert rank.told.libraries == ("lightning.pytorch", "accelerate")
    assert rank.told.other_ways


# ---- what travels


@pytest.fixture
def group(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A group of two ranks of which the other does nothing; methods are put back afterwards."""
    for name in METHODS:
        if (method := getattr(ProcessGroup, name, None)) is not None:
            monkeypatch.setattr(ProcessGroup, name, method)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    yield
    dist.destroy_process_group()


@pytest.mark.usefixtures("group")
def test_the_largest_call_counts_of_real_and_of_whole_numbers() -> None:
    carried = Carried()
    carried.count_calls()

    for _ in range(3):
        dist.all_reduce(torch.ones(5))
    dist.broadcast_object_list([{"lr": 0.1}], src=0)
    words = carried.wholes
    dist.all_gather([torch.zeros(7, 3), torch.zeros(7, 3)], torch.zeros(7, 3))
    dist.barrier()
    dist.send(torch.ones(900, dtype=torch.int8), 1)

    assert carried.floats == 42
    assert 0 < words < 900
    assert carried.wholes == 900


def test_a_group_that_the_program_has_ended_was_its_own() -> None:
    rank = Rank()
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    rank.step()
    dist.destroy_process_group()

    assert rank.told.group == "program"


@pytest.mark.usefixtures("group")
def test_what_is_wrong_with_a_call_torch_says() -> None:
    Carried().count_calls()
    group: Any = dist.group.WORLD

    with pytest.raises(TypeError):
        group.allreduce(1, 2, 3)


def flight(name: str, sizes: list[list[int]], dtype: str, group: str = "0") -> dict[str, Any]:
    return {
        "profiling_name": name,
        "process_group": [group, "default_pg"],
        "input_sizes": sizes,
        "input_dtypes": [dtype] * len(sizes),
    }


FLIGHT = flight("gloo:all_reduce", [[161], [8, 4]], "Float")
COUNTS = flight("gloo:broadcast", [[12]], "Long")
BARRIER = flight("gloo:barrier", [], "Float")
# Of one rank, by which the bootstrap looks what Gloo lacks.
TRIAL = flight("gloo:all_reduce", [[2]], "Float", group="")
NCCL = flight("nccl:all_reduce", [[500]], "Half")


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(
    ("backends", "entries", "of_nccl", "told"),
    [
        ("cpu:gloo", [FLIGHT, COUNTS, BARRIER], None, (193, 12)),
        ("cpu:gloo,cuda:gloo", [BARRIER], [], (0, 0)),
        ("cpu:gloo", [TRIAL], None, (0, 0)),
        ("cpu:gloo,cuda:nccl", [COUNTS], [NCCL], (500, 12)),
        ("cuda:nccl", [], [NCCL], (500, 0)),
        # A recorder that is empty may be one that records nothing.
        ("cpu:gloo", [], [], None),
        ("cpu:gloo", None, None, None),
        ("cpu:gloo,cuda:nccl", [FLIGHT], [], None),
        ("cpu:mpi", [FLIGHT], [NCCL], None),
    ],
)
def test_calls_of_c_plus_plus_are_read_of_backends_that_torch_records(
    monkeypatch: pytest.MonkeyPatch,
    backends: str,
    entries: Any,
    of_nccl: Any,
    told: tuple[int, int] | None,
) -> None:
    found = {False: entries, True: of_nccl}
    monkeypatch.setattr(counting, "flights", lambda of_nccl=False: found[of_nccl])
    monkeypatch.setattr(dist, "get_backend_config", lambda: backends)
    rank = Rank()

    rank.step()

    assert (rank.told.floats, rank.told.wholes) == (told or (None, None))
    assert rank.told.group == "program"


def test_the_hooks_are_those_of_every_optimizer_and_the_recorder_writes_what_they_tell(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.optim import optimizer as of_torch

    for hooks in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks"):
        monkeypatch.setattr(of_torch, hooks, type(getattr(of_torch, hooks))())
    learning, recorder = Learning(Carried(), lambda: False), Recorder()
    recorder.learning = learning.told
    learning.install()
    before = recorder._record(None)["learning"]
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)

    torch.optim.AdamW([weight]).step()

    assert before is None
    (trained,) = recorder._record(None)["learning"]["optimizers"]
    assert [step for step, _ in trained["sums"]] == [0, 1]
