"""What `yoked lab` says: plain data for programs, lines for people. Nothing is done here."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from yoked.table import table
from yoked.units import format_bit_per_s, format_bytes, format_duration, plural

if TYPE_CHECKING:
    from yoked.lab.faults import ActiveFault, Kind
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab
    from yoked.lab.needs import Need
    from yoked.lab.topology import Interface, Shape


def shape_text(shape: Shape) -> str:
    """A link's speed and weather: `40 Mbit/s, 4.00 ms +-3.00 ms, 0.2% lost`."""
    parts = ["no limit" if shape.rate_bit_per_s is None else format_bit_per_s(shape.rate_bit_per_s)]
    if shape.delay_s or shape.jitter_s:
        jitter = f" +-{format_duration(shape.jitter_s)}" if shape.jitter_s else ""
        parts.append(f"{format_duration(shape.delay_s)}{jitter}")
    if shape.loss:
        parts.append(f"{100 * shape.loss:g}% lost")
    return ", ".join(parts)


def lab_payload(lab: Lab, hosts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What `lab up --json` and `lab status --json` promise."""
    return {
        "name": lab.name,
        "fleet": str(lab.fleet_file),
        "hosts": hosts,
        "ssh_config": str(lab.ssh_config),
        "notes": list(lab.notes),
    }


def up_payload(lab: Lab) -> dict[str, Any]:
    """What `lab up --json` promises."""
    hosts = [{"name": host.name, "address": host.address} for host in lab.topology.hosts]
    return lab_payload(lab, hosts)


def fault_payload(fault: ActiveFault) -> dict[str, str]:
    """A fault for programs."""
    return {"id": fault.id, "kind": fault.kind, "text": fault.text}


def up_lines(lab: Lab) -> list[str]:
    """Hosts with their addresses, and what this machine does not give."""
    rows = []
    for host in lab.topology.hosts:
        where = [text for each in host.interfaces if each.network for text in addresses(each)]
        speed = "" if host.speed == 1.0 else f" at {host.speed:.0%}"
        memory = "" if host.memory_bytes is None else f", {format_bytes(host.memory_bytes)}"
        machine = plural(host.cpus, "CPU") + speed + memory  # 1 CPU at 25%, 4 GB
        rows.append([host.name, ", ".join(where), machine])
    return [*table(["host", "address", "machine"], rows), *(f"note: {n}" for n in lab.notes)]


def next_commands(lab: Lab, *, named: bool) -> list[str]:
    """What one does with a lab. named: another is up too, so commands have to say which."""
    host = lab.topology.hosts[0].name
    flag = f"--lab {lab.name} " if named else ""
    return [
        f"yoked lab exec {flag}{host} -- hostname",
        shlex.join(["ssh", "-F", str(lab.ssh_config), host]),
    ]


def addresses(interface: Interface) -> list[str]:
    """An interface's addresses, without the lengths of their prefixes."""
    both = (interface.address4, interface.address6)
    return [str(address.ip) for address in both if address is not None]


def host_payload(host: LabHost, faults: Sequence[ActiveFault]) -> dict[str, Any]:
    """One host of `lab status --json`."""
    return {
        "name": host.name,
        "address": host.spec.address,
        "up": host.alive,
        "interfaces": [_interface_payload(each) for each in host.spec.interfaces],
        "faults": [fault_payload(fault) for fault in faults if host.name in fault.hosts],
        "processes": [
            {"pid": each.pid, "state": each.state, "command": each.command}
            for each in (host.processes() if host.alive else [])
        ],
    }


def _interface_payload(interface: Interface) -> dict[str, Any]:
    shape = interface.shape
    return {
        "name": interface.name,
        "network": interface.network,
        "addresses": addresses(interface),
        "rate_bit_per_s": shape.rate_bit_per_s,
        "delay_s": shape.delay_s,
        "jitter_s": shape.jitter_s,
        "loss": shape.loss,
    }


def status_lines(lab: Lab, hosts: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of a lab: one line for each interface. hosts: as host_payload has them."""
    rows: list[list[str]] = []
    for entry in hosts:
        faults = "\n".join(f"{fault['id']} {fault['text']}" for fault in entry["faults"]) or "-"
        running = _processes_text(entry) if entry["up"] else "switched off"
        name = entry["name"]
        for interface in lab.topology.host(entry["name"]).interfaces:
            link = shape_text(interface.shape) if interface.network else "leads nowhere"
            where = ", ".join(addresses(interface)) or "-"
            rows.append([name, interface.name, where, link, faults, running])
            name = faults = running = ""
    return table(["host", "interface", "address", "link", "faults", "processes"], rows)


def _processes_text(entry: Mapping[str, Any]) -> str:
    """How many there are and which a person started; PID 1 and ssh servers are always there."""
    processes = entry["processes"]
    own = [_program(each["command"]) for each in processes if each["pid"] != 1]
    names = list(dict.fromkeys(name for name in own if not name.startswith("sshd")))
    stopped = sum(each["state"] in "Tt" for each in processes)
    shown = ", ".join(names[:3]) + (" ..." if len(names) > 3 else "")
    detail = f" ({shown})" if shown else ""
    return f"{len(processes)}{detail}" + (f", {stopped} stopped" if stopped else "")


def _program(command: Sequence[str]) -> str:
    # A process may write anything over its command line; sshd writes "sshd: ...".
    words = command[0].split() if command else []
    return words[0].rpartition("/")[2].rstrip(":") if words else "?"


def fault_kinds(kinds: Sequence[Kind], lab: Lab | None) -> list[dict[str, Any]]:
    """Every kind of fault, and why this machine cannot; None where it can, or nobody knows."""
    return [
        {
            "kind": kind.name,
            "summary": kind.summary,
            "usage": kind.usage,
            "blocked": None if lab is None else kind.unsupported(lab),
        }
        for kind in kinds
    ]


def fault_kind_lines(kinds: Sequence[Mapping[str, Any]]) -> list[str]:
    """The table of `lab fault --list`."""
    rows = []
    for kind in kinds:
        blocked = f"not here: {kind['blocked']}" if kind["blocked"] else ""
        rows.append([kind["usage"], "\n".join(filter(None, [kind["summary"], blocked]))])
    return table(["fault", "what happens"], rows)


def need_lines(needs: Sequence[Need]) -> list[str]:
    """What this machine offers a lab and what it lacks, each lack with its fix."""
    rows = []
    for need in needs:
        state = "yes" if need.ok else "MISSING" if need.required else "no"
        detail = need.detail if need.ok or not need.fix else f"{need.detail}\nfix: {need.fix}"
        rows.append([need.name, state, detail])
    return table(["needed", "here", ""], rows)
