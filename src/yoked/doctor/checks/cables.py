"""How good the ways are that the run would use: a cable before radio, and its port's speed."""

from __future__ import annotations

import math
from collections.abc import Container, Iterator, Mapping
from typing import Any

from yoked.doctor.check import Match, check
from yoked.doctor.checks.bursts import CRAWL_BYTES_PER_S, FAR_BELOW, slow_rates
from yoked.doctor.checks.flow import (
    Pair,
    all_at,
    best_s,
    by_host,
    cause_on,
    first_of,
    more,
    mtu_bytes_of,
    open_pairs,
)
from yoked.doctor.checks.interfaces import link_of, several
from yoked.doctor.checks.path import Cause, Symptom
from yoked.doctor.checks.query import (
    at,
    chosen_device,
    chosen_interface,
    host_of_address,
    interface_kind,
    part,
    vpn_is_meant,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.fleet import choose_again
from yoked.doctor.repairs.network import negotiate_speed
from yoked.records.examination import Examination, Fix, HostSeen, Purpose
from yoked.text import one_line, shortened
from yoked.units import format_bit_per_s, plural

# What others have of a link, so that a run is slower for it.
_PART = 0.2
# Nothing that a cable is led through in a home takes so long.
_LATE_S = 0.002
# What TCP takes where nobody tells it more is 536. Source: RFC 9293, section 3.7.1.
_SMALL_BYTES = 500
_TRIED: tuple[Purpose, ...] = ("ephemeral", "rendezvous", "bulk", "burst")
_SLOW_PORT_BIT_PER_S = 10**8


@check(
    "slow-link",
    question="Is every link as fast as it could be?",
    reads=("dials",),
    severity="warning",
    saw={
        "rate": "{source} to {target} at {interface}: {rate:bit/s}{other}{more}{rule}",
        "late": "{source} to {target} at {interface}: each answer takes {took:duration} or more, "
        "over a cable{more}{rule}",
        "small": "{source} to {target} at {interface}: a packet carries {mss} bytes of data, and "
        "full-size ones about {mtu}{more}{rule}",
    },
    why="every step sends the model's gradients over it; `yoked plan` says what that costs",
    symptom="Two hosts are slower than one; all-reduce takes most of a step.",
    cause="WiFi, 100 Mbit/s, or a VPN beside a faster cable; a shaper that somebody left on "
    "(`tc qdisc`), a route with a window, buffers of the kernel that are too small. Without "
    "--bandwidth only a cable that crawls is told.",
    fix="Measures all interfaces and takes the fastest; takes back what slows it on one of the "
    "hosts; else a cable.",
    on_cluster="nccl-tests' busbw far below the wire's rate says the same.",
)
def slow_link(seen: Examination) -> Iterator[Match]:
    found = {
        pair: rates
        for source, target in open_pairs(seen)
        for pair in [(source.name, target.name)]
        for rates in [slow_rates(seen, pair)]
        if rates
    }
    yield from _late_or_small(seen, told=found)
    for host, own in by_host(seen, found):
        link, (rate, best, interface) = next(iter(own.items()))
        faster = rate < FAR_BELOW * best
        other = f"; {interface} gives {format_bit_per_s(8 * best)}" if faster else ""
        causes = [] if faster else [cause_on(seen, each, "slow") for each in own]
        cause = next((each for each in causes if each.host), causes[0] if causes else Cause())
        yield Match(
            first_of(cause.host, all_at(host, own)),
            *((choose_again(seen),) if faster else cause.fix or (_speed_up(seen, host, rate),)),
            link=link,
            how="rate",
            interface=chosen_interface(seen, seen.host(link[1])),
            rate=8 * rate,
            other=other,
            more=more(own),
            rule=cause.words,
        )


def _late_or_small(seen: Examination, told: Container[Pair]) -> Iterator[Match]:
    """Links that are slow packet by packet, where it is known why."""
    found: dict[tuple[str, str], dict[Pair, Cause]] = {}
    for source, target in open_pairs(seen):
        pair = (source.name, target.name)
        sizes = [each.mss_bytes for each in seen.between(*pair, _TRIED) if each.mss_bytes]
        kinds = {interface_kind(each, chosen_interface(seen, each)) for each in (source, target)}
        is_late = kinds == {"physical"} and best_s(seen, frozenset(pair)) >= _LATE_S
        symptoms: tuple[tuple[str, Symptom, bool], ...] = (
            ("small", "slow", bool(sizes) and min(sizes) < _SMALL_BYTES),
            ("late", "late", is_late),
        )
        for how, symptom, holds in symptoms:
            cause = cause_on(seen, pair, symptom) if holds and pair not in told else Cause()
            if cause.host:
                found.setdefault((how, cause.host), {})[pair] = cause
    for (how, name), own in found.items():
        link, cause = next(iter(own.items()))
        sizes = [each.mss_bytes for each in seen.between(*link, _TRIED) if each.mss_bytes]
        yield Match(
            first_of(name, all_at(seen.host(name), own)),
            *cause.fix,
            link=link,
            how=how,
            interface=chosen_interface(seen, seen.host(link[1])),
            rate=0.0,
            other="",
            took=best_s(seen, frozenset(link)),
            mss=min(sizes, default=0),
            mtu=mtu_bytes_of(seen, seen.host(link[0])),
            more=more(own),
            rule=cause.words,
        )


def _speed_up(seen: Examination, host: HostSeen, rate: float) -> Fix:
    cabled = interface_kind(host, chosen_interface(seen, host)) == "physical"
    if not cabled or rate >= CRAWL_BYTES_PER_S:
        return by_hand(host.name, "use a cable for {host}")
    return by_hand(
        host.name,
        "`tc -s qdisc; sudo nft list ruleset` on {host} and the other end shows a shaper or a "
        "limit; else try another cable",
    )


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
    question="Does the port of every cable run at gigabit speed, both ways at once?",
    reads=("health.links",),
    severity="warning",
    saw={
        "speed": "{interface} of {host} runs at {speed:bit/s}",
        "half": "{interface} of {host} is half duplex",
    },
    why={
        "speed": "a cable with a broken pair, or an old switch, makes a gigabit port fall back; "
        "every exchange takes ten times as long",
        "half": "it cannot send and receive at once, as every all-reduce does",
    },
    symptom="It trains at a tenth of the speed that was planned; or exchanges take more than twice "
    "as long as they should, and errors are counted.",
    cause="The port fell back to 100 Mbit/s: a cable with two pairs, a bent plug, an old switch. "
    "Or one end was set to a fixed speed, and the other fell back to half duplex.",
    fix="By hand: cable or switch. `ethtool eth0` shows what both ends can do. From half duplex, "
    "has both ends agree by themselves.",
    explains=("slow-link",),
)
def slow_port(seen: Examination) -> Iterator[Match]:
    for host in several(seen):
        interface = chosen_interface(seen, host)
        link = link_of(host, interface)
        speed, kind = at(link, "speed_bit_per_s"), interface_kind(host, interface)
        if speed and speed <= _SLOW_PORT_BIT_PER_S and kind == "physical":
            another = by_hand(
                host.name,
                "try another cable and another port of the switch at {interface}",
                interface=interface,
            )
            yield Match(host.name, another, how="speed", interface=interface, speed=speed)
        if at(link, "duplex") == "half":
            agree = negotiate_speed(host.name, str(interface))
            yield Match(host.name, agree, how="half", interface=interface)


