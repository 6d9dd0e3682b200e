from __future__ import annotations

from collections.abc import Callable

import pytest

from yoked.costmodel.model_shape import ModelShape
from yoked.records.measurement import Compute, Link, Measurement, StepCost

ANCHOR = ModelShape(512, 32_768, 4, 4, 4, 256, "L")
Fleet = Callable[..., Measurement]


@pytest.fixture
def anchor() -> ModelShape:
    """The reference model: depth 4, width 256, 512 tokens a row."""
    return ANCHOR


@pytest.fixture
def fleet() -> Fleet:
    """Hosts as anchors.md has them: the float32 prototype's seconds for 1,024 tokens."""

    def build(*, gbit: float = 1.0, slower: dict[str, float] | None = None) -> Measurement:
        factors = slower or {"a": 1.0, "b": 1.0}
        rate = gbit * 118.8e6
        return Measurement(
            fleet="anchors",
            taken_s=1.8e9,
            ranks=dict.fromkeys(factors, 1),
            memory_bytes=dict.fromkeys(factors, 8_000_000_000),
            links=tuple(
                Link(x, y, "eth0", "ipv4", 1500, 0.0002, rate, rate)
                for x in factors
                for y in factors
                if x != y
            ),
            collectives=(),
            compute=tuple(
                Compute(host, "cpu", "Zen 5", "float32", 1, 2.1e11, 15.6e9) for host in factors
            ),
            step_costs=tuple(
                StepCost(
                    host=host,
                    device="cpu",
                    dtype="float32",
                    threads=1,
                    model=ANCHOR,
                    tokens=1024,
                    forward_s=0.1 * factor,
                    head_s=0.58 * factor,
                    backward_s=0.2 * factor,
                    overhead_s=0.02 * factor,
                    adamw_s=0.03 * factor,
                    muon_s=0.1 * factor,
                )
                for host, factor in factors.items()
            ),
        )

    return build
