"""Interfaces, addresses, routes and names of a host; none but a name outlasts its next start."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from yoked.doctor.repairs.base import as_root, repair
from yoked.doctor.repairs.files import change_file, is_free
from yoked.doctor.repairs.fleet import for_sed
from yoked.records.examination import Fix
from yoked.records.shell import Line, joined, shell_line

# Before the rules of VPNs, which begin at a few thousand.
FIRST_RULE = 1
# With its prefix.
_Address = tuple[str, "int | None"]


@repair
def set_link_up(host: str, interface: str) -> Fix:
    """Switch an interface on."""
    return as_root(host, "ip link set dev {it} up", "ip link set dev {it} down", it=interface)


@repair
def ask_for_address(host: str, interface: str) -> Fix:
    """Ask the DHCP server for an address again."""
    return as_root(
        host, "nmcli device connect {it} || networkctl renew {it} || dhclient {it}", it=interface
    )


def _other_prefix(prefix: int | None) -> int:
    """With which an address can be there twice for a moment."""
    return 32 if prefix != 32 else 31


def _on_device(address: str, prefix: int | None, interface: str) -> Line:
    """An address as `ip address` takes it."""
    return shell_line("{at} dev {interface}", at=f"{address}/{prefix}", interface=interface)


@repair
def add_address(host: str, address: str, prefix: int | None, interface: str) -> Fix:
    """Give an interface an address."""
    what = _on_device(address, prefix, interface)
    return as_root(host, "ip address add {what}", "ip address del {what}", what=what)


@repair
def drop_address(host: str, address: str, prefix: int | None, interface: str) -> Fix:
    """Take an address from an interface."""
    what = _on_device(address, prefix, interface)
    return as_root(host, "ip address del {what}", "ip address add {what}", what=what)


@repair
def replace_address(
    host: str, old: tuple[str, int | None], new: tuple[str, int | None], interface: str
) -> Fix:
    """Give an interface an address for another; old, new: (address, prefix).

    The new one comes first: with its last address an interface loses its routes.
    """
    return as_root(
        host,
        # Else the second of a network goes with the first.
        "sysctl -qw {keep} && ip address add {new} && ip address del {old}",
        "ip address add {old} && ip address del {new}",
        keep=f"net/ipv4/conf/{interface}/promote_secondaries=1",
        old=_on_device(*old, interface),
        new=_on_device(*new, interface),
    )


@repair
def put_behind(
    host: str, before: Sequence[_Address], behind: Sequence[_Address], interface: str
) -> Fix:
    """Put the addresses of IPv4 that an interface has before some others behind those.

    Taken back, the others are moved in their turn, as in `relabel_address`.
    """
    moves = [
        shell_line(
            "ip address del {own} && ip address add {own} brd +", own=_on_device(*each, interface)
        )
        for each in before
    ]
    returns = [
        shell_line(
            "ip address add {meanwhile} && ip address del {own} && ip address add {own} brd + && "
            "ip address del {meanwhile}",
            own=_on_device(address, prefix, interface),
            meanwhile=_on_device(address, _other_prefix(prefix), interface),
        )
        for address, prefix in behind
    ]
    return as_root(
        host,
        # Else the second of a network goes with the first.
        "sysctl -qw {keep} && {moves}",
        "{returns}",
        keep=f"net/ipv4/conf/{interface}/promote_secondaries=1",
        moves=joined(" && ", moves),
        returns=joined(" && ", returns),
    )


@repair
def relabel_address(host: str, address: str, prefix: int, interface: str, label: str) -> Fix:
    """Give an address the interface's own name for a label.

    Meanwhile it is there with another prefix: with its last address an interface loses its routes.
    """
    return as_root(
        host,
        "ip address add {meanwhile} && ip address del {own} && ip address add {own} brd + && "
        "ip address del {meanwhile}",
        "ip address add {meanwhile} && ip address del {own} && ip address add {own} brd + "
        "label {label} && ip address del {meanwhile}",
        own=_on_device(address, prefix, interface),
        meanwhile=_on_device(address, _other_prefix(prefix), interface),
        label=label,
    )


@repair
def add_route(host: str, network: Line) -> Fix:
    """Add a route. network: as `ip route` takes it."""
    return as_root(host, "ip route add {net}", "ip route del {net}", net=network)


@repair
def route_by_one(
    host: str, network: str, interface: str, own: str, hops: Sequence[Mapping[str, object]]
) -> Fix:
    """Have a route with several next hops lead straight to the neighbours; hops: what it has."""
    before = joined(
        " ",
        (
            shell_line(
                "nexthop {via}dev {interface} weight {weight}",
                via=shell_line("via {to} ", to=each["gateway"])
                if each.get("gateway")
                else shell_line(""),
                interface=each["interface"],
                weight=each.get("weight") or 1,
            )
            for each in hops
        ),
    )
    return as_root(
        host,
        "ip route replace {net} dev {it} src {own}",
        "ip route replace {net} src {own} {before}",
        net=network,
        it=interface,
        own=own,
        before=before,
    )


@repair
def plain_route(
    host: str,
    network: str,
    gateway: str | None,
    interface: str,
    own: str,
    metrics: Mapping[str, object],
) -> Fix:
    """Have a route ask nothing of connections; metrics: what it asks, by the words of ip-route."""
    return as_root(
        host,
        "ip route replace {net} {via}dev {it} src {own}",
        "ip route replace {net} {via}dev {it} src {own} {asked}",
        net=network,
        via=shell_line("via {to} ", to=gateway) if gateway else shell_line(""),
        it=interface,
        own=own,
        asked=joined(" ", (word for each in metrics.items() for word in each)),
    )


@repair
def keep_address(host: str, address: str, prefix: int | None, interface: str, ends_s: int) -> Fix:
    """Have an interface keep an address for good; ends_s: how long it would have had it."""
    what = _on_device(address, prefix, interface)
    return as_root(
        host,
        "ip address change {what} valid_lft forever preferred_lft forever",
        "ip address change {what} valid_lft {left} preferred_lft {left}",
        what=what,
        left=ends_s,
    )


@repair
def set_route_source(host: str, network: str, interface: str, own: str, was: str) -> Fix:
    """Have a route send from another of the host's addresses."""
    return as_root(
        host,
        "ip route replace {net} dev {it} src {own}",
        "ip route replace {net} dev {it} src {was}",
        net=network,
        it=interface,
        own=own,
        was=was,
    )


