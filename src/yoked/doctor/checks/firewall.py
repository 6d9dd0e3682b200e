"""What firewalls on hosts do to the connections that ranks open among themselves."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.agent.virtual import WSL_CREATOR
from yoked.doctor import firewalls
from yoked.doctor.check import Match, check
from yoked.doctor.checks.link_groups import Group, groups
from yoked.doctor.checks.query import at, part
from yoked.doctor.checks.verdicts import reached
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.system import sysctl
from yoked.records.examination import Dial, Examination, Fix
from yoked.units import listed

_AFTER = (
    "rendezvous-port", "mtu", "bulk-stalls", "loss", "jitter", "world-failed",
    "conntrack-full",
)  # fmt: skip
_RANKS = "Gloo's connections go to ports that the kernel picks, and each host dials some of them"
_READS = ("dials", "health.firewall", "health.routes")
_FIX = (
    "Lets everything from the address of the host that was kept out in: the line is that of the "
    "firewall which is there (ufw, firewalld, nftables, iptables). For nftables it goes to the top "
    "of the very chain that drops, for to be accepted by another chain is not enough. It lasts "
    "until the next start; `ufw` and `firewall-cmd --permanent` keep it."
)


def _open(group: Group) -> tuple[Fix, ...]:
    """Let in whoever was kept out."""
    sources = [each for link in group.links if (each := link.source_address)]
    return firewalls.allow(
        group.host.name,
        part(group.host, "firewall"),
        sources,
        program=at(group.host.torch, "python"),
    )


def _range(group: Group) -> str:
    low, high = part(group.host, "ports", "range") or (32768, 60999)
    return f"{low} to {high}"


def _who(group: Group) -> str:
    return f"{firewalls.name_of(part(group.host, 'firewall'))} on {group.host.name}"


def _from(group: Group) -> str:
    return listed(dict.fromkeys(link.source.name for link in group.links))


@check(
    "firewall-drop",
    question="Does every host let connections of the others in?",
    reads=_READS,
    severity="error",
    saw="{who} lets no connection from {peers} in, on any port that was tried: {evidence}, "
    "although ssh works",
    why="ranks wait for each other until torch's timeout, 30 minutes, and nothing is said",
    symptom="`The client socket has timed out after 60s while trying to connect to "
    "(192.168.1.35, 29500)`.",
    cause="A firewall drops what comes in: silence, where a closed port would refuse.",
    fix=_FIX,
    on_cluster="Clouds: the security group lacks a rule for its own members.",
    explains=_AFTER,
    quick=True,
)
def firewall_drop(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-drop"):
        yield group.match(*_open(group), who=_who(group), peers=_from(group))


@check(
    "firewall-ephemeral",
    question="Are the ports open that the kernel picks for Gloo?",
    reads=_READS,
    severity="error",
    saw="{who} lets {peers} in at port {open_port}, and drops the ports that the kernel picks "
    "({range}): {evidence}",
    why=f"the rendezvous works, then all hang: {_RANKS}",
    symptom="The hosts meet at port 29500, then all hang in silence. After a long while: "
    "`Gloo connectFullMesh failed with ... Connect timeout`.",
    cause="The firewall lets the rendezvous port in, as many guides say, and drops the "
    "rest. Gloo and NCCL connect the ranks at ports that the kernel picks.",
    fix=_FIX,
    on_cluster="A security group or NetworkPolicy that opens MASTER_PORT alone hangs the "
    "same way; NCCL stops in `ncclCommInitRank`. Allow all traffic within the group.",
    explains=_AFTER,
    quick=True,
)
def firewall_ephemeral(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-ephemeral"):
        open_port = next(each.port for each in group.links[0].dials if each.purpose == "rendezvous")
        yield group.match(
            *_open(group),
            who=_who(group),
            peers=_from(group),
            open_port=open_port,
            range=_range(group),
        )


@check(
    "firewall-reject",
    question="Does any firewall turn connections away?",
    reads=_READS,
    severity="error",
    saw="{who} turns {peers} away: {evidence}, although somebody listened there",
    why=f"{_RANKS}; each would be refused",
    symptom="`errno: 113 - No route to host` at once, while ping works; or `Connection "
    "refused` at a port where somebody listens.",
    cause="A firewall that rejects, as firewalld and many nftables rules do. The host is "
    "there: only its firewall says that it is not.",
    fix=_FIX,
    explains=_AFTER,
    quick=True,
)
def firewall_reject(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-reject"):
        yield group.match(*_open(group), who=_who(group), peers=_from(group))


@check(
    "firewall-out",
    question="Does every host let its own connections out?",
    reads=_READS,
    severity="error",
    saw="{who} lets nothing out to {peers:list}: {evidence}",
    why=f"{_RANKS}: this one cannot",
    symptom="One host times out towards all others, and they reach each other.",
    cause="A firewall with rules for what leaves: a hardened system, a VPN's.",
    fix="Lets everything out to the addresses of the peers.",
    on_cluster="Kubernetes: a NetworkPolicy with policyTypes Egress.",
    explains=_AFTER,
    quick=True,
)
def firewall_out(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-out"):
        targets = [link.address for link in group.links]
        told = part(group.host, "firewall")
        yield group.match(
            *firewalls.allow(group.host.name, told, targets, "out"),
            who=_who(group),
            peers=dict.fromkeys(link.target.name for link in group.links),
        )


@check(
    "firewall-range",
    question="Are all of the ports open that the kernel may pick?",
    reads=_READS,
    severity="error",
    saw="{who} lets {peers} in at some high ports and not at others: {open} open, {closed} closed",
    why="each run is lucky or hangs, by the ports that the kernel picks of {range}",
    symptom="The same command works one time and hangs the next.",
    cause="A firewall opens, or closes, a part of the range of "
    "net.ipv4.ip_local_port_range. Gloo has no setting for its ports (GLOO_PORT_RANGE "
    "does nothing).",
    fix=_FIX,
    on_cluster="NCCL picks ports the same way.",
    explains=_AFTER,
    quick=True,
)
def firewall_range(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-range"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        yield group.match(
            *_open(group),
            who=_who(group),
            peers=_from(group),
            open=_ports(dials, passed=True),
            closed=_ports(dials, passed=False),
            range=_range(group),
        )


def _ports(dials: list[Dial], *, passed: bool) -> str:
    return listed(str(each.port) for each in dials if reached(each) == passed)


@check(
    "connection-rate",
    question="Does any firewall limit new connections?",
    reads=_READS,
    severity="error",
    saw="{who} let {accepted:plural connection} from {peers} in and then none: {evidence}",
    why="it limits how many new connections a second it lets in, and all ranks connect at once",
    symptom="Two ranks come together, eight hang; the next try does otherwise.",
    cause="`ufw limit`, hashlimit or a meter of nftables against guessed passwords counts "
    "all ports.",
    fix=_FIX,
    explains=_AFTER,
    quick=True,
)
def connection_rate(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "connection-rate"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        yield group.match(
            *_open(group),
            who=_who(group),
            accepted=sum(map(reached, dials)),
            peers=_from(group),
        )


@check(
    "rendezvous-port",
    question="Is the usual port of torchrun open?",
    reads=("dials",),
    severity="warning",
    saw="{firewall} on {host} closes port {port} to {sources:list} ({error}); high ports are open",
    why="torchrun with --master_port={port} ends with `client socket has timed out`; yoked "
    "takes a free port",
    symptom="`The client socket has timed out after 60s` with torchrun by hand.",
    cause="High ports are open, 29500 is not.",
    fix=_FIX,
)
def rendezvous_port(seen: Examination) -> Iterator[Match]:
    """The port of torchrun's own habit is closed; runs of yoked use another."""
    for target in seen.up:
        failed = [
            each
            for each in seen.dials
            if each.target == target.name
            and each.chosen
            and each.purpose == "rendezvous"
            and each.error in ("ETIMEDOUT", "EHOSTUNREACH", "EACCES", "ECONNREFUSED")
            and _ephemeral_passed(seen, each)
        ]
        if not failed:
            continue
        first = failed[0]
        sources = [each.source_address for each in failed if each.source_address]
        told = part(target, "firewall")
        yield Match(
            target.name,
            *firewalls.allow(target.name, told, sources),
            link=(first.source, target.name) if len(failed) == 1 else None,
            firewall=firewalls.name_of(told),
            port=first.port,
            sources=[each.source for each in failed],
            error=first.error,
        )


