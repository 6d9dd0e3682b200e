"""The tables of this host's network, line by line: what somebody set there and forgot.

The lines are those of ip(8) and bridge(8). What a kernel makes by itself, of the addresses and
interfaces that it was given, is left out; so few lines are left, and each was wanted by somebody.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from ipaddress import IPv4Interface, IPv6Interface, ip_interface, ip_network
from pathlib import Path

from yoked.agent.ask import first_lines, text
from yoked.agent.firewall import tool

# A table of a router on the internet has a million lines: nobody reads on after this.
_MOST_READ, _MOST_TOLD, _LONGEST = 5000, 100, 400
_USUAL_RULES = frozenset(
    {"0: from all lookup local", "32766: from all lookup main", "32767: from all lookup default"}
)
# Units in which logins by ssh, and what they start, may be.
UNITS = ("ssh.service", "sshd.service", "ssh@.service", "sshd@.service", "user@.service",
          "-.slice", "system.slice", "user.slice", "user-*.slice")  # fmt: skip
_SPEAKS = ("IPAddressDeny=", "IPAddressAllow=", "MemoryDenyWriteExecute=",
           "RestrictAddressFamilies=")  # fmt: skip
_UNIT_FOLDERS = ("etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system")
# Words of `ip -d link` that say nothing of where packets go, with the number of their values.
_DULL = {
    "mode": 1, "group": 1, "state": 1, "brd": 1, "minmtu": 1, "maxmtu": 1, "addrgenmode": 1,
    "numtxqueues": 1, "numrxqueues": 1, "tso_max_size": 1, "tso_max_segs": 1, "gro_max_size": 1,
    "gso_ipv4_max_size": 1, "gro_ipv4_max_size": 1, "parentbus": 1, "parentdev": 1, "permaddr": 1,
    "link-netnsid": 1, "link-netns": 1, "promiscuity": 1, "allmulti": 1, "portname": 1,
    "portid": 1, "switchid": 1, "ageing": 1, "srcport": 2, "altname": 1, "new-netnsid": 1,
    "max_pacing_offload_horizon": 1, "alias": 1, "qdisc": 1, "qlen": 1,
}  # fmt: skip
# Of a port of a bridge, and of a bridge, what is told where it is not so.
_OF_PORT = {
    "learning": "on", "flood": "on", "isolated": "off", "guard": "off", "root_block": "off",
    "proxy_arp": "off", "proxy_arp_wifi": "off", "neigh_suppress": "off", "locked": "off",
    "bcast_flood": "on", "state": "forwarding", "vlan_tunnel": "off", "mab": "off",
}  # fmt: skip
_OF_BRIDGE = {"stp_state": "0", "vlan_filtering": "0", "vlan_protocol": "802.1Q"}
# Of these the mode tells who gets which frames.
_HAVE_MODES = ("macvlan", "macvtap", "ipvlan", "ipvtap")
_KEPT_ENTRY = re.compile(r" (static|sticky|extern_learn|dynamic)\b| dst ")
# The flags of an address that Linux does not send from, or does not answer at.
_ODD_ADDRESS = re.compile(r" (tentative|dadfailed|deprecated|peer)\b")


def probe_tables(net: Path = Path("/proc/net")) -> dict[str, list[str] | None] | None:
    """By table its lines: routes (of all tables), rules, addresses, neighbours, links, entries (of
    bridges and tunnels), denials (of units). None: it could not be read, or not to its end. None
    for all without ip(8).
    """
    ip = tool("ip")
    if ip is None:
        return None
    links = _read([ip, "-d", "-o", "link", "show"])
    addresses = _read([ip, "-o", "address", "show"])
    routes = _read([ip, "-d", "-o", "route", "show", "table", "all"])
    return {
        "links": _told(map(link_words, links)) if links is not None else None,
        "addresses": None if addresses is None else _told(odd_addresses(addresses)),
        "routes": None
        if routes is None or addresses is None
        else _told(odd_routes(routes, addresses)),
        "rules": _rules(ip, has_six=(net / "if_inet6").exists()),
        "neighbours": _neighbours(ip),
        "entries": _entries(links or ()),
        "denials": _told(denials()),
    }


def link_words(line: str) -> str:
    """What a line of `ip -d -o link` says of where packets go: the name, the interface of this host
    that it lies over or is the other end of, and such words.
    """
    name, _, rest = line.partition(": ")[2].partition(": ")
    name, _, other = name.partition("@")
    # Of one in another network its number alone is told.
    is_here = other and other != "NONE" and not re.fullmatch(r"if\d+", other)
    found = [name, "at", other] if is_here else [name]
    words = iter(rest.replace("\\", " ").split())
    inside: dict[str, str] | None = None
    for word in words:
        inside = {"bridge": _OF_BRIDGE, "bridge_slave": _OF_PORT}.get(word, inside)
        if inside is not None and word not in ("bridge", "bridge_slave"):
            if word in inside and (value := next(words, "")) != inside[word]:
                found += [word, value]
        elif word == "mode" and found[-1] in _HAVE_MODES:
            found += [word, next(words, "")]
        elif word in _DULL:
            for _ in range(_DULL[word]):
                next(words, "")
        elif word.startswith("<"):
            found += ["NOARP"] if "NOARP" in word else []
            found += [] if "UP" in word.strip("<>").split(",") else ["DOWN"]
        elif word.startswith("link/"):
            # The hardware's address; of a tunnel that of its end.
            next(words, "")
        else:
            found.append(word)
    return " ".join(found)


def odd_addresses(lines: Iterable[str]) -> Iterator[str]:
    """Of `ip -o address` the addresses with a broadcast address or a state that is not usual."""
    for line in lines:
        words = line.partition("\\")[0].split()[1:]
        own = _own(words)
        if own is None:
            continue
        told = words[words.index("brd") + 1] if "brd" in words else None
        is_other = told is not None and told != str(own.network.broadcast_address)
        if is_other or _ODD_ADDRESS.search(line):
            yield " ".join(words)


def odd_routes(lines: Iterable[str], addresses: Iterable[str]) -> Iterator[str]:
    """Of `ip -d route show table all` what the kernel did not make by itself of `addresses`, lines
    of `ip -o address`.
    """
    own = [each for line in addresses if (each := _own(line.split()[1:])) is not None]
    here = {str(each.ip) for each in own}
    ends = {str(end) for each in own
            for end in (each.network.broadcast_address, each.network.network_address)}  # fmt: skip
    for line in lines:
        words = line.replace("\\", " ").split()
        if len(words) < 2 or words[0] in ("multicast", "anycast"):
            continue
        kind, network = words[:2]
        by_kernel = " proto kernel " in f"{line} "
        loops = " dev lo " in f"{line} " and _is_loopback(network)
        if kind == "local" and by_kernel and (network in here or loops):
            continue
        if kind == "broadcast" and by_kernel and network in ends:
            continue
        if kind == "unicast" and by_kernel and " table main " in line:
            continue
        yield " ".join(words)


def _is_loopback(network: str) -> bool:
    try:
        return ip_network(network).is_loopback
    except ValueError:
        return False


def _own(words: list[str]) -> IPv4Interface | IPv6Interface | None:
    """The address of a line of `ip -o address`, without its number."""
    for kind, value in zip(words, words[1:]):  # noqa: B905, RUF007 - not before Python 3.10
        if kind in ("inet", "inet6"):
            try:
                return ip_interface(value)
            except ValueError:
                return None
    return None


def _rules(ip: str, *, has_six: bool) -> list[str] | None:
    """Those of both families but the kernel's own; of IPv6 with `-6` in front."""
    found = []
    for family in ("", "-6") if has_six else ("",):
        told = _read([ip, *([family] if family else []), "rule", "show"])
        if told is None:
            return None
        lines = (" ".join(line.split()) for line in told)
        found += [f"{family} {line}".strip() for line in lines if line not in _USUAL_RULES]
    return _told(found)


