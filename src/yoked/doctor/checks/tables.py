"""What stands in the tables of one host's network alone, near a link, with the line that undoes it.

A host tells what somebody set there: routes, rules, addresses, neighbours, interfaces, entries of
bridges (yoked.agent.tables). Most of it is meant. Here counts what the other hosts do not have, and
what these very packets meet.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_network
from typing import Any

from yoked.doctor.checks.devices import (
    End,
    Oddity,
    allowed_near,
    batches_near,
    rings,
    settings_near,
    takers_near,
    tunnel_near,
    values,
    words_of,
)
from yoked.doctor.checks.query import (
    address_of,
    addresses,
    at,
    in_network,
    mapping,
    part,
    prefix_of,
)
from yoked.doctor.repairs.tables import drop_entry, lift_denial, take_again
from yoked.records.examination import Examination, Fix, HostSeen

_MAIN, _LOCAL = 254, 255
_TABLES = {"main": _MAIN, "local": _LOCAL, "default": 253}
_FORBIDS = ("blackhole", "prohibit", "unreachable", "throw")
# What `ip route` prints of a state, and takes for no word of its own; with its values.
_STATES = {"linkdown": 0, "dead": 0, "offload": 0, "trap": 0, "error": 1, "expires": 1, "users": 1,
           "age": 1, "notify": 0, "rt_offload": 0, "rt_trap": 0}  # fmt: skip


def entries_near(end: End, *, leaves: bool, slow: bool = False) -> Iterator[Oddity]:
    """What is odd where packets to the other end leave, or those from it come in. slow: what can
    only make them slow.
    """
    if slow:
        yield from batches_near(end)
        return
    yield from settings_near(end)
    yield from takers_near(end)
    yield from tunnel_near(end)
    yield from allowed_near(end)
    yield from _addresses(end)
    yield from _denials(end)
    if leaves:
        yield from _into_itself(end)
        yield from _routes(end)
        yield from _rules(end)
        yield from _bridges(end)


def disturbers(seen: Examination, wanted: Sequence[str]) -> Iterator[Oddity]:
    """Hosts that answer for addresses which others have."""
    for host in seen.up:
        own = {address for _, address, _ in addresses(host)}
        for line in part(host, "tables", "neighbours") or ():
            words = line.split()
            if "proxy" in words and words[0] in wanted and words[0] not in own:
                device = next(iter(values(words, "dev")), "")
                said = ["proxy", words[0], "dev", device]
                fix = drop_entry(host.name, said, *_ip(words[0]), "neighbour")
                yield Oddity(host.name, f"the entry `{line}` of its neighbours", (fix,))
        yield from rings(host)


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


def taken_for_own(host: HostSeen, address: str) -> tuple[str, Fix] | None:
    """The route by which a host answers for an address that it does not have, and the line that
    deletes it; None: there is none.
    """
    own = {each for _, each, _ in addresses(host)}
    for line, words in _split(part(host, "tables", "routes")):
        if words[0] == "local" and address not in own and _covers(words[1], address) is not None:
            return line, _drop_route(host.name, words, address)
    return None


def taken_addresses(host: HostSeen) -> list[str]:
    """The single addresses that a host takes for its own by a route alone."""
    lines = _split(part(host, "tables", "routes"))
    found = (words[1] for _, words in lines if words[0] == "local")
    return [address for address in found if address_of(address) is not None]


def _split(lines: Iterable[str] | None) -> Iterator[tuple[str, list[str]]]:
    """Lines with their words, of which those of a table have two at least."""
    for line in lines or ():
        if len(words := line.split()) > 1:
            yield line, words


def rules_before(host: HostSeen, peer: str, before: int) -> Iterator[Oddity]:
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
    name = next(iter(values(line.split(), "table")), "main")
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


def _routes(end: End) -> Iterator[Oddity]:
    """The route that decides, where somebody made it, or one that forbids the way."""
    way = part(end.host, "routes", end.peer)
    taken = f"{at(way, 'network')}/{at(way, 'prefix')}"
    least = prefix_of(end.host, end.own) or 0
    near = in_network(end.host, end.own, end.peer)
    for line, words in _split(end.lines("routes")):
        prefix = _covers(words[1], end.peer)
        if prefix is None or (near and prefix < least):
            continue
        tables = {_table_of(line), at(way, "table")}
        decides = _network(words[1]) == taken and (len(tables) == 1 or tables == {_MAIN, _LOCAL})
        if decides or (words[0] in _FORBIDS and at(way, "error")) or (
            words[0] in ("local", "broadcast") and at(way, "kind") is None
        ):  # fmt: skip
            fix = _drop_route(end.host.name, words, end.peer)
            yield Oddity(end.host.name, f"the route `{line}`", (fix,))


def _into_itself(end: End) -> Iterator[Oddity]:
    """The route by which a tunnel's own packets go into the tunnel."""
    far = next(iter(values(words_of(end.host).get(end.device, ()), "remote")), "")
    ways = [
        (prefix, line, words)
        for line, words in _split(part(end.host, "tables", "routes"))
        if _table_of(line) == _MAIN and (prefix := _covers(words[1], far)) is not None
    ]
    _, line, words = max(ways, default=(0, "", []))
    if end.device in values(words, "dev"):
        said = f"the route `{line}`, by which what {end.device} itself sends to {far} goes into it"
        yield Oddity(end.host.name, said, (_drop_route(end.host.name, words, far),))


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
        return next(iter(values(self.words, name)), None)

    def concerns(self, end: End) -> bool:
        """Whether packets from one end to the other may be those that it is about."""
        if self.is_six != (":" in end.peer) or "iif" in self.words or "not" in self.words:
            return False
        for name, address in (("from", end.own), ("to", end.peer)):
            value = self.value(name)
            if value not in (None, "all") and _covers(str(value), address) is None:
                return False
        return self.value("oif") in (None, end.device)

    def entry(self, host: str) -> Oddity:
        """The rule as something odd."""
        words = ["pref", str(self.place), *(word for word in self.words if word != "[detached]")]
        family = ("-6",) if self.is_six else ()
        fix = drop_entry(host, words, "ip", *family, "rule")
        return Oddity(host, f"the rule `{self.line}` of `ip rule`", (fix,))


