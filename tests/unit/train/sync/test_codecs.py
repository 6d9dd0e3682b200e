from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from yoked.train import kernels
from yoked.train.sync.codecs import CODECS

LENGTHS = (0, 1, 31, 63, 64, 65, 255, 256, 257, 100_003)
# Numbers from which a block's scale is made: a largest one of 1 gives that scale.
STEPS = {"int8": 127, "int4": 7}
BLOCKS = {"int8": 256, "int4": 64}
EVERY = pytest.mark.parametrize("name", list(CODECS))
LOSSY = pytest.mark.parametrize("name", [name for name in CODECS if name != "fp32"])
SCALED = pytest.mark.parametrize("name", list(STEPS))

seeds = st.integers(0, 2**31)
exponents = st.integers(-44, 37)


def draw(count: int, seed: int, spread: float = 1.0) -> Tensor:
    """Numbers whose magnitudes span `spread` powers of ten either way."""
    dice = torch.Generator().manual_seed(seed)
    powers = torch.randn(count, generator=dice) * spread
    return torch.randn(count, generator=dice) * 10**powers


def special(kind: str, count: int) -> Tensor:
    values = draw(count, seed=1, spread=2.0)
    if kind == "denormal":
        return values * 1e-40
    if kind == "zero":
        return values * -0.0
    if kind == "huge":
        return values.sign() * torch.finfo(torch.float32).max
    if kind == "not finite":
        values[count // 2 :: 300] = torch.nan
        values[::700] = torch.inf
        values[1::900] = -torch.inf
    return values


def encoded(name: str, values: Tensor, residual: Tensor | None = None) -> Tensor:
    payload = torch.empty(CODECS[name].encoded_bytes(len(values)), dtype=torch.uint8)
    CODECS[name].encode(values, payload, residual)
    return payload


def decoded(name: str, payload: Tensor, count: int) -> Tensor:
    values = torch.empty(count)
    CODECS[name].decode(payload, values)
    return values


def there_and_back(name: str, values: Tensor) -> Tensor:
    return decoded(name, encoded(name, values), len(values))


def bits(tensor: Tensor) -> list[int]:
    return tensor.view(torch.uint8).tolist()


def half_scales(name: str, values: Tensor) -> Tensor:
    """(n,): the error that rounding may make; a hundredth more for the rounding of scales."""
    block = BLOCKS[name]
    padded = torch.nn.functional.pad(values, (0, -len(values) % block)).view(-1, block)
    scales = padded.abs().amax(dim=1) / STEPS[name]
    smallest = torch.finfo(torch.float32).tiny
    return (scales.clamp_min(smallest) * 0.505).repeat_interleave(block)[: len(values)]


# --- one arithmetic


@pytest.mark.skipif(not kernels.kernels().available, reason="no compiled passes here")
@EVERY
@pytest.mark.parametrize("kind", ["random", "denormal", "zero", "huge", "not finite"])
def test_compiled_and_pytorch_make_the_same_bytes(name: str, kind: str) -> None:
    def every_length() -> list[list[int]]:
        made = []
        for count in LENGTHS:
            values, residual, total = special(kind, count), draw(count, 2) * 1e-3, draw(count, 3)
            plain = encoded(name, values)
            fed_back = encoded(name, values, residual)
            CODECS[name].decode(fed_back, total, add=True)
            made += [bits(t) for t in (plain, fed_back, residual, total)]
            made.append(bits(decoded(name, plain, count)))
        return made

    compiled = every_length()
    kernels.switch_off("comparing the two")
    try:
        assert every_length() == compiled
    finally:
        kernels.switch_on()


@EVERY
def test_a_payload_may_begin_at_any_address(name: str) -> None:
    values = draw(1000, seed=4)
    payload = encoded(name, values)
    room = torch.empty(len(payload) + 1, dtype=torch.uint8)[1:]

    CODECS[name].encode(values, room)

    assert bits(room) == bits(payload)
    assert bits(decoded(name, room, 1000)) == bits(decoded(name, payload, 1000))


@EVERY
def test_threads_do_not_change_the_bytes(name: str) -> None:
    values, before = draw(300_001, seed=5), torch.get_num_threads()
    alone = encoded(name, values)
    torch.set_num_threads(3)
    try:
        assert bits(encoded(name, values)) == bits(alone)
        assert bits(decoded(name, alone, len(values))) == bits(there_and_back(name, values))
    finally:
        torch.set_num_threads(before)


# --- what is lost


def test_fp32_loses_nothing() -> None:
    values = special("random", 1000)

    assert bits(there_and_back("fp32", values)) == bits(values)


def test_bf16_rounds_as_pytorch_does() -> None:
    values = torch.cat([special(kind, 1000) for kind in ("random", "denormal", "huge")])

    assert bits(there_and_back("bf16", values)) == bits(values.bfloat16().float())


@SCALED
@settings(max_examples=40, deadline=None)
@given(count=st.integers(1, 700), seed=seeds, exponent=exponents)
def test_no_number_is_off_by_more_than_half_a_scale(
    name: str, count: int, seed: int, exponent: int
) -> None:
    values = draw(count, seed, spread=0.5).clamp(-10, 10) * 10.0**exponent

    error = (there_and_back(name, values) - values).abs()

    assert (error <= half_scales(name, values)).all()


@SCALED
def test_the_largest_of_a_block_is_not_clipped(name: str) -> None:
    values = torch.full((BLOCKS[name],), 0.1)
    values[3] = -5.0

    arrives = there_and_back(name, values)

    assert arrives.argmin() == 3
    assert arrives[3].item() == pytest.approx(-5.0, rel=2**-8)


@LOSSY
@settings(max_examples=20, deadline=None)
@given(count=st.integers(1, 600), seed=seeds)
def test_with_feedback_the_sums_over_steps_differ_by_one_steps_error(
    name: str, count: int, seed: int
) -> None:
    residual = torch.zeros(count)
    given_sum, arrived_sum, rounded = (torch.zeros(count).double() for _ in range(3))
    for step in range(30):
        values = draw(count, seed + step)
        wanted = values + residual
        arrives = decoded(name, encoded(name, values, residual), count)
        given_sum += values
        arrived_sum += arrives
        # Each step's own additions round too, by its own numbers.
        rounded += wanted.abs() * 2**-23

    allowed = half_scales(name, wanted) if name in STEPS else wanted.abs() * 2**-8
    assert ((given_sum - arrived_sum).abs() <= allowed + rounded).all()


@LOSSY
def test_the_residual_is_what_was_lost(name: str) -> None:
    values, residual = draw(1000, seed=6), draw(1000, seed=7) * 0.01
    wanted = values + residual

    arrives = decoded(name, encoded(name, values, residual), 1000)

    assert residual.any()
    torch.testing.assert_close(arrives + residual, wanted, rtol=1e-6, atol=1e-6)


def test_a_lossless_residual_is_added_once() -> None:
    values, residual = draw(10, seed=8), draw(10, seed=9)
    wanted = values + residual

    assert bits(decoded("fp32", encoded("fp32", values, residual), 10)) == bits(wanted)
    assert not residual.any()


# --- what is not finite


@EVERY
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("place", [0, 70, 299])
def test_what_is_not_finite_is_seen_at_its_place_and_only_there(
    name: str, bad: float, place: int
) -> None:
    values = draw(300, seed=10)
    values[place] = bad

    seen = ~there_and_back(name, values).isfinite()

    assert seen[place]
    block = BLOCKS.get(name, 1)
    in_its_block = torch.arange(300) // block == place // block
    assert not seen[~in_its_block].any()


@LOSSY
def test_a_step_that_is_not_finite_leaves_no_trace_in_the_next(name: str) -> None:
    values, residual = draw(100, seed=11), torch.zeros(100)
    broken = values.clone()
    broken[50] = torch.inf

    encoded(name, broken, residual)

    assert residual.isfinite().all()
    assert decoded(name, encoded(name, values, residual), 100).isfinite().all()


# --- sizes and names


@pytest.mark.parametrize(
    ("name", "count", "expected"),
    [
        ("fp32", 1000, 4000),
        ("bf16", 1000, 2000),
        ("int8", 1024, 4 * 4 + 1024),
        ("int8", 1025, 5 * 4 + 1025),
        ("int4", 1024, 16 * (2 + 32)),
        ("int4", 1025, 17 * (2 + 32)),
    ],
)
def test_a_payload_is_as_long_as_it_is_said_to_be(name: str, count: int, expected: int) -> None:
    assert CODECS[name].encoded_bytes(count) == expected


@EVERY
def test_bits_are_those_of_a_long_tensor(name: str) -> None:
    codec = CODECS[name]

    assert codec.encoded_bytes(2**20) * 8 / 2**20 == codec.bits
