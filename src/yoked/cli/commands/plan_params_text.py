"""The output of `yoked plan --params`: JSON for programs, lines for people."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from yoked.plan.comm_cost import (
    Cost,
    Training,
    all_reduce_cost,
    collectives_of_fsdp,
    enough_accumulation,
    fleet_sizes,
    fsdp_cost,
    levers,
    lines_with,
    transfer_s,
)
from yoked.table import table
from yoked.units import (
    format_bit_per_s,
    format_bytes,
    format_count,
    format_duration,
)


def verdict(training: Training, link: float) -> str:
    """The first line: what one all-reduce over the given line costs."""
    cost = all_reduce_cost(training, link)
    said = (
        f"{training.hosts} hosts at {format_bit_per_s(link)}: an all-reduce takes "
        f"{format_duration(cost.comm_s)}"
    )
    if cost.comm_to_compute is not None:
        said += f", T_comm/T_compute = {cost.comm_to_compute:.3g}: {_times(cost.speedup)} one host"
    return said


def payload(training: Training, link: float, *, measured: bool) -> dict[str, Any]:
    """The object of --json. Times in seconds, None where --step-s is not given."""
    known = training.step_s is not None
    return {
        "params": training.params,
        "trainable": training.trained,
        "payload": training.payload,
        "hosts": training.hosts,
        "link_bit_per_s": link,
        "efficiency": training.efficiency,
        "efficiency_from": "gloo-measured" if measured else "given",
        "compute_s": training.step_s,
        "gradient_bytes": training.gradient_bytes,
        "bytes_per_step": training.sent_bytes,
        "links": [
            {"bit_per_s": line, "given": line == link, **_cost(all_reduce_cost(training, line))}
            for line in lines_with(link)
        ],
        "by_hosts": [
            {"hosts": hosts, **_cost(all_reduce_cost(replace(training, hosts=hosts), link))}
            for hosts in fleet_sizes(training.hosts)
        ],
        "all_trained": (
            None
            if training.trainable is None
            else _cost(all_reduce_cost(replace(training, trainable=None), link))
        ),
        "levers": [
            {
                "what": name,
                "payload": way.payload,
                "accumulation": way.accumulation,
                "overlap": way.overlap,
                **_cost(all_reduce_cost(way, link)),
            }
            for name, way in levers(training, link).items()
        ],
        "enough_accumulation": enough_accumulation(training, link) if known else None,
        "fsdp": {
            "collectives": [
                {
                    "what": name,
                    "bytes_per_step": sent,
                    "time_s": {
                        f"{line:.0f}": transfer_s(sent, line, training.efficiency)
                        for line in lines_with(link)
                    },
                }
                for name, sent in collectives_of_fsdp(training).items()
            ],
            "links": [
                {"bit_per_s": line, "given": line == link, **_cost(fsdp_cost(training, line))}
                for line in lines_with(link)
            ],
        },
    }


def _cost(cost: Cost) -> dict[str, Any]:
    return {
        "bytes_per_step": cost.sent_bytes,
        "comm_s": cost.comm_s,
        "exposed_comm_s": cost.exposed_s,
        "step_s": cost.step_s,
        "comm_to_compute": cost.comm_to_compute,
        "speedup": cost.speedup,
    }


def lines(training: Training, link: float, *, measured: bool) -> list[str]:
    """The evidence: what travels, its time on each line, what helps, and FSDP's collectives."""
    source = "as Gloo reached at 1 Gbit/s, benchmarks/probe" if measured else "--efficiency"
    return [
        *_size_lines(training, link),
        f"an all-reduce sends 2(N-1)/N of that from each host: {format_bytes(training.sent_bytes)}",
        f"efficiency {training.efficiency:g} of the line ({source})",
        *_link_lines(training, link),
        *_hosts_lines(training, link),
        *_lever_lines(training, link),
        *_fsdp_lines(training, link),
    ]


def _size_lines(training: Training, link: float) -> list[str]:
    size = format_bytes(training.gradient_bytes)
    model = f"{format_count(training.params)} parameters"
    if training.trainable is None:
        return [f"{model} in {training.payload}: gradients of {size}"]
    everything = all_reduce_cost(replace(training, trainable=None), link)
    trained = f"{format_count(training.trained)} of them trained"
    part = f"{100 * training.trained / training.params:.2g}%"
    sent = format_bytes(everything.sent_bytes)
    return [
        f"{model}, {trained} ({part}): gradients of {size} in {training.payload}",
        f"all of them trained would send {sent} and take {format_duration(everything.comm_s)}",
    ]


def _hosts_lines(training: Training, link: float) -> list[str]:
    """Speed by the number of hosts, where a compute time makes it known."""
    if training.step_s is None or training.hosts < 3:
        return []
    rows = [
        [str(hosts), *_cells(all_reduce_cost(replace(training, hosts=hosts), link))]
        for hosts in fleet_sizes(training.hosts)
    ]
    return ["", f"by hosts, at {format_bit_per_s(link)}:", *_table(rows, first="hosts")]


def _link_lines(training: Training, link: float) -> list[str]:
    rows = [
        [format_bit_per_s(line), *_cells(all_reduce_cost(training, line))]
        for line in lines_with(link)
    ]
    return ["", "data parallel (DDP), one all-reduce a step, nothing hidden:", *_table(rows)]


def _lever_lines(training: Training, link: float) -> list[str]:
    rows = [
        [name, *_cells(all_reduce_cost(way, link))] for name, way in levers(training, link).items()
    ]
    if len(rows) == 1:
        return []
    title = f"what helps at {format_bit_per_s(link)}"
    if training.step_s is not None:
        part = training.backward_fraction
        title += f" (overlap hides at most the backward pass, {part:.0%} of compute)"
    return ["", f"{title}:", *_table(rows, first="way")]


def _fsdp_lines(training: Training, link: float) -> list[str]:
    rates = lines_with(link)
    rows = [
        [name, *(format_duration(transfer_s(sent, line, training.efficiency)) for line in rates)]
        for name, sent in collectives_of_fsdp(training).items()
    ]
    costs = [fsdp_cost(training, line) for line in rates]
    rows.append(["a step", *(format_duration(cost.comm_s) for cost in costs)])
    if training.step_s is not None:
        rows.append(["comm/compute", *(_times(cost.comm_to_compute) for cost in costs)])
    sent = format_bytes(costs[0].sent_bytes)
    heads = ["collective", *map(format_bit_per_s, rates)]
    # Frozen parameters are gathered, and have no gradient to scatter.
    much = "3(N-1)/N" if training.trainable is None else "all parameters twice"
    return ["", f"FSDP (ZeRO-3) sends {much}, {sent}, for each micro-batch:", *table(heads, rows)]


def _cells(cost: Cost) -> list[str]:
    cells = [format_bytes(cost.sent_bytes), format_duration(cost.comm_s)]
    if cost.step_s is None:
        return cells
    return [
        *cells,
        _times(cost.comm_to_compute),
        format_duration(cost.step_s),
        _times(cost.speedup),
    ]


def _table(rows: list[list[str]], first: str = "line") -> list[str]:
    heads = [first, "sent", "all-reduce", "comm/compute", "step", "speedup"]
    return table(heads[: len(rows[0])], rows)


def _times(ratio: float | None) -> str:
    """A ratio with three significant digits, such as `9.54x`; "" where it is not known."""
    if ratio is None:
        return ""
    return f"{ratio:.3g}x" if ratio < 1000 else f"{ratio:,.0f}x"