@repair
def drop_policy(host: str, selector: Sequence[str], way: str, demand: Sequence[str]) -> Fix:
    """Delete an IPsec policy. selector, demand: words of `ip xfrm policy`."""
    return as_root(
        host,
        "ip xfrm policy delete {what} dir {way}",
        "ip xfrm policy add {what} dir {way} {demand}",
        what=joined(" ", selector),
        way=way,
        demand=joined(" ", demand),
    )


@repair
def route_directly(host: str, address: str, interface: str) -> Fix:
    """A route straight to a peer, and a rule that has it asked before all others."""
    return as_root(
        host,
        "{ip} route replace {route} && {ip} rule add {rule}",
        "{ip} rule del {rule} && {ip} route del {route}",
        ip=shell_line("ip -6") if ":" in address else shell_line("ip"),
        route=shell_line("{to} dev {interface}", to=address, interface=interface),
        rule=shell_line("to {to} lookup main pref {place}", to=address, place=FIRST_RULE),
    )


@repair
def narrow_route(host: str, address: str) -> Fix:
    """Send packets of at most $m bytes to an address, by the route that they take already.

    Routes to the very address that were there before come back with the undo.
    """
    # Of several routes to one address the one with the least metric counts; IPv6 has no 0.
    six = ":" in address
    kept = f".yoked-{re.sub(r'[^0-9A-Fa-f.:]', '', address)}"
    # Routes do not outlive the start of a host, and neither does what is kept there.
    before = joined("", ("/run/route", kept))
    fix = as_root(
        host,
        "{free} && "
        "{ip} route show exact {address} | sed 's/ linkdown//g; s/ dead//g' > {before} && "
        "way=$({ip} route get {address} | grep -oE '(via( inet6)?|dev) [^ ]+' | tr '\\n' ' ') && "
        "{ip} route replace {address} $way{metric} mtu $m",
        "[ ! -e {before} ] || {{ {ip} route del {address}{metric} 2>/dev/null; "
        "while read -r route; do {ip} route replace $route; done < {before}; rm {before}; }}",
        free=is_free(before),
        ip=shell_line("ip -6") if six else shell_line("ip"),
        metric=shell_line(" metric 1") if six else shell_line(""),
        address=address,
        before=before,
    )
    return replace(fix, kept=kept)


