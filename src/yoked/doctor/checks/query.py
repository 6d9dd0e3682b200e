"""Read an examination: what is missing in it is None, and never trouble by itself."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_interface, ip_network
from typing import Any

from yoked.fleet.devices import Gpu, default_ranks, training_gpus
from yoked.records.examination import Dial, Examination, HostSeen
from yoked.units import format_duration

# Neighbour states in which the other one has answered. Source: ip-neighbour(8).
ANSWERED = frozenset({"reachable", "stale", "delay", "probe", "noarp"})
# What keeps a clock may turn it by 8% for a while: maxslewrate of chrony.conf(5).
_SLEWED, _NOTABLE_S = 0.1, 0.2
SILENT = frozenset({"failed", "incomplete"})


def part(host: HostSeen, *path: str) -> Any:
    """What lies at a path of a host's health; None: it could not be told."""
    return at(host.health, *path)


def at(content: Any, *path: str) -> Any:
    """What lies at a path of nested mappings; None where it ends early."""
    for name in path:
        if not isinstance(content, Mapping):
            return None
        content = content.get(name)
    return content


def turned_clock(host: HostSeen) -> tuple[str, bool] | None:
    """(what passed by a host's clock between two looks, and here; whether deadlines count by that
    clock) where they do not fit: it runs at another speed, or was set; None: they fit.
    """
    told = mapping(part(host, "clock"))
    here_s, error_s = told.get("watched_s"), told.get("error_s")
    if here_s is None or error_s is None:
        return None
    for name, counts in (("monotonic_s", True), ("real_s", False)):
        there_s = told.get(name)
        if there_s is None or abs(there_s - here_s) <= error_s + _SLEWED * here_s + _NOTABLE_S:
            continue
        passed = f"{'-' if there_s < 0 else ''}{format_duration(abs(there_s))}"
        return f"{passed} passed by the clock there, and {format_duration(here_s)} here", counts
    return None


def mapping(content: Any) -> Mapping[str, Any]:
    """A mapping as it is, all else as an empty one."""
    return content if isinstance(content, Mapping) else {}


def chosen_dial(seen: Examination, target: str) -> Dial | None:
    """A dial at the address of a host that the run would use."""
    return next((each for each in seen.dials if each.target == target and each.chosen), None)


def own_interfaces(host: HostSeen) -> dict[str, Mapping[str, Any]]:
    """The interfaces of a host that are up and have an address, by name."""
    return {str(each["name"]): each for each in host.interfaces}


def interface_kind(host: HostSeen, name: object) -> str | None:
    """What an interface of a host is ("physical", "vpn" and so on); None: it is not known."""
    kind = at(own_interfaces(host).get(str(name)), "kind")
    return None if kind is None else str(kind)


def chosen_interface(seen: Examination, host: HostSeen) -> str | None:
    """The interface that the run would use on a host: yoked.toml's, else the one dialled at."""
    wanted = host.wanted.get("interface")
    if wanted:
        return str(wanted)
    dial = chosen_dial(seen, host.name)
    return dial.interface if dial else None


def chosen_device(seen: Examination, host: HostSeen) -> str:
    """The device of that interface: its name without a label."""
    return str(chosen_interface(seen, host)).partition(":")[0]


def vpn_is_meant(seen: Examination) -> bool:
    """Whether yoked.toml names a VPN's interface for every host that is up: nobody does by chance,
    and `yoked init` takes a VPN only where no cable leads.
    """
    named = [host.wanted.get("interface") for host in seen.up]
    # One that has lost its address tells no kind.
    kinds = {interface_kind(host, name) for host, name in zip(seen.up, named, strict=True)} - {None}
    return len(seen.up) > 1 and all(named) and kinds == {"vpn"}


def chosen_address(seen: Examination, host: HostSeen) -> str | None:
    """The address at which the others would reach a host; None: there is none."""
    dial = chosen_dial(seen, host.name)
    if dial is not None:
        return dial.address
    interface = own_interfaces(host).get(str(host.wanted.get("interface")))
    address = at(interface, "gloo_address")
    return None if address is None else str(address)


def addresses(host: HostSeen) -> Iterator[tuple[str, str, int | None]]:
    """(interface, address, prefix) of all addresses of a host but loopback's."""
    return addresses_in(host.interfaces)


