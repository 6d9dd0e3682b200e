"""What stands in the tables of one host's network alone, near a link, with the line that undoes it.

A host tells what somebody set there: routes, rules, addresses, neighbours, interfaces, entries of
bridges (yoked.agent.tables). Most of it is meant. Here counts what the other hosts do not have, and
what these very packets meet.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from yoked.doctor.checks.query import (
    address_of,
    addresses,
    at,
    chosen_interface,
    in_network,
    mapping,
    own_interfaces,
    part,
    prefix_of,
)
from yoked.doctor.repairs.tables import drop_entry, make_anew, set_link
from yoked.records.examination import Examination, Fix, HostSeen

_MAIN, _LOCAL = 254, 255
_TABLES = {"main": _MAIN, "local": _LOCAL, "default": 253}
_FORBIDS = ("blackhole", "prohibit", "unreachable", "throw")
# What `ip route` prints of a state, and takes for no word of its own; with its values.
_STATES = {"linkdown": 0, "dead": 0, "offload": 0, "trap": 0, "error": 1, "expires": 1, "users": 1,
           "age": 1, "notify": 0, "rt_offload": 0, "rt_trap": 0}  # fmt: skip
# Kinds of interfaces whose two ends have to be alike.
_TUNNELS = frozenset({
    "vxlan", "geneve", "gre", "gretap", "ipip", "sit", "ip6tnl", "ip6gre", "ip6gretap", "vti",
    "erspan", "vlan", "macsec", "gtp",
})  # fmt: skip
# Where two ends differ, who has this has named none: the kernel has taken it.
_UNNAMED = frozenset({("dstport", "8472"), ("ttl", "auto"), ("ttl", "inherit"), ("key", "0")})
# Behind these words of an interface nothing is of its kind any more.
_AFTER_KIND = ("gso_max_size", "gso_max_segs", "vrf_slave", "bond_slave", "bridge_slave")
_LEAST_SEGMENTS, _LEAST_BATCH_BYTES = 4, 8192
_USUAL_BATCH = ("gso_max_size", "65536", "gso_max_segs", "65535")


@dataclass(frozen=True)
class Entry:
    """Something that one host has near a link. words: for people, without the host."""

    host: str
    words: str
    fix: tuple[Fix, ...]


@dataclass(frozen=True)
class End:
    """An end of a link: a host, its device and address, and the address and host of the other."""

    seen: Examination
    host: HostSeen
    device: str
    own: str
    peer: str
    other: HostSeen

    def lines(self, table: str) -> list[str]:
        """Those of a table that no other host has."""
        told = part(self.host, "tables", table) or ()
        others = {
            line
            for each in self.seen.up
            if each != self.host
            for line in part(each, "tables", table) or ()
        }
        return [line for line in told if line not in others]


def entries_near(end: End, *, leaves: bool, slow: bool = False) -> Iterator[Entry]:
    """What is odd where packets to the other end leave, or those from it come in. slow: what can
    only make them slow.
    """
    if slow:
        yield from _batches(end)
        return
    yield from _interfaces(end)
    yield from _tunnel(end)
    yield from _addresses(end)
    if leaves:
        yield from _routes(end)
        yield from _rules(end)
        yield from _bridges(end)


def disturbers(seen: Examination, wanted: Sequence[str]) -> Iterator[Entry]:
    """Hosts that answer for addresses which others have."""
    for host in seen.up:
        own = {address for _, address, _ in addresses(host)}
        for line in part(host, "tables", "neighbours") or ():
            words = line.split()
            if "proxy" in words and words[0] in wanted and words[0] not in own:
                device = words[words.index("dev") + 1] if "dev" in words[:-1] else ""
                said = ["proxy", words[0], "dev", device]
                fix = drop_entry(host.name, said, *_ip(words[0]), "neighbour")
                yield Entry(host.name, f"the entry `{line}` of its neighbours", (fix,))
        yield from _rings(host)


def _rings(host: HostSeen) -> Iterator[Entry]:
    """Pairs of which both ends are ports of one bridge: what comes in goes round without end."""
    told = _words_of(host)
    for name, words in told.items():
        master, other = _values(words, "master"), next(iter(_values(words, "at")), "")
        closed = "veth" in words and master and master == _values(told.get(other, ()), "master")
        if closed and other < name and "stp_state" not in told.get(master[0], ()):
            opened = ("nomaster",), ("master", master[0])
            words_of = f"both ends of a pair, {other} and {name}, are ports of {master[0]}"
            yield Entry(host.name, words_of, (set_link(host.name, name, *opened),))


def deciding_route(host: HostSeen, peer: str) -> tuple[str, Fix] | None:
    """The route by which a host does not send to a peer what is for it, where that stands in a
    table that is asked before all others, and the line that deletes it; None: it does not.
    """
    way = part(host, "routes", peer)
    told = part(host, "tables", "routes") or ()
    if at(way, "error") and at(way, "kind") is None:
        # Of a route that forbids the way the kernel tells nothing.
        for each in told:
            kind, network = each.split()[:2]
            here = _table_of(each) == _LOCAL and _covers(network, peer) is not None
            if here and kind in _FORBIDS:
                return each, _drop_route(host.name, each.split(), peer)
        return None
    # A kernel without rules of its own choice joins the tables local and main, and calls both main.
    if at(way, "kind") not in ("local", "broadcast", "anycast"):
        return None
    wanted = f"{at(way, 'network')}/{at(way, 'prefix')}"
    line = next(
        (
            each
            for each in told
            if _network(each.split()[1]) == wanted and each.split()[0] == at(way, "kind")
        ),
        None,
    )  # fmt: skip
    device = ["dev", str(at(way, "interface"))] if at(way, "interface") else []
    words = line.split() if line else [at(way, "kind"), wanted, *device, "table", "local"]
    return " ".join(words), _drop_route(host.name, words, peer)


def rules_before(host: HostSeen, peer: str, before: int) -> Iterator[Entry]:
    """The rules of a host that are asked before one of this place could be, but the kernel's."""
    for line in part(host, "tables", "rules") or ():
        found = _Rule.of(line)
        if found is not None and found.place <= before and found.is_six == (":" in peer):
            yield found.entry(host.name)


