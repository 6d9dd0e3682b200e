"""The lab's switch and its hosts' cables and addresses, as lines for `ip`.

A link is a veth pair: one end is the host's interface, the other its port in the switch.
"""

from __future__ import annotations

from collections.abc import Collection
from ipaddress import IPv6Address
from pathlib import Path

from yoked.errors import LabError
from yoked.lab.shaping import batching, is_lossy, relay_ends
from yoked.lab.topology import Host, Interface, Topology

# A bridge that is never up: it takes every frame from the relay's devices, and drops it. Else the
# switch itself would answer on them, with its addresses.
_DEAD_END = "relay"


def has_ipv6() -> bool:
    """Whether the kernel knows IPv6: it may be built without, or told `ipv6.disable=1`."""
    return Path("/proc/sys/net/ipv6").exists()


def require_ipv6(topology: Topology) -> None:
    """Raise LabError where a topology has IPv6 addresses and the kernel has none."""
    places = [network.name for network in topology.networks if network.subnet6 is not None]
    places += [host.name for host in topology.hosts if any(i.address6 for i in host.interfaces)]
    if places and not has_ipv6():
        raise LabError(
            f"{topology.name} gives IPv6 addresses to {', '.join(places)}: this kernel has no IPv6",
            fix="leave them out of the topology, or start the machine without ipv6.disable=1",
        )


def _without_own_address(device: str) -> list[str]:
    """Keep the kernel from giving a device an IPv6 address by itself."""
    return [f"link set dev {device} addrgenmode none"] if has_ipv6() else []


def build_switch(topology: Topology) -> list[str]:
    """The switch's side of all networks: a bridge each, with an address for the controller."""
    lines = ["link set dev lo up"]
    for network in topology.networks:
        lines += _bridge(network.bridge)
        if network.bridge4:
            lines.append(f"address add {network.bridge4} dev {network.bridge}")
        if network.bridge6:
            lines.append(f"address add {network.bridge6} dev {network.bridge} nodad")
        lines.append(f"link set dev {network.bridge} up")
    return lines


def plug(
    host: Host, pid: int, topology: Topology, relayed: Collection[str] = frozenset()
) -> list[str]:
    """Run in the switch: a cable from each port to the host, whose network process `pid` is in.

    relayed: the ports whose cable leads through the relay, see `relayed_ports`.
    """
    bridges = {network.name: network.bridge for network in topology.networks}
    lines = []
    for interface in host.joined:
        port = interface.port
        end = f"peer name {interface.name} address {interface.mac} netns {pid}"
        if port in relayed:
            near, far = relay_ends(port)
            lines += [
                f"link add dev {port} type veth peer name {far}",
                f"link add dev {near} type veth {end}",
                *_without_own_address(far),
                f"link set dev {far} master {_DEAD_END} up",
                *_without_own_address(near),
                # The relay sets it up, once it is ready to carry.
                f"link set dev {near} master {_DEAD_END}",
            ]
        else:
            lines.append(f"link add dev {port} type veth {end}")
        lines += [
            # An address that the kernel gives by itself would make a host of the port.
            *_without_own_address(port),
            f"link set dev {port} master {bridges[interface.network or '']} up",
        ]
    return lines


def unplug(host: Host, relayed: Collection[str] = frozenset()) -> list[str]:
    """Run in the switch: take out what is left of the cables of a host that is gone.

    The kernel takes a port away with the host, but later; and the relay's devices never.
    """
    ports = [each.port for each in host.joined]
    near_ends = [relay_ends(port)[0] for port in ports if port in relayed]
    return [f"link delete dev {device}" for device in [*ports, *near_ends]]


def configure_host(host: Host, topology: Topology) -> list[str]:
    """Run in the host's network, once it is plugged in: addresses, and bridges of its own.

    There is no default route: a lab leads nowhere.
    """
    lines = ["link set dev lo up"]
    for index, interface in enumerate(host.interfaces):
        name = interface.name
        if interface.network is None:
            lines += _local_bridge(interface, f"veth{index}")
        else:
            lines += _without_own_address(name)
            lines += batching(name, interface.shape, one_by_one=is_lossy(topology))
        lines.append(f"link set dev {name} up")
        lines += addresses(interface)
    return lines


def _bridge(name: str) -> list[str]:
    # A port passes frames at once, and multicast needs no querier.
    return [
        f"link add dev {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        *_without_own_address(name),
    ]


def _local_bridge(interface: Interface, port: str) -> list[str]:
    """A bridge as Docker makes it, with one container's cable: without, it had no carrier."""
    # A veth pair, not a dummy: some kernels have no dummy, and none here is without veth.
    peer = f"{port}-end"
    return [
        *_bridge(interface.name),
        f"link set dev {interface.name} address {interface.mac}",
        f"link add dev {port} type veth peer name {peer}",
        *_without_own_address(port),
        *_without_own_address(peer),
        f"link set dev {port} master {interface.name} up",
        f"link set dev {peer} up",
    ]


def addresses(interface: Interface, verb: str = "add") -> list[str]:
    """Give an interface the addresses that its topology says. verb: "replace" where some may be."""
    lines = []
    if interface.address4:
        lines.append(f"address {verb} {interface.address4} dev {interface.name}")
    if interface.address6:
        # Without nodad an address cannot be used for its first second or two.
        lines.append(f"address {verb} {interface.address6} dev {interface.name} nodad")
        local = link_local(interface.mac)
        lines.append(f"address {verb} {local}/64 dev {interface.name} scope link nodad")
    return lines


def link_local(mac: str) -> IPv6Address:
    """The link-local address that belongs to a MAC. Source: RFC 4291, appendix A."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 0x02
    return IPv6Address(b"\xfe\x80" + bytes(6) + octets[:3] + b"\xff\xfe" + octets[3:])


def build_relay() -> list[str]:
    """Run in the switch, before any host with a relayed port is plugged in."""
    return _bridge(_DEAD_END)
