"""How this host's kernel would send to others, and whether they answer on the link."""

from __future__ import annotations

import errno
import socket
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from ipaddress import IPv4Address, ip_address
from pathlib import Path
from typing import Any

from yoked.agent import netlink
from yoked.agent.ask import named_values, run_quiet, text

_DISCARD_PORT = 9
# How long a neighbour may take to say where it is; the kernel asks three times, a second apart.
_ANSWER_S = 0.3
_POLL_S = 0.03
_UNTOLD = ("incomplete", "none", None)
_ROUTE_UP, _ROUTE_GATEWAY = 0x1, 0x2


def probe_routes(addresses: Sequence[str] = ()) -> dict[str, Any]:
    """{address: source, interface, error, neighbour and mac} of each of `addresses`."""
    known = _neighbours() if addresses else {}
    return {address: _way(address, known) for address in addresses}


def probe_gateway() -> dict[str, Any] | None:
    """The default gateway of IPv4 and whether it answers on its link; None: there is none.

    One that the kernel has not met lately is sent an empty datagram, so that it looks for it.
    """
    found = default_gateway()
    if found is None:
        return None
    address, interface = found
    state = _neighbours().get(address, {}).get("neighbour")
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


def _way(address: str, known: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    way: dict[str, Any] = dict.fromkeys(("source", "interface", "error", "neighbour", "mac"))
    try:
        way["source"] = source_of(address)
        if netlink.can_ask():
            way["interface"] = netlink.interface_to(address)
    except OSError as problem:
        way["error"] = errno.errorcode.get(problem.errno or 0, "EIO")
    way.update(known.get(address, {}))
    return way


def _neighbours() -> dict[str, dict[str, Any]]:
    """{address: {neighbour, mac}}; empty where the system does not tell."""
    if not netlink.can_ask():
        return {}
    return {
        each.address: {"neighbour": each.state, "mac": each.hardware}
        for each in netlink.neighbours()
    }


def _knock(address: str) -> str | None:
    """Have the kernel look for a neighbour; its state after a moment."""
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.sendto(b"", (address, _DISCARD_PORT))
    except OSError:
        return None
    until_s = time.monotonic() + _ANSWER_S
    while True:
        state: str | None = _neighbours().get(address, {}).get("neighbour")
        if state not in _UNTOLD or time.monotonic() > until_s:
            return state
        time.sleep(_POLL_S)