def _neighbours(ip: str) -> list[str] | None:
    """Those that were set by hand, and those for which this host answers."""
    fixed = _read([ip, "neighbour", "show", "nud", "permanent"])
    instead = _read([ip, "neighbour", "show", "proxy"])
    if fixed is None or instead is None:
        return None
    proxies = (line if " proxy" in line else f"{line} proxy" for line in instead)
    return _told([*fixed, *proxies])


def _entries(links: Iterable[str]) -> list[str] | None:
    """Entries of bridges and tunnels that were not learnt."""
    if not any(f" {kind} " in line for line in links for kind in ("bridge", "vxlan")):
        return []
    bridge = tool("bridge")
    found = _read([bridge, "fdb", "show"]) if bridge else None
    if found is None:
        return None
    return _told(line for line in found if _KEPT_ENTRY.search(line) and "dynamic" not in line)


def denials(root: Path = Path("/")) -> Iterator[str]:
    """`FILE:LINE IPAddressDeny=...`, and what is allowed in spite of it, of the units in which
    logins may be: the kernel drops what their programs send to such addresses, and what comes from
    there. And MemoryDenyWriteExecute= and RestrictAddressFamilies=, in the same form. Source:
    systemd.resource-control(5), systemd.exec(5).
    """
    for folder in _UNIT_FOLDERS:
        for unit in UNITS:
            own = [*(root / folder).glob(unit), *(root / folder).glob(f"{unit}.d/*.conf")]
            for path in sorted(own):
                lines = enumerate(text(path).splitlines(), start=1)
                yield from (f"{path}:{number} {line.strip()}" for number, line in lines
                            if line.strip().startswith(_SPEAKS))  # fmt: skip


def _read(argv: list[str]) -> list[str] | None:
    lines, is_all = first_lines(argv, _MOST_READ)
    return lines if is_all else None


def _told(lines: Iterable[str]) -> list[str] | None:
    found = list(dict.fromkeys(" ".join(line.split())[:_LONGEST] for line in lines))
    return found if len(found) <= _MOST_TOLD else None
