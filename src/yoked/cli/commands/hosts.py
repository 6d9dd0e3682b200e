"""`yoked hosts`: the hosts of a fleet as they are now, in the words that `yoked init` has too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from yoked.cli.flags import FleetFile, JsonFlag
from yoked.cli.output import Output
from yoked.errors import YokedError
from yoked.fleet.choose import Choice
from yoked.fleet.discover import require_distinct
from yoked.fleet.file import open_fleet
from yoked.fleet.model import Fleet, Host
from yoked.table import table
from yoked.units import format_bit_per_s, format_bytes
from yoked.workflows.looks import (
    Look,
    ask_all,
    cores_text,
    gpus_text,
    look,
    reach_quietly,
    torch_lines,
)

_FACTS = ("host", "CPU", "cores", "memory", "GPU", "torch")


def command(*, fleet: FleetFile = None, json_output: JsonFlag = False) -> int:
    """Show the hosts of a fleet: CPU, memory, GPUs, torch, interface, free disk.

    A host that does not answer is shown with ssh's own reason, and the exit status is 1.
    """
    output = Output(json_mode=json_output)
    wanted = open_fleet(fleet)
    with reach_quietly(wanted) as hosts:
        seen = ask_all(hosts, look)
    there = {name: each for name, each in seen.items() if not isinstance(each, YokedError)}
    require_distinct({name: each.facts for name, each in there.items()})
    output.result(
        {
            "ok": len(there) == len(seen),
            "fleet": wanted.name,
            "hosts": [payload(host, seen[host.name]) for host in wanted.hosts],
        },
        verdict=f"fleet {wanted.name}: {len(there)} of {len(seen)} hosts are up",
        evidence=hosts_lines(wanted.hosts, seen),
        next_commands=_next(wanted, there),
    )
    return 0 if len(there) == len(seen) else 1


def _next(fleet: Fleet, there: Mapping[str, Look]) -> list[str]:
    if lines := torch_lines(fleet.hosts, there, fleet.flag):
        return lines
    if len(fleet.hosts) > 1 and any(host.interface is None for host in fleet.hosts):
        return [f"yoked init --force{fleet.flag}    finds out which interfaces they can use"]
    return []


def payload(host: Host, seen: Look | YokedError, choice: Choice | None = None) -> dict[str, Any]:
    """A host for programs."""
    told = {
        "name": host.name,
        "up": False,
        "ranks": host.ranks,
        "device": host.device,
        "python": None,
        "versions": {},
        "interface": choice.interface if choice else host.interface,
        "address": None,
        "rtt_s": choice.rtt_s if choice else None,
        "goodput_bytes_per_s": choice.goodput_bytes_per_s if choice else None,
        "facts": None,
    }
    if isinstance(seen, YokedError):
        return {**told, "what": seen.what, "fix": list(seen.fix)}
    return {
        **told,
        "up": True,
        "python": seen.python,
        "versions": dict(seen.versions),
        "address": choice.address if choice else address_today(host, seen),
        "facts": dict(seen.facts),
        "interfaces": list(seen.interfaces),
    }


def address_today(host: Host, seen: Look) -> str | None:
    """The address that the host's interface has now: leases change."""
    named = (each for each in seen.interfaces if each["name"] == host.interface)
    return next((each["gloo_address"] for each in named), None)


def facts_cells(host: Host, seen: Look) -> list[str]:
    """host, CPU, cores, memory, GPU, torch."""
    facts = seen.facts
    memory_bytes = facts["memory_bytes"]
    return [
        host.name,
        facts["cpu_model"],
        cores_text(facts),
        "unknown" if memory_bytes is None else format_bytes(memory_bytes),
        gpus_text(facts["gpus"]),
        seen.torch or "none",
    ]


def init_lines(
    hosts: Sequence[Host], seen: Mapping[str, Look], choices: Mapping[str, Choice]
) -> list[str]:
    """What `yoked init` shows: facts, and the link that was proved."""
    rows = []
    for host in hosts:
        choice = choices.get(host.name)
        rate = choice.goodput_bytes_per_s if choice else None
        rows.append(
            [
                *facts_cells(host, seen[host.name]),
                f"{choice.interface} {choice.address}" if choice else "not needed",
                format_bit_per_s(8 * rate) if rate else "",
            ]
        )
    return table((*_FACTS, "interface", "measured"), rows)


def hosts_lines(hosts: Sequence[Host], seen: Mapping[str, Look | YokedError]) -> list[str]:
    """What `yoked hosts` shows: a row for each, and below it why one is not there."""
    rows, below = [], []
    for host in hosts:
        found = seen[host.name]
        if isinstance(found, YokedError):
            rows.append([host.name, "down"])
            below += [*found.what.splitlines(), *(f"fix: {line}" for line in found.fix)]
            continue
        where = "not needed"
        if len(hosts) > 1:
            # With its address of today.
            at = address_today(host, found) or "is not up"
            where = "not chosen" if host.interface is None else f"{host.interface} {at}"
        free = format_bytes(found.facts["free_bytes"]["state"])  # where runs are kept
        rows.append([*facts_cells(host, found), where, free])
        if found.no_python:
            below.append(found.no_python)
    return [*table((*_FACTS, "interface", "free disk"), rows), *below]
