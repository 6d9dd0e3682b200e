"""A rank of a real run that poses as a host of its own, as fast as FLOPS has it by rank.

Where BECOMES has another figure, the rank is as fast as that from its second measurement on. Where
FASTEST names a dtype by rank, it is five times as fast in that.
"""

from __future__ import annotations

import os
import socket
import sys
from typing import Any

from yoked.costmodel.compute_cost import COPY_BYTES_PER_S, RankSpeed
from yoked.train import idle, setup
from yoked.train.__main__ import end_process, main
from yoked.train.decisions import compute
from yoked.train.decisions.products import ProductChoice, ProductTimes, measure_dtypes
from yoked.train.device import DTYPES

RANK = int(os.environ["RANK"])


def mine(name: str) -> str:
    return os.environ[name].split(":")[RANK]


def of_mine(name: str) -> float:
    return float(mine(name))


def speed(flops_per_s: float) -> RankSpeed:
    return RankSpeed(flops_per_s, 1.0, COPY_BYTES_PER_S * flops_per_s / 2e7)


def measured_again(*_: Any) -> RankSpeed:
    return speed(of_mine("BECOMES"))


def measured_at_the_start(*given: Any) -> list[RankSpeed]:
    *_, comm = given
    times.append("BECOMES" if times else "FLOPS")
    return [speed(each) for each in comm.all_gather_json(of_mine(times[-1]), float)]


def measured_products(*given: Any, **how: Any) -> ProductChoice:
    """The same on both ranks: what is fastest must not hang on what else the machine does."""
    measured = measure_dtypes(*given, **{**how, "dtype": "float32"}).times["float32"]
    fast, slow = (
        ProductTimes({kind: dict.fromkeys(each, took) for kind, each in measured.by_kind.items()})
        for took in (1e-6, 5e-6)
    )
    return ProductChoice({name: fast if name == mine("FASTEST") else slow for name in DTYPES})


times: list[str] = []

if __name__ == "__main__":
    socket.gethostname = lambda: f"host{RANK}"
    idle.MEASURE_EVERY_S, idle.LOOK_EVERY_S = 0.2, 0.05
    setup.measure_speed = measured_again
    setup.measure_speeds = measured_at_the_start
    if "FASTEST" in os.environ:
        compute.measure_dtypes = measured_products
    end_process(main(sys.argv[1:]))