@check(
    "busy-link",
    question="Is every link free before anything is sent?",
    reads=("health.traffic", "dials"),
    severity="warning",
    saw="before anything was sent, {interface} of {host} {did} {rate:bit/s}{who}",
    why="a run gets what these programs leave of the link, and all hosts wait for the slowest",
    symptom="It trains at a fraction of the speed that was planned, and each link is healthy.",
    cause="Another program copies, backs up or serves without a limit.",
    fix="By hand: end the program, or give it a limit.",
    explains=("slow-link", "jitter", "loss"),
)
def busy_link(seen: Examination) -> Iterator[Match]:
    """Who sends is told; who gets only where nobody of the fleet sends it."""
    busy = {
        (host.name, side): rate
        for host in several(seen)
        for side in ("tx", "rx")
        if (rate := _others_rate(seen, host, side))
    }
    senders = {name for name, side in busy if side == "tx"}
    for (name, side), rate in busy.items():
        host = seen.host(name)
        programs = sorted(
            part(host, "traffic", "programs") or (),
            key=lambda each: -(each.get(f"{side}_bit_per_s") or 0.0),
        )
        first = next(iter(programs), None)
        far = host_of_address(seen, str(at(first, "address")))
        if side == "rx" and (senders & {*far} or (name in senders and not far)):
            continue
        yield Match(
            name,
            _ease(host, first),
            interface=chosen_interface(seen, host),
            did="sent" if side == "tx" else "got",
            rate=rate,
            who=_who(first, side, far),
        )


def _others_rate(seen: Examination, host: HostSeen, side: str) -> float | None:
    """What went through the card of the run, where that is a part of what the link carries."""
    interface = chosen_device(seen, host)
    rate = at(part(host, "traffic", "cards", interface), f"{side}_bit_per_s")
    speed = at(link_of(host, interface), "speed_bit_per_s")
    bursts = [
        8 * each.goodput_bytes_per_s
        for each in seen.dials
        if each.purpose == "burst"
        and each.goodput_bytes_per_s
        and host.name == (each.source if side == "tx" else each.target)
    ]
    if rate is None or not (speed or bursts):
        return None
    # A card that is made of nothing has any speed; then it counts what was left for others.
    left = min(sum(bursts) if bursts else math.inf, speed or math.inf)
    return float(rate) if rate >= _PART * left else None


def _who(program: Mapping[str, Any] | None, side: str, far: list[str]) -> str:
    if program is None:
        return ""
    pid = program.get("pid")
    command = shortened(one_line(program["command"])) or "a program of another user"
    number = f" (process {pid})" if pid else ""
    end = f"{far[0] if far else program['address']} port {program['port']}"
    over = plural(program.get("connections") or 1, "connection")
    return f"; `{command}`{number} {'to' if side == 'tx' else 'from'} {end} over {over}"


def _ease(host: HostSeen, program: Mapping[str, Any] | None) -> Fix:
    if pid := at(program, "pid"):
        return by_hand(host.name, "end that program, or give it a limit: `kill {pid}`", pid=pid)
    return by_hand(
        host.name,
        "`sudo ss -tinp` shows who sends by TCP, and `sudo tcpdump -nc 20` what else there is: end "
        "it, or give it a limit",
    )


CHECKS = (slow_link, slow_interface, slow_port, busy_link)
