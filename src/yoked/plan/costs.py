"""The cost of a row and a step on each host: measured, or scaled from another model."""

from __future__ import annotations

from yoked.core.faults import fault
from yoked.costmodel.compute_cost import COPY_BYTES_PER_S, RankCost
from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    head_flops_per_token,
    layer_flops_per_token,
    muon_flops,
)
from yoked.errors import YokedError
from yoked.records.measurement import Measurement, StepCost

# At most this fraction of a micro-batch's time is overhead. If one row was measured to take as long
# as several, another row still costs something.
MAX_OVERHEAD_FRACTION = 0.9


def rank_costs(measurement: Measurement, shape: ModelShape) -> dict[str, list[RankCost]]:
    """Costs by dtype, one for each host that was measured in it, in the order of the fleet.

    Raises YokedError that names the hosts without a measured step.
    """
    hosts = list(measurement.ranks)
    missing = [host for host in hosts if not any(c.host == host for c in measurement.step_costs)]
    if missing:
        raise fault("cost-unmeasured", names=", ".join(missing))
    by_dtype: dict[str, list[RankCost]] = {}
    for dtype in dict.fromkeys(cost.dtype for cost in measurement.step_costs):
        for host in hosts:
            known = [c for c in measurement.step_costs if (c.host, c.dtype) == (host, dtype)]
            if known:
                # Several: the host trains on devices of more than one kind.
                cost = min(known, key=lambda cost: cost.batch_s / cost.tokens)
                by_dtype.setdefault(dtype, []).append(_rank_cost(cost, measurement, shape))
    return by_dtype


def _rank_cost(cost: StepCost, measurement: Measurement, shape: ModelShape) -> RankCost:
    probed, micro_batch_s = cost.model, cost.batch_s
    if not micro_batch_s > 0:  # NaN too
        raise YokedError(
            f"a training step took {micro_batch_s:g} s on {cost.host}, says the measurement",
            fix="yoked probe    measures the fleet anew",
        )
    layers = layer_flops_per_token(shape) / layer_flops_per_token(probed)
    head = head_flops_per_token(shape) / head_flops_per_token(probed)
    # Each measured phase includes a part of the overhead; take it out of what grows with rows.
    overhead_s = min(cost.overhead_s, MAX_OVERHEAD_FRACTION * micro_batch_s)
    without_overhead = 1 - overhead_s / micro_batch_s
    per_row = without_overhead * shape.sequence_len / cost.tokens  # of each measured phase
    parameters = count_parameters(shape).adamw / count_parameters(probed).adamw
    return RankCost(
        host=cost.host,
        device=cost.device,
        dtype=cost.dtype,
        cores=cost.threads,
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
