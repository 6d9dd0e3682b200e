from __future__ import annotations

import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from yoked.errors import DivergedError
from yoked.train.comm.communicator import Communicator, Work
from yoked.train.comm.step_clock import StepClock
from yoked.train.model.gpt import GPT, ModelConfig
from yoked.train.optim.groups import LearningRates, build_groups
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule
from yoked.train.sync.agreement import (
    check_weights,
    checksum,
    fingerprint,
    same_start,
    whole_state,
)

CONFIG = ModelConfig(
    sequence_len=8, vocab_size=64, n_layer=1, n_head=1, n_kv_head=1, n_embd=32, window_pattern="L"
)
DONE = Work(None, None, "a test", StepClock())


class OtherRanks(Communicator):
    """A communicator whose other ranks hold what a function makes of this rank's tensor."""

    def __init__(self, *others) -> None:
        super().__init__()
        self.active, self.rank, self.world_size = True, 0, 1 + len(others)
        self.rest = others

    def all_gather(self, tensor: Tensor, what: str) -> tuple[Tensor, Work]:
        return torch.stack([tensor, *(other(tensor.clone()) for other in self.rest)]), DONE


class RankZero(Communicator):
    """Between rank 1 and the tensors that their owners would send. sent_bytes: so far."""

    def __init__(self, tensors: list[Tensor]) -> None:
        super().__init__()
        self.active, self.rank, self.world_size = True, 1, 2
        self.tensors, self.coming = tensors, iter(tensors)
        self.sent_bytes = 0

    def all_gather(self, tensor: Tensor, what: str) -> tuple[Tensor, Work]:
        theirs = torch.stack([fingerprint(each) for each in self.tensors])
        unlike = (tensor != theirs).any(dim=1).tolist()
        self.coming = iter([each for each, u in zip(self.tensors, unlike, strict=True) if u])
        return torch.stack([theirs, tensor]), DONE

    def broadcast(self, tensor: Tensor, owner: int, what: str) -> Work:
        self.sent_bytes += tensor.nbytes
        tensor.copy_(next(self.coming))
        return DONE


def make_model() -> GPT:
    model = GPT(CONFIG)
    model.init_weights()
    return model


def make_optimizer(speeds: tuple[float, ...] = (1.0,), rank: int = 0) -> MuonAdamW:
    model = make_model()
    groups = build_groups(model, LearningRates(), batch_lr_scale=1.0, muon_weight_decay=0.1)
    return MuonAdamW(ParamBuffers(model, groups, speeds), Schedule(10), rank)


def same(sums: Tensor) -> Tensor:
    return sums


def other_head(sums: Tensor) -> Tensor:
    names = [name for name, _ in make_model().named_parameters()]
    sums[names.index("lm_head.weight")] += 1
    return sums


def test_equal_weights_pass():
    check_weights(make_model(), OtherRanks(same, same), step=1)


@pytest.mark.parametrize(
    ("others", "named"),
    [
        ((same, other_head), "rank 2 holds other weights than the others"),
        ((other_head,), "rank 1 holds other weights than the other,"),
        ((other_head, other_head), "rank 0 holds other weights than the others"),
        ((same, other_head, same, lambda sums: sums + 5), "ranks 2, 4 hold"),
    ],
)
def test_the_rank_that_differs_from_most_is_named_with_the_parameter(others, named):
    with pytest.raises(DivergedError, match=re.escape(named)) as caught:
        check_weights(make_model(), OtherRanks(*others), step=7)

    assert str(caught.value).startswith("after step 7, ")
    assert "first in lm_head.weight" in str(caught.value)
    assert "--resume" in str(caught.value)


def test_one_rank_alone_always_agrees():
    check_weights(make_model(), Communicator(), step=1)


