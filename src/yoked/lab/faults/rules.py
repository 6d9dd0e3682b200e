"""Rules of nft: on a host, as a firewall has them, and in the switch, where hosts cannot see."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from yoked.lab import shaping, tools
from yoked.lab.faults.args import HOST, Flag, OpenPorts, PortRange, Whole
from yoked.lab.faults.base import Effect, Fault, FaultContext, InMemory, Kind, lacking, no_rules

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

# Where torchrun meets; open in the common case of failure, in which only later ports are closed.
RENDEZVOUS_PORT = 29500
SSH_PORT = 22


@dataclass(frozen=True)
class HostRules(InMemory):
    """A table of the fault's own on the host. rules: templates, or a function of the fault.

    policy: what becomes of a packet that no rule decided.
    """

    rules: tuple[str, ...] | Callable[[Fault], list[str]]
    hook: Literal["input", "output"] = "input"
    policy: Literal["accept", "drop"] = "accept"

    def unsupported(self, _lab: Lab) -> str | None:
        return lacking("nft")

    def apply(self, fault: Fault, context: FaultContext) -> None:
        if isinstance(self.rules, tuple):
            rules = [fault.fill(rule) for rule in self.rules]
        else:
            rules = self.rules(fault)
        chain = f"{_table(fault)} {self.hook}"
        begin = f"{{ type filter hook {self.hook} priority filter; policy {self.policy}; }}"
        lines = [f"add table {_table(fault)}", f"add chain {chain} {begin}"]
        lines += [f"add rule {chain} {rule}" for rule in rules]
        tools.run_nft(context.host(fault.host), [*_no_table(fault), *lines])

    def undo(self, fault: Fault, context: FaultContext) -> None:
        tools.run_nft(context.lab.host(fault.host), _no_table(fault))


def _table(fault: Fault) -> str:
    return f"inet yoked_{fault.kind.name.replace('-', '_')}"


def _no_table(fault: Fault) -> list[str]:
    # To delete what is not there is an error, so it is made first.
    return [f"add table {_table(fault)}", f"delete table {_table(fault)}"]


@dataclass(frozen=True)
class SwitchRules(Effect):
    """Rules for what the switch hands on from port to port, ARP included."""

    NEEDS_HOST = False

    rules: Callable[[Fault, Lab], list[str]]

    def unsupported(self, lab: Lab) -> str | None:
        return no_rules(lab)

    def apply(self, fault: Fault, context: FaultContext) -> None:
        silence(context, self.rules(fault, context.lab))

    def undo(self, _fault: Fault, context: FaultContext) -> None:
        unsilence(context)


def silence(context: FaultContext, rules: Iterable[str], hook: str = "forward") -> None:
    """Add rules to the switch, in a chain of the fault's own that `unsilence` removes."""
    chain = _chain(context, hook)
    # Before the chains that lose packets at random.
    begin = f"{{ type filter hook {hook} priority -10; policy accept; }}"
    tools.run_nft(
        context.lab.switch,
        [
            f"add table {shaping.TABLE}",
            f"add chain {chain} {begin}",
            f"flush chain {chain}",
            *(f'add rule {chain} {rule} comment "yoked:{context.id}"' for rule in rules),
        ],
    )


def unsilence(context: FaultContext, hook: str = "forward") -> None:
    """Undo `silence`; harmless where there is nothing."""
    tools.run_nft(context.lab.switch, shaping.no_chain(_chain(context, hook)))


def _chain(context: FaultContext, hook: str) -> str:
    return f"{shaping.TABLE} fault-{context.id}-{hook}"


def ways(lab: Lab, source: str, target: str) -> list[tuple[str, str]]:
    """Pairs of ports through which frames go from one host to the other."""
    return [
        (first.port, second.port)
        for first in lab.topology.host(source).joined
        for second in lab.topology.host(target).joined
        if first.network == second.network
    ]


# ---- the faults ----

_PORTS = OpenPorts()
_REJECT = Flag("[--reject]")
_CLOSE_RENDEZVOUS = Flag("[--close-rendezvous]")
_CLOSED_PORTS = PortRange("FIRST-LAST")
_COUNT = Whole("COUNT", least=1, most=100_000)
# A rejected connect fails at once, with errno 113 as firewalld has it.
_REFUSE = "reject with icmpx admin-prohibited"
# ssh, names and time, as a firewall for outgoing traffic leaves open.
_OUT_PORTS = "22, 53, 123"
# A bucket that is full at the start.
_OVER_LIMIT = "limit rate over {count}/minute burst {count} packets"


def _open_ports(fault: Fault) -> str:
    rendezvous = () if fault[_CLOSE_RENDEZVOUS] else (RENDEZVOUS_PORT,)
    return ", ".join(str(port) for port in sorted({SSH_PORT, *rendezvous, *fault[_PORTS]}))


def _verb(fault: Fault) -> str:
    return "rejects" if fault[_REJECT] else "drops"


def _firewall_rules(fault: Fault) -> list[str]:
    """Stateful and open for ssh, as ufw or firewalld would set it up."""
    return [
        "ct state established,related accept",
        'iifname "lo" accept',
        "meta l4proto { icmp, ipv6-icmp } accept",
        f"tcp dport {{ {_open_ports(fault)} }} accept",
        *([_REFUSE] if fault[_REJECT] else []),
    ]


def _out_rules(fault: Fault) -> list[str]:
    return [
        'oifname "lo" accept',
        "ct state established,related accept",
        f"meta l4proto {{ tcp, udp }} th dport {{ {_OUT_PORTS} }} accept",
        f"meta l4proto tcp {_REFUSE if fault[_REJECT] else 'drop'}",
    ]


FIREWALLS = (
    Kind(
        "firewall",
        (HOST, _PORTS, _REJECT, _CLOSE_RENDEZVOUS),
        "connections to the host are dropped, but for ssh, port 29500 and the named ports",
        lambda fault: (
            f"a firewall on {fault[HOST]} {_verb(fault)} connections but to port "
            f"{_open_ports(fault)}"
        ),
        (HostRules(_firewall_rules, policy="drop"),),
    ),
    # As security software sets it up.
    Kind(
        "firewall-out",
        (HOST, _REJECT),
        "new connections from the host are dropped, but to ports 22, 53 and 123",
        lambda fault: (
            f"a firewall on {fault[HOST]} {_verb(fault)} what goes out, but to ports {_OUT_PORTS}"
        ),
        (HostRules(_out_rules, hook="output"),),
    ),
    # Half of all launches work. New connections alone: one that the host itself made may come
    # from such a port.
    Kind(
        "closed-ports",
        (HOST, _CLOSED_PORTS),
        "connections to a range of the host's ports are dropped, others pass",
        "a firewall on {host} drops connections to ports {ports.first} to {ports.last}",
        (
            HostRules(
                (
                    'iifname "lo" accept',
                    "ct state new tcp dport {ports.first}-{ports.last} drop",
                )
            ),
        ),
    ),
    # Protection against port scans, which a job of many ranks looks like.
    Kind(
        "connection-limit",
        (HOST, _COUNT),
        "more than so many new connections a minute are dropped (ssh is spared)",
        "{host} takes {count} new connections a minute, and drops the others",
        (
            HostRules(
                (
                    'iifname "lo" accept',
                    f"ct state new tcp dport != {SSH_PORT} {_OVER_LIMIT} drop",
                )
            ),
        ),
    ),
)
