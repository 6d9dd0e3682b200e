from __future__ import annotations

import ctypes
import functools
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from torch import Tensor

from yoked.train import kernels
from yoked.train.optim.adamw import adamw_update, coefficients

DTYPES = [torch.float32, torch.bfloat16]


@pytest.fixture
def compiled() -> None:
    if not kernels.kernels().available:
        pytest.skip(f"no compiled passes: {kernels.kernels().reason}")


@pytest.fixture
def three_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def fresh_load(monkeypatch) -> Callable[[], kernels.Kernels]:
    """Loads the passes anew; what other tests have loaded is left alone."""
    load = functools.cache(kernels._load.__wrapped__)
    monkeypatch.setattr(kernels, "_load", load)
    monkeypatch.delenv("CC", raising=False)
    return load


def draw(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def on_pytorch(run: Callable[[], None]) -> None:
    kernels.switch_off("comparing the two")
    try:
        run()
    finally:
        kernels.switch_on()


def make_compiler(folder: Path, name: str, script: str) -> None:
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# --- AdamW


def run_adamw(rows: int, width: int, dtype: torch.dtype, slotted: bool) -> list[Tensor]:
    """Parameter and moments after three steps."""
    parameter = draw(rows, width, seed=1, dtype=dtype)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)
    slot = torch.full((rows,), -1, dtype=torch.int32)
    used = torch.arange(0, rows, 3)
    slot[used] = torch.arange(len(used), dtype=torch.int32)
    for step in range(1, 4):
        gradient = draw(len(used) if slotted else rows, width, seed=step) * 10.0 ** (step - 3)
        scalars = coefficients(step, 0.3, (0.8, 0.995), 0.01)
        adamw_update(parameter, gradient, first, second, scalars, slot if slotted else None)
    return [parameter, first, second]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("slotted", [False, True])
@settings(deadline=None, max_examples=20)
@given(rows=st.integers(1, 40), width=st.integers(1, 70))
def test_adamw_has_the_bits_of_pytorch(dtype, slotted, rows, width):
    if not kernels.kernels().available:
        pytest.skip(f"no compiled passes: {kernels.kernels().reason}")
    ours = run_adamw(rows, width, dtype, slotted)

    theirs: list[Tensor] = []
    on_pytorch(lambda: theirs.extend(run_adamw(rows, width, dtype, slotted)))

    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


def test_adamw_has_the_bits_of_pytorch_over_more_rows_than_pytorch_takes_at_once(compiled):
    ours = run_adamw(5000, 3, torch.bfloat16, slotted=True)

    theirs: list[Tensor] = []
    on_pytorch(lambda: theirs.extend(run_adamw(5000, 3, torch.bfloat16, slotted=True)))

    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
def test_adamw_has_the_same_bits_on_several_threads(compiled, three_threads, dtype):
    several = run_adamw(3001, 131, dtype, slotted=True)
    torch.set_num_threads(1)

    assert all(
        torch.equal(a, b)
        for a, b in zip(several, run_adamw(3001, 131, dtype, slotted=True), strict=True)
    )


def test_the_last_bit_of_bfloat16_is_rounded_to_even_and_numbers_that_are_none_stay(compiled):
    bits = torch.tensor([0x3F808000, 0x3F818000, 0x3F808001, 0x7F7FFFFF, 0x7F800000, 0x7FC00000])
    values = bits.to(torch.int32).view(torch.float32)
    # With all rates 0 but 1 - beta1 = 1, the first moment becomes the rounded gradient.
    scalars = torch.tensor([1.0, 1.0, 0.0, 1.0, 1.0, 0.0])
    parameter = torch.zeros(1, len(bits), dtype=torch.bfloat16)
    first, second = torch.zeros_like(parameter), torch.zeros_like(parameter)

    kernels.adamw_rows(parameter, values[None], first, second, None, scalars)

    expected = values.bfloat16()
    assert torch.equal(first[0, :-1], expected[:-1])
    assert first[0, -1].isnan()


# --- the softcap


