"""What a step allocates and moves at real sizes, from shapes alone: fake tensors on the device.

A norm, attention and a rotation are one operation each, as a GPU's kernels and compiled graphs
have them.
"""

from __future__ import annotations

import collections
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from tests.gpu import simulated
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from yoked.costmodel.memory import PROCESS_BYTES, rank_memory
from yoked.costmodel.model_shape import ModelShape, count_parameters
from yoked.costmodel.token_stats import expected_unique_tokens
from yoked.train import kernels
from yoked.train.config import TrainConfig
from yoked.train.gpu_fit import TYPICAL_BYTES, head_logits
from yoked.train.kernels import cuda
from yoked.train.model import cross_entropy, gpt, host_tables
from yoked.train.model.cross_entropy import FusedLinearCrossEntropy
from yoked.train.model.gpt import GPT
from yoked.train.model.row_grads import RowGrads
from yoked.train.optim.adamw import adamw_update, coefficients
from yoked.train.optim.groups import group_settings
from yoked.train.optim.muon import MuonStep, muon_update
from yoked.train.optim.optimizer import MuonAdamW
from yoked.train.optim.param_buffers import ParamBuffers
from yoked.train.optim.schedule import Schedule

VOCAB = 32_768
TOKENS = 2048


class Meter(TorchDispatchMode):
    """Bytes that are allocated on the device, and what operations read and write there."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = self.moved = self.kernels = 0
        self._seen: set[int] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[-1]
        results = [x for x in tree_leaves(out) if isinstance(x, Tensor)]
        for result in results:
            self._note(result)
        free = name in simulated.VIEWS or name.startswith(("empty", "new_empty"))
        if func.namespace != "prim" and not free:
            read = {key: value for key, value in (kwargs or {}).items() if key != "out"}
            operands = [x for x in tree_leaves((args, read)) if isinstance(x, Tensor)]
            self.count(sum(map(_bytes, operands)) + sum(map(_bytes, results)))
        return out

    def count(self, moved: int) -> None:
        """One kernel."""
        self.kernels += 1
        self.moved += moved

    def _note(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key in self._seen or tensor.device.type != simulated.NAME:
            return
        self._seen.add(key)
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, key, size)

    def _drop(self, key: int, size: int) -> None:
        self.live -= size
        self._seen.discard(key)


def _bytes(tensor: Tensor) -> int:
    if tensor.device.type != simulated.NAME:
        return 0
    # Of what was expanded, the memory behind it alone is read.
    return min(tensor.numel() * tensor.element_size(), tensor.untyped_storage().nbytes())


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float = 1.0) -> Tensor:
        ctx.save_for_backward(x, x.new_empty(*x.shape[:-1], 1, dtype=torch.float32))
        return torch.empty_like(x)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple:
        return torch.empty_like(ctx.saved_tensors[0]), None


class _Flash(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        y = torch.empty_like(q)
        ctx.save_for_backward(q, k, v, y, q.new_empty(*q.shape[:3], dtype=torch.float32))
        return y

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, ...]:
        return tuple(torch.empty_like(x) for x in ctx.saved_tensors[:3])


@pytest.fixture(autouse=True)
def one_kernel_each(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gpt, "norm", _Norm.apply)
    monkeypatch.setattr(gpt, "rotate_norm", lambda x, cos, sin, scale: _Norm.apply(x, scale))
    monkeypatch.setattr(gpt, "attend", lambda q, k, v, window, path: _Flash.apply(q, k, v))
    kernels.switch_off("shapes alone")
    yield
    kernels.switch_on()


class Measured:
    """One rank's step at full size, phase by phase: peak bytes, bytes moved and kernels of each."""

    def __init__(
        self,
        device: torch.device,
        depth: int,
        rows: int,
        *,
        checkpointed: bool = False,
        tables_on_host: bool = False,
        compiled: bool = False,
        meter: Meter | None = None,
    ) -> None:
        self.peak: dict[str, int] = {}
        self.moved: dict[str, int] = collections.Counter()
        self.shape = ModelShape.from_depth(
            depth,
            aspect_ratio=64,
            head_dim=128,
            sequence_len=TOKENS,
            vocab_size=VOCAB,
            window_pattern="L",
        )
        self._meter = meter or Meter()
        with FakeTensorMode(), self._meter:
            tables_device = torch.device("cpu") if tables_on_host else device
            self._step(device, rows, checkpointed, compiled, tables_device)

    def _phase(self, name: str) -> None:
        meter = self._meter
        self.peak[name], self.moved[name] = meter.peak, meter.moved
        meter.peak, meter.moved = meter.live, 0

    def _step(
        self,
        device: torch.device,
        rows: int,
        checkpointed: bool,
        compiled: bool,
        tables_device: torch.device,
    ) -> None:
        bf16, shape = torch.bfloat16, self.shape
        with torch.device(device):
            model = GPT(shape, bf16)
        for _, table in model.tables():
            values = torch.empty(table.weight.shape, device=tables_device, dtype=bf16)
            table.weight = nn.Parameter(values)
        model.checkpoints_blocks = checkpointed
        half = shape.head_dim // 2
        model.cos = torch.empty(TOKENS, 1, half, device=device, dtype=bf16)
        model.sin = torch.empty_like(model.cos)
        buffers = ParamBuffers(model, [1.0])
        settings = group_settings(
            TrainConfig(), shape.n_embd, batch_lr_scale=1.0, muon_weight_decay=0.1
        )
        optimizer = MuonAdamW(buffers, settings, Schedule(100), 0, in_bfloat16=True)
        every = torch.zeros(VOCAB, dtype=torch.int64, device=tables_device)
        tables = RowGrads(every, buffers.table_widths, VOCAB)
        self._phase("weights")

        head = FusedLinearCrossEntropy(VOCAB, compiled=compiled)
        targets = torch.zeros(rows, TOKENS, dtype=torch.int64, device=device)
        ids = torch.zeros_like(targets, device=tables_device)
        weight = model.lm_head.weight.detach().to(bf16)
        hidden = model(ids, tables)
        self._phase("forward")
        found = head.loss(
            hidden.detach().flatten(0, 1),
            weight,
            targets.flatten(),
            grad_scale=1.0,
            weight_grad_VC=buffers.head_grad,
        )
        self._phase("lm_head")
        # In this thread, which has the fake tensors' mode: a layer is computed again there.
        with torch.autograd.set_multithreading_enabled(False):
            hidden.backward(found.hidden_grad.view_as(hidden))
        tables.settle()
        del hidden, found
        self._phase("backward")
        how = MuonStep(0.02, 0.95, 0.1, in_bfloat16=True)
        for bucket in optimizer.owned:
            muon_update(
                bucket.view(buffers.matrices),
                bucket.view(buffers.matrix_grads),
                optimizer.momentum[bucket],
                optimizer.second_moment[bucket],
                how,
            )
        self._phase("muon")
        scalars = coefficients(1, 0.1, (0.8, 0.95), 0.0)
        for name in buffers.adamw_names:
            parameter = buffers.parameters[name].data
            gradient = tables.tables.get(name)
            adamw_update(
                parameter,
                buffers.gradient(name) if gradient is None else gradient,
                optimizer.exp_avg[name],
                optimizer.exp_avg_sq[name],
                scalars.to(parameter.device),
                None if gradient is None else tables.row_index,
            )
        self._phase("adamw")


