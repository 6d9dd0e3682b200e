from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tests.unit.train.sync.tiny import VOCAB, Tiny, gradient_step
from torch import Tensor

from yoked.train.comm.communicator import Communicator, Work
from yoked.train.model.gpt import SOFTCAP
from yoked.train.trainer import Trainer, evaluate_bpb

TINY = Tiny(sequence_len=12, n_layer=3, rows=5)
# Of a gradient's norm.
LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12}


@pytest.fixture(params=LIMITS, ids=str)
def dtype(request: pytest.FixtureRequest) -> Iterator[torch.dtype]:
    """What all is computed and kept in."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(request.param)
    yield request.param
    torch.set_default_dtype(before)


class OneOf(Communicator):
    """A communicator that says which rank this is, and sends nothing."""

    def __init__(self, rank: int, world_size: int) -> None:
        super().__init__()
        self.rank, self.world_size = rank, world_size

    def all_reduce(self, tensor: Tensor, what: str) -> Work:
        return Work(None, None, what, self.clock)


def make_trainer(
    rank: int = 0,
    shares: tuple[float, ...] = (1.0,),
    *,
    batch: int = 2,
    dtype: torch.dtype = torch.float32,
) -> Trainer:
    """One rank's; ranks send nothing."""
    return TINY.trainer(OneOf(rank, len(shares)), list(shares), batch=batch, dtype=dtype)


def dense_gradients(trainer: Trainer, step: int) -> tuple[float, dict[str, Tensor]]:
    """This rank's nats and its part of the gradient of every parameter."""
    stats, rows = gradient_step(trainer, step)
    gradients = {}
    for name, parameter in trainer.buffers.parameters.items():
        if name in rows.tables:
            gradients[name] = torch.zeros(parameter.shape)
            gradients[name][rows.rows] = rows.tables[name]
        else:
            gradients[name] = trainer.buffers.gradient(name).clone()
    return stats.nats, gradients


def autograd_gradients(
    step: int, dtype: torch.dtype = torch.float32
) -> tuple[float, dict[str, Tensor]]:
    """Summed nats of the step's rows, and the gradient of their mean, by plain PyTorch."""
    model = TINY.model(dtype)
    rows = torch.from_numpy(TINY.batch(step * TINY.rows, (step + 1) * TINY.rows))
    raw = model.lm_head(model(rows[:, :-1]))[..., :VOCAB].flatten(0, 1)
    logits = SOFTCAP * torch.tanh(raw / SOFTCAP)
    loss = F.cross_entropy(logits, rows[:, 1:].flatten())
    loss.backward()
    gradients = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()) * TINY.rows * TINY.sequence_len, gradients


def assert_same_gradient(
    ours: dict[str, Tensor], step: int, dtype: torch.dtype = torch.float32
) -> None:
    """It is plain PyTorch's. A scalar's terms nearly cancel out, so that PyTorch itself may be more
    than the limit away from its own float64: that far, this may be away, too.
    """
    right, exact = (autograd_gradients(step, each)[1] for each in (dtype, torch.float64))
    assert ours.keys() == right.keys()
    for name, expected in right.items():
        limit = LIMITS[dtype] * (expected.norm() + 1e-4)
        if "lambda" in name:
            limit += (expected - exact[name]).norm()
        assert (ours[name] - expected).norm() <= limit, name


@pytest.mark.parametrize("batch", [1, 2, 5, 100])
@pytest.mark.parametrize("step", [0, 3])
def test_a_steps_gradient_is_that_of_its_mean_loss(batch, step, dtype):
    nats, gradients = dense_gradients(make_trainer(batch=batch, dtype=dtype), step)

    expected_nats, _ = autograd_gradients(step, dtype)
    assert nats == pytest.approx(expected_nats, rel=1e-5)
    assert_same_gradient(gradients, step, dtype)


@pytest.mark.parametrize("deferred", [2, 3, 8])
def test_deferred_backward_passes_change_no_bit(deferred):
    trainer, right = make_trainer(batch=1), make_trainer(batch=1)
    trainer.max_deferred = [deferred]

    nats, gradients = dense_gradients(trainer, 0)

    expected_nats, expected = dense_gradients(right, 0)
    assert nats == expected_nats
    assert all(torch.equal(gradients[name], expected[name]) for name in expected)


def test_deferred_passes_come_after_the_last_head(monkeypatch):
    trainer = make_trainer(batch=1)
    trainer.max_deferred = [3]
    order: list[str] = []
    head = trainer.lm_head.head  # type: ignore[attr-defined]
    loss, backward = head.loss, Tensor.backward
    monkeypatch.setattr(head, "loss", lambda *a, **k: (order.append("H"), loss(*a, **k))[1])
    monkeypatch.setattr(Tensor, "backward", lambda *a: (order.append("B"), backward(*a))[1])

    trainer.step(0)

    assert "".join(order) == "HBHBHHHBBB"


