"""The lab's network as text for `ip`, `tc` and `nft`, and the way in which it is handed to them.

Every function makes lines as a person would type them behind `ip`, `tc` or `nft`; `run_ip`,
`run_tc` and `run_nft` give them to the tool in one go and name the line that was refused.

A link is a veth pair: one end is the host's interface, the other its port in the switch. Both
ends are shaped alike, so a link's two directions are independent, as on a full-duplex cable.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from ipaddress import IPv6Address
from subprocess import CompletedProcess
from typing import Protocol

from yoked.errors import LabError
from yoked.lab.inside import TOOL_PATH
from yoked.lab.topology import Host, Interface, Shape, Topology
from yoked.units import format_duration

TABLE = "bridge yoked"

# What tc counts of a full frame: 1500 bytes and the Ethernet header, but neither checksum,
# preamble nor gap. A link of 1 Gbit/s so carries 956 Mbit/s of TCP payload; copper carries 941.
FRAME_BYTES = 1514
# Packet memory of a cheap switch with 5 to 8 ports (Realtek RTL8370N: 512 KB, shared by all).
QUEUE_BYTES = 256 * 1024
# What TCP hands to an interface at once: of itself what it sends in a millisecond, and no more
# than this (`tcp_tso_autosize` in Linux's net/ipv4/tcp_output.c). Each piece costs a timer, and on
# a virtual machine timers took most of what a busy link costs its hosts' cores (`benchmarks/lab`).
_PIECE_S = 1e-3
_PIECE_MIN_BYTES, _PIECE_MAX_BYTES = 6 * FRAME_BYTES, 65536
# Payload of a full frame, with TCP's time stamps.
_SEGMENT_BYTES = 1448
# A timer that fires later than this costs throughput.
_LATE_S = 0.5e-3
# netem keeps packets in order only where it has a rate.
_NO_RATE_BIT_PER_S = 100e9
# nft draws whole numbers.
_LOSS_SCALE = 1_000_000
# A bridge that is never up: it takes every frame from the relay's devices, and drops it. Else the
# switch itself would answer on them, with its addresses.
_DEAD_END = "relay"
_RELAY_LEAST_BYTES = 4 << 20


class Namespace(Protocol):
    """Where tools run: `yoked.lab.inside.Inside`, or a fake."""

    def tool(
        self,
        argv: Sequence[str],
        *,
        input: str = "",
        check: bool = True,
    ) -> CompletedProcess[str]:
        """Run a program of the machine in this network namespace."""


@dataclass(frozen=True)
class Features:
    """What the kernel can do to packets, beyond a rate."""

    netem: bool
    nft: bool

    @classmethod
    def probe(cls, where: Namespace | None = None) -> Features:
        """Try both, in a network namespace that lasts for the trial when none is given.

        Nothing is left behind in `where`.
        """
        where = where or _ThrowAway()
        netem = _works(where, ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
        if netem:
            where.tool(["tc", "qdisc", "del", "dev", "lo", "root"], check=False)
        # The kernel takes these rules in whole and then drops them.
        rules = loss_rules("lo", 0.5, "yoked:probe")
        nft = _works(where, ["nft", "--check", "-f", "-"], _batch(rules))
        return cls(netem=netem, nft=nft)


class _ThrowAway:
    """A new network namespace for each command."""

    def tool(
        self,
        argv: Sequence[str],
        *,
        input: str = "",
        check: bool = True,
    ) -> CompletedProcess[str]:
        own = [] if os.geteuid() == 0 else ["--map-root-user"]
        return subprocess.run(
            ["unshare", *own, "--net", "--", *argv],  # noqa: S607 - PATH is ours
            input=input,
            capture_output=True,
            text=True,
            check=check,
            timeout=10,
            env={"PATH": TOOL_PATH, "LC_ALL": "C"},
        )


def _works(where: Namespace, argv: list[str], text: str = "") -> bool:
    try:
        return where.tool(argv, input=text, check=False).returncode == 0
    except (OSError, LabError, subprocess.TimeoutExpired):
        return False


# ---- addresses and cables: lines for `ip` ----


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
                f"link set dev {far} addrgenmode none",
                f"link set dev {far} master {_DEAD_END} up",
                f"link set dev {near} addrgenmode none",
                # The relay sets it up, once it is ready to carry.
                f"link set dev {near} master {_DEAD_END}",
            ]
        else:
            lines.append(f"link add dev {port} type veth {end}")
        lines += [
            # An address that the kernel gives by itself would make a host of the port.
            f"link set dev {port} addrgenmode none",
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
            lines.append(f"link set dev {name} addrgenmode none")
            lines += batching(name, interface.shape, one_by_one=is_lossy(topology))
        lines.append(f"link set dev {name} up")
        lines += addresses(interface)
    return lines


def batching(device: str, shape: Shape, *, one_by_one: bool) -> list[str]:
    """How many frames TCP may hand to a device in one piece; `device` is a host's own end.

    one_by_one: what drops packets would drop a whole piece, which costs TCP far less than the
    same share of frames. Else a piece fits the shaper's bucket: it would be cut up there, which
    takes time and makes the receiver acknowledge every second frame.
    """
    rate_bit_per_s = shape.rate_bit_per_s
    size_bytes = _PIECE_MAX_BYTES if rate_bit_per_s is None else piece_bytes(rate_bit_per_s)
    frames = 1 if one_by_one else 65535
    return [f"link set dev {device} gso_max_size {size_bytes} gso_max_segs {frames}"]


def is_lossy(topology: Topology) -> bool:
    """Whether any link loses packets; then every sender must send single frames."""
    return any(each.shape.loss > 0 for host in topology.hosts for each in host.interfaces)


def _bridge(name: str) -> list[str]:
    # A port passes frames at once, and multicast needs no querier.
    return [
        f"link add dev {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
        f"link set dev {name} addrgenmode none",
    ]


def _local_bridge(interface: Interface, port: str) -> list[str]:
    """A bridge as Docker makes it, with one container's cable: without, it had no carrier."""
    # A veth pair, not a dummy: some kernels have no dummy, and none here is without veth.
    peer = f"{port}-end"
    return [
        *_bridge(interface.name),
        *([f"link set dev {interface.name} address {interface.mac}"] if interface.mac else []),
        f"link add dev {port} type veth peer name {peer}",
        *(f"link set dev {device} addrgenmode none" for device in (port, peer)),
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
        if interface.mac:
            local = link_local(interface.mac)
            lines.append(f"address {verb} {local}/64 dev {interface.name} scope link nodad")
    return lines


def link_local(mac: str) -> IPv6Address:
    """The link-local address that belongs to a MAC. Source: RFC 4291, appendix A."""
    octets = bytearray.fromhex(mac.replace(":", ""))
    octets[0] ^= 0x02
    return IPv6Address(b"\xfe\x80" + bytes(6) + octets[:3] + b"\xff\xfe" + octets[3:])


# ---- the shape of a link: lines for `tc`, for each of its two ends ----


def piece_bytes(rate_bit_per_s: float) -> int:
    """What TCP may hand to a link of this rate at once."""
    return min(_PIECE_MAX_BYTES, max(_PIECE_MIN_BYTES, round(rate_bit_per_s / 8 * _PIECE_S)))


def burst_bytes(rate_bit_per_s: float) -> int:
    """The shaper's bucket, which a link that was idle lets pass at once: a piece, and what flows
    until a late timer fires.
    """
    # The kernel counts the header of every frame in a piece.
    frames = math.ceil(piece_bytes(rate_bit_per_s) / _SEGMENT_BYTES)
    late_bytes = max(_PIECE_MIN_BYTES, round(rate_bit_per_s / 8 * _LATE_S))
    return frames * FRAME_BYTES + late_bytes


def shape_commands(
    device: str, shape: Shape, features: Features, *, port: bool = False
) -> list[str]:
    """Give a device this shape, in the direction in which it sends; whatever it had before.

    port: it is the switch's, and gets what the senders' own devices have shaped. Its bucket is
    twice as large: what one of them sends passes without a second timer, and of several at once
    no more than the rate. Without netem the rate alone is shaped: `loss_rules` and the relay see
    to the rest.
    """
    if features.netem and (shape.delay_s or shape.jitter_s or shape.loss):
        queue = _netem(shape)
    elif shape.rate_bit_per_s is not None:
        burst = burst_bytes(shape.rate_bit_per_s) * (2 if port else 1)
        limit = max(QUEUE_BYTES, 2 * burst)
        queue = f"tbf rate {round(shape.rate_bit_per_s)}bit burst {burst} limit {limit}"
    else:
        return unshape(device)
    # A queue is not changed in place into another kind, and keeps what is below it.
    return [*unshape(device), f"qdisc replace dev {device} root {queue}"]


def shape_ends(
    interface: Interface, shape: Shape, features: Features
) -> tuple[list[str], list[str]]:
    """Give a cable this shape, in both directions: what to run in the host, and in the switch."""
    assert interface.port, interface
    return (
        shape_commands(interface.name, shape, features),
        shape_commands(interface.port, shape, features, port=True),
    )


def unshape(device: str) -> list[str]:
    """Make a device as fast as the machine again; harmless where it is."""
    return [f"qdisc replace dev {device} root noqueue"]


def _netem(shape: Shape) -> str:
    """One netem queue for rate, delay, jitter and loss.

    Its own rate, rather than a tbf beside it, because netem keeps packets in order under jitter
    only then, and because its limit must hold the packets under way as well as the queued ones.
    Source: `netem_enqueue` in Linux's net/sched/sch_netem.c.
    """
    rate_bit_per_s = shape.rate_bit_per_s or _NO_RATE_BIT_PER_S
    underway_bytes = rate_bit_per_s / 8 * (shape.delay_s + shape.jitter_s)
    words = [f"netem limit {math.ceil((QUEUE_BYTES + underway_bytes) / FRAME_BYTES)}"]
    if shape.delay_s or shape.jitter_s:
        words.append(f"delay {round(shape.delay_s * 1e6)}us")
    if shape.jitter_s:
        words.append(f"{round(shape.jitter_s * 1e6)}us")
    if shape.loss:
        words.append(f"loss {shape.loss * 100:.4f}%")
    return " ".join([*words, f"rate {round(rate_bit_per_s)}bit"])


# ---- loss where there is no netem: lines for `nft`, in the switch ----


def loss_rules(port: str, loss: float, comment: str) -> list[str]:
    """Drop a fraction of what passes a port, in both directions; replaces what it lost before.

    Frames between a host and the controller are spared: they are not forwarded.
    """
    chain = f"{TABLE} {_loss_chain(port)}"
    drop = f'numgen random mod {_LOSS_SCALE} < {round(loss * _LOSS_SCALE)} drop comment "{comment}"'
    return [
        f"add table {TABLE}",
        f"add chain {chain} {{ type filter hook forward priority 0; policy accept; }}",
        f"flush chain {chain}",
        f'add rule {chain} iifname "{port}" {drop}',
        f'add rule {chain} oifname "{port}" {drop}',
    ]


def no_loss_rules(port: str) -> list[str]:
    """Undo `loss_rules`; harmless where there are none."""
    chain = f"{TABLE} {_loss_chain(port)}"
    # To delete what is not there is an error, so it is made first.
    return [
        f"add table {TABLE}",
        f"add chain {chain}",
        f"flush chain {chain}",
        f"delete chain {chain}",
    ]


def _loss_chain(port: str) -> str:
    return f"loss-{port}"


# ---- delay where there is no netem: what the relay is to do ----


def relay_ends(port: str) -> tuple[str, str]:
    """The two devices that the relay joins: where the host's cable ends, and where the port's.

    A port's name begins with p.
    """
    return f"c{port[1:]}", f"x{port[1:]}"


def relayed_ports(topology: Topology, features: Features) -> frozenset[str]:
    """The ports whose link has a delay that netem does not see to."""
    return frozenset(each.port for each in _delayed(topology, features))


def _delayed(topology: Topology, features: Features) -> list[Interface]:
    if features.netem:
        return []
    return [
        each
        for host in topology.hosts
        for each in host.joined
        if each.shape.delay_s or each.shape.jitter_s
    ]


def relay_links(topology: Topology, features: Features) -> list[dict[str, str | float]]:
    """The links that the relay delays, as its `Link` has them."""
    links: list[dict[str, str | float]] = []
    for each in _delayed(topology, features):
        near, far = relay_ends(each.port)
        shape = each.shape
        underway_bytes = (shape.rate_bit_per_s or 0) / 8 * (shape.delay_s + shape.jitter_s)
        links.append(
            {
                "near": near,
                "far": far,
                "delay_s": shape.delay_s,
                "jitter_s": shape.jitter_s,
                # Room for what is under way, and for what comes late and at once.
                "limit_bytes": _RELAY_LEAST_BYTES + round(underway_bytes),
            }
        )
    return links


def build_relay() -> list[str]:
    """Run in the switch, before any host with a relayed port is plugged in."""
    return _bridge(_DEAD_END)


# ---- the whole of a topology ----


def loss_of_topology(topology: Topology, features: Features) -> list[str]:
    """Lines for `nft` in the switch: every link's loss, where netem does not see to it."""
    if features.netem or not features.nft:
        return []
    return [
        line
        for host in topology.hosts
        for each in host.joined
        if each.shape.loss
        for line in loss_rules(each.port, each.shape.loss, "yoked:topology")
    ]


def missing(topology: Topology, features: Features) -> list[str]:
    """What of the topology's links this machine cannot do, as sentences with what would help."""
    if features.netem:
        return []
    shapes = [(host.name, each.shape) for host in topology.hosts for each in host.joined]
    notes = []
    slow = [
        f"{name} ({format_duration(shape.delay_s)}, jitter {format_duration(shape.jitter_s)})"
        for name, shape in shapes
        if shape.delay_s or shape.jitter_s
    ]
    if slow:
        notes.append(f"a relay delays the links of {', '.join(slow)}, {_RELAY_COST}: {_NO_NETEM}")
    lossy = [f"{name} ({shape.loss:.2%})" for name, shape in shapes if shape.loss]
    if lossy and not features.nft:
        notes.append(
            f"links lose nothing, which was asked for {', '.join(lossy)}: {_NO_NETEM}, or nftables"
        )
    return notes


# Measured, see `yoked.lab.relay`.
_RELAY_COST = "up to some 80,000 packets/s, and for a fifth of a core at 40 Mbit/s"
_NO_NETEM = (
    "the kernel has no netem; try `sudo modprobe sch_netem`"
    " (linux-modules-extra on Ubuntu, kernel-modules-extra on Fedora)"
)


# ---- handing lines to the tools ----


def run_ip(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `ip` in a network namespace. Raises LabError with the refused line."""
    _run(where, ["ip", "-batch", "-"], list(lines))


def run_tc(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `tc` in a network namespace. Raises LabError with the refused line."""
    _run(where, ["tc", "-batch", "-"], list(lines))


def run_nft(where: Namespace, lines: Iterable[str]) -> None:
    """Run lines behind `nft` as one: all or none. Raises LabError with the refused line."""
    _run(where, ["nft", "-f", "-"], list(lines))


def _batch(lines: Iterable[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


def _run(where: Namespace, argv: list[str], lines: list[str]) -> None:
    if not lines:
        return
    result = where.tool(argv, input=_batch(lines), check=False)
    if result.returncode == 0:
        return
    said = (result.stderr or result.stdout).strip()
    what = f"`{argv[0]}` failed with status {result.returncode}: {_verdict(said)}"
    if line := _refused(said, lines):
        what = f"`{argv[0]} {line}` was refused: {_verdict(said)}"
    raise LabError(what, fix=_advice(argv[0], said))


def _refused(said: str, lines: Sequence[str]) -> str | None:
    """The line that the tool says it stopped at: `-:3` (ip, tc), `/dev/stdin:3:1-9` (nft)."""
    match = re.search(r"(?:^|\s)(?:-|/dev/stdin):(\d+)(?=[:\s]|$)", said)
    number = int(match[1]) if match else 0
    return lines[number - 1] if 0 < number <= len(lines) else None


def _verdict(said: str) -> str:
    """The tool's own reason, without the place."""
    reasons = [
        re.sub(r"^(?:(?:-|/dev/stdin):[\d:-]+ )?(?:Error: |RTNETLINK answers: )?", "", line)
        for line in said.splitlines()
        if not line.startswith("Command failed")
    ]
    return reasons[0].strip() if reasons else "it gave no reason"


def _advice(tool: str, said: str) -> str | tuple[()]:
    if "kind is unknown" in said or "Unknown device type" in said:
        return "the kernel lacks a module: try `sudo modprobe -a veth bridge sch_tbf sch_netem`"
    if "not permitted" in said or "Permission denied" in said:
        return "start the lab as root, or allow user namespaces: see `yoked lab list`"
    if tool == "nft" and "not supported" in said:
        return "the kernel may lack nftables for bridges: try `sudo modprobe nf_tables`"
    return ()