@pytest.mark.parametrize("checkpointed", [False, True])
@pytest.mark.parametrize(("depth", "rows"), [(4, 8), (12, 8), (20, 1), (20, 4)])
def test_a_steps_peak_is_that_of_the_memory_model(
    sim: torch.device, depth: int, rows: int, checkpointed: bool
) -> None:
    measured = Measured(sim, depth, rows, checkpointed=checkpointed)

    predicted = rank_memory(
        measured.shape,
        dtype="bfloat16",
        rows=rows,
        step_rows=1000,  # as many as use all rows of the tables
        checkpointed=checkpointed,
        owned_fraction=1.0,
        payload_bytes=0.0,
        logits=head_logits(measured.shape, rows),
    )
    assert predicted - PROCESS_BYTES == pytest.approx(max(measured.peak.values()), rel=0.1)


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("checkpointed", [False, True])
def test_tables_on_the_host_leave_the_device_what_the_model_says(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch, rows: int, checkpointed: bool
) -> None:
    used = round(expected_unique_tokens(rows * TOKENS, VOCAB))
    # Fake tensors have no values: as many distinct tokens as the memory model foresees.
    monkeypatch.setattr(
        host_tables, "distinct", lambda ids: (torch.zeros(used, dtype=torch.int64), ids)
    )
    measured = Measured(sim, 20, rows, checkpointed=checkpointed, tables_on_host=True)

    predicted = rank_memory(
        measured.shape,
        dtype="bfloat16",
        rows=rows,
        step_rows=1000,
        checkpointed=checkpointed,
        tables_on_host=True,
        owned_fraction=1.0,
        payload_bytes=0.0,
        logits=head_logits(measured.shape, rows),
    )
    peak = max(measured.peak.values())
    assert predicted - PROCESS_BYTES == pytest.approx(peak, rel=0.1)
    if checkpointed:
        assert max(predicted, peak + PROCESS_BYTES) < TYPICAL_BYTES


def test_a_step_moves_few_bytes_for_what_it_computes(
    sim: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the softcap compiled and AdamW's kernel: each counts as its operands and results."""

    def one_pass(logits: Tensor, u: Tensor, *rest: Any) -> None:
        meter.count(2 * _bytes(logits))

    def kernel(p: Tensor, g: Tensor, first: Tensor, second: Tensor, *rest: Any) -> None:
        meter.count(2 * sum(map(_bytes, (p, first, second))) + _bytes(g))

    monkeypatch.setattr(cross_entropy, "softcap", one_pass)
    monkeypatch.setattr(torch, "compile", lambda function, **how: function)
    monkeypatch.setattr(cuda, "usable", lambda *tensors: True)
    monkeypatch.setattr(cuda, "adamw_rows", kernel)
    meter, rows = Meter(), 8
    measured = Measured(sim, 12, rows, compiled=True, meter=meter)

    counts = count_parameters(measured.shape)
    # A product writes each logit and two read it, in bfloat16; one pass reads and writes it. The
    # rest is the weight and its gradient.
    assert measured.moved["lm_head"] / (rows * TOKENS * VOCAB) < 20
    assert measured.moved["adamw"] < 20 * counts.tables + 30 * counts.lm_head
