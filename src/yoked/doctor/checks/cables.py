"""How good the ways are that the run would use: a cable before radio, and its port's speed."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.interfaces import link_of, several
from yoked.doctor.checks.query import at, chosen_interface, interface_kind, vpn_is_meant
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import choose_again
from yoked.doctor.repairs.network import negotiate_speed
from yoked.records.examination import Examination, HostSeen

_SLOW_PORT_BIT_PER_S = 10**8


@check(
    "slow-interface",
    question="Is the best interface used?",
    reads=("dials", "interfaces"),
    severity="warning",
    saw="the run would use {values:list}, at which all others reach it too",
    why="each step would wait for the slower way; a VPN also encrypts on one core",
    symptom="It trains, slowly, and no error says why.",
    cause="Two hosts that share a cable talk over a VPN or radio, because its interface "
    "was named, or came first. A VPN that yoked.toml names for every host is taken for meant: then "
    "`yoked doctor --bandwidth` says what it gives, and what the cable would.",
    fix="Measures all interfaces and takes the fastest.",
    on_cluster="NCCL: training over the management network, because InfiniBand or the fast "
    "NIC is not in NCCL_SOCKET_IFNAME.",
)
def slow_interface(seen: Examination) -> Iterator[Match]:
    """VPN or radio is used where a cable leads to the same host."""
    if vpn_is_meant(seen):
        return
    found: dict[str, str] = {}
    for host in several(seen):
        used = chosen_interface(seen, host)
        kind = interface_kind(host, used)
        better = _all_reach(seen, host, "physical") if kind in ("vpn", "wireless") else None
        if better is not None:
            what = "a VPN" if kind == "vpn" else "radio"
            found[host.name] = f"{used} of {host.name}, {what}, beside its cable {better}"
    if found:
        yield Match(found, choose_again(seen), values=found.values())


def _all_reach(seen: Examination, host: HostSeen, kind: str) -> str | None:
    """An interface of a kind at which all other hosts reach a host."""
    reached: dict[str, set[str]] = {}
    for dial in seen.dials:
        if dial.target == host.name and dial.ok and dial.answered_by in (None, host.name):
            reached.setdefault(dial.interface, set()).add(dial.source)
    others = {each.name for each in seen.up} - {host.name}
    for name, sources in reached.items():
        is_one = interface_kind(host, name) == kind and _is_plugged_in(host, name)
        if is_one and others and others <= sources:
            return name
    return None


def _is_plugged_in(host: HostSeen, name: str) -> bool:
    """Whether a cable may lead there. A host answers at each of its addresses, by whatever way the
    question came; an interface that is made of nothing has no speed.
    """
    link = link_of(host, name.partition(":")[0])
    return link is None or (at(link, "carrier") is not False and bool(at(link, "speed_bit_per_s")))


@check(
    "slow-port",
    question="Does the port of every cable run at gigabit speed?",
    reads=("health.links",),
    severity="warning",
    saw="{interface} of {host} runs at {speed:bit/s}",
    why="a cable with a broken pair, or an old switch, makes a gigabit port fall back; every "
    "exchange takes ten times as long",
    symptom="It trains at a tenth of the speed that was planned.",
    cause="The port fell back to 100 Mbit/s: a cable with two pairs, a bent plug, an old switch.",
    fix="By hand: cable or switch. `ethtool eth0` shows what both ends can do.",
    explains=("slow-link",),
)
def slow_port(seen: Examination) -> Iterator[Match]:
    for host in several(seen):
        interface = chosen_interface(seen, host)
        speed = at(link_of(host, interface), "speed_bit_per_s")
        kind = interface_kind(host, interface)
        if speed and speed <= _SLOW_PORT_BIT_PER_S and kind == "physical":
            yield Match(
                host.name,
                by_hand(
                    host.name,
                    "try another cable and another port of the switch at {interface}",
                    interface=interface,
                ),
                interface=interface,
                speed=speed,
            )


@check(
    "half-duplex",
    question="Can every port send and receive at once?",
    reads=("health.links",),
    severity="warning",
    saw="{interface} of {host} is half duplex",
    why="it cannot send and receive at once, as every all-reduce does",
    symptom="Exchanges take more than twice as long as they should; errors are counted.",
    cause="One end was set to a fixed speed, and the other fell back to half duplex.",
    fix="Has both ends agree by themselves.",
    explains=("slow-link",),
)
def half_duplex(seen: Examination) -> Iterator[Match]:
    for host in several(seen):
        interface = chosen_interface(seen, host)
        if at(link_of(host, interface), "duplex") == "half":
            yield Match(
                host.name,
                negotiate_speed(host.name, str(interface)),
                interface=interface,
            )


CHECKS = (slow_interface, slow_port, half_duplex)
