"""`yoked plan`: the predicted speed of each way to train on a fleet."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Group, Parameter

from yoked.cli.commands.plan_params import AnyModelFlags, plan_any_model, require_alone
from yoked.cli.completers import simulated_fleets
from yoked.cli.flags import FleetHere, JsonFlag, flag, given_flags, same_fleet
from yoked.cli.output import Output
from yoked.core.faults import fault
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.units import parse_bytes

if TYPE_CHECKING:
    from yoked.fleet.model import Fleet
    from yoked.plan.simulated_fleet import SimulatedHost
    from yoked.records.measurement import Measurement
    from yoked.train.config import TrainConfig
    from yoked.workflows.planning import PlannedDevice

MODEL = Group("Model and run, as in `yoked train`", sort_key=1)
LARGER_BATCH_FACTOR = 4
# Below this efficiency the plan also says what a larger batch would gain.
GOOD_EFFICIENCY = 0.85


@dataclass(frozen=True)
class PlanFlags:
    """The run to plan, by the flags of `yoked train`."""

    depth: Annotated[int | None, flag(MODEL, "Layers of the model; width follows.")] = None
    aspect_ratio: Annotated[int, flag(MODEL, "Width is depth times this.")] = 64
    head_dim: Annotated[int | None, flag(MODEL, "Width of one attention head.")] = None
    max_seq_len: Annotated[int | None, flag(MODEL, "Tokens in a row.")] = None
    window_pattern: Annotated[str | None, flag(MODEL, "Attention windows.")] = None
    vocab_size: Annotated[int, flag(MODEL, "Tokens in the vocabulary.")] = 32_768
    dtype: Annotated[str, flag(MODEL, "auto, float32 or bfloat16.")] = "auto"
    total_batch_size: Annotated[int | None, flag(MODEL, "Tokens in a step, over all ranks.")] = None
    device_batch_size: Annotated[
        int | None, flag(MODEL, "Most rows at once. Default: the best of those measured.")
    ] = None
    num_iterations: Annotated[int | None, flag(MODEL, "Steps to train.")] = None
    target_flops: Annotated[float | None, flag(MODEL, "Train until so many FLOPs are done.")] = None
    target_param_data_ratio: Annotated[
        float | None, flag(MODEL, "Tokens for each parameter of the matrices and the lm_head.")
    ] = None

    def config(self) -> TrainConfig:
        """The trainer's configuration. Raises UsageError for invalid values."""
        from yoked.train.config import TrainConfig

        return TrainConfig(**dataclasses.asdict(self))

    def to_args(self) -> list[str]:
        """The given flags, as arguments of `yoked train`."""
        return [
            f"{name} {value}"
            for name, value in given_flags(self).items()
            if name != "--device-batch-size"
        ]


