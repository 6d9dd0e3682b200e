"""How this host's kernel would send to others, and whether they answer on the link."""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Sequence
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

from yoked.agent import netlink
from yoked.agent.ask import named_values, run_quiet, text
from yoked.agent.counters import withheld_by_ipsec

_DISCARD_PORT = 9
# One as Gloo listens at: rules may send high ports another way than the rest.
_HIGH_PORT = 40_000
# How long a neighbour may take to say where it is; the kernel asks three times, a second apart.
_ANSWER_S = 0.3
_POLL_S = 0.03
_UNTOLD = ("incomplete", "none", None)
_ROUTE_UP, _ROUTE_GATEWAY = 0x1, 0x2


def probe_routes(addresses: Sequence[str] = ()) -> dict[str, Any]:
    """{address: see `_way`} of each of `addresses`. Each is sent one empty datagram."""
    known = list(netlink.neighbours()) if addresses and netlink.can_ask() else []
    return {address: _way(address, known) for address in addresses}


def probe_gateway() -> dict[str, Any] | None:
    """The default gateway of IPv4 and whether it answers on its link; None: there is none.

    One that the kernel has not met lately is sent an empty datagram, so that it looks for it.
    """
    found = default_gateway()
    if found is None:
        return None
    address, interface = found
    state = _neighbour_state(address)
    if state in _UNTOLD and netlink.can_ask():
        state = _knock(address)
    return {"address": address, "interface": interface, "neighbour": state}


def default_gateway(proc: Path = Path("/proc")) -> tuple[str, str] | None:
    """(address, interface) of the gateway with the least metric."""
    if sys.platform == "darwin":
        return gateway_of_route(run_quiet(["route", "-n", "get", "default"]))
    found = []
    for line in text(proc / "net/route").splitlines()[1:]:
        fields = line.split()
        flags, metric = int(fields[3], 16), int(fields[6])
        if fields[1] == "00000000" and flags & _ROUTE_UP and flags & _ROUTE_GATEWAY:
            # The kernel prints the number as it lies in memory.
            packed = struct.pack("=I", int(fields[2], 16))
            found.append((metric, str(IPv4Address(packed)), fields[0]))
    return min(found)[1:] if found else None


def gateway_of_route(said: str) -> tuple[str, str] | None:
    """What `route -n get default` of macOS means."""
    told = named_values(said)
    return (told["gateway"], told["interface"]) if {"gateway", "interface"} <= {*told} else None


def source_of(address: str) -> str:
    """The address that this host's kernel takes as its own for the way to another.

    Raises OSError where there is no way. Nothing is sent.
    """
    family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    with socket.socket(family, socket.SOCK_DGRAM) as probe:
        probe.connect((address, _DISCARD_PORT))
        return str(probe.getsockname()[0])


def _way(address: str, known: Sequence[netlink.Neighbour]) -> dict[str, Any]:
    """How the kernel would send to an address.

    source and interface: as it chooses them; error: why it would not, such as ENETUNREACH; network,
    prefix, gateway, hops, metrics, kind and table: of the route that it takes; neighbour and mac:
    what it knows of the address on that interface; sending: what it says to a datagram for it, such
    as EPERM; unkeyed: whether an IPsec policy then withheld it.
    """
    names = ("source", "interface", "error", "network", "prefix", "gateway", "neighbour", "mac",
             "kind", "table")  # fmt: skip
    way: dict[str, Any] = {**dict.fromkeys((*names, "sending", "unkeyed")), "hops": []}
    try:
        way["source"] = source_of(address)
        if netlink.can_ask():
            way["interface"] = netlink.interface_to(address, _HIGH_PORT, way["source"])
    except OSError as problem:
        way["error"] = _symbol(problem)
    else:
        way.update(_sent(address))
    if netlink.can_ask():
        way.update(_route(address, way["source"]))
    met = [each for each in known if each.address == address]
    # An address may be known on several interfaces, and be there on one.
    there = [each for each in met if each.interface == way["interface"]] or met
    if there:
        way.update(neighbour=there[0].state, mac=there[0].hardware)
    return way


def _sent(address: str) -> dict[str, Any]:
    before = withheld_by_ipsec()
    found: dict[str, Any] = {"sending": None}
    family = socket.AF_INET if ip_address(address).version == 4 else socket.AF_INET6
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            sender.sendto(b"", (address, _DISCARD_PORT))
    except OSError as problem:
        found["sending"] = _symbol(problem)
    after = withheld_by_ipsec()
    if before is not None and after is not None:
        found["unkeyed"] = after > before
    return found


def _route(address: str, source: str | None) -> dict[str, Any]:
    try:
        found = netlink.route_to(address, source)
    except OSError:
        return {}
    return {
        "network": found.network,
        "prefix": found.prefix,
        "gateway": found.gateway,
        "hops": [each._asdict() for each in found.hops if each.interface is not None],
        "metrics": found.metrics,
        "kind": found.kind,
        "table": found.table,
    }


def _symbol(problem: OSError) -> str:
    return errno.errorcode.get(problem.errno or 0, "EIO")


def _neighbour_state(address: str) -> str | None:
    """How the kernel knows a neighbour; None: it does not, or the system does not tell."""
    if not netlink.can_ask():
        return None
    return next((each.state for each in netlink.neighbours() if each.address == address), None)


def _knock(address: str) -> str | None:
    """Have the kernel look for a neighbour; its state after a moment."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"", (address, _DISCARD_PORT))
    except OSError:
        return None
    until_s = time.monotonic() + _ANSWER_S
    while True:
        state = _neighbour_state(address)
        if state not in _UNTOLD or time.monotonic() > until_s:
            return state
        time.sleep(_POLL_S)
