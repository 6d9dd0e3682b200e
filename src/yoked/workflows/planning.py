"""What the plan of a fleet has for a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from yoked.costmodel.memory import USABLE_GPU_FRACTION
from yoked.costmodel.model_shape import ModelShape
from yoked.errors import YokedError
from yoked.fleet.model import Fleet
from yoked.plan.network import network_of
from yoked.plan.search import PlanRequest, choose_for_all_hosts
from yoked.probe.store import load_newest
from yoked.records.measurement import Measurement
from yoked.train.config import TrainConfig
from yoked.train.resolve import (
    ResolvedConfig,
    TrainSchedule,
    common_device_type,
    resolve,
    resolve_schedule,
)


class PlannedDevice(NamedTuple):
    """What a rank computes on: cpu, cuda or mps; the memory of a GPU, where it is known; and
    whether the model that was probed on it had attention windows.
    """

    kind: str
    memory_bytes: float | None
    windows: bool = True


def measured_devices(measurement: Measurement) -> list[PlannedDevice]:
    """Those that a probe measured. The GPUs of a host are taken for alike."""
    memory, ranks = measurement.memory_bytes, measurement.ranks
    return [
        PlannedDevice(
            each.device,
            memory[each.host] / ranks[each.host] if each.host in memory else None,
            each.model.has_windows,
        )
        for each in measurement.step_costs
    ]


@dataclass(frozen=True)
class PlannedRun:
    """The run, resolved for the fleet's devices."""

    shape: ModelShape
    resolved: ResolvedConfig
    schedule: TrainSchedule


def resolve_run(config: TrainConfig, devices: Collection[PlannedDevice]) -> PlannedRun:
    """A configuration as it is meant on these devices."""
    gpus = [each.memory_bytes for each in devices if each.kind == "cuda" and each.memory_bytes]
    resolved = resolve(
        config,
        common_device_type([each.kind for each in devices]),
        USABLE_GPU_FRACTION * min(gpus) if gpus else None,
        None if all(each.windows for each in devices) else "as it was probed",
    )
    shape = resolved.model_shape(config.vocab_size)
    return PlannedRun(shape, resolved, resolve_schedule(resolved, config.vocab_size))


def strategy_for(
    config: TrainConfig, fleet: Fleet, ranks: Mapping[str, int]
) -> dict[str, Any] | None:
    """Compression and lm_head that the plan has for a run (`PlannedStrategy`). ranks: by host.

    None: nothing is to be chosen, or the fleet was not probed as its hosts are now.
    """
    if config.lm_head != "auto" or config.shares is not None or len(ranks) < 2:
        return None
    try:
        measurement = load_newest(fleet)
        if measurement is None or measurement.ranks != ranks:
            return None
        run = resolve_run(config, measured_devices(measurement))
        request = dataclasses.replace(
            plan_request(config, run), device_batch_size=run.resolved.device_batch_size
        )
        chosen = choose_for_all_hosts(
            request, measurement, None if config.sync == "auto" else config.sync
        )
        ports = network_of(measurement, ranks).ports.values()
    except YokedError:
        return None  # a run is not to fail for what it can decide by itself
    slowest = min(min(port.out_bytes_per_s, port.in_bytes_per_s) for port in ports)
    return {
        "sync": chosen.sync,
        "lm_head": chosen.lm_head,
        "dtype": chosen.dtype,
        "bytes_per_s": slowest,
    }


def plan_request(config: TrainConfig, run: PlannedRun) -> PlanRequest:
    """What is asked of the plan for a run."""
    return PlanRequest(
        shape=run.shape,
        tokens_per_step=run.schedule.total_batch_size,
        device_batch_size=config.device_batch_size,
        dtype=None if config.dtype == "auto" else config.dtype,
        tables_on_host=run.resolved.tables == "host",
        memory_notes=run.resolved.memory_notes,
    )
