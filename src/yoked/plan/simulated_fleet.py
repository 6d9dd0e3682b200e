"""Simulated fleets: stated peaks and rates become a measurement, as if it were probed.

utilisation = 0.4              # the fraction of its peak that a device reaches in training
rtt_ms = 0.2

[[host]]
name = "box"                   # with count above 1: box-1, box-2, ...
count = 2
device = "cpu"                 # or cuda
dtype = "float32"
tflops = 0.6                   # peak in that dtype
cores = 8                      # share the work of sending
copy = "40 GB/s"               # memory bandwidth, read plus written
memory = "16 GB"
up = "1 Gbit/s"                # payload that it can send
down = "1 Gbit/s"              # and receive; default: as up
half_duplex = false            # Wi-Fi: both directions share the rate
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from yoked.costmodel.compute_cost import ADAMW_BYTES_PER_NUMBER
from yoked.costmodel.model_shape import (
    ModelShape,
    count_parameters,
    head_flops_per_token,
    layer_flops_per_token,
    muon_flops,
)
from yoked.errors import FleetError, UsageError
from yoked.records.measurement import Compute, Link, Measurement, StepCost
from yoked.units import parse_bit_per_s, parse_bytes

DEFAULT_UTILISATION = 0.4
DEFAULT_COPY = "40 GB/s"
_ETHERNET_MTU_BYTES = 1500


def _require_some(parse: Callable[[str], float], value: str) -> str:
    # Pydantic adds the field's path to a ValueError only.
    try:
        amount = parse(value)
    except UsageError as problem:
        raise ValueError("; ".join([problem.what, *problem.fix])) from problem
    if amount <= 0:
        raise ValueError(f"{value!r} is nothing")
    return value


_Rate = Annotated[str, AfterValidator(partial(_require_some, parse_bit_per_s))]
_Size = Annotated[str, AfterValidator(partial(_require_some, parse_bytes))]


class SimulatedHost(BaseModel):
    """One `[[host]]` of a simulated fleet."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    count: Annotated[int, Field(ge=1, le=1024)] = 1
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    tflops: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    cores: Annotated[int, Field(ge=1, le=4096)] = 8
    # Not `copy`: a pydantic model has a method of that name.
    copy_rate: Annotated[_Rate, Field(alias="copy")] = DEFAULT_COPY
    memory: _Size | None = None
    up: _Rate
    down: _Rate | None = None
    half_duplex: bool = False

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all `count` hosts."""
        if self.count == 1:
            return (self.name,)
        return tuple(f"{self.name}-{number + 1}" for number in range(self.count))


class SimulatedFleet(BaseModel):
    """A simulated fleet's file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str = ""
    utilisation: Annotated[float, Field(gt=0, le=1)] = DEFAULT_UTILISATION
    rtt_ms: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    host: Annotated[list[SimulatedHost], Field(min_length=1)]


def presets() -> dict[str, str]:
    """Names and descriptions of the built-in fleets."""
    return {path.stem: load_simulated(path.stem).description for path in _files()}


def load_simulated(named: str) -> SimulatedFleet:
    """Load a built-in fleet by its name, or a file. Raises FleetError."""
    built_in = {path.stem: path for path in _files()}
    path = built_in.get(named)
    try:
        # Editors of Windows begin a file with a byte order mark.
        text = (path or Path(named)).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as problem:
        raise FleetError(
            f"--simulate {named}: there is no such file, nor a built-in fleet of that name",
            fix=[f"--simulate {name}    {what}" for name, what in presets().items()],
        ) from problem
    return _parse(text, path.name if path else named)


def _files() -> list[Path]:
    folder = Path(str(resources.files("yoked.plan"))) / "fleets"
    return sorted(folder.glob("*.toml"))


def _parse(text: str, where: str) -> SimulatedFleet:
    try:
        fleet = SimulatedFleet.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, RecursionError) as problem:
        raise FleetError(f"{where} is not TOML: {problem}", fix="mend that line") from problem
    except ValidationError as problem:
        first = problem.errors()[0]
        # Hosts count from 1 for people.
        place = " ".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
        what = first["msg"].removeprefix("Value error, ")
        raise FleetError(
            f"{where}: {place}: {what}", fix="`docs/guides/plan.md` has the format of a file"
        ) from problem
    names = [name for host in fleet.host for name in host.names]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FleetError(f"{where}: two hosts are called {twice[0]}", fix="give each its own name")
    return fleet


@dataclass(frozen=True)
class _Machine:
    """A host with its rates as numbers."""

    name: str
    spec: SimulatedHost
    up_bytes_per_s: float
    down_bytes_per_s: float


def simulate(fleet: SimulatedFleet, shape: ModelShape, device_batch_size: int) -> Measurement:
    """The measurement that a probe would take of this fleet, if its peaks and rates are true.

    Times contain no overhead: they are lower bounds at the fleet's utilisation.
    """
    machines = _machines(fleet.host)
    tokens = device_batch_size * shape.sequence_len
    return Measurement(
        fleet=fleet.description or "simulated",
        taken_s=0.0,
        ranks={machine.name: 1 for machine in machines},
        memory_bytes={
            machine.name: parse_bytes(machine.spec.memory)
            for machine in machines
            if machine.spec.memory is not None
        },
        links=_links(machines, fleet.rtt_ms / 1000),
        collectives=(),  # the plan takes its defaults instead
        compute=tuple(_compute(machine, fleet.utilisation) for machine in machines),
        step_costs=tuple(
            _step_cost(machine, fleet.utilisation, shape, tokens) for machine in machines
        ),
    )