def _ephemeral_passed(seen: Examination, dial: Dial) -> bool:
    others = seen.between(dial.source, dial.target)
    return bool(others) and all(map(reached, others))


@check(
    "conntrack-full",
    question="Is there room for more connections in the firewall's table?",
    reads=("health.kernel",),
    severity="error",
    saw="{host} keeps track of {count:,} connections, and {most:,} is the most it can",
    why="new connections are dropped as soon as the table is full",
    symptom="Connections time out now and then; the kernel's log says `nf_conntrack: table "
    "full, dropping packet`.",
    cause="A firewall that remembers connections, on a host that has very many.",
    fix="Makes the table four times as large, until the next start.",
    explains=("firewall-drop", "connection-rate", "firewall-ephemeral", "world-failed"),
)
def conntrack_full(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        count = part(host, "kernel", "conntrack_count")
        most = part(host, "kernel", "conntrack_max")
        if count is None or not most or count < 0.9 * most:
            continue
        yield Match(
            host.name,
            sysctl(host.name, "net.netfilter.nf_conntrack_max", 4 * most, was=most),
            severity="error" if count >= most else "warning",
            count=count,
            most=most,
        )


@check(
    "wsl-firewall",
    question="Does Windows let connections in to its Linux?",
    reads=("dials", "health.virtual"),
    severity="error",
    saw="{host} is Linux inside Windows with Windows' addresses, and nothing from {peers} gets in: "
    "{evidence}; Windows' firewall for virtual machines {policy}",
    why="it stands before Linux, which does not see it; ranks wait for each other until torch's "
    "timeout, 30 minutes, and nothing is said",
    symptom="`The client socket has timed out after 60s while trying to connect to ...`, although "
    "no firewall runs in Linux.",
    cause="Windows' Hyper-V firewall drops what comes in to WSL, and Windows' own rules do not "
    "hold for it.",
    fix="By hand, in Windows: a rule that lets in everything from the hosts that were kept out. "
    "`Remove-NetFirewallHyperVRule -Name yoked` takes it back.",
    explains=_AFTER,
    quick=True,
)
def wsl_firewall(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "wsl-firewall"):
        told = part(group.host, "virtual", "inbound")
        yield group.match(
            by_hand(
                group.host.name,
                "in a PowerShell of Windows, as administrator: New-NetFirewallHyperVRule -Name "
                "yoked -DisplayName yoked -Direction Inbound -Action Allow -VMCreatorId {creator} "
                "-RemoteAddresses {sources}",
                creator=WSL_CREATOR,
                sources=",".join(group.peer_addresses),
            ),
            peers=_from(group),
            policy="blocks by default" if told else "could not be asked",
        )


CHECKS = (
    wsl_firewall,
    firewall_out,
    firewall_ephemeral,
    firewall_drop,
    firewall_reject,
    connection_rate,
    firewall_range,
    rendezvous_port,
    conntrack_full,
)