def addresses_in(interfaces: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str, int | None]]:
    """The same, of interfaces as a host tells them."""
    for interface in interfaces:
        if interface.get("kind") == "loopback":
            continue
        for each in interface.get("addresses") or ():
            yield str(interface["name"]), str(each["address"]), each.get("prefix")


def prefix_of(host: HostSeen, address: str) -> int | None:
    """The prefix length with which a host has an address."""
    return next((prefix for _, own, prefix in addresses(host) if own == address), None)


def interface_of(host: HostSeen, address: str) -> str | None:
    """The device on which a host has an address."""
    found = (name for name, own, _ in addresses(host) if own == address)
    return next((name.partition(":")[0] for name in found), None)


def in_network(host: HostSeen, own: str, other: str) -> bool | None:
    """Whether `other` is in the network of a host's address `own`; None: it has no such one."""
    prefix, mine, theirs = prefix_of(host, own), address_of(own), address_of(other)
    if prefix is None or mine is None or theirs is None:
        return None
    return theirs in ip_interface(f"{mine}/{prefix}").network


def in_networks(text: str, address: str) -> bool:
    """Whether an address is in one of some networks, which stand with commas between."""
    own = address_of(address)
    for each in text.replace(",", " ").split():
        with contextlib.suppress(ValueError):
            if own in ip_network(each, strict=False):
                return True
    return False


def address_of(text: str) -> IPv4Address | IPv6Address | None:
    """An address without its scope; None for what is none."""
    try:
        return ip_address(text.partition("%")[0])
    except ValueError:
        return None


def is_loopback(text: str) -> bool:
    """Whether a text is an address of loopback."""
    address = address_of(text)
    return address is not None and address.is_loopback


def version_of(text: str) -> int | None:
    """4 or 6; None for what is no address."""
    address = address_of(text)
    return None if address is None else address.version


def host_of_address(seen: Examination, address: str) -> list[str]:
    """The hosts that have an address."""
    return [host.name for host in seen.up if any(own == address for _, own, _ in addresses(host))]


def common_prefix(seen: Examination, address: str, but: str) -> int | None:
    """The prefix that the other hosts have for the network that an address is in."""
    for host in seen.up:
        for _, own, prefix in addresses(host):
            if host.name != but and prefix and in_network(host, own, address):
                return prefix
    return None


def former_address(seen: Examination, host: HostSeen) -> tuple[str, int] | None:
    """(address, prefix) that a host had, or is to have, in the network of the others.

    yoked.toml has it, or names that still lead to it; None: it is not known, or taken.
    """
    known = [host.wanted.get("address"), *(at(part(host, "names", "own"), "addresses") or ())]
    for other in seen.up:
        if other != host:
            known += at(part(other, "names", "others", host.name), "addresses") or ()
    for address in dict.fromkeys(str(each) for each in known if each):
        for other in seen.up:
            own = chosen_address(seen, other)
            if other == host or own is None or host_of_address(seen, address) not in (
                [], [host.name]
            ):  # fmt: skip
                continue
            prefix = prefix_of(other, own)
            if prefix is not None and in_network(other, own, address):
                return address, prefix
    return None


def minor_of(version: object) -> tuple[int, ...]:
    """(3, 12) of `3.12.1`; (): it is none."""
    found = re.match(r"(\d+)\.(\d+)", str(version))
    return (int(found[1]), int(found[2])) if found else ()


def asked_device(seen: Examination, host: HostSeen) -> str:
    """What a host's ranks are told to compute on: by a flag, else by yoked.toml."""
    told = host.wanted.get("device") if seen.need.device == "auto" else seen.need.device
    return str(told or "auto")


def ranks_of(seen: Examination, host: HostSeen) -> int:
    """How many ranks a host gets, as launch/start.py:plan_nodes counts them."""
    if host.wanted.get("ranks"):
        return int(host.wanted["ranks"])
    return default_ranks(asked_device(seen, host), host.facts, mapping(host.torch))


def gpus_that_train(seen: Examination, host: HostSeen) -> Sequence[Gpu]:
    """The GPUs that a host's ranks compute on, as far as is known; none: they do on the CPU."""
    return training_gpus(asked_device(seen, host), host.facts, mapping(host.torch))