def softcap(
    logits: Tensor, targets: Tensor, first_column: int, valid: int, *, wants_grad: bool = True
) -> tuple[Tensor, Tensor, Tensor | None]:
    row_sum, target_logit = torch.zeros(len(logits)), torch.zeros(len(logits))
    gradient = torch.empty_like(logits) if wants_grad else None
    kernels.softcap_block(logits, gradient, row_sum, target_logit, targets, first_column, valid)
    return row_sum, target_logit, gradient


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("width", "valid"), [(1, 1), (17, 17), (64, 50), (64, 0), (130, 129)])
def test_the_softcap_is_that_of_float64_within_rounding(compiled, dtype, width, valid):
    logits = draw(9, width, dtype=dtype) * 20
    targets = torch.arange(9) * 11 + 95

    row_sum, target_logit, gradient = softcap(logits, targets, 100, valid)

    t = torch.tanh(logits[:, :valid].double() / 15)
    torch.testing.assert_close(row_sum.double(), torch.exp(15 * t).sum(1), rtol=2e-5, atol=1e-30)
    assert gradient is not None
    tolerance = 5e-5 if dtype == torch.float32 else 0.005
    torch.testing.assert_close(
        gradient[:, :valid].double(), torch.exp(15 * t) * (1 - t * t), rtol=tolerance, atol=1e-5
    )
    assert gradient[:, valid:].eq(0).all()
    column = targets - 100
    here = (column >= 0) & (column < valid)
    expected = [float(logits[r, column[r]]) if here[r] else 0.0 for r in range(9)]
    assert target_logit.tolist() == expected


def test_the_softcap_without_gradient_gives_the_sums_of_that_with_it(compiled):
    logits, targets = draw(9, 130) * 20, torch.zeros(9, dtype=torch.int64)

    with_gradient = softcap(logits, targets, 0, 130)
    without = softcap(logits, targets, 0, 130, wants_grad=False)

    torch.testing.assert_close(with_gradient[0], without[0])
    assert torch.equal(with_gradient[1], without[1])


def test_the_softcap_can_write_over_its_logits_and_adds_to_the_sums(compiled):
    logits, targets = draw(9, 130), torch.zeros(9, dtype=torch.int64)
    row_sum, _, gradient = softcap(logits, targets, 0, 130)
    sums, target_logit, in_place = torch.ones(9), torch.zeros(9), logits.clone()

    kernels.softcap_block(in_place, in_place, sums, target_logit, targets, 0, 130)

    assert gradient is not None
    assert torch.equal(in_place, gradient)
    torch.testing.assert_close(sums, row_sum + 1)
    assert torch.equal(target_logit, logits[:, 0])


@pytest.mark.parametrize("value", [1e4, -1e4, float("inf"), -float("inf"), 3.4e38, -3.4e38])
def test_the_softcap_of_extreme_logits_is_its_limit(compiled, value):
    row_sum, _, gradient = softcap(torch.full((1, 20), value), torch.tensor([0]), 0, 20)

    limit = 20 * torch.exp(torch.tensor(15.0 if value > 0 else -15.0))
    torch.testing.assert_close(row_sum[0], limit, rtol=1e-4, atol=0)
    assert gradient is not None
    torch.testing.assert_close(gradient, torch.zeros(1, 20), rtol=0, atol=1e-20)


def test_the_softcap_has_the_same_bits_on_several_threads(compiled, three_threads):
    logits, targets = draw(100, 130) * 20, torch.arange(100)
    several = softcap(logits, targets, 0, 120)
    torch.set_num_threads(1)
    one = softcap(logits, targets, 0, 120)

    assert all(torch.equal(a, b) for a, b in zip(several, one, strict=True))  # type: ignore[arg-type]


# --- relu squared


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (3, 5), (2, 7, 33), (1000,)])
def test_relu_square_and_its_gradient_are_pytorchs(compiled, dtype, shape):
    x, dy = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)

    assert torch.equal(kernels.relu_square(x), F.relu(x).square())
    exact = (2 * F.relu(x.float()) * dy.float()).to(dtype)
    assert torch.equal(kernels.relu_square_backward(x, dy), exact)


@pytest.mark.parametrize("dtype", DTYPES)
def test_relu_square_does_not_hide_a_number_that_is_none(compiled, dtype):
    x = torch.tensor([1.0, float("nan"), -1.0, float("inf"), -float("inf")] * 9, dtype=dtype)

    y = kernels.relu_square(x)
    dx = kernels.relu_square_backward(x, torch.ones_like(x))

    torch.testing.assert_close(y, F.relu(x).square(), equal_nan=True)
    torch.testing.assert_close(dx, 2 * F.relu(x), equal_nan=True)


def test_relu_square_has_the_same_bits_on_several_threads(compiled, three_threads):
    x, dy = draw(300_001), draw(300_001, seed=1)

    assert torch.equal(kernels.relu_square(x), F.relu(x).square())
    assert torch.equal(kernels.relu_square_backward(x, dy), 2 * F.relu(x) * dy)


# --- RMS norm, rotation

EPS = 2.0**-23
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}


def relative(ours: Tensor, exact: Tensor) -> float:
    return float((ours.double() - exact).norm() / exact.norm())


