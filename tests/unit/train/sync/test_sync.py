"""The parts of ranks, joined by every payload dtype, against one process."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.train.sync.tiny import Tiny, gradient_step
from torch import Tensor

from yoked.costmodel.step_plan import SYNCS
from yoked.costmodel.work import INT8_BLOCK, rows_compression
from yoked.train.comm.communicator import Communicator
from yoked.train.state import checksum
from yoked.train.sync import row_reduce
from yoked.train.trainer import Trainer

TINY = Tiny(sequence_len=8, n_layer=3, rows=6)
UNIT_ROUNDOFF = torch.finfo(torch.float32).eps / 2
BATCHES = st.lists(st.integers(1, 7), min_size=4, max_size=4)
SHARES = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


def summed_gradients(trainer: Trainer) -> dict[str, Tensor]:
    """The gradients of step 0 that this rank would apply: all but the matrices of others."""
    _, rows = gradient_step(trainer, 0)
    trainer.drain()
    found: dict[str, Tensor] = {}
    for name, parameter in trainer.buffers.parameters.items():
        if name in rows.tables:
            found[name] = torch.zeros(parameter.shape)
            found[name][rows.rows] = rows.tables[name]
        elif trainer.buffers.owners.get(name, trainer.comm.rank) == trainer.comm.rank:
            found[name] = trainer.buffers.gradient(name).clone()
    return found


@pytest.fixture(scope="session")
def joined(on_ranks):
    """The gradients of all ranks; where several hold one, they must be equal to the bit."""

    def join(
        shares: list[float],
        payload: str = "exact",
        batch: int | list[int] = 2,
        deferred: int = 2,
        tiny: Tiny = TINY,
    ) -> dict[str, Tensor]:
        def gradients(comm: Communicator) -> dict[str, Tensor]:
            trainer = tiny.trainer(comm, shares, payload, batch=batch)
            trainer.max_deferred = [deferred] * len(shares)
            return summed_gradients(trainer)

        total: dict[str, Tensor] = {}
        for found in on_ranks(len(shares), gradients):
            for name, gradient in found.items():
                assert name not in total or torch.equal(total[name], gradient), name
                total[name] = gradient
        return total

    return join


@pytest.fixture(scope="session")
def alone(joined):
    """The gradients of one process."""
    return joined([1.0])


@settings(deadline=None, max_examples=25)
@given(shares=SHARES, batches=BATCHES, deferred=st.integers(1, 4))
def test_any_split_of_a_step_gives_the_single_process_gradient(
    joined, alone, shares, batches, deferred
):
    batch = batches[: len(shares)]  # each rank has its own
    found = joined([float(share) for share in shares], batch=batch, deferred=deferred)

    assert found.keys() == alone.keys()
    whole = _norm(alone.values())
    assert _norm(found[name] - expected for name, expected in alone.items()) <= 1e-6 * whole
    for name, expected in alone.items():
        limit = 1e-5 * expected.norm() + 1e-9
        if expected.numel() == 1:
            # Its tokens cancel out: what is left of them is rounded as they are.
            limit = max(limit, whole * UNIT_ROUNDOFF)
        assert (found[name] - expected).norm() <= limit, name


def _norm(tensors: Iterable[Tensor]) -> Tensor:
    """Of all of them taken together."""
    return torch.stack([tensor.norm() for tensor in tensors]).norm()


@pytest.mark.parametrize("world_size", [2, 3])
@pytest.mark.parametrize(("payload", "error"), [("bf16", 5e-3), ("int8", 2e-2), ("int4", 0.2)])
def test_a_lossy_payload_is_near_the_gradient_and_equal_on_all_ranks(
    joined, alone, world_size, payload, error
):
    found = joined([1.0] * world_size, payload)

    for name, expected in alone.items():
        assert (found[name] - expected).norm() <= error * expected.norm() + 1e-9, name


def test_rows_of_tables_are_sent_in_eight_bits_where_each_has_a_scale(joined):
    wide = Tiny(sequence_len=8, n_layer=1, rows=4, width=INT8_BLOCK)
    exact, found = (joined([1.0, 1.0], payload, tiny=wide) for payload in ("exact", "int4"))

    for table in ("transformer.wte.weight", "value_embeds.0.weight"):
        used = exact[table].abs().amax(dim=1, keepdim=True)
        # Of each rank at most half a 127th of the row's largest number.
        worst = ((found[table] - exact[table]).abs() / used.clamp_min(1e-12)).max()
        assert 1e-4 < worst < 2e-2


@pytest.mark.parametrize(
    ("payload", "widths", "rows"),
    [("int8", (256, 512), "int8"), ("int4", (256,), "int8"), ("int4", (384, 256), "bf16"),
     ("bf16", (256,), "bf16"), ("exact", (384,), "exact")],
)  # fmt: skip
def test_no_two_rows_share_a_scale(payload, widths, rows):
    assert rows_compression(payload, widths) == rows


def weights_after(comm: Communicator, shares: list[float], payload: str, steps: int) -> list[int]:
    trainer = TINY.trainer(comm, shares, payload)
    for step in range(steps):
        trainer.step(step)
    trainer.drain()
    return [checksum(parameter) for parameter in trainer.buffers.parameters.values()]


@pytest.mark.parametrize("payload", SYNCS)
@pytest.mark.parametrize("shares", [[1.0, 1.0], [2.0, 0.0, 1.0]])
def test_weights_stay_equal_on_all_ranks_and_repeat_to_the_bit(on_ranks, payload, shares):
    first, second = (
        on_ranks(len(shares), lambda comm: weights_after(comm, shares, payload, 4))
        for _ in range(2)
    )

    assert all(sums == first[0] for sums in first)
    assert first == second


@pytest.mark.parametrize("payload", ["bf16", "int8", "int4"])
def test_error_feedback_brings_in_later_what_rounding_lost(on_ranks, alone, payload):
    def sums(comm: Communicator) -> tuple[Tensor, Tensor]:
        trainer = TINY.trainer(comm, [1.0, 1.0], payload)
        total = torch.zeros_like(trainer.buffers.head_grad)
        for _ in range(20):
            total += summed_gradients(trainer)["lm_head.weight"]
        return total / 20, trainer.buffers.head_grad

    (mean, last), _ = on_ranks(2, sums)

    expected = alone["lm_head.weight"]
    assert (mean - expected).norm() < 0.2 * (last - expected).norm()


@pytest.mark.parametrize(
    ("payload", "bits"), [("exact", 32), ("bf16", 16), ("int8", 8.2), ("int4", 5.1)]
)
def test_a_rank_of_two_sends_as_much_as_in_a_ring(on_ranks, payload, bits):
    def sent(comm: Communicator) -> int:
        trainer = TINY.trainer(comm, [1.0, 1.0], payload)
        trainer.step(0)
        trainer.drain()
        return comm.bytes_sent

    dense = sum(
        parameter.numel()
        for n, parameter in TINY.trainer(Communicator(), [1.0]).buffers.parameters.items()
        if n == "lm_head.weight" or n.startswith("transformer.h.")
    )
    rows = 48 * 3 * 32 * (4 if payload == "exact" else 2)

    assert on_ranks(2, sent) == pytest.approx([dense * bits / 8 + rows / 2] * 2, rel=0.25)


def test_matrices_by_collectives_learn_the_same(on_ranks):
    def weights(comm: Communicator, by_collectives: bool) -> list[Tensor]:
        comm.device_group = object() if by_collectives else None  # type: ignore[assignment]
        trainer = TINY.trainer(comm, [1.0, 1.0])
        for step in range(3):
            trainer.step(step)
        trainer.drain()
        return [parameter.detach() for parameter in trainer.buffers.parameters.values()]

    plain, collective = (
        on_ranks(2, lambda comm, way=way: weights(comm, way))[0] for way in (False, True)
    )

    for one, other in zip(plain, collective, strict=True):
        assert torch.allclose(one, other, rtol=1e-5, atol=1e-7)


def test_whole_tables_instead_of_rows_give_the_same_gradient(joined, alone, monkeypatch):
    monkeypatch.setattr(row_reduce, "whole_tables_are_less", lambda *_: True)

    found = joined([1.0, 2.0, 0.0])

    for name, expected in alone.items():
        assert (found[name] - expected).norm() <= 1e-5 * expected.norm() + 1e-9, name
