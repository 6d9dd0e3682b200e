"""A made-up measurement of two unlike hosts."""

from __future__ import annotations

from yoked.costmodel.model_shape import ModelShape
from yoked.records.measurement import Collective, Compute, Link, Measurement, StepCost

SHAPE = ModelShape(512, 32_768, 4, 4, 4, 256, "L")


def link(source: str, target: str, rate: float = 118e6) -> Link:
    return Link(source, target, "eth0", "ipv4", 1500, 2e-4, rate, 0.97 * rate)


def step_cost(host: str, dtype: str = "float32", scale: float = 1.0) -> StepCost:
    return StepCost(
        host=host,
        device="cpu",
        dtype=dtype,
        threads=1,
        model=SHAPE,
        tokens=1024,
        forward_s=0.10 * scale,
        head_s=0.36 * scale,
        backward_s=0.20 * scale,
        overhead_s=0.001,
        adamw_s=0.02,
        muon_s=0.10 * scale,
    )


def compute(host: str, dtype: str = "float32", flops: float = 268e9) -> Compute:
    return Compute(host, "cpu", "AMD EPYC", dtype, 1, flops, 15.6e9)


def two_hosts() -> Measurement:
    return Measurement(
        fleet="home",
        taken_s=1.76e9,
        ranks={"alpha": 1, "beta": 1},
        memory_bytes={"alpha": 16_000_000_000},
        links=(link("alpha", "beta"), link("beta", "alpha", 117e6)),
        collectives=(
            Collective("all_reduce", "gloo", 2, 64_000_000, 0.54, 118e6, 118e6, 0.99),
            Collective("all_reduce", "gloo", 2, 1_000, 0.0015, 0.7e6, 0.7e6, None),
        ),
        compute=(compute("alpha"), compute("beta", flops=60e9)),
        step_costs=(step_cost("alpha"), step_cost("beta", scale=4.0)),
    )