def exact_gradient(function: Callable[[Tensor], Tensor], x: Tensor, dy: Tensor) -> Tensor:
    x = x.double().requires_grad_()
    function(x).backward(dy.double())
    assert x.grad is not None
    return x.grad


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (3, 5), (2, 7, 33), (300, 512)])
def test_rms_norm_and_its_gradient_are_those_of_float64(compiled, dtype, shape):
    x, dy = draw(*shape, dtype=dtype), draw(*shape, seed=1, dtype=dtype)

    def norm(x: Tensor) -> Tensor:
        return F.rms_norm(x, shape[-1:], eps=EPS)

    assert relative(kernels.rms_norm(x, EPS), norm(x.double())) < TOLERANCE[dtype]
    if shape[-1] > 1:  # the gradient of a norm of one number is all cancellation
        ours = kernels.rms_norm_backward(x, dy, EPS)
        assert relative(ours, exact_gradient(norm, x, dy)) < TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", DTYPES)
def test_rms_norm_of_zeros_is_zero_and_does_not_hide_a_number_that_is_none(compiled, dtype):
    x = torch.zeros(3, 40, dtype=dtype)
    x[1, 7] = float("nan")

    y = kernels.rms_norm(x, EPS)

    assert not y[[0, 2]].any()
    assert y[1].isnan().all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("heads_first", [True, False])
@pytest.mark.parametrize(("B", "T", "H", "half"), [(1, 1, 1, 1), (2, 5, 3, 4), (2, 64, 4, 32)])
def test_rotation_with_norm_and_its_gradient_are_those_of_float64(
    compiled, dtype, heads_first, B, T, H, half
):
    # Queries lie in one product beside keys and values, so tokens are further apart than H * D.
    x = draw(B, T, 3, H, 2 * half, dtype=dtype)[:, :, 1]
    angle = draw(T, 1, half, seed=3)
    cos, sin = angle.cos().to(dtype), angle.sin().to(dtype)
    dy = draw(B, T, H, 2 * half, seed=1, dtype=dtype)
    if heads_first:
        dy = dy.transpose(1, 2).contiguous().transpose(1, 2)

    def exact(x: Tensor) -> Tensor:
        a, b = x.chunk(2, dim=-1)
        c, s = cos.double(), sin.double()
        turned = torch.cat((a * c + b * s, b * c - a * s), dim=-1)
        return 1.2 * F.rms_norm(turned, (2 * half,), eps=EPS)

    y = kernels.rotate_norm(x, cos, sin, EPS, 1.2)
    dx = kernels.rotate_norm_backward(x, cos, sin, dy, EPS, 1.2)

    assert relative(y, exact(x.double())) < TOLERANCE[dtype]
    assert y.transpose(1, 2).is_contiguous()
    if half > 1:
        assert relative(dx, exact_gradient(exact, x, dy)) < TOLERANCE[dtype]


def test_norm_and_rotation_have_the_same_bits_on_several_threads(compiled, three_threads):
    x, dy, angle = draw(2, 300, 4, 64), draw(2, 300, 4, 64, seed=1), draw(300, 1, 32, seed=2)

    def all_passes() -> list[Tensor]:
        cos, sin = angle.cos(), angle.sin()
        return [
            kernels.rms_norm(x, EPS),
            kernels.rms_norm_backward(x, dy, EPS),
            kernels.rotate_norm(x, cos, sin, EPS, 1.2),
            kernels.rotate_norm_backward(x, cos, sin, dy, EPS, 1.2),
        ]

    several = all_passes()
    torch.set_num_threads(1)

    assert all(torch.equal(a, b) for a, b in zip(several, all_passes(), strict=True))


# --- mixing two streams


@pytest.mark.parametrize("dtype", DTYPES)
def test_mixing_and_its_gradients_are_those_of_float64(compiled, dtype):
    x, z, dy = (draw(2, 37, 65, seed=seed, dtype=dtype) for seed in range(3))
    exact = [t.double() for t in (x, z, dy)]

    y = kernels.mix(x, z, 1.15, -0.2)
    dx, dz, sums = kernels.mix_backward(x, z, dy, 1.15, -0.2)

    assert relative(y, 1.15 * exact[0] - 0.2 * exact[1]) < TOLERANCE[dtype]
    assert relative(dx, 1.15 * exact[2]) < TOLERANCE[dtype]
    assert relative(dz, -0.2 * exact[2]) < TOLERANCE[dtype]
    totals = torch.stack([(exact[2] * t).sum() for t in exact[:2]])
    torch.testing.assert_close(sums, totals, rtol=1e-5, atol=1e-5)