def command(
    *,
    fleet: FleetHere = None,
    flags: Annotated[PlanFlags, Parameter(name="*")] = PlanFlags(),
    probe: Annotated[
        Path | None, Parameter(help="A measurement's file. Default: the fleet's newest.")
    ] = None,
    simulate: Annotated[
        str | None,
        Parameter(
            help="A fleet that need not exist: a file, or h100-roce, 64-homes or two-laptops.",
            completer=simulated_fleets,
        ),
    ] = None,
    add: Annotated[
        tuple[str, ...],
        Parameter(
            negative="",
            show_default=False,
            help="Will this host help? NAME=TFLOPS,MBIT: its peak, and what it sends each way.",
        ),
    ] = (),
    price_per_hour: Annotated[
        tuple[str, ...],
        Parameter(
            negative="", show_default=False, help="What an hour of a host costs: HOST=PRICE."
        ),
    ] = (),
    any_model: Annotated[AnyModelFlags, Parameter(name="*")] = AnyModelFlags(),  # noqa: B008
    json_output: JsonFlag = False,
) -> int:
    """Predict what each way of training would give on this fleet, choose one, and say why.

    It reads what `yoked probe` measured last and measures nothing itself. --simulate needs no
    fleet: its figures are stated peaks and rates. --params needs none either: it computes what the
    network costs any model.
    """
    output = Output(json_mode=json_output)
    of_fleet = {
        "--fleet": fleet,
        "--probe": probe,
        "--simulate": simulate,
        "--add": add,
        "--price-per-hour": price_per_hour,
    }
    others = [name for name, given in of_fleet.items() if given]
    require_alone(any_model, [*others, *given_flags(flags)])
    if any_model.params is not None:
        plan_any_model(any_model, output)
        return 0
    from yoked.cli.commands.plan_text import plan_lines, plan_payload, train_commands
    from yoked.plan.explain import Target, verdict
    from yoked.plan.search import make_plan
    from yoked.plan.simulated_fleet import add_hosts, load_simulated, parse_added
    from yoked.plan.simulated_fleet import simulate as simulate_fleet
    from yoked.workflows.passed import note_passed
    from yoked.workflows.planning import measured_devices, plan_request, resolve_run

    config = flags.config()
    if simulate is not None and (fleet is not None or probe is not None):
        raise UsageError(
            "--simulate is a fleet of its own, without --fleet and --probe", fix="give one of them"
        )
    added = [parse_added(text) for text in add]
    of_added = [_device(host) for host in added]
    opened: Fleet | None = None
    if simulate is not None:
        simulated = load_simulated(simulate)
        run = resolve_run(config, [*map(_device, simulated.host), *of_added])
        measurement = simulate_fleet(simulated, run.shape, run.resolved.device_batch_size)
    else:
        if probe is not None:
            measurement = _read(probe)
        else:
            opened = open_fleet(fleet)
            measurement = _newest(opened, same_fleet(fleet))
        run = resolve_run(config, [*measured_devices(measurement), *of_added])
    if added:
        batch = run.resolved.device_batch_size
        measurement = add_hosts(measurement, added, run.shape, batch)
    plan = make_plan(plan_request(config, run), measurement)
    prices = _prices(price_per_hour, measurement.ranks)
    target = Target(run.schedule.num_iterations, prices)
    names = [name for host in added for name in host.names]
    larger = None
    # Where the network slows this one down, larger steps may help.
    slowed = plan.efficiency < GOOD_EFFICIENCY or plan.excluded
    if len(plan.single_host) > 1 and slowed:
        tokens = LARGER_BATCH_FACTOR * plan.request.tokens_per_step
        larger = make_plan(dataclasses.replace(plan.request, tokens_per_step=tokens), measurement)
    commands: list[str] = []
    if not (simulate or added):  # simulated hosts cannot train
        config_file = None if opened is None else opened.ssh_config
        commands = train_commands(plan, flags.to_args(), fleet, config_file)
    if opened is not None and commands and not plan.chosen.over_memory:
        note_passed(opened, "plan", verdict(plan), commands)
    output.result(
        plan_payload(plan, measurement, target, names, simulated=simulate is not None),
        verdict=verdict(plan),
        evidence=plan_lines(plan, measurement, target, names, larger, simulated=simulate),
        next_commands=commands,
    )
    return 1 if plan.chosen.over_memory else 0


def _device(host: SimulatedHost) -> PlannedDevice:
    from yoked.workflows.planning import PlannedDevice

    memory = None if host.memory is None else parse_bytes(host.memory)
    return PlannedDevice(host.device, memory)


def _newest(fleet: Fleet, flag: str) -> Measurement:
    """The newest measurement of a fleet. flag: what names its file in a command."""
    from yoked.probe.store import load_newest

    measurement = load_newest(fleet)
    if measurement is None:
        raise fault("fleet-unmeasured", fleet=fleet.name, flag=flag)
    return measurement


def _read(probe: Path) -> Measurement:
    """The measurement of a file."""
    from yoked.records.measurement_json import measurement_from_json

    try:
        text = probe.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise UsageError(
            f"--probe {probe} cannot be read: {problem}", fix="yoked probe"
        ) from problem
    return measurement_from_json(text, where=str(probe))


def _prices(given: Sequence[str], hosts: Collection[str]) -> dict[str, float]:
    """The price of an hour, by host. Raises UsageError."""
    known: dict[str, float] = {}
    for text in given:
        host, _, price = text.rpartition("=")
        try:
            known[host] = float(price)
        except ValueError:
            known[host] = -1.0
        if host not in hosts or not 0 <= known[host] < math.inf:
            raise UsageError(
                f"--price-per-hour {text!r} is not HOST=PRICE with a host of the fleet",
                fix=f"hosts are {', '.join(list(hosts)[:8])}",
            )
    return known
