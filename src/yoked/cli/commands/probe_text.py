"""The output of `yoked probe`: tables for people, one JSON object for programs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from yoked.cli.output import Output
from yoked.probe.roofline import Roofline, roofline
from yoked.probe.summary import beyond_wire
from yoked.records.measurement import Measurement
from yoked.table import table
from yoked.text import paragraphs
from yoked.units import format_bit_per_s, format_bytes, format_bytes_per_s, format_duration, plural
from yoked.workflows.probe_job import ProbeResult

_LINKS = (
    "from",
    "to",
    "interface",
    "goodput",
    "both ways",
    "round trip",
    "jitter",
    "sent again",
    "MTU",
)
_COLLECTIVES = ("collective", "size", "time", "algorithm", "bus", "of the wire")
_COMPUTE = ("host", "device", "dtype", "threads", "products", "copy", "held by")
_STEPS = ("host", "dtype", "tokens", "forward", "head", "backward", "AdamW", "Muon", "together")


def report(result: ProbeResult, output: Output) -> int:
    """Print the result; returns the exit status."""
    next_commands: list[str] = []
    if result.problem is not None:
        next_commands = list(result.problem.fix)
    elif result.saved_to is not None:
        depth = min(cost.model.n_layer for cost in result.measurement.step_costs)
        next_commands = [f"yoked plan --depth {depth}{result.fleet.flag}"]
    output.result(
        payload(result),
        verdict=_verdict(result),
        evidence=_evidence(result),
        next_commands=next_commands,
    )
    return 0 if result.problem is None else 1


def payload(result: ProbeResult) -> dict[str, Any]:
    """The object that `--json` prints."""
    measurement, links = result.measurement, []
    for measured in result.links:
        link = dataclasses.asdict(measured.link)
        links.append(
            {
                "from": link.pop("from_host"),
                "to": link.pop("to_host"),
                **link,
                "interface_mtu_bytes": measured.interface_mtu_bytes,
            }
        )
    return {
        "ok": result.problem is None,
        "fleet": measurement.fleet,
        "taken_s": measurement.taken_s,
        "took_s": result.took_s,
        "ranks": measurement.ranks,
        "memory_bytes": measurement.memory_bytes,
        "links": links,
        "collectives": [dataclasses.asdict(each) for each in measurement.collectives],
        "left_out": result.skipped_sizes,
        "compute": [dataclasses.asdict(each) for each in measurement.compute],
        "step_costs": [dataclasses.asdict(each) for each in measurement.step_costs],
        "busy_cores": measurement.busy_cores,
        "beyond_wire": _beyond_payload(measurement),
        "bounds": [
            {"helps" if name == "suggestions" else name: value for name, value in fields.items()}
            for fields in map(dataclasses.asdict, _rooflines(measurement).values())
        ],
        "choices": result.choices,
        "problem": None
        if result.problem is None
        else {"what": result.problem.what, "fix": list(result.problem.fix)},
        "kept": None if result.saved_to is None else str(result.saved_to),
    }


def _beyond_payload(measurement: Measurement) -> dict[str, Any] | None:
    if (found := beyond_wire(measurement)) is None:
        return None
    link, most = found
    return {
        "from": link.from_host,
        "to": link.to_host,
        "op": most.op,
        "payload_bytes": most.payload_bytes,
        "fraction_of_wire": most.fraction_of_wire,
    }


def _verdict(result: ProbeResult) -> str:
    measurement = result.measurement
    took = f"measured in {format_duration(result.took_s)}"
    if measurement.links:
        slow = min(measurement.links, key=lambda link: link.goodput_bytes_per_s)
        rate = slow.goodput_bytes_per_s
        return (
            f"fleet {measurement.fleet}: the slowest link, {slow.from_host} to {slow.to_host}, "
            f"gives {format_bit_per_s(8 * rate)} ({format_bytes_per_s(rate)}); {took}"
        )
    if measurement.compute:
        best = max(measurement.compute, key=lambda each: each.flops_per_s)
        speed = f"{_flops(best.flops_per_s)} in {best.dtype} on {best.host}"
        return f"fleet {measurement.fleet}: {speed}; {took}"
    return f"fleet {measurement.fleet}: {plural(len(result.fleet.hosts), 'host')}; {took}"


def _evidence(result: ProbeResult) -> list[str]:
    return paragraphs(
        _link_lines(result),
        _collective_lines(result),
        _compute_lines(result.measurement),
        _closing_lines(result),
    )


def _link_lines(result: ProbeResult) -> Iterator[str]:
    if not result.links:
        return
    rows = []
    for measured in result.links:
        link = measured.link
        rows.append(
            [
                link.from_host,
                link.to_host,
                f"{link.interface}, {link.family}",
                format_bit_per_s(8 * link.goodput_bytes_per_s),
                format_bit_per_s(8 * link.both_ways_bytes_per_s),
                format_duration(link.rtt_s),
                format_duration(link.jitter_s),
                "unknown" if link.resent is None else f"{link.resent:.2%}",
                str(link.mtu_bytes or "unknown"),
            ]
        )
    yield from table(_LINKS, rows)
    for measured in result.links:
        link, interface_mtu = measured.link, measured.interface_mtu_bytes
        if interface_mtu and link.mtu_bytes < interface_mtu:
            yield (
                f"{link.from_host} to {link.to_host}: packets of {link.mtu_bytes} bytes at most, "
                f"although {link.interface} takes {interface_mtu}: a tunnel on the way"
            )


def _collective_lines(result: ProbeResult) -> Iterator[str]:
    collectives = result.measurement.collectives
    if collectives:
        yield f"{collectives[0].backend}, {collectives[0].ranks} ranks, seconds of the slowest:"
        yield from table(
            _COLLECTIVES,
            [
                [
                    each.op,
                    format_bytes(each.payload_bytes),
                    format_duration(each.time_s),
                    format_bytes_per_s(each.algbw_bytes_per_s),
                    format_bytes_per_s(each.busbw_bytes_per_s),
                    "" if each.fraction_of_wire is None else f"{100 * each.fraction_of_wire:.0f}%",
                ]
                for each in collectives
            ],
        )
    if result.skipped_sizes:
        sizes = ", ".join(
            f"{each['op']} of {format_bytes(each['payload_bytes'])} "
            f"(about {format_duration(each['expected_s'])})"
            for each in result.skipped_sizes
        )
        yield f"left out, too long: {sizes}; --collectives-limit 2min allows more"


def _compute_lines(measurement: Measurement) -> Iterator[str]:
    if not measurement.compute:
        return
    rooflines = _rooflines(measurement)
    rows = []
    for each in measurement.compute:
        verdict = rooflines.get((each.host, each.dtype))
        rows.append(
            [
                each.host,
                f"{each.device}, {each.device_name}",
                each.dtype,
                str(each.threads),
                _flops(each.flops_per_s),
                format_bytes_per_s(each.copy_bytes_per_s),
                "too slow to be tried" if verdict is None else verdict.side,
            ]
        )
    yield from table(_COMPUTE, rows)
    yield ""
    yield "a training step of one micro-batch on one rank, all hosts computing, nothing sent:"
    rows = []
    for cost in measurement.step_costs:
        parts_s = (cost.forward_s, cost.head_s, cost.backward_s, cost.adamw_s, cost.muon_s)
        speed = f"{cost.tokens / sum(parts_s):,.0f} tokens/s"
        step = [cost.host, cost.dtype, f"{cost.tokens:,}", *map(format_duration, parts_s), speed]
        rows.append(step)
    yield from table(_STEPS, rows)
    for verdict in rooflines.values():
        yield (
            f"{verdict.host}, {verdict.dtype}: held by {verdict.side}. The model makes "
            f"{verdict.intensity:.3g} FLOPs of each byte, the machine could {verdict.balance:.3g}; "
            f"layers and head reach {100 * verdict.reached:.0f}% of its fastest products"
        )
        yield from (f"  helps: {line}" for line in verdict.suggestions)


def _rooflines(measurement: Measurement) -> dict[tuple[str, str], Roofline]:
    """The roofline of each host and dtype in which a step was measured."""
    rooflines = {}
    for cost in measurement.step_costs:
        on_host = [
            each
            for each in measurement.compute
            if each.host == cost.host and each.device.partition(":")[0] == cost.device
        ]
        measured = {each.dtype for each in measurement.step_costs if each.host == cost.host}
        compute = next((each for each in on_host if each.dtype == cost.dtype), None)
        if compute is not None:
            others = tuple(each for each in on_host if each.dtype in measured - {cost.dtype})
            rooflines[cost.host, cost.dtype] = roofline(cost, compute, others)
    return rooflines


def _closing_lines(result: ProbeResult) -> Iterator[str]:
    if (beyond := beyond_wire(result.measurement)) is not None:
        link, most = beyond
        percent = f"{100 * (most.fraction_of_wire or 0.0):.0f}%"
        yield (
            f"{link.from_host} to {link.to_host} was measured while it or its hosts were busy, and "
            f"is faster than this: {most.op} of {format_bytes(most.payload_bytes)} had {percent} "
            "of it; `yoked probe` again once they are idle"
        )
    for host, cores in result.measurement.busy_cores.items():
        yield (
            f"{host}: other programs used {cores:.1f} of its cores meanwhile, so it may be faster "
            "than this; `yoked probe` again once they have ended"
        )
    if result.problem is not None:
        first, *rest = result.problem.what.splitlines()
        yield f"not measured: {first}"
        yield from (f"  {line}" for line in rest)
    if result.saved_to is not None:
        yield f"kept in {result.saved_to}"
    else:
        yield "not kept: a plan needs all links and a training step of every host"


def _flops(flops_per_s: float) -> str:
    """A speed as text, such as `268 GFLOP/s`."""
    scales = ((1e12, "TFLOP/s"), (1e9, "GFLOP/s"), (1e6, "MFLOP/s"))
    scale, unit = next((each for each in scales if flops_per_s >= each[0]), scales[-1])
    return f"{flops_per_s / scale:.3g} {unit}"