def _ip(address: str) -> tuple[str, ...]:
    return ("ip", "-6") if ":" in address else ("ip",)


def _network(text: str) -> str:
    if text == "default":
        return ""
    try:
        return str(ip_network(text, strict=False))
    except ValueError:
        return ""


def _covers(text: str, address: str) -> int | None:
    """The prefix of a network that an address is in; None: it is in none, or in every one."""
    found = address_of(address)
    try:
        network = ip_network(text, strict=False)
    except ValueError:
        return None
    return network.prefixlen if found in network else None


def _table_of(line: str) -> int:
    words = line.split()
    name = words[words.index("table") + 1] if "table" in words[:-1] else "main"
    return _TABLES.get(name) or (int(name) if name.isdigit() else 0)


def _drop_route(host: str, words: Sequence[str], peer: str) -> Fix:
    said, left = [], iter(words)
    for word in left:
        if word in _STATES:
            for _ in range(_STATES[word]):
                next(left, "")
        else:
            said.append(word)
    return drop_entry(host, said, *_ip(peer), "route")


def _routes(end: End) -> Iterator[Entry]:
    """The route that decides, where somebody made it, or one that forbids the way."""
    way = part(end.host, "routes", end.peer)
    taken = f"{at(way, 'network')}/{at(way, 'prefix')}"
    least = prefix_of(end.host, end.own) or 0
    near = in_network(end.host, end.own, end.peer)
    for line in end.lines("routes"):
        words = line.split()
        prefix = _covers(words[1], end.peer)
        if prefix is None or (near and prefix < least):
            continue
        tables = {_table_of(line), at(way, "table")}
        decides = _network(words[1]) == taken and (len(tables) == 1 or tables == {_MAIN, _LOCAL})
        if decides or (words[0] in _FORBIDS and at(way, "error")) or (
            words[0] in ("local", "broadcast") and at(way, "kind") is None
        ):  # fmt: skip
            fix = _drop_route(end.host.name, words, end.peer)
            yield Entry(end.host.name, f"the route `{line}`", (fix,))


