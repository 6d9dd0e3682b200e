"""The device of a test: simulated, and where there is one CUDA's or Apple's."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.gpu import simulated
from tests.gpu.tiny import plain_passes

__all__ = ["plain_passes"]

# Autograd makes a queue for each device that is there at its first backward pass in a process.
if simulated.unusable() is None:
    simulated.register()


def unusable(kind: str) -> str | None:
    """Why there is no such device here; None: there is one."""
    if kind == "sim":
        return simulated.unusable()
    there = torch.cuda.is_available() if kind == "cuda" else torch.backends.mps.is_available()
    return None if there else f"no {kind} device here"


@pytest.fixture(params=["sim", "cuda", "mps"])
def device(request: pytest.FixtureRequest) -> Iterator[torch.device]:
    """A device whose tensors are not in host memory."""
    if reason := unusable(request.param):
        pytest.skip(reason)
    if request.param != "sim":
        yield torch.device(request.param, 0)
        return
    found = simulated.register()
    with simulated.entered():
        yield found


@pytest.fixture
def sim() -> torch.device:
    """The simulated device, of a test that counts what it does."""
    if reason := simulated.unusable():
        pytest.skip(reason)
    return simulated.register()
