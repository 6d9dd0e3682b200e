"""What a rank of each host pays for a row of this model: measured, or scaled from what was."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from yoked.errors import YokedError
from yoked.plan.shape import (
    Shape,
    count_parameters,
    flops_per_token,
    head_flops_per_token,
    layer_flops_per_token,
    muon_flops,
)
from yoked.records.measurement import Measurement, StepCost

# The part of a micro-batch's time that may not grow with its rows: where one row was measured to
# take as long as several, a row more still costs something.
MAX_OVERHEAD_FRACTION = 0.9
# A copy on the machine that the anchors were measured on; for a host whose own was not.
COPY_BYTES_PER_S = 15.6e9


@dataclass(frozen=True)
class RankCost:
    """One rank of a host in one dtype.

    forward_s, head_s, backward_s: a row more in a micro-batch; overhead_s: a micro-batch, whatever
    its rows; adamw_s, muon_s: a step, of all parameters; copy_bytes_per_s: of the host's memory,
    this rank's part. scaled_from: the model that was measured
    where it is another one.
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
    scaled_from: Shape | None = None

    @property
    def row_s(self) -> float:
        """A row more, all passes."""
        return self.forward_s + self.head_s + self.backward_s

    @property
    def rows_per_s(self) -> float:
        """Of one rank, in micro-batches as measured."""
        return self.measured_rows / self.rows_time_s(self.measured_rows, self.measured_rows)

    def amortized_row_s(self, device_batch_size: int) -> float:
        """A row more, with its part of what a micro-batch costs."""
        return self.row_s + self.overhead_s / device_batch_size

    def rows_time_s(self, rows: int, device_batch_size: int) -> float:
        """Forward and backward of that many rows in micro-batches."""
        return rows * self.row_s + math.ceil(rows / device_batch_size) * self.overhead_s


def rank_costs(measurement: Measurement, shape: Shape) -> dict[str, list[RankCost]]:
    """By dtype, one of each host that was measured in it; in the order of the fleet.

    Raises YokedError that names the hosts of which nothing is known.
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
                cost = min(_nearest_model(known, shape), key=_seconds_per_token)
                by_dtype.setdefault(dtype, []).append(_rank_cost(cost, measurement, shape))
    return by_dtype


def _nearest_model(known: Iterable[StepCost], shape: Shape) -> list[StepCost]:
    """The measurements of the model that is most like this one."""
    wanted = flops_per_token(shape)
    distances = [
        (abs(math.log(flops_per_token(_shape_of(cost, shape)) / wanted)), cost) for cost in known
    ]
    nearest = min(distance for distance, _ in distances)
    return [cost for distance, cost in distances if distance == nearest]


def _shape_of(cost: StepCost, like: Shape) -> Shape:
    return Shape.from_record(cost.model, like.window_pattern)


def _seconds_per_token(cost: StepCost) -> float:
    return cost.batch_s / cost.tokens


def _rank_cost(cost: StepCost, measurement: Measurement, shape: Shape) -> RankCost:
    probed = _shape_of(cost, shape)
    micro_batch_s = cost.batch_s
    if not micro_batch_s > 0:
        raise YokedError(
            f"a training step took {micro_batch_s:g} s on {cost.host}, says the measurement",
            fix="yoked probe    measures the fleet anew",
        )
    layers = layer_flops_per_token(shape) / layer_flops_per_token(probed)
    head = head_flops_per_token(shape) / head_flops_per_token(probed)
    # The parts were measured with what a micro-batch costs whatever its size.
    overhead_s = min(cost.overhead_s, MAX_OVERHEAD_FRACTION * micro_batch_s)
    growing = 1 - overhead_s / micro_batch_s
    per_row = growing * shape.sequence_len / cost.tokens
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
    """Of the host's memory, where codecs work whatever computes, a rank's part."""
    rates = [
        each.copy_bytes_per_s
        for each in measurement.compute
        if each.host == cost.host and each.device == "cpu"
    ]
    return max(rates) / measurement.ranks[cost.host] if rates else COPY_BYTES_PER_S


@dataclass(frozen=True)
class CodecCost:
    """Seconds for a number's way into its payload dtype, and back."""

    encode_s: float
    decode_s: float


def codec_cost(payload_bytes: float, copy_bytes_per_s: float, *, lossy: bool) -> CodecCost:
    """What the codec of a payload dtype costs where memory is what holds it.

    Encoding reads value and residual, writes residual and payload; decoding reads the payload
    and adds to what it reads and writes.
    """
    if not lossy:
        return CodecCost(0.0, 0.0)
    return CodecCost(
        (12 + payload_bytes) / copy_bytes_per_s, (8 + payload_bytes) / copy_bytes_per_s
    )
