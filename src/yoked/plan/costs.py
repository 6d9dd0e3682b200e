"""The cost of a row and a step on each host: measured, or scaled from another model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    flops_per_token,
    head_flops_per_token,
    layer_flops_per_token,
    muon_flops,
)
from yoked.errors import YokedError
from yoked.records.measurement import Measurement, StepCost

# At most this fraction of a micro-batch's time is overhead. If one row was measured to take as long
# as several, another row still costs something.
MAX_OVERHEAD_FRACTION = 0.9
# Copy rate of a host on which it was not measured: that of a Zen 5 core.
COPY_BYTES_PER_S = 15.6e9


@dataclass(frozen=True)
class RankCost:
    """Costs of one rank of a host in one dtype.

    forward_s, head_s, backward_s: of one more row in a micro-batch; overhead_s: of a micro-batch,
    independent of its rows. adamw_s, muon_s: of a step, all parameters. copy_bytes_per_s: this
    rank's part of the host's memory bandwidth. scaled_from: the measured model, if it is another.
    """

    host: str
    device: str
    dtype: str
    threads: int
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

    def amortized_row_s(self, device_batch_size: int) -> float:
        """One row, with its part of the micro-batch's overhead."""
        return self.row_s + self.overhead_s / device_batch_size

    def rows_time_s(self, rows: int, device_batch_size: int) -> float:
        """Forward and backward pass of so many rows in micro-batches."""
        return rows * self.row_s + math.ceil(rows / device_batch_size) * self.overhead_s


def rank_costs(measurement: Measurement, shape: ModelShape) -> dict[str, list[RankCost]]:
    """Costs by dtype, one for each host that was measured in it, in the order of the fleet.

    Raises YokedError that names the hosts without a measured step.
    """
    hosts = list(measurement.ranks)
    missing = [host for host in hosts if not any(c.host == host for c in measurement.step_costs)]
    if missing:
        raise YokedError(
            f"what a training step costs was not measured on {', '.join(missing)}",
            fix=["yoked probe    says why", "yoked install    where torch is missing"],
        )
    by_dtype: dict[str, list[RankCost]] = {}
    for dtype in dict.fromkeys(cost.dtype for cost in measurement.step_costs):
        for host in hosts:
            known = [c for c in measurement.step_costs if (c.host, c.dtype) == (host, dtype)]
            if known:
                cost = min(
                    _nearest_model(known, shape), key=lambda cost: cost.batch_s / cost.tokens
                )
                by_dtype.setdefault(dtype, []).append(_rank_cost(cost, measurement, shape))
    return by_dtype


def _nearest_model(known: Iterable[StepCost], shape: ModelShape) -> list[StepCost]:
    """The measurements of the model whose FLOPs are nearest to this one's."""
    wanted = flops_per_token(shape)
    distances = [
        (abs(math.log(flops_per_token(_shape_of(cost, shape)) / wanted)), cost) for cost in known
    ]
    nearest = min(distance for distance, _ in distances)
    return [cost for distance, cost in distances if distance == nearest]


def _shape_of(cost: StepCost, like: ModelShape) -> ModelShape:
    # A measurement records neither the window pattern nor key and value heads of their own.
    model = cost.model
    return ModelShape(
        model.sequence_len,
        model.vocab_size,
        model.depth,
        model.n_head,
        model.n_head,
        model.n_embd,
        like.window_pattern,
    )


def _rank_cost(cost: StepCost, measurement: Measurement, shape: ModelShape) -> RankCost:
    probed = _shape_of(cost, shape)
    micro_batch_s = cost.batch_s
    if not micro_batch_s > 0:
        raise YokedError(
            f"a training step took {micro_batch_s:g} s on {cost.host}, says the measurement",
            fix="yoked probe    measures the fleet anew",
        )
    layers = layer_flops_per_token(shape) / layer_flops_per_token(probed)
    head = head_flops_per_token(shape) / head_flops_per_token(probed)
    # Each measured phase includes a part of the overhead; take it out of what grows with rows.
    overhead_s = min(cost.overhead_s, MAX_OVERHEAD_FRACTION * micro_batch_s)
    without_overhead = 1 - overhead_s / micro_batch_s
    per_row = without_overhead * shape.sequence_len / cost.tokens
    parameters = count_parameters(shape).adamw / count_parameters(probed).adamw
    return RankCost(
        host=cost.host,
        device=cost.device,
        dtype=cost.dtype,
        threads=cost.threads,
        ranks=measurement.ranks[cost.host],
        forward_s=cost.forward_s * per_row * layers,
        head_s=cost.head_s * per_row * head,
        backward_s=cost.backward_s * per_row * layers,
        overhead_s=overhead_s * parameters,
        adamw_s=cost.adamw_s * parameters,
        muon_s=cost.muon_s * muon_flops(shape) / muon_flops(probed),
        copy_bytes_per_s=_copy_rate(cost, measurement),
        measured_rows=max(1, cost.tokens // shape.sequence_len),
        scaled_from=None if probed == shape else probed,
    )


def _copy_rate(cost: StepCost, measurement: Measurement) -> float:
    """A rank's part of the host's copy rate. Codecs run in host memory, also beside a GPU."""
    rates = [
        each.copy_bytes_per_s
        for each in measurement.compute
        if each.host == cost.host and each.device == "cpu"
    ]
    return max(rates) / measurement.ranks[cost.host] if rates else COPY_BYTES_PER_S


@dataclass(frozen=True)
class CodecCost:
    """Seconds to encode one number to its payload dtype, and to decode it."""

    encode_s: float
    decode_s: float


def codec_cost(payload_bytes: float, copy_bytes_per_s: float, *, lossy: bool) -> CodecCost:
    """Cost of a codec that is bound by memory.

    Encoding reads value and residual, and writes residual and payload. Decoding reads the payload,
    and reads and writes the sum.
    """
    if not lossy:
        return CodecCost(0.0, 0.0)
    return CodecCost(
        (12 + payload_bytes) / copy_bytes_per_s, (8 + payload_bytes) / copy_bytes_per_s
    )
