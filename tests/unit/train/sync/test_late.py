"""Gradients that are used one step late: when, and the same for any ranks."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from tests.unit.train.sync.tiny import Tiny
from torch import Tensor

from yoked.train.comm.communicator import Communicator
from yoked.train.optim.late_gradients import LATE_GRADIENT
from yoked.train.optim.param_buffers import HEAD
from yoked.train.sync.late import late_steps
from yoked.train.sync.same_step import HEAD_GRADIENT
from yoked.train.trainer import Trainer

TINY = Tiny(sequence_len=8, n_layer=2, rows=6)
MATRIX = "transformer.h.0.mlp.c_fc.weight"
WAYS = ["late", "late-head"]
LATES = [f"{way}{codec}" for way in WAYS for codec in ("", ":bf16", ":int8", ":int4")]
Weights = list[list[Tensor]]
SHARES = [[1.0], [1.0, 1.0], [3.0, 1.0], [2.0, 0.0, 1.0]]


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """As they are now, on all ranks."""
    trainer.gather_weights()
    return {name: each.detach().clone() for name, each in trainer.buffers.parameters.items()}


def trained(
    comm: Communicator, shares: list[float], sync: str, steps: int = 8, **more
) -> list[Tensor]:
    more = {"batch": 1, "late": (2, 6), **more}
    trainer = TINY.trainer(comm, shares, sync, **more)
    for step in range(steps):
        trainer.step(step)
    return list(weights(trainer).values())


@functools.cache
def whole_run(
    on_ranks: Callable[..., Weights],
    shares: tuple[float, ...],
    sync: str,
    vocab_parallel: bool = False,
) -> Weights:
    """What `trained` gives on each rank: once, for all tests that compare with it."""
    return on_ranks(
        len(shares),
        lambda comm: trained(comm, list(shares), sync, vocab_parallel=vocab_parallel),
    )


@pytest.mark.parametrize("way", WAYS)
def test_each_step_has_one_update_with_its_own_or_the_last_gradient(way):
    trainer = TINY.trainer(Communicator(), [1.0], way, late=(1, 4))
    made, used, heads = list[Tensor](), list[list[Tensor]](), list[Tensor]()
    made_of_head = list[Tensor]()
    update, update_head = trainer.optimizer.step_bucket, trainer.optimizer.step_head
    kept = trainer.sync.replicated

    def step_bucket(step, due):
        if MATRIX in due.bucket.names:
            used[-1].append(due.gradients[due.bucket.names.index(MATRIX)].clone())
        update(step, due)

    def step_head(step, gradient):
        heads.append(gradient.clone())
        update_head(step, gradient)

    def replicated():
        made_of_head.append(trainer.buffers.head_grad.clone())
        return kept()

    trainer.optimizer.step_bucket, trainer.optimizer.step_head = step_bucket, step_head
    trainer.sync.replicated = replicated
    for step in range(6):
        used.append([])
        trainer.step(step)
        made.append(trainer.buffers.gradient(MATRIX).clone())

    late, on_time = [0, 0, 1, 2, 4, 5], range(6)
    assert [len(each) for each in used] == [1] * 6
    for (gradient,), right in zip(used, late if way == "late" else on_time, strict=True):
        assert torch.equal(gradient, made[right])
    for gradient, right in zip(heads, late, strict=True):
        assert torch.equal(gradient, made_of_head[right])


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_late_uses_its_own_gradients(way):
    late, exact = (
        TINY.trainer(Communicator(), [1.0], sync, late=(1, 100)) for sync in (way, "exact")
    )
    for step in range(2):
        late.step(step)
        exact.step(step)

    ours, theirs = weights(late), weights(exact)
    same = {name for name, weight in ours.items() if torch.equal(weight, theirs[name])}
    assert same == set(ours) - {HEAD, *(late.buffers.owners if way == "late" else ())}


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Rounding, which training amplifies, is then far below what a wrong gradient would do."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("shares", SHARES[1:])
@pytest.mark.parametrize("vocab_parallel", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_one_curve_for_any_ranks_and_shares(on_ranks, shares, vocab_parallel, way):
    more = {"dtype": torch.float64}

    def train(comm: Communicator) -> list[Tensor]:
        return trained(comm, shares, way, vocab_parallel=vocab_parallel, **more)

    (alone,) = on_ranks(1, lambda comm: trained(comm, [1.0], way, **more))
    for found in on_ranks(len(shares), train):
        for one, other in zip(found, alone, strict=True):
            assert one.dtype == torch.float64
            assert (one - other).norm() <= 1e-10 * (1 + other.norm())


@pytest.mark.parametrize("sync", LATES)
@pytest.mark.parametrize("shares", SHARES[1:])
def test_weights_stay_equal_on_all_ranks_and_repeat_to_the_bit(on_ranks, sync, shares):
    first = whole_run(on_ranks, tuple(shares), sync)
    second = on_ranks(len(shares), lambda comm: trained(comm, shares, sync))

    for found in (*first, *second):
        assert all(torch.equal(one, other) for one, other in zip(found, first[0], strict=True))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("vocab_parallel", [False, True])
@pytest.mark.parametrize("way", WAYS)
def test_one_curve_where_rows_move_while_gradients_wait(on_ranks, vocab_parallel, way):
    more = {"batch": 1, "dtype": torch.float64, "late": (2, 8)}

    def train(comm: Communicator) -> list[Tensor]:
        trainer = TINY.trainer(comm, [1.0, 1.0], way, vocab_parallel=vocab_parallel, **more)
        for step in range(10):
            if step in (4, 6):
                parts = [5.0, 1.0] if step == 4 else [1.0, 2.0]
                trainer.assign([round(6 * part / sum(parts)) for part in parts], parts)
            trainer.step(step)
        return list(weights(trainer).values())

    (alone,) = on_ranks(1, lambda comm: trained(comm, [1.0], way, 10, **more))
    for found in on_ranks(2, train):
        for one, other in zip(found, alone, strict=True):
            assert (one - other).norm() <= 1e-10 * (1 + other.norm())


@pytest.mark.parametrize(
    ("shares", "vocab_parallel"),
    [*((shares, False) for shares in SHARES), ([3.0, 1.0], True), ([2.0, 0.0, 1.0], True)],
)
@pytest.mark.parametrize("stop", [2, 3, 6, 7])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_that_goes_on_from_its_state_has_the_same_bits(
    on_ranks, shares, stop, vocab_parallel, way
):
    more = {"batch": 1, "late": (2, 6), "vocab_parallel": vocab_parallel}

    def in_two(comm: Communicator) -> list[Tensor]:
        trainer = TINY.trainer(comm, shares, way, **more)
        for step in range(stop):
            trainer.step(step)
        trainer.gather_weights()
        whole = trainer.state.gather()
        other = TINY.trainer(comm, shares, way, **more)
        saved = None
        if whole is not None:
            for name, parameter in other.buffers.parameters.items():
                parameter.data.copy_(whole[name])
            saved = other.optimizer.load(trainer.optimizer.state_dict(whole))
        other.state.broadcast(lambda _: None, saved, has_owned=True)
        other.optimizer.num_updates = trainer.optimizer.num_updates
        for step in range(stop, 8):
            other.step(step)
        return list(weights(other).values())

    whole = whole_run(on_ranks, tuple(shares), way, vocab_parallel)
    for ours, right in zip(on_ranks(len(shares), in_two), whole, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, right, strict=True))


@pytest.mark.parametrize(
    ("steps", "warmup", "late"),
    [(300, 40, range(40, 280)), (60, 40, range(40, 54)), (12, 0, range(10)), (12, 40, ())],
)
def test_no_gradient_waits_while_the_rate_is_raised_and_in_the_last_steps(steps, warmup, late):
    found = late_steps(steps, warmup, matrices=False)

    assert [step for step in range(steps) if step in found] == list(late)


@pytest.mark.parametrize(
    ("before", "way"), [("exact", "late-head"), ("exact", "late"), ("late-head", "late")]
)
def test_a_run_that_goes_on_from_a_state_without_its_late_gradients_begins_on_time(before, way):
    first, exact, late = (
        TINY.trainer(Communicator(), [1.0], sync) for sync in (before, "exact", way)
    )
    for step in range(3):
        first.step(step)
    first.drain()
    whole = first.state.gather()
    for trainer in (exact, late):
        saved = trainer.optimizer.load(first.optimizer.state_dict(whole))
        buckets = range(len(late.buffers.buckets))
        assert all(not saved[f"{LATE_GRADIENT}/{number}"].any() for number in buckets)
        for name, parameter in trainer.buffers.parameters.items():
            parameter.data.copy_(first.buffers.parameters[name])

    for trainer in (exact, late):
        trainer.step(3)

    assert all(torch.equal(each, weights(late)[name]) for name, each in weights(exact).items())
    late.step(4)
    exact.step(4)
    assert not torch.equal(weights(late)[HEAD], weights(exact)[HEAD])


@pytest.mark.parametrize(
    ("way", "late_ones"), [("late", {"matrix", HEAD_GRADIENT}), ("late-head", {HEAD_GRADIENT})]
)
def test_nobody_waits_for_late_gradients_in_their_own_step(on_ranks, way, late_ones):
    def asked(comm: Communicator) -> list[list[str]]:
        trainer = TINY.trainer(comm, [1.0, 1.0], way, late=(0, 100))
        found = list[list[str]]()
        receive = comm.irecv

        def irecv(buffer, source, tag, name):
            work = receive(buffer, source, tag, name)
            wait = work.wait

            def noted():
                found[-1].append(name)
                wait()

            work.wait = noted
            return work

        comm.irecv = irecv
        for step in range(3):
            found.append([])
            trainer.step(step)
        found.append([])
        trainer.drain()
        return found[:-1]

    for steps in on_ranks(2, asked):
        kinds = [{re.sub(r"the gradient of .*", "matrix", name) for name in step} for step in steps]
        bulk = {"table gradients", "matrix", HEAD_GRADIENT, "new matrices"}
        # The first has none of a step before it.
        assert kinds == [bulk - {"new matrices"}, bulk - late_ones, bulk]
