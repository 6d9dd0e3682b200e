"""The cost of a row and of a step on one rank: measured, or estimated from its FLOP/s."""

from __future__ import annotations

import math
from dataclasses import dataclass

from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    flops_per_token,
    head_flops_per_token,
    muon_flops,
)

# Copy rate of a host on which it was not measured: that of a Zen 5 core.
COPY_BYTES_PER_S = 15.6e9
# AdamW reads gradient, parameter and two moments, and writes all but the gradient, in float32.
ADAMW_BYTES_PER_NUMBER = 28
# A training step takes longer than its products: attention, elementwise passes, memory. Muon at
# width 256 takes 1.34 times as long as its products, at 768 1.09 times.
STEP_TIME_OVER_MATMULS = 1.3


@dataclass(frozen=True)
class RankSpeed:
    """How fast a rank is before its first step.

    flops_per_s: in the model's products. own_cores: the part of its threads' time that it had; less
    than 1 under a quota, or beside other programs. Then all else that it does takes longer too.
    copy_bytes_per_s: read and written, by a GPU in its own memory; a CPU's is not measured.
    """

    flops_per_s: float
    own_cores: float = 1.0
    copy_bytes_per_s: float = COPY_BYTES_PER_S


@dataclass(frozen=True)
class RankCost:
    """Costs of one rank of a host in one dtype.

    cores: that it has for itself, a part of one under a quota. forward_s, head_s, backward_s: of
    one more row in a micro-batch; overhead_s: of a micro-batch, independent of its rows. adamw_s,
    muon_s: of a step, all parameters. copy_bytes_per_s: this rank's part of the host's memory
    bandwidth. measured_rows: of the micro-batch that was timed. scaled_from: the measured model, if
    it is another.
    """

    host: str
    device: str
    dtype: str
    cores: float
    ranks: int
    forward_s: float
    head_s: float
    backward_s: float
    overhead_s: float
    adamw_s: float
    muon_s: float
    copy_bytes_per_s: float
    measured_rows: int
    scaled_from: ModelShape | None = None

    @property
    def row_s(self) -> float:
        """One more row, all passes."""
        return self.forward_s + self.head_s + self.backward_s

    @property
    def rows_per_s(self) -> float:
        """Rows per second of one rank, in micro-batches of the measured size."""
        return self.measured_rows / self.rows_time_s(self.measured_rows, self.measured_rows)

    def rows_time_s(self, rows: int, device_batch_size: int) -> float:
        """Forward and backward pass of so many rows in micro-batches."""
        return rows * self.row_s + math.ceil(rows / device_batch_size) * self.overhead_s

    def step_time_s(self, rows: int, device_batch_size: int) -> float:
        """A step with so many rows, but for Muon: matrices are assigned apart."""
        return self.adamw_s + self.rows_time_s(rows, device_batch_size)


def head_time_fraction(shape: ModelShape) -> float:
    """Of a row's time, what the lm_head takes, by the FLOPs of both.

    At depth 4 they say 0.67; measured were 0.62 (Intel Xeon) and 0.66 (AMD Zen 4).
    """
    return head_flops_per_token(shape) / flops_per_token(shape)


def estimated_cost(
    shape: ModelShape,
    *,
    host: str,
    device: str,
    dtype: str,
    threads: int,
    speed: RankSpeed,
    device_batch_size: int,
) -> RankCost:
    """Of a rank that has taken no step yet. threads: that it computes with."""
    row_s = STEP_TIME_OVER_MATMULS * shape.sequence_len * flops_per_token(shape) / speed.flops_per_s
    head_s = row_s * head_time_fraction(shape)
    layers_s = row_s - head_s
    copy_bytes_per_s = speed.copy_bytes_per_s * speed.own_cores
    return RankCost(
        host=host,
        device=device,
        dtype=dtype,
        cores=threads * speed.own_cores,
        ranks=1,
        forward_s=layers_s / 3,  # the backward pass has twice the FLOPs
        head_s=head_s,
        backward_s=layers_s * 2 / 3,
        overhead_s=0.0,  # only a measurement shows it
        adamw_s=ADAMW_BYTES_PER_NUMBER * count_parameters(shape).adamw / copy_bytes_per_s,
        muon_s=STEP_TIME_OVER_MATMULS * muon_flops(shape) / speed.flops_per_s,
        copy_bytes_per_s=copy_bytes_per_s,
        measured_rows=device_batch_size,
    )