@settings(deadline=None)
@given(
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float64]),
    index=st.integers(0, 34),
    bit=st.integers(0, 15),
)
def test_one_flipped_bit_changes_a_checksum(dtype, index, bit):
    tensor = torch.randn(5, 7, generator=torch.Generator().manual_seed(index)).to(dtype)
    other = tensor.clone()
    integers = {2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    flipped = torch.tensor(1).bitwise_left_shift(bit).to(integers)
    other.view(integers).view(-1)[index] ^= flipped

    assert checksum(tensor) != checksum(other)
    assert checksum(tensor) == checksum(tensor.clone())


def test_a_checksum_tells_zeros_of_unlike_sign_apart_and_takes_numbers_that_are_none():
    assert checksum(torch.tensor([0.0])) != checksum(torch.tensor([-0.0]))
    assert checksum(torch.tensor(float("nan"))) == checksum(torch.tensor(float("nan")))


def test_a_checksum_does_not_depend_on_strides():
    tensor = torch.randn(4, 6)

    assert checksum(tensor.t().contiguous().t()) == checksum(tensor)


def start_of(optimizer: MuonAdamW) -> list[Tensor]:
    """What the first rank has that all ranks must have."""
    return [
        *(parameter.detach() for parameter in optimizer.buffers.parameters.values()),
        *optimizer.exp_avg.values(),
        *optimizer.exp_avg_sq.values(),
    ]


def test_every_rank_starts_with_the_weights_and_adamw_state_of_the_first():
    sender, receiver = make_optimizer(), make_optimizer()
    with torch.no_grad():
        for number, parameter in enumerate(sender.buffers.parameters.values()):
            parameter.fill_(number)
        for number, name in enumerate(sender.adamw_names):
            sender.first[name].fill_(-number)
            sender.second[name].fill_(number + 0.5)
    said: list[str] = []

    same_start(receiver.buffers, receiver, RankZero(start_of(sender)), said.append)

    for ours, theirs in zip(start_of(receiver), start_of(sender), strict=True):
        assert torch.equal(ours, theirs)
    assert receiver.buffers.matrices.ne(0).any()
    assert len(said) == 1
    assert re.fullmatch(r"sending \S+ kB of weights and optimizer state to all ranks", said[0])


def test_what_all_ranks_hold_alike_does_not_travel():
    sender, receiver = make_optimizer(), make_optimizer()
    comm, said = RankZero(start_of(sender)), []

    same_start(receiver.buffers, receiver, comm, said.append)

    assert (comm.sent_bytes, said) == (0, [])


def test_what_only_some_rank_holds_otherwise_travels_alone():
    sender, receiver = make_optimizer(), make_optimizer()
    head = sender.buffers.parameters["lm_head.weight"]
    with torch.no_grad():
        head.view(-1)[3] += 1e-6
    comm, said = RankZero(start_of(sender)), []

    same_start(receiver.buffers, receiver, comm, said.append)

    assert torch.equal(receiver.buffers.parameters["lm_head.weight"], head)
    assert comm.sent_bytes == head.nbytes
    assert len(said) == 1


def test_one_rank_alone_sends_nothing_at_its_start():
    optimizer = make_optimizer()

    same_start(optimizer.buffers, optimizer, Communicator(), pytest.fail)


@settings(deadline=None)
@given(index=st.integers(0, 5), other=st.integers(0, 5))
def test_a_fingerprint_tells_places_apart_which_a_checksum_does_not(index, other):
    tensor = torch.zeros(2, 3, dtype=torch.bfloat16)
    moved = tensor.clone()
    tensor.view(-1)[index], moved.view(-1)[other] = 1.0, 1.0

    assert torch.equal(fingerprint(tensor), fingerprint(moved)) == (index == other)
    assert checksum(tensor) == checksum(moved)
    assert torch.equal(fingerprint(torch.tensor(2.0)), fingerprint(torch.tensor(2.0)))


def test_the_whole_state_of_one_rank_is_its_own():
    optimizer = make_optimizer()

    state = whole_state(optimizer, Communicator())

    assert state["muon"].keys() == optimizer.muon_state().keys()
    assert state["adamw"].keys() == optimizer.adamw_state().keys()
    for name, entry in optimizer.muon_state().items():
        assert all(torch.equal(state["muon"][name][key], value) for key, value in entry.items())


def test_the_whole_state_has_the_matrices_of_other_owners_as_they_send_them():
    optimizer = make_optimizer((1.0, 1.0))
    buckets = optimizer.buffers.buckets
    sent = []
    for bucket in buckets:
        shape = (len(bucket.names), *bucket.shape)
        sent += [
            torch.full(shape, 3.0),
            torch.full_like(optimizer.empty_second_moment(bucket), 4.0),
        ]

    state = whole_state(optimizer, RankZero(sent))

    assert set(state["muon"]) == set(optimizer.buffers.owners)
    for bucket in buckets:
        for name in bucket.names:
            entry = state["muon"][name]
            assert entry["momentum_buffer"].shape == bucket.shape
            assert entry["momentum_buffer"].eq(3).all()
            assert entry["second_momentum_buffer"].eq(4).all()