@dataclass(frozen=True)
class _Rule:
    """A rule of `ip rule`."""

    line: str
    place: int
    words: tuple[str, ...]
    is_six: bool

    @staticmethod
    def of(line: str) -> _Rule | None:
        """What a line says; None: it is none."""
        bare = line.removeprefix("-6 ")
        place, _, rest = bare.partition(": ")
        if not place.isdigit():
            return None
        return _Rule(line, int(place), tuple(rest.split()), is_six=bare != line)

    def value(self, name: str) -> str | None:
        """What stands behind a word."""
        if name in self.words[:-1]:
            return self.words[self.words.index(name) + 1]
        return None

    def concerns(self, end: End) -> bool:
        """Whether packets from one end to the other may be those that it is about."""
        if self.is_six != (":" in end.peer) or "iif" in self.words or "not" in self.words:
            return False
        for name, address in (("from", end.own), ("to", end.peer)):
            value = self.value(name)
            if value not in (None, "all") and _covers(str(value), address) is None:
                return False
        return self.value("oif") in (None, end.device)

    def entry(self, host: str) -> Entry:
        """The rule as something odd."""
        words = ["pref", str(self.place), *(word for word in self.words if word != "[detached]")]
        family = ("-6",) if self.is_six else ()
        fix = drop_entry(host, words, "ip", *family, "rule")
        return Entry(host, f"the rule `{self.line}` of `ip rule`", (fix,))


def _rules(end: End) -> Iterator[Entry]:
    """Rules that send some packets another way, or nowhere."""
    routes = part(end.host, "tables", "routes")
    for line in end.lines("rules"):
        rule = _Rule.of(line)
        if rule is None or not rule.concerns(end):
            continue
        table = rule.value("lookup") or rule.value("table")
        if table in _TABLES:
            continue
        if table is None or routes is None or _leads_away(routes, table, end):
            yield rule.entry(end.host.name)


def _leads_away(routes: Sequence[str], table: str, end: End) -> bool:
    """Whether a table has a way to the other end that is not that of the link."""
    for line in routes:
        words = line.split()
        if f" table {table} " not in f"{line} ":
            continue
        if words[1] == "default" or _covers(words[1], end.peer) is not None:
            straight = f" dev {end.device} " in f"{line} " and "via" not in words
            return words[0] != "unicast" or not straight
    return False


def _words_of(host: HostSeen) -> dict[str, list[str]]:
    """{interface: what it says of itself}."""
    lines = (line.split() for line in part(host, "tables", "links") or ())
    return {words[0]: words[1:] for words in lines if words}


def on_the_way(host: HostSeen, device: str) -> dict[str, bool]:
    """A device, what it lies over, and the bridges and their ports that it leads through, each with
    whether what the device sends comes in there: at the other end of a pair.
    """
    told, links = _words_of(host), mapping(part(host, "links"))
    found, left = {device: False}, [device]
    for name in left:
        words = told.get(name, [])
        near = [*(at(links.get(name), "lower") or ()), *_values(words, "master")]
        near += [each for each, own in told.items() if name in _values(own, "master")]
        is_pair = "veth" in words
        for each in [*near, *_values(words, "at")]:
            if each not in found:
                found[each] = is_pair and each in _values(words, "at")
                left.append(each)
    return found


def is_bridged(host: HostSeen, devices: Iterable[str]) -> bool:
    """Whether one of some interfaces is a port of a bridge."""
    told = _words_of(host)
    return any("bridge_slave" in told.get(name, ()) for name in devices)