@repair
def send_smaller_packets(host: str, address: str, sizes_bytes: Iterable[int]) -> Fix:
    """Try which of some sizes pass, and send none that are larger: for TCP one end is enough."""
    route = narrow_route(host, address)
    line = shell_line(
        "for m in {sizes}; do {ping} -c 1 -W 1 -M do -s $((m - {header})) {address} "
        ">/dev/null 2>&1 && break; done; {route}",
        sizes=joined(" ", sizes_bytes),
        ping=shell_line("ping -6") if ":" in address else shell_line("ping"),
        header=48 if ":" in address else 28,
        address=address,
        route=route.command,
    )
    return replace(route, command=line)


@repair
def forget_neighbor(host: str, address: str, mac: str, interface: str) -> Fix:
    """Delete a fixed entry of the neighbour table; the kernel then asks."""
    return as_root(
        host,
        "ip neighbour del {to} dev {it}",
        "ip neighbour replace {to} lladdr {mac} dev {it} nud permanent",
        to=address,
        mac=mac,
        it=interface,
    )


@repair
def forget_broadcast(host: str, address: str, interface: str) -> Fix:
    """Have the kernel ask for a card that it has taken for that of everybody."""
    return as_root(host, "ip neighbour flush to {to} dev {it} nud noarp", to=address, it=interface)


@repair
def negotiate_speed(host: str, interface: str) -> Fix:
    """Have both ends of a cable agree on speed and duplex."""
    return as_root(
        host, "ethtool -s {it} autoneg on", "ethtool -s {it} autoneg off duplex half", it=interface
    )


@repair
def keep_radio_awake(host: str, interface: str) -> Fix:
    """Switch a wireless interface's power saving off."""
    return as_root(
        host, "iw dev {it} set power_save off", "iw dev {it} set power_save on", it=interface
    )


@repair
def write_name(host: str, name: str, address: str) -> Fix:
    """Have a name be an address in /etc/hosts, instead of what stands there."""
    # The name goes from every line, and a line of nothing but an address goes with it. Written
    # over, not replaced: in containers /etc/hosts is mounted.
    drop = f"s/[[:space:]]{for_sed(name)}([[:space:]]|$)/\\1/g"

    def change(old: Line) -> Line:
        return shell_line(
            "{{ echo {entry}; sed -E -e {drop} -e '/^[^#[:space:]]+[[:space:]]*$/d' {old}; }}",
            entry=f"{address} {name}",
            drop=drop,
            old=old,
        )

    return change_file(host, shell_line("/etc/hosts"), name, change, root=True)


@repair
def ask_name_servers_briefly(host: str) -> Fix:
    """Have the resolver give a silent server up after a second."""
    return change_file(
        host,
        shell_line("/etc/resolv.conf"),
        "brief",
        lambda old: shell_line("{{ cat {old}; echo 'options timeout:1 attempts:1'; }}", old=old),
        root=True,
    )