def test_mixing_has_the_same_bits_on_several_threads(compiled, three_threads):
    x, z, dy = (draw(2, 300, 256, seed=seed) for seed in range(3))

    several = [kernels.mix(x, z, 0.9, 0.1), *kernels.mix_backward(x, z, dy, 0.9, 0.1)]
    torch.set_num_threads(1)
    single = [kernels.mix(x, z, 0.9, 0.1), *kernels.mix_backward(x, z, dy, 0.9, 0.1)]

    assert all(torch.equal(a, b) for a, b in zip(several, single, strict=True))


# --- when they are used


def test_the_passes_work_on_contiguous_floats_in_host_memory(compiled):
    assert kernels.usable(draw(4, 4), draw(4, 4, dtype=torch.bfloat16))
    assert not kernels.usable(draw(4, 4).t())
    assert not kernels.usable(draw(4, 4).double())
    assert not kernels.usable(draw(4, 4), torch.empty(4, 4, device="meta"))


def test_passes_that_are_switched_off_say_why():
    kernels.switch_off("a reason")
    try:
        assert kernels.kernels() == kernels.Kernels(None, "a reason")
        assert not kernels.usable(draw(2, 2))
    finally:
        kernels.switch_on()


# --- building them


def test_what_was_compiled_is_found_again(fresh_load, tmp_path, compiled):
    first = fresh_load()
    fresh_load.cache_clear()
    second = fresh_load()

    assert first.reason.startswith("compiled now with ")
    assert second.reason.startswith("compiled before with ")
    built = [path.name for path in (tmp_path / "cache/kernels").glob("*/*") if path.suffix]
    assert built == ["elementwise.so"]


def test_a_library_that_cannot_be_loaded_is_compiled_anew(
    fresh_load, monkeypatch, tmp_path, compiled
):
    fresh_load()
    (built,) = (tmp_path / "cache/kernels").rglob("elementwise.so")
    built.unlink()
    built.touch()
    fresh_load.cache_clear()
    load = ctypes.CDLL

    def read_anew(path: str) -> ctypes.CDLL:
        # dlopen(3) hands out what this process has loaded under the name.
        if not Path(path).stat().st_size:
            raise OSError(f"{path}: file too short")
        return load(path)

    monkeypatch.setattr(ctypes, "CDLL", read_anew)

    assert fresh_load().reason.startswith("compiled now with ")


def test_another_source_is_compiled_anew(fresh_load, monkeypatch, tmp_path, compiled):
    changed = tmp_path / "elementwise.c"
    changed.write_text(kernels.SOURCE.read_text() + "\n/* changed */\n")
    fresh_load()
    fresh_load.cache_clear()
    monkeypatch.setattr(kernels, "SOURCE", changed)

    assert fresh_load().reason.startswith("compiled now")


def test_a_host_without_a_compiler_is_told_so(
    fresh_load, monkeypatch, tmp_path, snapshot: SnapshotAssertion
):
    monkeypatch.setenv("PATH", str(tmp_path))

    state = fresh_load()

    assert not state.available
    assert state.reason == snapshot


@pytest.mark.parametrize("name", ["", " ", "no-such-compiler"])
def test_a_cc_that_names_no_compiler_is_passed_over(fresh_load, monkeypatch, tmp_path, name):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CC", name)

    assert not fresh_load().available


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        ('[ "$1" = --version ] || { echo one >&2; echo broken >&2; exit 1; }', "broken"),
        ("exit 3", "exit status 3"),
        ("exit 0", "elementwise.so"),
        ('while [ "$1" ]; do [ "$1" = -o ] && echo nonsense > "$2"; shift; done', "elementwise.so"),
    ],
    ids=["fails", "fails-silently", "makes-nothing", "makes-nonsense"],
)
def test_a_compiler_that_fails_leaves_pytorch_and_the_reason(
    fresh_load, monkeypatch, tmp_path, script, expected
):
    make_compiler(tmp_path / "bin", "odd-cc", script)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("CC", "odd-cc")

    state = fresh_load()

    assert not state.available
    assert state.reason.startswith("odd-cc ")
    assert expected in state.reason


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="about the features of x86 CPUs")
def test_a_host_held_to_older_instructions_holds_the_passes_to_them(monkeypatch):
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "avx2")
    assert kernels._architecture_flags() == ["-march=haswell"]
    monkeypatch.setenv("ATEN_CPU_CAPABILITY", "default")
    assert kernels._architecture_flags() == []
    monkeypatch.delenv("ATEN_CPU_CAPABILITY")
    assert "-march=native" in kernels._architecture_flags()
