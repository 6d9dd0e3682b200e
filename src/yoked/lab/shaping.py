"""How fast, late and lossy the lab's links are: lines for `tc` and `nft`, and work for the relay.

A link is a veth pair, shaped alike at both ends, so its two directions are independent, as on a
full-duplex cable. A rate is a token bucket; delay, jitter and loss are netem's, where the kernel
has it, and else the relay's (`yoked.lab.relay`) and nftables'.
"""

from __future__ import annotations

import math
import subprocess
from dataclasses import dataclass

from yoked.errors import LabError
from yoked.lab.tools import Namespace, text_of
from yoked.lab.topology import Interface, Shape, Topology
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
_RELAY_LEAST_BYTES = 4 << 20


@dataclass(frozen=True)
class Features:
    """What the kernel can do to packets, beyond a rate."""

    netem: bool
    nft: bool

    @classmethod
    def probe(cls, where: Namespace) -> Features:
        """Try both in a network namespace, in which nothing of it is left behind."""
        netem = _works(where, ["tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"])
        if netem:
            where.tool(["tc", "qdisc", "del", "dev", "lo", "root"], check=False)
        # The kernel takes these rules in whole and then drops them.
        rules = loss_rules("lo", 0.5, "yoked:probe")
        nft = _works(where, ["nft", "--check", "-f", "-"], text_of(rules))
        return cls(netem=netem, nft=nft)


def _works(where: Namespace, argv: list[str], text: str = "") -> bool:
    try:
        return where.tool(argv, input=text, check=False).returncode == 0
    except (OSError, LabError, subprocess.TimeoutExpired):
        return False


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
    return any(each.shape.loss > 0 for _, each in topology.links)


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
    chain = _loss_chain(port)
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
    return no_chain(_loss_chain(port))


def no_chain(chain: str) -> list[str]:
    """Remove a chain of the switch; harmless where there is none."""
    # To delete what is not there is an error, so it is made first.
    return [f"add table {TABLE}", *(f"{act} chain {chain}" for act in ("add", "flush", "delete"))]


def _loss_chain(port: str) -> str:
    return f"{TABLE} loss-{port}"


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
    return [each for _, each in topology.links if each.shape.delay_s or each.shape.jitter_s]


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


# ---- the whole of a topology ----


def loss_of_topology(topology: Topology, features: Features) -> list[str]:
    """Lines for `nft` in the switch: every link's loss, where netem does not see to it."""
    if features.netem or not features.nft:
        return []
    return [
        line
        for _, each in topology.links
        if each.shape.loss
        for line in loss_rules(each.port, each.shape.loss, "yoked:topology")
    ]


def missing(topology: Topology, features: Features) -> list[str]:
    """What of the topology's links this machine cannot do, as sentences with what would help."""
    if features.netem:
        return []
    shapes = [(host.name, each.shape) for host, each in topology.links]
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