def _rules(end: End) -> Iterator[Oddity]:
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
    for line, words in _split(routes):
        if f" table {table} " not in f"{line} ":
            continue
        if words[1] == "default" or _covers(words[1], end.peer) is not None:
            straight = f" dev {end.device} " in f"{line} " and "via" not in words
            return words[0] != "unicast" or not straight
    return False


def _addresses(end: End) -> Iterator[Oddity]:
    """An address of the run in a state in which it is not used."""
    for line, words in _split(end.lines("addresses")):
        device, own = words[0], words[2].partition("/")[0] if len(words) > 2 else ""
        if own != end.own or device.partition(":")[0] != end.device:
            continue
        if {"tentative", "dadfailed"} & {*words}:
            again = take_again(end.host.name, [words[2], "dev", end.device], _ip(own))
            yield Oddity(end.host.name, f"its address `{line}`", (again,))


def _denials(end: End) -> Iterator[Oddity]:
    """A unit whose programs may not speak with the other end. What is allowed counts first."""
    allowed = [line for line in part(end.host, "tables", "denials") or () if "Allow=" in line]
    if any(_names(line, end.peer) for line in allowed):
        return
    for line in end.lines("denials"):
        place, _, words = line.partition(" ")
        file, _, number = place.rpartition(":")
        if number.isdecimal() and line not in allowed and _names(words, end.peer):
            fix = lift_denial(end.host.name, file, int(number))
            yield Oddity(end.host.name, f"`{words}` ({file}, line {number})", (fix,))


def _names(setting: str, address: str) -> bool:
    values = setting.partition("=")[2].split()
    return any(each == "any" or _covers(each, address) is not None for each in values)


def _bridges(end: End) -> Iterator[Oddity]:
    """A bridge that was told at which of its ports the other end is."""
    cards = {str(mac).lower() for each in mapping(part(end.other, "links")).values()
             if (mac := at(each, "mac"))}  # fmt: skip
    for line, words in _split(end.lines("entries")):
        port = next(iter(values(words, "dev")), None)
        if words[0].lower() not in cards or port is None:
            continue
        to_far_end = values(words_of(end.host).get(port, ()), "remote")
        if to_far_end and values(words, "dst") == to_far_end:
            # A tunnel has only that.
            continue
        vlan = [word for each in values(words, "vlan") for word in ("vlan", each)]
        where = ["self"] if "self" in words else ["master"]
        flags = [word for word in ("static", "sticky", "extern_learn") if word in words]
        to = [word for each in values(words, "dst") for word in ("dst", each)]
        fix = drop_entry(
            end.host.name, [words[0], "dev", port, *to, *vlan, *where, *flags], "bridge", "fdb",
            add="replace",
        )  # fmt: skip
        said = f"the entry `{line}` of `bridge fdb`, by which what is for {end.other.name} goes to"
        yield Oddity(end.host.name, f"{said} {port}", (fix,))


def unread_tables(host: HostSeen) -> list[str]:
    """The tables of a host that nobody has read, or not to their end."""
    told: Any = part(host, "tables")
    if not isinstance(told, Mapping):
        return ["the tables of its network"]
    return [name for name, lines in told.items() if lines is None]