def add_hosts(
    measurement: Measurement,
    added: Sequence[SimulatedHost],
    shape: ModelShape,
    device_batch_size: int,
) -> Measurement:
    """Add stated hosts to a measured fleet, at the default utilisation.

    A new link is as fast as its slower end; a measured host's end is as fast as its fastest link.
    Raises UsageError for a name that is taken.
    """
    names = [*measurement.ranks, *(name for host in added for name in host.names)]
    if twice := [host.name for host in added if names.count(host.name) > 1]:
        raise UsageError(f"--add {twice[0]}: there is a host of that name", fix="name it anew")
    fastest = {
        host: max(
            (link.both_ways_bytes_per_s for link in measurement.links if link.from_host == host),
            default=float("inf"),  # no link: the new host's end decides
        )
        for host in measurement.ranks
    }
    rtt_s = max((link.rtt_s for link in measurement.links), default=0.5e-3)
    newcomers = simulate(
        SimulatedFleet(host=list(added), rtt_ms=rtt_s * 1000), shape, device_batch_size
    )
    links = [*measurement.links, *newcomers.links]
    for machine in _machines(added):
        for host, rate in fastest.items():
            links.append(_link(machine.name, host, min(rate, machine.up_bytes_per_s), rtt_s))
            links.append(_link(host, machine.name, min(rate, machine.down_bytes_per_s), rtt_s))
    # The stated peak is for any dtype.
    dtypes = dict.fromkeys(cost.dtype for cost in measurement.step_costs)
    in_all_dtypes = [
        replace(cost, dtype=dtype) for cost in newcomers.step_costs for dtype in dtypes
    ]
    return replace(
        measurement,
        ranks={**measurement.ranks, **newcomers.ranks},
        memory_bytes={**measurement.memory_bytes, **newcomers.memory_bytes},
        links=tuple(links),
        compute=(*measurement.compute, *newcomers.compute),
        step_costs=(*measurement.step_costs, *in_all_dtypes),
    )


def parse_added(text: str) -> SimulatedHost:
    """Parse `--add NAME=TFLOPS,MBIT`: the peak in any dtype, and the rate each way."""
    name, _, figures = text.partition("=")
    tflops, _, mbit = figures.partition(",")
    try:
        if not name or not 0 < float(tflops) < math.inf or not 0 < float(mbit) < math.inf:
            raise ValueError(text)
        # Never as 1e-05, which is no quantity.
        rate = f"{1e6 * float(mbit):.3f} bit/s"
        return SimulatedHost(name=name, tflops=float(tflops), up=rate)
    except ValueError as problem:
        raise UsageError(
            f"--add {text!r} is not NAME=TFLOPS,MBIT",
            fix="a mini-PC of 0.3 TFLOP/s at 1 Gbit/s: --add mini=0.3,940",
        ) from problem


def _machines(hosts: Sequence[SimulatedHost]) -> list[_Machine]:
    machines = []
    for spec in hosts:
        up = parse_bit_per_s(spec.up) / 8  # bytes/s
        down = parse_bit_per_s(spec.down) / 8 if spec.down else up
        share = 0.5 if spec.half_duplex else 1.0
        machines += [_Machine(name, spec, share * up, share * down) for name in spec.names]
    return machines


def _links(machines: Sequence[_Machine], rtt_s: float) -> tuple[Link, ...]:
    return tuple(
        _link(a.name, b.name, min(a.up_bytes_per_s, b.down_bytes_per_s), rtt_s)
        for a in machines
        for b in machines
        if a is not b
    )


def _link(from_host: str, to_host: str, rate: float, rtt_s: float) -> Link:
    # The same rate both ways: `_machines` has halved that of half-duplex hosts.
    return Link(from_host, to_host, "simulated", "", _ETHERNET_MTU_BYTES, rtt_s, rate, rate)


def _compute(machine: _Machine, utilisation: float) -> Compute:
    spec = machine.spec
    flops_per_s = utilisation * spec.tflops * 1e12
    copy = parse_bit_per_s(spec.copy_rate) / 8  # bytes/s
    return Compute(
        machine.name, spec.device, "simulated", spec.dtype, spec.cores, flops_per_s, copy
    )


def _step_cost(machine: _Machine, utilisation: float, shape: ModelShape, tokens: int) -> StepCost:
    compute = _compute(machine, utilisation)
    layers_s = tokens * layer_flops_per_token(shape) / compute.flops_per_s
    adamw_bytes = ADAMW_BYTES_PER_NUMBER * count_parameters(shape).adamw
    return StepCost(
        host=machine.name,
        device=compute.device,
        dtype=compute.dtype,
        threads=compute.threads,
        model=shape,
        tokens=tokens,
        # The backward pass has twice the FLOPs.
        forward_s=layers_s / 3,
        head_s=tokens * head_flops_per_token(shape) / compute.flops_per_s,
        backward_s=layers_s * 2 / 3,
        overhead_s=0.0,
        adamw_s=adamw_bytes / compute.copy_bytes_per_s,
        muon_s=muon_flops(shape) / compute.flops_per_s,
    )
