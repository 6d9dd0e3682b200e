"""The network interfaces of this host that are up, and the address that Gloo would take of each.

Gloo, told an interface by GLOO_SOCKET_IFNAME, takes the first entry that getifaddrs(3) has under
that name. On Linux that is the first IPv4 address, in the order of `ip address`, where there is
any; else the first IPv6 address, a link-local one last. A label (`eth0:1`) is a name of its own.
Found by watching where the Gloo of torch 2.13 listens; `tests/lab/test_fleet_discovery.py` does it
again.
"""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address
from pathlib import Path
from typing import Any

from yoked.agent import netlink
from yoked.agent.ask import number, text
from yoked.agent.counters import read_cards
from yoked.agent.server import Call
from yoked.core.faults import fault
from yoked.core.proc import ProcessId, has_proc

NET = Path("/sys/class/net")
# Linux and macOS agree on these: net/if.h.
UP, _LOOPBACK, _POINT_TO_POINT, _RUNNING = 0x1, 0x8, 0x10, 0x40
# Linux, linux/if_arp.h: ARPHRD_PPP and ARPHRD_NONE, which WireGuard and tun devices have.
_TUNNEL_TYPES = ("512", "65534")
_VPN_NAMES = re.compile(r"(tailscale|wg|tun|tap|utun|ppp|zt|nordlynx|proton|ipsec)[\w.-]*\d|zt\w+")
_DOCKER_NAMES = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}")
_BRIDGE_NAMES = re.compile(r"(bridge|br|virbr|lxcbr|cni|podman)\d+")
# An address that came this much after the agent was not there before, whatever clocks round; and
# what came longer ago is there to stay.
_SURE_S, _LATELY_S = 0.3, 60.0
# Apple's own wireless links between devices.
_APPLE_NAMES = re.compile(r"(awdl|llw|ap)\d+")


@dataclass(frozen=True)
class Entry:
    """One entry of getifaddrs. address: without a scope; prefix: None where there is no mask."""

    name: str
    flags: int
    address: IPv4Address | IPv6Address
    prefix: int | None

    @property
    def is_up(self) -> bool:
        """Whether its interface is switched on, and has a signal."""
        return bool(self.flags & UP and self.flags & _RUNNING)


def answer_interfaces(call: Call) -> list[dict[str, Any]]:
    """All interfaces that are up and have an address, in the system's order.

    Each: name, kind (physical, wireless, bridge, docker, vpn or loopback), mtu_bytes,
    speed_bit_per_s, changes (how often its signal came or went), addresses [{address, prefix,
    link_local}], fresh (addresses that came after this agent) and gloo_address. What the
    system does not tell is null; so is the address of an interface that Gloo cannot use.
    """
    del call
    # What goes through the cards from now until something is sent is of others.
    read_cards(again=False)
    age_s = ProcessId.of(os.getpid()).age_s if has_proc() else 0.0
    came = fresh(given_addresses(), time.monotonic(), age_s)
    return [
        {**each, "fresh": [own["address"] for own in each["addresses"] if own["address"] in came]}
        for each in describe(list(entries()))
    ]


def given_addresses() -> list[netlink.Given]:
    """The addresses of IPv4 with their times; none where the system does not tell."""
    try:
        return list(netlink.given()) if netlink.can_ask() else []
    except OSError:
        return []


def fresh(own: Iterable[netlink.Given], now_s: float, age_s: float) -> set[str]:
    """The addresses that came after this agent, and lately. now_s: by the monotonic clock; age_s:
    of this agent.
    """
    most_s = min(age_s - _SURE_S, _LATELY_S)
    return {each.address for each in own if 0.0 <= now_s - each.since_s < most_s}


def describe(found: list[Entry], net: Path = NET) -> list[dict[str, Any]]:
    """The interfaces that entries belong to. net: a folder like /sys/class/net."""
    by_name: dict[str, list[Entry]] = {}
    for entry in found:
        if entry.is_up:
            by_name.setdefault(entry.name, []).append(entry)
    return [
        {
            "name": name,
            "kind": kind_of(name, own[0].flags, net),
            "mtu_bytes": number(net / _device(name) / "mtu"),
            "speed_bit_per_s": speed_bit_per_s(net / _device(name) / "speed"),
            "changes": number(net / _device(name) / "carrier_changes"),
            "addresses": [
                {
                    "address": str(entry.address),
                    "prefix": entry.prefix,
                    "link_local": entry.address.is_link_local,
                }
                for entry in own
            ],
            "gloo_address": gloo_address(own),
        }
        for name, own in by_name.items()
    ]


def gloo_address(own: list[Entry]) -> str | None:
    """The address that Gloo takes of an interface; own: its entries, in the system's order.

    None for a link-local IPv6 address: it means nothing without the interface of whoever dials.
    """
    first = own[0].address
    return None if first.version == 6 and first.is_link_local else str(first)


def kind_of(name: str, flags: int, net: Path = NET) -> str:
    """What an interface is, by what the kernel says of it and else by its name."""
    device = net / _device(name)
    if flags & _LOOPBACK:
        return "loopback"
    if _DOCKER_NAMES.fullmatch(name):
        return "docker"
    if _is_tunnel(name, flags, device):
        return "vpn"
    if (device / "bridge").exists() or _BRIDGE_NAMES.fullmatch(name):
        return "bridge"
    wireless = (device / "wireless").exists() or (device / "phy80211").exists()
    return "wireless" if wireless or _APPLE_NAMES.fullmatch(name) else "physical"


def _is_tunnel(name: str, flags: int, device: Path) -> bool:
    return (
        bool(flags & _POINT_TO_POINT)
        or (device / "tun_flags").exists()
        or text(device / "type") in _TUNNEL_TYPES
        or _VPN_NAMES.fullmatch(name) is not None
    )


def _device(name: str) -> str:
    """The device of a label."""
    return name.partition(":")[0]


def speed_bit_per_s(path: Path) -> int | None:
    """What the driver says; it says -1, or nothing, for what has no speed."""
    speed_mbit_per_s = number(path)
    return speed_mbit_per_s * 10**6 if speed_mbit_per_s and speed_mbit_per_s > 0 else None


def entries() -> Iterator[Entry]:
    """The addresses of this host, as getifaddrs(3) has them and in its order: that is Gloo's.

    Raises HostError where this Python cannot ask.
    """
    try:
        from yoked.agent.getifaddrs import getifaddrs
    except ImportError as problem:
        raise fault("no-ctypes", python=sys.executable) from problem
    return (Entry(*each) for each in getifaddrs())
