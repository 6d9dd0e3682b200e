"""The interfaces on a link's way, as a host tells of them: their settings, bridges, and tunnels."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from yoked.doctor.checks.query import (
    address_of,
    addresses,
    at,
    chosen_device,
    host_of_address,
    in_network,
    in_networks,
    interface_kind,
    mapping,
    own_interfaces,
    part,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.system import let_go_on
from yoked.doctor.repairs.tables import make_anew, set_link
from yoked.records.examination import Examination, Fix, HostSeen
from yoked.text import one_line, shortened
from yoked.units import listed

Kind = Literal["rule", "queue", "route", "setting", "program", "entry", "maker"]

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
class Oddity:
    """Something unusual that one host has near a link. words: for people, without the host."""

    host: str
    words: str
    fix: tuple[Fix, ...]
    kind: Kind = "entry"


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


def words_of(host: HostSeen) -> dict[str, list[str]]:
    """{interface: what it says of itself}."""
    lines = (line.split() for line in part(host, "tables", "links") or ())
    return {words[0]: words[1:] for words in lines if words}


def on_the_way(host: HostSeen, device: str) -> dict[str, bool]:
    """A device, what it lies over, and the bridges and their ports that it leads through, each with
    whether what the device sends comes in there: at the other end of a pair.
    """
    told, links = words_of(host), mapping(part(host, "links"))
    found, left = {device: False}, [device]
    for name in left:
        words = told.get(name, [])
        near = [*(at(links.get(name), "lower") or ()), *values(words, "master")]
        near += [each for each, own in told.items() if name in values(own, "master")]
        is_pair = "veth" in words
        for each in [*near, *values(words, "at")]:
            if each not in found:
                found[each] = is_pair and each in values(words, "at")
                left.append(each)
    return found


def is_bridged(host: HostSeen, devices: Iterable[str]) -> bool:
    """Whether one of some interfaces is a port of a bridge."""
    told = words_of(host)
    return any("bridge_slave" in told.get(name, ()) for name in devices)


def values(words: Sequence[str], *names: str) -> list[str]:
    return [value for name, value in pairwise(words) if name in names]


def settings_near(end: End) -> Iterator[Oddity]:
    """What was set of an interface on the way, and is set of none of the others' like it."""
    told, name = words_of(end.host), end.host.name
    others = [
        words_of(each).get(chosen_device(end.seen, each), ())
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
    yield from _unheard(end, own)
    for port in on_the_way(end.host, end.device):
        for option, value in _options_of(told.get(port, [])):
            on = ("type", "bridge_slave", option)
            words = f"{option} {value}"
            yield _set(name, port, words, (*on, "off" if value == "on" else "on"), (*on, value))


def _unheard(end: End, words: Sequence[str]) -> Iterator[Oddity]:
    """A macvlan of mode source hears the cards of its list alone."""
    there = chosen_device(end.seen, end.other)
    mac = str(at(mapping(part(end.other, "links")).get(there), "mac") or "").lower()
    if "remotes" in words and mac and mac not in words:
        change = ("type", "macvlan", "macaddr")
        said = f"macvlan mode source remotes {words[words.index('remotes') + 1]}"
        found = _set(end.host.name, end.device, said, (*change, "add", mac), (*change, "del", mac))
        yield replace(found, words=f"{found.words}, whose list lacks {mac} of {end.other.name}")


def _settings_of(words: Sequence[str]) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """(what is set of an interface, words that take it back, words that set it)."""
    if "NOARP" in words:
        yield "NOARP", ("arp", "on"), ("arp", "off")
    if "protodown" in words:
        yield "protodown on", ("protodown", "off"), ("protodown", "on")
    for master in values(words, "master"):
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


def _set(host: str, device: str, words: str, on: Sequence[str], back: Sequence[str]) -> Oddity:
    fix = set_link(host, device, on, back)
    return Oddity(host, f"`{words}` of its {device} (`ip -d link`)", (fix,))


def batches_near(end: End) -> Iterator[Oddity]:
    """An interface that takes few bytes at a time from the kernel."""
    words = words_of(end.host).get(end.device, [])
    told = {name: int(value) for name in ("gso_max_size", "gso_max_segs")
            for value in values(words, name) if value.isdigit()}  # fmt: skip
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


def tunnel_near(end: End) -> Iterator[Oddity]:
    """The interface of the run is an end of a tunnel, and the two ends are not alike."""
    there = chosen_device(end.seen, end.other)
    mine = _kind_words(words_of(end.host).get(end.device, []))
    theirs = _kind_words(words_of(end.other).get(there, []))
    if not mine or not theirs or mine[0] != theirs[0]:
        return
    yield from _far_end(end, mine, theirs)
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
        wanted[[*pairwise(wanted)].index((name, old)) + 1] = new
    fix = make_anew(
        end.host.name, end.device, (wanted, mine), own, int(told.get("mtu_bytes") or 1500)
    )
    words = f"`{ours}` of its {mine[0]} {end.device}, where {end.other.name} has `{other}`"
    yield Oddity(end.host.name, words, (fix,))


def _far_end(end: End, mine: Sequence[str], theirs: Sequence[str]) -> Iterator[Oddity]:
    """A tunnel leads to an address that nobody has, while its other end leads here."""
    ours, back = values(mine, "remote")[:1], values(theirs, "remote")[:1]
    own = {address for _, address, _ in addresses(end.host)}
    if not ours or not back or back[0] not in own or host_of_address(end.seen, ours[0]):
        return
    there = [*values(theirs, "local"), *(address for _, address, _ in addresses(end.other))]
    # What a router translates is beyond these, and may be right.
    wanted = next((each for each in there if in_network(end.host, back[0], each)), None)
    if wanted is not None:
        kind = mine[0]
        to, was = (("type", kind, "remote", each) for each in (wanted, ours[0]))
        words = (
            f"`remote {ours[0]}` of its {kind} {end.device}, an address that no host here has; "
            f"{end.other.name}'s is {wanted}"
        )
        yield Oddity(end.host.name, words, (set_link(end.host.name, end.device, to, was),))


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


def owners_of(host: HostSeen, device: str) -> list[Mapping[str, Any]]:
    """The programs that carry what a tun device sends and gets, as far as they are known."""
    told = part(host, "tunnels", "owners") or ()
    return [each for each in told if each["interface"] == device]


def stopped_near(host: HostSeen, device: str) -> Iterator[Oddity]:
    """Programs on the way, each of which hands on what a tun device sends and gets, that stand."""
    way = on_the_way(host, device)
    is_vpn = interface_kind(host, device) == "vpn"
    for each in part(host, "tunnels", "owners") or ():
        owned = each["interface"]
        if each["stopped"] and (owned in way or (owned is None and is_vpn)):
            command = shortened(one_line(each["command"]))
            belongs = f", to which {owned} belongs, and" if owned else ","
            words = (
                f"the program `{command}` (process {each['pid']}){belongs} which is stopped "
                "(state T)"
            )
            yield Oddity(host.name, words, (let_go_on(host.name, each["pid"]),), "program")


def allowed_near(end: End) -> Iterator[Oddity]:
    """A tunnel takes from its peers what is on a list alone, and the other end is not on it."""
    lines = [each.split(maxsplit=2) for each in part(end.host, "tunnels", "allows") or ()]
    own = [(place, words) for device, place, words in lines if device == end.device]
    if not own or any(in_networks(words.partition("=")[2], end.peer) for _, words in own):
        return
    where = [
        f"`{one_line(words)}` ({one_line(place.replace(':', ', line ', 1))})"
        if place.startswith("/")
        else f"`{one_line(words)}`"
        for place, words in own
    ]
    to = f"{end.peer}/{'128' if ':' in end.peer else '32'}"
    device, name = end.device, end.host.name
    if own[0][0].startswith("/"):
        owner = next((str(each["pid"]) for each in owners_of(end.host, device)), "PID")
        mend = by_hand(
            name,
            "have AllowedIPs of the peer {other} in {file} name {to}, then `kill -HUP {owner}`, or "
            "start the tunnel anew",
            other=end.other.name,
            file=own[0][0].rpartition(":")[0],
            to=to,
            owner=owner,
        )
    else:
        mend = by_hand(
            name,
            "wg set {device} peer KEY allowed-ips {to}    with the key of {other}, and in the "
            "tunnel's file (AllowedIPs); `wg show {device}` has the peers",
            device=device,
            to=to,
            other=end.other.name,
        )
    said = f"{listed(where)} of its {device}, a list without {end.peer} of {end.other.name}"
    yield Oddity(name, said, (mend,))


def takers_near(end: End) -> Iterator[Oddity]:
    """An interface over that of the run which gets all that comes for it."""
    for name, words in words_of(end.host).items():
        kind = next((each for each in ("macvtap", "macvlan") if each in words), None)
        if kind and "passthru" in values(words, "mode") and end.device in values(words, "at"):
            away = by_hand(
                end.host.name,
                "ip link del {name}    gives {device} its frames back; a virtual machine or "
                "container that uses {name} needs mode bridge",
                name=name,
                device=end.device,
            )
            said = f"`{kind} mode passthru` of its {name}, which gets all frames for {end.device}"
            yield Oddity(end.host.name, said, (away,))


def rings(host: HostSeen) -> Iterator[Oddity]:
    """Pairs of which both ends are ports of one bridge: what comes in goes round without end."""
    told = words_of(host)
    for name, words in told.items():
        master, other = values(words, "master"), next(iter(values(words, "at")), "")
        closed = "veth" in words and master and master == values(told.get(other, ()), "master")
        if closed and other < name and "stp_state" not in told.get(master[0], ()):
            opened = ("nomaster",), ("master", master[0])
            told_as = f"both ends of a pair, {other} and {name}, are ports of {master[0]}"
            yield Oddity(host.name, told_as, (set_link(host.name, name, *opened),))