@pytest.mark.parametrize("shares", [(1.0, 1.0), (3.0, 1.0), (1.0, 0.0, 2.0), (1.0,) * 7])
def test_the_parts_of_all_ranks_add_up_to_the_gradient_of_one(shares, dtype):
    parts = [
        dense_gradients(make_trainer(rank, shares, dtype=dtype), 1) for rank in range(len(shares))
    ]

    expected_nats, expected = autograd_gradients(1, dtype)
    assert sum(nats for nats, _ in parts) == pytest.approx(expected_nats, rel=1e-5)
    assert_same_gradient(
        {name: sum(part[name] for _, part in parts) for name in expected},  # type: ignore[misc]
        1,
        dtype,
    )


def test_a_second_step_does_not_remember_the_first_ones_gradient():
    trainer = make_trainer()
    dense_gradients(trainer, 0)

    _, gradients = dense_gradients(trainer, 1)

    assert_same_gradient(gradients, 1)


def test_a_rank_without_rows_takes_part_and_reports_no_tokens():
    trainer = make_trainer(rank=1, shares=(1.0, 0.0))

    stats = trainer.step(0)

    assert (stats.nats, stats.tokens, trainer.rows[1]) == (0.0, 0, 0)


def test_step_s_takes_the_rows_from_s_times_b():
    trainer = make_trainer()
    read: list[tuple[int, int]] = []

    class Noted(Tiny):
        def batch(self, start: int, stop: int) -> np.ndarray:
            read.append((start, stop))
            return super().batch(start, stop)

    trainer.stream = Noted(**vars(TINY))

    stats = [trainer.step(step) for step in range(3)]

    assert read == [(0, 5), (5, 10), (10, 15)]
    assert {one.tokens for one in stats} == {TINY.rows * TINY.sequence_len}
    assert all(one.compute_s > 0 and one.bytes_sent == 0 for one in stats)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_loss_falls_on_rows_that_are_seen_again(dtype):
    trainer = make_trainer(dtype=dtype)

    class SameRows(Tiny):
        def batch(self, start: int, stop: int) -> np.ndarray:
            return super().batch(0, stop - start)

    trainer.stream = SameRows(**vars(TINY))
    losses = [trainer.step(step).nats for step in range(12)]

    assert losses[-1] < 0.8 * losses[0]
    assert all(math.isfinite(loss) for loss in losses)


# --- evaluation


def rows_of(numbers: np.ndarray) -> np.ndarray:
    return np.concatenate([TINY.batch(number, number + 1) for number in numbers])


def evaluate(
    token_bytes: Tensor, *, batch: int = 3, rows: int = 7, comm: Communicator | None = None
) -> float:
    comm = comm or OneOf(0, 1)
    trainer = make_trainer(comm.rank, (1.0,) * comm.world_size, batch=batch)
    trainer.comm = comm
    return evaluate_bpb(trainer, rows_of, rows, token_bytes)


def reference_bpb(token_bytes: Tensor, rows: int = 7) -> float:
    model = TINY.model()
    nats = byte_count = 0.0
    for number in range(rows):
        (row,) = torch.from_numpy(TINY.batch(number, number + 1))
        with torch.no_grad():
            logs = model.logits(model(row[None, :-1]))[0].log_softmax(-1)
        for position, target in enumerate(row[1:].tolist()):
            if token_bytes[target] > 0:
                nats -= float(logs[position, target])
                byte_count += float(token_bytes[target])
    return nats / (math.log(2) * byte_count)


@pytest.mark.parametrize("batch", [1, 3, 50])
def test_bits_per_byte_count_tokens_that_have_bytes_and_no_others(batch):
    token_bytes = torch.arange(60, dtype=torch.int32) % 5

    assert evaluate(token_bytes, batch=batch) == pytest.approx(reference_bpb(token_bytes), rel=1e-5)


def test_ranks_evaluate_every_row_once():
    token_bytes = torch.arange(60, dtype=torch.int32) % 5
    totals = torch.zeros(2, dtype=torch.float64)

    class Summing(OneOf):
        def all_reduce(self, tensor: Tensor, what: str) -> Work:
            totals.add_(tensor)
            tensor.copy_(totals)
            return super().all_reduce(tensor, what)

    results = [evaluate(token_bytes, comm=Summing(rank, 3)) for rank in range(3)]

    # The last rank has the sum of all; the first has only its own part.
    assert results[-1] == pytest.approx(reference_bpb(token_bytes), rel=1e-5)
    assert results[0] != pytest.approx(results[-1], rel=1e-3)


def test_no_bytes_at_all_are_no_number():
    assert math.isnan(evaluate(torch.zeros(60, dtype=torch.int32)))


def test_evaluation_leaves_no_gradient():
    trainer = make_trainer()

    evaluate_bpb(trainer, rows_of, 2, torch.ones(60))

    gradients = [parameter.grad for parameter in trainer.model.parameters()]
    assert not any(gradient.any() for gradient in gradients if gradient is not None)
    assert not trainer.buffers.head_grad.any()


def test_layers_that_are_computed_again_learn_the_same_bits():
    plain, again = make_trainer(), make_trainer()
    again.model.checkpoints_blocks = True

    for step in range(3):
        assert again.step(step).nats == plain.step(step).nats
    for one, other in zip(plain.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