def _values(words: Sequence[str], *names: str) -> list[str]:
    pairs = zip(words, words[1:], strict=False)
    return [value for name, value in pairs if name in names]


def _interfaces(end: End) -> Iterator[Entry]:
    """What was set of an interface on the way, and is set of none of the others' like it."""
    told, name = _words_of(end.host), end.host.name
    others = [
        _words_of(each).get(str(chosen_interface(end.seen, each)).partition(":")[0], ())
        for each in end.seen.up
        if each != end.host
    ]
    usual = {word for words in others for word in words}
    own = told.get(end.device, [])
    kind = at(own_interfaces(end.host).get(end.device), "kind")
    for words, on, back in _settings_of(own):
        named = words.split()[0]
        if named in usual or (named == "NOARP" and kind == "vpn"):
            continue
        yield _set(name, end.device, words, on, back)
    for port in on_the_way(end.host, end.device):
        for option, value in _options_of(told.get(port, [])):
            on = ("type", "bridge_slave", option)
            words = f"{option} {value}"
            yield _set(name, port, words, (*on, "off" if value == "on" else "on"), (*on, value))


def _settings_of(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """(what is set of an interface, words that take it back, words that set it)."""
    if "NOARP" in words:
        yield "NOARP", ("arp", "on"), ("arp", "off")
    if "protodown" in words:
        yield "protodown on", ("protodown", "off"), ("protodown", "on")
    for master in _values(words, "master"):
        # An address of a port gets nothing: what comes is its master's.
        yield f"master {master}", ("nomaster",), ("master", master)
    for word in words:
        if word.startswith("xdp"):
            # The program cannot be told from here: nobody can load it again.
            yield word, (word.partition("/")[0], "off"), (word.partition("/")[0], "off")


def _options_of(words: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What is set of a port of a bridge."""
    behind = list(words[words.index("bridge_slave") + 1 :]) if "bridge_slave" in words else []
    for option, value in zip(behind[::2], behind[1::2], strict=False):
        # A state is what the bridge has come to, and that it does not learn harms nobody.
        if value in ("on", "off") and option != "learning":
            yield option, value


def _set(host: str, device: str, words: str, on: Sequence[str], back: Sequence[str]) -> Entry:
    fix = set_link(host, device, on, back)
    return Entry(host, f"`{words}` of its {device} (`ip -d link`)", (fix,))


def _batches(end: End) -> Iterator[Entry]:
    """An interface that takes few bytes at a time from the kernel."""
    words = _words_of(end.host).get(end.device, [])
    told = {name: int(value) for name in ("gso_max_size", "gso_max_segs")
            for value in _values(words, name) if value.isdigit()}  # fmt: skip
    small = told.get("gso_max_size", _LEAST_BATCH_BYTES) < _LEAST_BATCH_BYTES
    if small or told.get("gso_max_segs", _LEAST_SEGMENTS) < _LEAST_SEGMENTS:
        back = [str(each) for pair in told.items() for each in pair]
        said = " ".join(back)
        yield _set(end.host.name, end.device, said, _USUAL_BATCH, back)


def _kind_words(words: Sequence[str]) -> list[str]:
    """Of an interface's words those of its kind, as `ip link add` takes them; empty: it is none
    that lies over others.
    """
    start = next((number for number, word in enumerate(words) if word in _TUNNELS), None)
    if start is None:
        return []
    rest = list(words[start:])
    end = next((number for number, word in enumerate(rest) if word in _AFTER_KIND), len(rest))
    return rest[:end]


def _tunnel(end: End) -> Iterator[Entry]:
    """The interface of the run is an end of a tunnel, and the two ends are not alike."""
    there = str(chosen_interface(end.seen, end.other)).partition(":")[0]
    mine = _kind_words(_words_of(end.host).get(end.device, []))
    theirs = _kind_words(_words_of(end.other).get(there, []))
    if not mine or not theirs or mine[0] != theirs[0]:
        return
    differing = list(_differing(mine, theirs))
    # Where nothing tells who is wrong, that end of the two which comes later in the fleet.
    names = [host.name for host in end.seen.up]
    later = names.index(end.host.name) > names.index(end.other.name)
    forgotten = [any(pair in _UNNAMED for pair in side) for side in zip(*differing, strict=True)]
    guilty = forgotten[0] if differing and forgotten[0] != forgotten[1] else later
    if not differing or not guilty:
        return
    ours = " ".join(word for pair, _ in differing for word in pair)
    other = " ".join(word for _, pair in differing for word in pair)
    told = mapping(own_interfaces(end.host).get(end.device))
    own = [(each["address"], int(each["prefix"] or 0)) for each in told.get("addresses") or ()
           if not each.get("link_local")]  # fmt: skip
    wanted = list(mine)
    for (name, old), (_, new) in differing:
        pairs = zip(wanted, wanted[1:], strict=False)
        wanted[[*pairs].index((name, old)) + 1] = new
    fix = make_anew(
        end.host.name, end.device, (wanted, mine), own, int(told.get("mtu_bytes") or 1500)
    )
    words = f"`{ours}` of its {mine[0]} {end.device}, where {end.other.name} has `{other}`"
    yield Entry(end.host.name, words, (fix,))


def _differing(
    mine: Sequence[str], theirs: Sequence[str]
) -> Iterator[tuple[tuple[str, str], tuple[str, str]]]:
    """The values that two ends have otherwise, each with its name; addresses are not compared."""
    matcher = difflib.SequenceMatcher(None, mine, theirs, autojunk=False)
    for how, start, stop, there, until in matcher.get_opcodes():
        if how != "replace" or stop - start != until - there or not start:
            continue
        for number in range(stop - start):
            one, other = mine[start + number], theirs[there + number]
            name = mine[start + number - 1]
            # The device below may have any name.
            if address_of(one) is None and name not in ("dev", "link"):
                yield (name, one), (name, other)


def _addresses(end: End) -> Iterator[Entry]:
    """An address of the run in a state in which it is not used."""
    for line in end.lines("addresses"):
        words = line.split()
        device, own = words[0], words[2].partition("/")[0] if len(words) > 2 else ""
        if own != end.own or device.partition(":")[0] != end.device:
            continue
        if {"tentative", "dadfailed"} & {*words}:
            again = drop_entry(end.host.name, [words[2], "dev", end.device], *_ip(own), "address")
            yield Entry(end.host.name, f"its address `{line}`", (again,))


def _bridges(end: End) -> Iterator[Entry]:
    """A bridge that was told at which of its ports the other end is."""
    cards = {str(mac).lower() for each in mapping(part(end.other, "links")).values()
             if (mac := at(each, "mac"))}  # fmt: skip
    for line in end.lines("entries"):
        words = line.split()
        if words[0].lower() not in cards or "dev" not in words:
            continue
        port = words[words.index("dev") + 1]
        vlan = [word for each in _values(words, "vlan") for word in ("vlan", each)]
        where = ["self"] if "self" in words else ["master"]
        flags = [word for word in ("static", "sticky", "extern_learn") if word in words]
        to = [word for each in _values(words, "dst") for word in ("dst", each)]
        fix = drop_entry(
            end.host.name, [words[0], "dev", port, *to, *vlan, *where, *flags], "bridge", "fdb",
            add="replace",
        )  # fmt: skip
        said = f"the entry `{line}` of `bridge fdb`, by which what is for {end.other.name} goes to"
        yield Entry(end.host.name, f"{said} {port}", (fix,))


def unread_tables(host: HostSeen) -> list[str]:
    """The tables of a host that nobody has read, or not to their end."""
    told: Any = part(host, "tables")
    if not isinstance(told, Mapping):
        return ["the tables of its network"]
    return [name for name, lines in told.items() if lines is None]
