"""Attention windows by PyTorch's flash kernel, beside those by a mask."""

from __future__ import annotations

import sys

import pytest
import torch
from tests.gpu.plain_flash import plain_flash
from tests.gpu.tiny import tiny_trainer

from yoked.train.config import TrainConfig
from yoked.train.decisions import compute
from yoked.train.decisions.compute import choose_attention, why_no_flash, why_no_windows
from yoked.train.model import attention
from yoked.train.trainer import Trainer

__all__ = ["plain_flash"]
STEPS = 3


def by_flash(trainer: Trainer) -> Trainer:
    for block in trainer.model.blocks:
        block.attn.path = "flash"
    assert trainer.model.config.has_windows
    return trainer


@pytest.mark.usefixtures("plain_passes")
@pytest.mark.parametrize(
    ("dtype", "rel"), [(torch.float32, 1e-6), (torch.bfloat16, 1e-3)], ids=["float32", "bfloat16"]
)
def test_steps_with_windows_by_the_flash_kernel_are_those_by_a_mask(device, dtype, rel, request):
    if device.type == "mps" or (device.type, dtype) == ("cuda", torch.float32):
        pytest.skip(f"no flash kernel for {dtype} on {device.type}")
    if device.type != "cuda":
        request.getfixturevalue("plain_flash")
    want = tiny_trainer("cpu", dtype, "SSSL", rows=[5])
    got = by_flash(tiny_trainer(device, dtype, "SSSL", rows=[5]))

    by_mask = [want.step(step).nats for step in range(STEPS)]
    by_kernel = [got.step(step).nats for step in range(STEPS)]

    assert by_kernel == pytest.approx(by_mask, rel=rel)


@pytest.mark.slow
@pytest.mark.usefixtures("plain_passes", "plain_flash")
@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")  # Dynamo's own look at it
def test_a_compiled_layer_with_the_flash_kernel_is_one_graph_and_gives_the_eager_bits():
    torch._dynamo.reset()
    eager, compiled = (by_flash(tiny_trainer("cpu", windows="SSSL", rows=[5])) for _ in range(2))
    compiled.model.compile_blocks(backend="aot_eager", fullgraph=True)

    # The second step has the first one's gradients behind it.
    for step in range(2):
        assert compiled.step(step).nats == eager.step(step).nats

    for one, other in zip(eager.model.parameters(), compiled.model.parameters(), strict=True):
        assert torch.equal(one, other)
    torch._dynamo.reset()


@pytest.fixture
def newer_gpu(plain_flash, monkeypatch) -> None:
    """The CPU is taken for a GPU that has the kernel."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 9))


def lacking(dtype: torch.dtype = torch.bfloat16) -> str | None:
    return why_no_flash(torch.device("cpu"), dtype, head_dim=64)


@pytest.mark.usefixtures("newer_gpu")
def test_a_flash_kernel_that_gives_what_a_mask_gives_is_relied_upon():
    assert lacking() is None


@pytest.mark.usefixtures("newer_gpu")
@pytest.mark.parametrize("off_by", [-1, 1])
def test_a_flash_kernel_with_another_window_is_not_relied_upon(monkeypatch, off_by):
    by_flash = attention._attend_flash
    monkeypatch.setattr(
        attention, "_attend_flash", lambda q, k, v, window: by_flash(q, k, v, window + off_by)
    )

    assert lacking() == "PyTorch's flash kernel computed wrongly here"


@pytest.mark.usefixtures("newer_gpu")
def test_a_torch_without_the_flash_kernel_is_told(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)

    assert str(lacking()).startswith("PyTorch's flash kernel failed here: import of torch")


def test_what_the_flash_kernel_is_not_made_for_is_told(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))

    assert lacking(torch.float32) == "PyTorch's flash kernel is for bfloat16"
    assert lacking() == "PyTorch's flash kernel needs compute capability 8.0; this GPU has 7.5"


@pytest.mark.usefixtures("newer_gpu")
def test_windows_are_the_default_of_a_gpu_whose_kernel_has_them(monkeypatch):
    cuda, tried = torch.device("cuda", 0), []
    monkeypatch.setattr(compute, "why_no_flash", lambda *how: tried.append(how))
    shape = tiny_trainer("cpu", windows="SSSL").model.config

    assert why_no_windows(TrainConfig(), cuda) is None
    assert choose_attention(shape, cuda, torch.bfloat16).value == "flash"
    assert len(tried) == 2
    assert why_no_windows(TrainConfig(attention="sdpa"), cuda) == "--attention sdpa has none"
    assert len(tried) == 2, "what is asked for is not tried"


def test_on_a_gpu_windowed_layers_take_the_flash_kernel_where_it_works(device):
    if device.type != "cuda":
        pytest.skip("a CUDA device has it")
    capable = torch.cuda.get_device_capability(device) >= compute.FLASH_CAPABILITY
    shape = tiny_trainer("cpu", windows="SSSL").model.config

    chosen = choose_attention(shape, device, torch.bfloat16)

    assert (chosen.value == "flash") == capable
    assert (why_no_windows(TrainConfig(), device) is None) == capable
