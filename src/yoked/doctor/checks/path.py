"""What is unusual on the way of a link's packets, where something measured on that link is bad.

Hosts have much that is odd and does no harm. Here counts what these very packets pass, at the end
at which it acts, if it can do what was measured; what all other hosts have too is usual. Where one
host alone has any of it, that is the cause. Where both have, nobody can tell, and it is evidence.
Where nothing is known that does it, that counts which one host alone has in its tables.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from yoked.agent.settings import EACH, setting_of
from yoked.doctor.checks.blame import Blame, blame_by_rules, changed_at_home, changed_by_rules
from yoked.doctor.checks.devices import End, Kind, Oddity, on_the_way, stopped_near
from yoked.doctor.checks.query import (
    at,
    chosen_address,
    chosen_device,
    chosen_interface,
    mapping,
    part,
)
from yoked.doctor.checks.tables import disturbers, entries_near
from yoked.doctor.firewalls import allow, held_by, long_chains
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import plain_route
from yoked.doctor.repairs.system import sysctl
from yoked.doctor.repairs.tables import drop_rule
from yoked.records.examination import Dial, Examination, Fix, HostSeen
from yoked.records.shell import command_line, joined
from yoked.text import one_line, shortened
from yoked.units import listed

# What was measured: data comes slowly; full-size packets do not come; a transfer stops; packets are
# sent again; they take long; a connection breaks; it does not come about. The last is what a third
# host does to a link.
Symptom = Literal["slow", "large", "stalls", "loses", "late", "breaks", "silent", "disturbs"]
Side = Literal["in", "out"]

# Of these it is known in which direction packets suffer; the others may in any.
_OF_DATA = frozenset({"slow", "large", "stalls"})
# A shaper this much faster than what came through is not why; others may share it.
_NEAR = 4.0
_LOOPBACK = "lo"
_FRAME_HEADER_BYTES = 14
_FEW_PACKETS = 10
# The fewest bytes in a packet, and under way, that a link of a home can be quick with.
_LEAST_PACKET_BYTES, _LEAST_WINDOW_BYTES = 600, 65_536
_RATE = re.compile(r"\b(?:rate|ceil|bandwidth|maxrate|m2) (\d+(?:\.\d+)?)([KMGT]?)bit\b")
_BYTES = re.compile(r"\blimit (\d+)([KMG]?)b\b|^tbf .*\bburst (\d+)([KMG]?)b\b")
_PACKETS = re.compile(r"\blimit (\d+)p\b")
_DROPS = re.compile(r"\bdrop\b|\bbpf\b|\bdirect-action\b")
_REDIRECT = re.compile(r"mirred \(\w+ Redirect to device ([A-Za-z0-9_.-]{1,15})\)")
_SENT_ON = re.compile(r"mirred \(Egress (?:Mirror|Redirect) to device ([A-Za-z0-9_.-]{1,15})\)")
_OF_FILTER = re.compile(r"^(action|police|bpf|filter)\b|\bdirect-action\b|\bbpf\b")
_SHAPERS = frozenset({"tbf", "htb", "hfsc", "cbq", "netem", "bfifo", "pfifo"})
_KILO: Mapping[str, float] = {"": 1.0, "K": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}
# Rules that can do it, among those that a packet may meet.
_COUNT = r"\bquota\b|\blimit rate\b|\bhashlimit\b|\bnumgen\b|\bstatistic\b"
_ANY = re.compile("")
_RULES = {
    "slow": re.compile(_COUNT),
    "loses": re.compile(_COUNT),
    "stalls": re.compile(rf"{_COUNT}|\bconnbytes\b"),
    "large": re.compile(r"\blength\b"),
}
# What comes of a program on the way that hands nothing on.
_STANDS = frozenset({"silent", "stalls", "breaks"})
# What a program may change again and again, by what comes of it.
_LOOPS: Mapping[str, frozenset[str]] = {
    "breaks": frozenset({"connections", "links", "addresses", "routes", "rules"}),
    "slow": frozenset({"queues", "settings"}),
}


@dataclass(frozen=True)
class Cause:
    """What does it, as far as is known. host: which has it, None: it cannot be told. words: the end
    of a sentence; empty: there is nothing unusual. kinds: of what is there.
    """

    host: str | None = None
    words: str = ""
    fix: tuple[Fix, ...] = ()
    kinds: frozenset[Kind] = frozenset()


def cause_of(seen: Examination, dial: Dial, symptom: Symptom, *, known: bool = False) -> Cause:
    """What on the way of a dial's packets can be why it went as it did. known: only what is known
    to do such a thing, and not whatever one host alone has.
    """
    found: list[Oddity] = []
    for tell in [_oddities] if known else [_oddities, _unlike, _making_packets]:
        # What is known to do it explains it.
        found = found or list(dict.fromkeys(tell(seen, dial, symptom)))
        if dial.unsent:
            # Whatever the other end has, these packets did not come so far.
            found = [each for each in found if each.host == dial.source]
    if found:
        return _told(found)
    if dial.unsent:
        look = by_hand(
            dial.source, "`tc -s qdisc; sudo nft list ruleset` there shows what drops its packets"
        )
        return Cause(
            dial.source, f"; the kernel of {dial.source} itself kept packets back", (look,)
        )
    return Cause()


def _told(found: Sequence[Oddity]) -> Cause:
    """What was found, as the cause where one host alone has it."""
    hosts = list(dict.fromkeys(each.host for each in found))
    if len(hosts) > 1:
        both = listed(f"{each.words} on {each.host}" for each in found)
        return Cause(words=f"; unusual on the way are {both}, and which of it does this is unknown")
    if not found:
        return Cause()
    # What such a program makes, nobody has seen.
    by = "perhaps by" if {each.kind for each in found} == {"maker"} else "by"
    words = f"; {by} {listed(each.words for each in found)} on {hosts[0]}"
    fix = tuple(dict.fromkeys(fix for each in found for fix in each.fix))
    return Cause(hosts[0], words, fix, frozenset(each.kind for each in found))


def cause_at_home(seen: Examination, host: HostSeen) -> Cause:
    """What holds up what a host sends to itself."""
    links, usual = mapping(part(host, "links")), _usual_lines(seen, host)
    sides: tuple[Side, ...] = ("out", "in")
    queues = [
        _queue(host, _LOOPBACK, side, line, "")
        for side in sides
        for line in _lines(links, _LOOPBACK, side)
        if line not in usual
    ]
    return _told(queues or list(_changing(seen, changed_at_home(host))))


def stop_first(host: HostSeen, *changes: str) -> tuple[tuple[Fix, ...], str]:
    """(what ends the programs that make such changes again and again, the end of a sentence).

    Whatever is mended there is as before soon.
    """
    found = list(_loops(host, frozenset(changes)))
    words = f"; again and again by {listed(each.words for each in found)}" if found else ""
    return tuple(fix for each in found for fix in each.fix), words


def _oddities(seen: Examination, dial: Dial, symptom: Symptom) -> Iterator[Oddity]:
    yield from _rules(seen, dial, symptom)
    if symptom not in ("slow", "late"):
        yield from _disturbing(seen, dial)
    for host, role, peer, device in _ends(seen, dial):
        if symptom in _STANDS:
            yield from stopped_near(host, device)
        if symptom in _LOOPS:
            yield from _loops(host, _LOOPS[symptom])
        for side in _sides(dial, symptom, role):
            yield from _queues(seen, host, device, side, dial, symptom)
        if symptom == "slow":
            yield from _routes(seen, host, peer, role)
        yield from _settings(seen, host, device, role, symptom)


def _ends(seen: Examination, dial: Dial) -> Iterator[tuple[HostSeen, str, str, str]]:
    """(host, whether it sends or gets, address of the other, device by which it sends to it)."""
    own = dial.source_address or chosen_address(seen, seen.host(dial.source))
    for name, role, peer in ((dial.source, "sends", dial.address), (dial.target, "gets", own)):
        host = seen.host(name)
        taken = part(host, "routes", str(peer), "interface") or chosen_interface(seen, host)
        yield host, role, str(peer), str(taken).partition(":")[0]


def _unlike(seen: Examination, dial: Dial, symptom: Symptom) -> Iterator[Oddity]:
    """What one of the two has in its tables, and no other host, and these packets meet."""
    yield from _changing(seen, changed_by_rules(seen, dial, begins=symptom == "silent"))
    if symptom in ("large", "stalls", "breaks", "loses"):
        yield from _refusing(seen, dial, _ANY)
    for host, role, peer, _ in _ends(seen, dial):
        own = chosen_address(seen, host)
        device = chosen_device(seen, host)
        other = seen.host(dial.target if role == "sends" else dial.source)
        if own is None or symptom in ("loses", "late"):
            continue
        end = End(seen, host, device, own, peer, other)
        leaves = "out" in _sides(dial, symptom, role)
        yield from entries_near(end, leaves=leaves, slow=symptom == "slow")


def _making_packets(seen: Examination, dial: Dial, symptom: Symptom) -> Iterator[Oddity]:
    """Programs of any host that make packets by themselves, and that no other host has: they may
    speak in the name of others.
    """
    del dial
    if symptom not in ("silent", "breaks", "stalls"):
        return
    for host in seen.up:
        yield from packet_makers(seen, host)


def packet_makers(seen: Examination, host: HostSeen) -> Iterator[Oddity]:
    """The programs of a host that make packets by themselves and that no other has."""
    others = {
        each["command"]
        for other in seen.up
        if other != host
        for each in part(other, "writers", "raw") or ()
    }
    for each in part(host, "writers", "raw") or ():
        if each["command"] not in others:
            command = shortened(one_line(each["command"]))
            words = (
                f"the program `{command}` (process {each['pid']}), which makes packets by itself"
            )
            end = by_hand(host.name, "end it, unless it is wanted: `kill {pid}`", pid=each["pid"])
            yield Oddity(host.name, words, (end,), "maker")


def _changing(seen: Examination, blames: Iterable[Blame]) -> Iterator[Oddity]:
    """Rules that change packets."""
    for each in blames:
        (rule,) = each.found
        told = part(seen.host(each.host), "firewall")
        words = f"{held_by(told, each.found)}: {rule.words}"
        yield Oddity(each.host, words, (drop_rule(each.host, rule),), "rule")


def _disturbing(seen: Examination, dial: Dial) -> Iterator[Oddity]:
    """What a host of the same network does to packets of others: it sends back what it got, with
    the senders' own addresses, or answers in their place.
    """
    wanted = [each for each in (dial.address, dial.source_address) if each]
    yield from disturbers(seen, wanted)
    for host in seen.up:
        device = chosen_device(seen, host)
        links = mapping(part(host, "links"))
        for line in _lines(links, device, "in"):
            sent_on = _SENT_ON.search(line)
            if sent_on and sent_on[1] in on_the_way(host, device):
                yield _queue(host, device, "in", line, "")
        yield from _settings(seen, host, device, "both", "disturbs")


def _sides(dial: Dial, symptom: Symptom, end: str) -> tuple[Side, ...]:
    """In which directions packets pass a host that can have suffered."""
    if symptom in _OF_DATA:
        return ("out",) if end == "sends" else ("in",)
    if symptom == "silent" and dial.arrived is not None:
        # The answer was lost, or the question.
        return ("out",) if (end == "sends") != dial.arrived else ("in",)
    return ("out", "in")


def _rules(seen: Examination, dial: Dial, symptom: Symptom) -> Iterator[Oddity]:
    if symptom in ("slow", "late"):
        for name in (dial.target, dial.source):
            yield from _long_chains(name, part(seen.host(name), "firewall"))
    if symptom not in _RULES:
        return
    yield from _refusing(seen, dial, _RULES[symptom])


def _refusing(seen: Examination, dial: Dial, words: re.Pattern[str]) -> Iterator[Oddity]:
    """Rules that refuse some of the data, of those with such words."""
    for each in blame_by_rules(seen, dial, words):
        told = part(seen.host(each.host), "firewall")
        others = [chosen_address(seen, host) for host in seen.up if host.name != each.host]
        peers = [address for address in others if address]
        fix = allow(each.host, told, peers, each.direction, found=each.found)
        rule = f"{held_by(told, each.found)}: {each.found[0].words}"
        yield Oddity(each.host, rule, fix, "rule")


def _long_chains(host: str, told: Any) -> Iterator[Oddity]:
    """Chains with so many rules that a packet takes long to pass them all."""
    for chain, count in long_chains(told).items():
        family, table, name = (*chain.split(" "), "", "")[:3]
        shorter = by_hand(
            host,
            "have one rule with a set in place of these: `nft flush chain {chain}` ends it until "
            "whoever makes them does it again",
            chain=command_line(family, table, name),
        )
        yield Oddity(host, f"{count:,} rules in chain {chain} of nftables", (shorter,), "rule")


def _queues(
    seen: Examination, host: HostSeen, device: str, toward: Side, dial: Dial, symptom: Symptom
) -> Iterator[Oddity]:
    links = mapping(part(host, "links"))
    usual = _usual_lines(seen, host)
    # Bursts to all others come at once.
    share = 1 / max(1, len(seen.up) - 1) if dial.purpose == "burst" else 1.0
    most_rate = _NEAR * (dial.goodput_bytes_per_s or 0.0) / share
    for name, comes_in in on_the_way(host, device).items():
        side = toward if not comes_in else "in" if toward == "out" else "out"
        frame_bytes = int(at(links.get(name), "mtu_bytes") or 1500) + _FRAME_HEADER_BYTES
        for line in _lines(links, name, side):
            through = _REDIRECT.search(line) if side == "in" else None
            inner = _lines(links, through[1], "out") if through else [line]
            for each in inner:
                if each not in usual and _holds_back(each, symptom, frame_bytes, most_rate):
                    yield _queue(host, name, side, each, through[1] if through else "")


def _queue(host: HostSeen, name: str, side: Side, line: str, through: str) -> Oddity:
    if side == "in":
        where = f"what comes in at {name}" + (f" and goes through {through}" if through else "")
        places = ["ingress", "clsact"]
    else:
        where = f"what {name} sends"
        is_filter = _OF_FILTER.search(line) and not _RATE.search(line)
        places = ["clsact", "root"] if is_filter else ["root"]
    lines = joined(
        " || ", (command_line("tc", "qdisc", "del", "dev", name, place) for place in places)
    )
    away = by_hand(host.name, "`{lines}` takes it away, if nobody needs it", lines=lines)
    return Oddity(host.name, f"`{one_line(line)}` for {where}", (away,), "queue")


def _lines(links: Mapping[str, Any], device: str, side: Side) -> list[str]:
    """What tc says of one side of an interface."""
    told = at(links.get(device), "queues") or ()
    return [line.partition(": ")[2] for line in told if line.startswith(f"{side}: ")]


def _usual_lines(seen: Examination, host: HostSeen) -> set[str]:
    """What each of the other hosts has too, at whatever interface."""
    others = [
        {line.partition(": ")[2] for link in links.values() for line in at(link, "queues") or ()}
        for other in seen.up
        if other != host
        for links in [mapping(part(other, "links"))]
    ]
    return set.intersection(*others) if others else set()


def _holds_back(line: str, symptom: Symptom, frame_bytes: int, most_rate: float) -> bool:
    """Whether a queue, or a filter, with these words can do what was measured. most_rate: bytes per
    second; what lets more pass is not why.
    """
    rates = [float(number) * _KILO[unit] / 8 for number, unit in _RATE.findall(line)]
    sizes = [
        float(one or other) * _KILO[unit or more] for one, unit, other, more in _BYTES.findall(line)
    ]
    small = any(each < frame_bytes for each in sizes)
    drops = not rates and _DROPS.search(line) is not None
    if symptom in ("silent", "breaks"):
        return symptom == "silent" and drops
    if symptom == "large":
        return small or drops
    if line.startswith("netem ") and (symptom != "slow" or "loss" in line or "delay" in line):
        return True
    if symptom == "late":
        return False
    few = any(int(number) <= _FEW_PACKETS for number in _PACKETS.findall(line))
    if few or small or drops:
        return True
    if rates:
        # Of a class its ceiling counts, which is told with its rate.
        return "drop" in line if symptom != "slow" else max(rates) <= most_rate
    # Without tc the kind is all that is known.
    return symptom == "slow" and line in _SHAPERS


def _routes(seen: Examination, host: HostSeen, peer: str, end: str) -> Iterator[Oddity]:
    way = part(host, "routes", peer)
    told = mapping(at(way, "metrics"))
    least = {"mtu": _LEAST_PACKET_BYTES, "advmss": _LEAST_PACKET_BYTES}
    # What a host takes at a time it tells the sender; what it sends at a time it keeps to itself.
    least.update({"window": _LEAST_WINDOW_BYTES} if end == "gets" else {"cwnd": 10, "ssthresh": 4})
    small = [name for name, value in told.items() if _below(value, least.get(name))]
    odd = [*small, *(name for name in told if name == "congctl" and end == "sends")]
    own = chosen_address(seen, host)
    if not odd or own is None:
        return
    words = " ".join(f"{name} {value}" for name, value in told.items())
    network, prefix = at(way, "network"), at(way, "prefix")
    device = str(at(way, "interface") or chosen_interface(seen, host)).partition(":")[0]
    fix = (
        by_hand(host.name, "`ip route show` there; `ip route replace` without {words}", words=words)
        if network is None or prefix is None
        else plain_route(
            host.name, f"{network}/{prefix}", at(way, "gateway"), device, own, dict(told)
        )
    )
    yield Oddity(host.name, f"the route to {peer} with `{words}`", (fix,), "route")


def _below(value: object, least: int | None) -> bool:
    return least is not None and isinstance(value, int) and value < least


def _settings(
    seen: Examination, host: HostSeen, device: str, end: str, symptom: Symptom
) -> Iterator[Oddity]:
    for name, value in mapping(part(host, "settings")).items():
        setting = setting_of(name)
        if setting is None or symptom not in setting.harms:
            continue
        if symptom in _OF_DATA | {"silent"} and setting.end not in (end, "both"):
            continue
        if EACH in setting.name and name.split("/")[3] not in (device, "all"):
            continue
        others = [mapping(part(each, "settings")).get(name) for each in seen.up if each != host]
        if others and all(each == value for each in others):
            continue
        fix = sysctl(host.name, name, setting.usual, was=value)
        yield Oddity(host.name, f"`{name} = {value}`", (fix,), "setting")


def _loops(host: HostSeen, changes: frozenset[str]) -> Iterator[Oddity]:
    for loop in part(host, "writers", "loops") or ():
        if not changes & {*loop["changes"]}:
            continue
        command, words = (shortened(one_line(loop[each])) for each in ("command", "words"))
        said = f"the program `{command}` (process {loop['pid']}), which runs `{words}`"
        end = by_hand(
            host.name,
            "end the program and what starts it, unless it is wanted: `kill {pid}`",
            pid=loop["pid"],
        )
        yield Oddity(host.name, said, (end,), "program")
