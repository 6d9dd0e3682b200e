"""Gradients that are used one step late: when, and the same for any ranks."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
import torch
from tests.unit.train.sync.tiny import Tiny
from torch import Tensor

from yoked.train.comm.communicator import Communicator
from yoked.train.optim.late_gradients import LATE
from yoked.train.sync.late import LateSteps, late_steps
from yoked.train.trainer import Trainer

TINY = Tiny(sequence_len=8, n_layer=2, rows=6)
MATRIX = "transformer.h.0.mlp.c_fc.weight"
LATES = ["late", "late:bf16", "late:int8", "late:int4"]
SHARES = [[1.0], [1.0, 1.0], [3.0, 1.0], [2.0, 0.0, 1.0]]


def weights(trainer: Trainer) -> dict[str, Tensor]:
    """As they are now, on all ranks."""
    trainer.gather_weights()
    return {name: each.detach().clone() for name, each in trainer.buffers.parameters.items()}


def trained(
    comm: Communicator, shares: list[float], sync: str, steps: int = 8, **more
) -> list[Tensor]:
    more = {"batch": 1, "late": LateSteps(2, 6), **more}
    trainer = TINY.trainer(comm, shares, sync, **more)
    for step in range(steps):
        trainer.step(step)
    return list(weights(trainer).values())


def test_each_gradient_is_used_once_a_step_late_where_it_is_put_off():
    trainer = TINY.trainer(Communicator(), [1.0], "late", late=LateSteps(1, 4))
    made, used = list[Tensor](), list[list[Tensor]]()
    update = trainer.optimizer.step_bucket

    def step_bucket(step, due):
        if MATRIX in due.bucket.names:
            used[-1].append(due.gradients[due.bucket.names.index(MATRIX)].clone())
        update(step, due)

    trainer.optimizer.step_bucket = step_bucket
    for step in range(6):
        used.append([])
        trainer.step(step)
        made.append(trainer.buffers.gradient(MATRIX).clone())

    assert [len(each) for each in used] == [1, 0, 1, 1, 2, 1]
    for gradient, right in zip((each for step in used for each in step), made, strict=True):
        assert torch.equal(gradient, right)


def test_the_first_step_of_the_delay_changes_nothing_and_the_next_uses_its_gradients():
    late, exact = (
        TINY.trainer(Communicator(), [1.0], sync, late=LateSteps(0, 100))
        for sync in ("late", "exact")
    )
    begun = weights(late)
    late.step(0)
    same = weights(late)
    late.step(1)
    exact.step(0)

    ours, theirs = weights(late), weights(exact)
    for name, weight in ours.items():
        assert torch.equal(same[name], begun[name]), name
        # The same gradients, with the learning rate of another step.
        moved, right = weight - begun[name], theirs[name] - begun[name]
        assert torch.nn.functional.cosine_similarity(moved.flatten(), right.flatten(), dim=0) > 0.9


@pytest.fixture
def in_float64() -> Iterator[None]:
    """Rounding, which training amplifies, is then far below what a wrong gradient would do."""
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("shares", SHARES[1:])
@pytest.mark.parametrize("vocab_parallel", [False, True])
def test_one_curve_for_any_ranks_and_shares(on_ranks, shares, vocab_parallel):
    more = {"dtype": torch.float64}

    def train(comm: Communicator) -> list[Tensor]:
        return trained(comm, shares, "late", vocab_parallel=vocab_parallel, **more)

    (alone,) = on_ranks(1, lambda comm: trained(comm, [1.0], "late", **more))
    for found in on_ranks(len(shares), train):
        for one, other in zip(found, alone, strict=True):
            assert one.dtype == torch.float64
            assert (one - other).norm() <= 1e-10 * (1 + other.norm())


@pytest.mark.parametrize("sync", LATES)
@pytest.mark.parametrize("shares", SHARES[1:])
def test_weights_stay_equal_on_all_ranks_and_repeat_to_the_bit(on_ranks, sync, shares):
    first, second = (
        on_ranks(len(shares), lambda comm: trained(comm, shares, sync)) for _ in range(2)
    )

    for found in (*first, *second):
        assert all(torch.equal(one, other) for one, other in zip(found, first[0], strict=True))


@pytest.mark.usefixtures("in_float64")
@pytest.mark.parametrize("vocab_parallel", [False, True])
def test_one_curve_where_rows_move_while_gradients_wait(on_ranks, vocab_parallel):
    more = {"batch": 1, "dtype": torch.float64, "late": LateSteps(2, 8)}

    def train(comm: Communicator) -> list[Tensor]:
        trainer = TINY.trainer(comm, [1.0, 1.0], "late", vocab_parallel=vocab_parallel, **more)
        for step in range(10):
            if step in (4, 6):
                parts = [5.0, 1.0] if step == 4 else [1.0, 2.0]
                trainer.assign([round(6 * part / sum(parts)) for part in parts], parts)
            trainer.step(step)
        return list(weights(trainer).values())

    (alone,) = on_ranks(1, lambda comm: trained(comm, [1.0], "late", 10, **more))
    for found in on_ranks(2, train):
        for one, other in zip(found, alone, strict=True):
            assert (one - other).norm() <= 1e-10 * (1 + other.norm())


@pytest.mark.parametrize(
    ("shares", "vocab_parallel"),
    [*((shares, False) for shares in SHARES), ([3.0, 1.0], True), ([2.0, 0.0, 1.0], True)],
)
@pytest.mark.parametrize("stop", [2, 3, 6, 7])
def test_a_run_that_goes_on_from_its_state_has_the_same_bits(
    on_ranks, shares, stop, vocab_parallel
):
    more = {"batch": 1, "late": LateSteps(2, 6), "vocab_parallel": vocab_parallel}

    def in_two(comm: Communicator) -> list[Tensor]:
        trainer = TINY.trainer(comm, shares, "late", **more)
        for step in range(stop):
            trainer.step(step)
        trainer.gather_weights()
        whole = trainer.state.gather()
        other = TINY.trainer(comm, shares, "late", **more)
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

    whole = on_ranks(len(shares), lambda comm: trained(comm, shares, "late", **more))
    for ours, right in zip(on_ranks(len(shares), in_two), whole, strict=True):
        assert all(torch.equal(one, other) for one, other in zip(ours, right, strict=True))


@pytest.mark.parametrize(
    ("steps", "warmup", "late"),
    [(300, 40, range(40, 280)), (60, 40, range(40, 54)), (12, 0, range(10)), (12, 40, ())],
)
def test_no_gradient_waits_while_the_rate_is_raised_and_in_the_last_steps(steps, warmup, late):
    found = late_steps(steps, warmup)

    assert [step for step in range(steps) if step in found] == list(late)


def test_a_state_without_late_gradients_begins_with_none():
    exact, late = (TINY.trainer(Communicator(), [1.0], sync) for sync in ("exact", "late"))
    exact.step(0)
    exact.drain()

    saved = late.optimizer.load(exact.optimizer.state_dict(exact.state.gather()))

    assert all(not saved[f"{LATE}/{n}"].any() for n in range(len(late.buffers.buckets)))
    assert not late.optimizer.late.head.any()
    assert len(late.optimizer.late.row_grads().rows) == 0


def test_nobody_waits_for_a_late_gradient_in_its_own_step(on_ranks):
    def asked(comm: Communicator) -> list[list[str]]:
        trainer = TINY.trainer(comm, [1.0, 1.0], "late", late=LateSteps(0, 100))
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
        bulk = {"matrix", "the lm_head's gradient", "table gradients"}
        assert kinds == [set(), bulk, bulk | {"new matrices"}]
