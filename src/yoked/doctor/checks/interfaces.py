"""The interface of each host that the run would use: whether it is there, and the best one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.path import stop_first
from yoked.doctor.checks.query import (
    addresses,
    addresses_in,
    at,
    chosen_address,
    former_address,
    host_of_address,
    interface_kind,
    mapping,
    own_interfaces,
    part,
    prefix_of,
    version_of,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import choose_again
from yoked.doctor.repairs.network import (
    add_address,
    ask_for_address,
    keep_address,
    relabel_address,
    set_link_up,
)
from yoked.doctor.repairs.system import sysctl
from yoked.doctor.repairs.tables import set_link
from yoked.records.examination import Examination, Fix, HostSeen, Severity
from yoked.records.shell import listed_words
from yoked.units import listed

LINKS = (
    "no-route", "forbidden-route", "other-network", "other-way", "firewall-drop",
    "firewall-ephemeral", "firewall-reject", "firewall-out", "silent-neighbour",
    "lost-between", "client-isolation", "router-between", "container-bridge", "nat", "wsl-firewall",
    "wrong-netmask", "wrong-source", "dial-failed", "other-answers",
    "reverse-path", "loss", "slow-interface", "world-failed", "rendezvous-port",
)  # fmt: skip
"""What fails on links whose interface does."""
NAMES = ("own-name-elsewhere", "peer-name-wrong", "name-family")
"""Names that still lead to the address that was."""
_LATER = ("bulk-stalls", "mtu", "slow-link", "jitter", "agent-failed")
# What ends later than this is seen by the next look; most runs are shorter than the second; no
# lease is so short that it has less than the last when it is renewed.
_SOON_S, _DURING_A_RUN_S, _AT_ONCE_S = 86_400, 3600, 120
# Of IPv6: RFC 8200, section 5.
_LEAST_MTU_BYTES = 1280
# Bridges to a host's own containers and virtual machines; without any they have no signal.
_OWN_BRIDGE = re.compile(r"docker\d+|docker_gwbridge|br-[0-9a-f]{12}|(virbr|podman|cni|lxcbr)\d+")
# What all of these checks have in common.
_check = partial(check, severity="error", quick=True)


def link_of(host: HostSeen, interface: str | None) -> Any:
    """What the kernel says of an interface, up or down; None: it does not tell."""
    return part(host, "links", interface) if interface else None


def several(seen: Examination) -> tuple[HostSeen, ...]:
    """The hosts that have to reach each other."""
    return seen.up if len(seen.hosts) > 1 else ()


def _named(seen: Examination) -> Iterator[tuple[HostSeen, str]]:
    """Of these hosts those for which yoked.toml names an interface, and its name."""
    for host in several(seen):
        if wanted := host.wanted.get("interface"):
            yield host, str(wanted)


@_check(
    "interface-gone",
    question="Is the interface of yoked.toml there on every host?",
    reads=("interfaces", "health.links"),
    saw="{host} has no interface {wanted}, which the fleet's file names; it has {present:list}",
    why="the run would have no address there",
    symptom="`RuntimeError: [enforce fail at .../tcp/device.cc] ifa != nullptr. Unable to "
    "find address for: enp4s0`.",
    cause="An adapter was unplugged or has another name: USB adapters are named by their "
    "port or MAC.",
    fix="Finds out anew, with traffic, which interface each host can use.",
    on_cluster="NCCL: `Bootstrap : no socket interface found`, when NCCL_SOCKET_IFNAME "
    "names one that a node does not have.",
    explains=(*LINKS, "no-interface"),
)
def interface_gone(seen: Examination) -> Iterator[Match]:
    for host, wanted in _named(seen):
        known, links = own_interfaces(host), part(host, "links")
        if not known or links is None:
            continue
        if wanted not in known and wanted.partition(":")[0] not in links:
            yield Match(
                host.name,
                choose_again(seen),
                wanted=wanted,
                present=sorted(each for each in links if each != "lo"),
            )


@_check(
    "interface-down",
    question="Is that interface switched on?",
    reads=("health.links",),
    saw="{wanted} of {host} is switched off",
    why="nobody reaches the host at the address that the run would use",
    symptom="`Unable to find address for: eth0`, and `No route to host` from the others.",
    cause="Somebody, or a network manager, switched it off.",
    fix="Switches it on.",
    explains=(*LINKS, *NAMES, "no-address", "no-interface"),
)
def interface_down(seen: Examination) -> Iterator[Match]:
    for host, wanted in _named(seen):
        if at(link_of(host, wanted), "up") is False:
            yield Match(host.name, set_link_up(host.name, wanted), wanted=wanted)


@_check(
    "no-carrier",
    question="Does that interface have a signal?",
    reads=("health.links",),
    saw={
        "signal": "{wanted} of {host} is on, but has no signal",
        "lower": "{wanted} of {host} lies over {lower}, which is switched off",
        "flaps": "the signal of {wanted} of {host} came or went {times:plural time} while "
        "the doctor looked{rule}",
    },
    why={
        "signal": "the cable is out, or the switch or access point is off",
        "lower": "what it sends goes nowhere, although it is on and may have its address",
        "flaps": "each time all connections of a run stand, or break",
    },
    symptom="`No route to host` from all others after some seconds; or a run that stands now and "
    "then.",
    cause="The cable is out or worn, the switch is off, or the radio has lost its network. The "
    "interface below a VLAN, a bridge, a bond or a macvlan is off. A program switches it.",
    fix="Switches the interface below on; else by hand.",
    explains=(*LINKS, *_LATER, "no-address", "no-interface"),
)
def no_carrier(seen: Examination) -> Iterator[Match]:
    for host, wanted in _named(seen):
        link = link_of(host, wanted)
        lost = at(link, "up") and at(link, "carrier") is False
        lower = [each for each in at(link, "lower") or () if at(link_of(host, each), "up") is False]
        if _OWN_BRIDGE.fullmatch(wanted):
            continue
        if lost and lower:
            mend = set_link_up(host.name, lower[0])
            yield Match(host.name, mend, how="lower", wanted=wanted, lower=lower[0])
        elif lost:
            plug = by_hand(
                host.name, "plug in the cable of {it}, or join its wireless network", it=wanted
            )
            yield Match(host.name, plug, how="signal", wanted=wanted)
        elif (times := _signal_changes(host, wanted)) and not _is_anothers(seen, host):
            ends, rule = stop_first(host, "links")
            cable = by_hand(
                host.name,
                "try another cable and another port for {it}; `ip monitor link` shows each change",
                it=wanted,
            )
            fixes = ends or (cable,)
            yield Match(host.name, *fixes, how="flaps", wanted=wanted, times=times, rule=rule)


def _signal_changes(host: HostSeen, interface: str) -> int:
    """How often a signal came or went between the two looks at interfaces."""
    now, then = (
        next((each.get("changes") for each in seen if each.get("name") == interface), None)
        for seen in (host.interfaces_later, host.interfaces)
    )
    return max(0, now - then) if now is not None and then is not None else 0


def _is_anothers(seen: Examination, host: HostSeen) -> bool:
    """Whether a program of another host switches links: both ends of a cable lose the signal."""
    programs = {each.name for each in seen.up if stop_first(each, "links", "addresses")[0]}
    return bool(programs) and host.name not in programs


@_check(
    "no-address",
    question="Does that interface have an address, and keep it?",
    reads=("interfaces", "health.links", "health.writers"),
    saw={
        "none": "{wanted} of {host} is up, but has no address{rule}",
        "label": "the address of {wanted} of {host}, {address}, bears the label {changed} and not "
        "the interface's own name, by which programs such as Gloo look for it",
        "changes": "the address of {wanted} of {host}, {address}, {changed} while the doctor "
        "looked{rule}",
        "ends": "the address of {wanted} of {host}, {address}, ends in {left:duration}, and no "
        "program there renews it",
    },
    why={
        "none": "Gloo can neither listen there nor be dialled",
        "label": "Gloo finds no address of that name, and can neither listen nor be dialled",
        "changes": "connections stand or break when their address goes",
        "ends": "a run would begin, and stand when its address goes",
    },
    symptom="`Unable to find address for: eth0`; or a run that begins, and then stands.",
    cause="No DHCP server answered, or a fixed address was taken away. Two programs manage one "
    "interface. The program that renews a DHCP lease was ended.",
    fix="Gives it the address that yoked.toml has, until the next start of the host, after what "
    "keeps IPv6 off it; "
    "where none is known, asks the DHCP server again. Has an address that would end stay, until "
    "the next start. Of two programs one is left to a person to end.",
    explains=(*LINKS, *_LATER, *NAMES, "no-interface"),
)
def no_address(seen: Examination) -> Iterator[Match]:
    for host, wanted in _named(seen):
        link = link_of(host, wanted)
        off = at(link, "up") is False or at(link, "carrier") is False
        lacks = link is not None and not off and wanted not in own_interfaces(host)
        if lacks and not _OWN_BRIDGE.fullmatch(wanted):
            if labelled := _labelled(host, wanted):
                yield labelled
                continue
            rule, first = _no_six(seen, host, wanted)
            give = _give_address(seen, host, wanted)
            yield Match(host.name, *first, give, how="none", wanted=wanted, rule=rule)
        elif wanted in own_interfaces(host):
            yield from _unlasting(seen, host, wanted)


def _labelled(host: HostSeen, wanted: str) -> Match | None:
    """The interface has an address, under another name; None: it has none."""
    for name, address, prefix in addresses(host):
        if name.partition(":")[0] == wanted and prefix:
            again = relabel_address(host.name, address, prefix, wanted, name)
            return Match(host.name, again, how="label", wanted=wanted, address=address,
                         changed=name)  # fmt: skip
    return None


def _no_six(seen: Examination, host: HostSeen, interface: str) -> tuple[str, tuple[Fix, ...]]:
    """(why it can have no address of IPv6, the end of a sentence; what has to be mended first)."""
    link, device = link_of(host, interface), interface.partition(":")[0]
    others = [chosen_address(seen, each) for each in seen.up if each != host]
    if not any(version_of(each) == 6 for each in others if each):
        return "", ()
    mtu_bytes = at(link, "mtu_bytes")
    if mtu_bytes is not None and mtu_bytes < _LEAST_MTU_BYTES:
        words = f": its MTU is {mtu_bytes}, and below {_LEAST_MTU_BYTES} Linux takes IPv6 off"
        mtu = (("mtu", str(_LEAST_MTU_BYTES)), ("mtu", str(mtu_bytes)))
        return words, (set_link(host.name, device, *mtu),)
    for name in ("all", device):
        setting = f"net/ipv6/conf/{name}/disable_ipv6"
        if value := mapping(part(host, "settings")).get(setting):
            return f": `{setting} = {value}`", (sysctl(host.name, setting, 0, was=value),)
    return "", ()


def _unlasting(seen: Examination, host: HostSeen, interface: str) -> Iterator[Match]:
    """An address that was not there before, is there no more, or will go."""
    address = chosen_address(seen, host)
    if address is None:
        return
    link = link_of(host, interface.partition(":")[0])
    later = [own for name, own, _ in addresses_in(host.interfaces_later) if name == interface]
    came = any(address in (each.get("fresh") or ()) for each in host.interfaces_later)
    # An interface that is off, or without a signal, is not told either.
    if came or (host.interfaces_later and address not in later):
        if not came and _is_anothers(seen, host):
            return
        ends, rule = stop_first(host, "addresses", "links")
        changed = "came" if came else "went"
        yield Match(host.name, *(ends or (_one_manager(host, interface),)), how="changes",
                    wanted=interface, address=address, changed=changed, rule=rule)  # fmt: skip
        return
    left_s = at(link, "ends_s", address)
    managers = part(host, "writers", "managers")
    # Of a container a program of its machine may see to it, at half of the time at the latest.
    hidden = managers is None or part(host, "virtual", "container")
    if left_s is not None and not managers and left_s < (_AT_ONCE_S if hidden else _SOON_S):
        device = interface.partition(":")[0]
        keep = keep_address(host.name, address, prefix_of(host, address), device, left_s)
        severity: Severity = "warning" if left_s > _DURING_A_RUN_S else "error"
        yield Match(host.name, keep, severity=severity, how="ends", wanted=interface,
                    address=address, left=left_s)  # fmt: skip


def _one_manager(host: HostSeen, interface: str) -> Fix:
    managers = part(host, "writers", "managers") or ()
    if len(managers) > 1:
        return by_hand(
            host.name,
            "switch off all but one of {names}: each of them manages {it}; `ip monitor address` "
            "shows each change",
            names=listed_words(managers),
            it=interface,
        )
    return by_hand(
        host.name,
        "`ip monitor address` shows each change of {it}: find what does it, and have one program "
        "alone manage it",
        it=interface,
    )


def _give_address(seen: Examination, host: HostSeen, interface: str) -> Fix:
    """Give an interface the address that it had, or have one asked for."""
    former = former_address(seen, host)
    kinds = {interface_kind(each, interface) for each in seen.up if each != host}
    if former is None and kinds == {"vpn"}:
        return by_hand(
            host.name,
            "start the program of the VPN again, which gives {it} its address, or "
            "`ip address add ADDRESS/PREFIX dev {it}`",
            it=interface,
        )
    if former is None:
        return ask_for_address(host.name, interface)
    return add_address(host.name, *former, interface)


@_check(
    "link-local",
    question="Can Gloo use the address of that interface?",
    reads=("interfaces",),
    saw="{wanted} of {host} has a link-local address alone: {address}",
    why="it means nothing to another host, and Gloo cannot use it",
    symptom="`connect [fe80::...]: Invalid argument`.",
    cause="Only an IPv6 link-local address is there: it needs an interface's name beside "
    "it, which Gloo does not send.",
    fix="Gives the interface an IPv4 address.",
    explains=(*LINKS, *NAMES),
)
def link_local(seen: Examination) -> Iterator[Match]:
    for host, wanted in _named(seen):
        own = own_interfaces(host).get(wanted)
        if own and own.get("addresses") and own.get("gloo_address") is None:
            yield Match(
                host.name,
                _give_address(seen, host, wanted),
                wanted=wanted,
                address=own["addresses"][0]["address"],
            )


_PRIVATE = {
    "loopback": "which reaches nobody but the host itself",
    "docker": "which is a bridge to its own containers",
}


@_check(
    "private-interface",
    question="Is that interface one that leads to other hosts?",
    reads=("interfaces",),
    saw="the fleet's file has {values:list}",
    why="the peers would dial their own containers, or nobody",
    symptom="Peers dial 172.17.0.1 or 127.0.0.1: `Connection refused`, or a rank that "
    "talks to itself and hangs.",
    cause="docker0, another bridge for containers, or loopback was chosen. They have the "
    "same address on every host.",
    fix="Finds out anew, with traffic, which interface each host can use.",
    on_cluster="NCCL leaves docker and lo out by itself (`NCCL_SOCKET_IFNAME=^docker,lo`); "
    "Gloo does not.",
    explains=(*LINKS, "same-address", "families"),
)
def private_interface(seen: Examination) -> Iterator[Match]:
    """Interfaces that lead to nobody else: one line of yoked.toml each, and one fix."""
    found: dict[str, str] = {}
    for host, wanted in _named(seen):
        own = own_interfaces(host).get(wanted)
        kind = "docker" if _OWN_BRIDGE.fullmatch(wanted) else at(own, "kind")
        if kind in _PRIVATE:
            address = at(own, "gloo_address") or "no address"
            also = [name for name in host_of_address(seen, str(address)) if name != host.name]
            shared = f" (an address of {listed(also)} too)" if also else ""
            what = f"{wanted}, {address}{shared}, for {host.name}, {_PRIVATE[kind]}"
            found[host.name] = what
    if found:
        yield Match(found, choose_again(seen), values=found.values())


@_check(
    "families",
    question="Are the addresses of all hosts of one family?",
    reads=("interfaces", "dials"),
    saw="the run would use {shown:list}: IPv4 and IPv6 do not meet",
    why="Gloo ends with `ss1.ss_family == ss2.ss_family. 10 vs 2`",
    symptom="`ss1.ss_family == ss2.ss_family. 10 vs 2`: 10 is IPv6, 2 is IPv4.",
    cause="On one host an interface with IPv6 alone was chosen, often a VPN's; on another "
    "one with IPv4.",
    fix="Finds out anew, with traffic, which interfaces of one family reach each other.",
    explains=(*LINKS, *NAMES),
)
def families(seen: Examination) -> Iterator[Match]:
    found = {
        host.name: address for host in several(seen) if (address := chosen_address(seen, host))
    }
    versions = {name: version_of(address) for name, address in found.items()}
    if len(set(versions.values())) < 2:
        return
    odd = [name for name, version in versions.items() if version == 6]
    shown = [f"{found[name]} on {name}" for name in found]
    yield Match(odd, choose_again(seen), shown=shown)


@_check(
    "no-interface",
    question="Does every host have an interface that others could dial?",
    reads=("interfaces",),
    saw="{host} has no interface with an address that others could dial",
    why="it cannot take part",
    symptom="The host is reached over ssh by a jump host, USB or a serial line alone.",
    cause="It is in no network with the others.",
    fix="By hand: a cable, or a wireless network.",
    explains=(*LINKS, *NAMES),
)
def no_interface(seen: Examination) -> Iterator[Match]:
    """Hosts without any address that others could dial, where yoked.toml names no interface."""
    for host in several(seen):
        if host.wanted.get("interface") or not host.interfaces or chosen_address(seen, host):
            continue
        if not any(each.get("gloo_address") and each.get("kind") != "loopback" for each in
                   host.interfaces):  # fmt: skip
            yield Match(
                host.name, by_hand(host.name, "connect {host} to the network of the others")
            )


CHECKS = (
    interface_gone,
    interface_down,
    no_carrier,
    no_address,
    link_local,
    private_interface,
    families,
    no_interface,
)
