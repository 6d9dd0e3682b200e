"""What firewalls on hosts do to the connections that ranks open among themselves."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from yoked.doctor import firewalls
from yoked.doctor.check import Check, page
from yoked.doctor.checks.groups import Group, groups
from yoked.doctor.checks.reading import at, finding, listed, part, plural
from yoked.doctor.checks.verdicts import reached
from yoked.records.examination import Dial, Examination, Finding, Fix
from yoked.records.shell import shell_line

_AFTER = (
    "rendezvous-port", "mtu", "bulk-stalls", "loss", "jitter", "world-failed",
    "conntrack-full",
)  # fmt: skip
_RANKS = "Gloo's connections go to ports that the kernel picks, and each host dials some of them"


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


def _drop(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "firewall-drop"):
        yield finding(
            "firewall-drop",
            "error",
            group.host.name,
            f"{_who(group)} lets no connection from {_from(group)} in, on any port that was tried: "
            f"{group.evidence}, although ssh works",
            "ranks wait for each other until torch's timeout, 30 minutes, and nothing is said",
            *_open(group),
            link=group.link,
        )


def _ephemeral(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "firewall-ephemeral"):
        open_port = next(each.port for each in group.links[0].dials if each.purpose == "rendezvous")
        yield finding(
            "firewall-ephemeral",
            "error",
            group.host.name,
            f"{_who(group)} lets {_from(group)} in at port {open_port}, and drops the ports that "
            f"the kernel picks ({_range(group)}): {group.evidence}",
            f"the rendezvous works, then all hang: {_RANKS}",
            *_open(group),
            link=group.link,
        )


def _reject(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "firewall-reject"):
        yield finding(
            "firewall-reject",
            "error",
            group.host.name,
            f"{_who(group)} turns {_from(group)} away: {group.evidence}, although somebody "
            "listened there",
            f"{_RANKS}; each would be refused",
            *_open(group),
            link=group.link,
        )


def _outbound(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "firewall-out"):
        targets = [link.address for link in group.links]
        told = part(group.host, "firewall")
        yield finding(
            "firewall-out",
            "error",
            group.host.name,
            f"{_who(group)} lets nothing out to "
            f"{listed(dict.fromkeys(link.target.name for link in group.links))}: {group.evidence}",
            f"{_RANKS}: this one cannot",
            *firewalls.allow(group.host.name, told, targets, "out"),
            link=group.link,
        )


def _closed_range(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "firewall-range"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        yield finding(
            "firewall-range",
            "error",
            group.host.name,
            f"{_who(group)} lets {_from(group)} in at some high ports and not at others: "
            f"{_ports(dials, passed=True)} open, {_ports(dials, passed=False)} closed",
            f"each run is lucky or hangs, by the ports that the kernel picks of {_range(group)}",
            *_open(group),
            link=group.link,
        )


def _ports(dials: list[Dial], *, passed: bool) -> str:
    return listed(str(each.port) for each in dials if reached(each) == passed)


def _rate(seen: Examination) -> Iterator[Finding]:
    for group in groups(seen, "connection-rate"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        failed = [each for each in dials if not reached(each)]
        yield finding(
            "connection-rate",
            "error",
            group.host.name,
            f"{_who(group)} let {plural(len(dials) - len(failed), 'connection')} from "
            f"{_from(group)} in and then none: {group.evidence}",
            "it limits how many new connections a second it lets in, and all ranks connect at once",
            *_open(group),
            link=group.link,
        )


def _rendezvous(seen: Examination) -> Iterator[Finding]:
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
        yield finding(
            "rendezvous-port",
            "warning",
            target.name,
            f"{firewalls.name_of(told)} on {target.name} closes port {first.port} to "
            f"{listed(each.source for each in failed)} ({first.error}); high ports are open",
            f"torchrun with --master_port={first.port} ends with `client socket has timed out`; "
            "yoked takes a free port",
            *firewalls.allow(target.name, told, sources),
            link=(first.source, target.name) if len(failed) == 1 else None,
        )


def _ephemeral_passed(seen: Examination, dial: Dial) -> bool:
    others = seen.between(dial.source, dial.target)
    return bool(others) and all(map(reached, others))


def _connections_full(seen: Examination) -> Iterator[Finding]:
    for host in seen.up:
        count = part(host, "kernel", "conntrack_count")
        most = part(host, "kernel", "conntrack_max")
        if count is None or not most or count < 0.9 * most:
            continue
        yield finding(
            "conntrack-full",
            "error" if count >= most else "warning",
            host.name,
            f"{host.name} keeps track of {count:,} connections, and {most:,} is the most it can",
            "new connections are dropped as soon as the table is full",
            Fix(
                host.name,
                shell_line("sysctl -w net.netfilter.nf_conntrack_max={most}", most=4 * most),
                root=True,
                undo=shell_line("sysctl -w net.netfilter.nf_conntrack_max={most}", most=most),
            ),
        )


_Run = Callable[[Examination], Iterator[Finding]]


def _check(name: str, run: _Run, question: str, text: str) -> Check:
    needs = ("dials", "health.firewall", "health.ways")
    return Check(name, question, needs, "error", text, run, explains=_AFTER, quick=True)


_FIX = (
    "Lets everything from the address of the host that was kept out in: the line is that of the "
    "firewall which is there (ufw, firewalld, nftables, iptables). For nftables it goes to the top "
    "of the very chain that drops, for to be accepted by another chain is not enough. It lasts "
    "until the next start; `ufw` and `firewall-cmd --permanent` keep it."
)

CHECKS = (
    _check(
        "firewall-out",
        _outbound,
        "Does every host let its own connections out?",
        page(
            symptom="One host times out towards all others, and they reach each other.",
            cause="A firewall with rules for what leaves: a hardened system, a VPN's.",
            fix="Lets everything out to the addresses of the peers.",
            elsewhere="Kubernetes: a NetworkPolicy with policyTypes Egress.",
        ),
    ),
    _check(
        "firewall-ephemeral",
        _ephemeral,
        "Are the ports open that the kernel picks for Gloo?",
        page(
            symptom="The hosts meet at port 29500, then all hang in silence. After a long while: "
            "`Gloo connectFullMesh failed with ... Connect timeout`.",
            cause="The firewall lets the rendezvous port in, as many guides say, and drops the "
            "rest. Gloo and NCCL connect the ranks at ports that the kernel picks.",
            fix=_FIX,
            elsewhere="A security group or NetworkPolicy that opens MASTER_PORT alone hangs the "
            "same way; NCCL stops in `ncclCommInitRank`. Allow all traffic within the group.",
        ),
    ),
    _check(
        "firewall-drop",
        _drop,
        "Does every host let connections of the others in?",
        page(
            symptom="`The client socket has timed out after 60s while trying to connect to "
            "(192.168.1.35, 29500)`.",
            cause="A firewall drops what comes in: silence, where a closed port would refuse.",
            fix=_FIX,
            elsewhere="Clouds: the security group lacks a rule for its own members.",
        ),
    ),
    _check(
        "firewall-reject",
        _reject,
        "Does any firewall turn connections away?",
        page(
            symptom="`errno: 113 - No route to host` at once, while ping works; or `Connection "
            "refused` at a port where somebody listens.",
            cause="A firewall that rejects, as firewalld and many nftables rules do. The host is "
            "there: only its firewall says that it is not.",
            fix=_FIX,
        ),
    ),
    _check(
        "connection-rate",
        _rate,
        "Does any firewall limit new connections?",
        page(
            symptom="Two ranks come together, eight hang; the next try does otherwise.",
            cause="`ufw limit`, hashlimit or a meter of nftables against guessed passwords counts "
            "all ports.",
            fix=_FIX,
        ),
    ),
    _check(
        "firewall-range",
        _closed_range,
        "Are all of the ports open that the kernel may pick?",
        page(
            symptom="The same command works one time and hangs the next.",
            cause="A firewall opens, or closes, a part of the range of "
            "net.ipv4.ip_local_port_range. Gloo has no setting for its ports (GLOO_PORT_RANGE "
            "does nothing).",
            fix=_FIX,
            elsewhere="NCCL picks ports the same way.",
        ),
    ),
    Check(
        "rendezvous-port",
        "Is the usual port of torchrun open?",
        ("dials",),
        "warning",
        page(
            symptom="`The client socket has timed out after 60s` with torchrun by hand.",
            cause="High ports are open, 29500 is not.",
            fix=_FIX,
        ),
        _rendezvous,
    ),
    Check(
        "conntrack-full",
        "Is there room for more connections in the firewall's table?",
        ("health.kernel",),
        "error",
        page(
            symptom="Connections time out now and then; the kernel's log says `nf_conntrack: table "
            "full, dropping packet`.",
            cause="A firewall that remembers connections, on a host that has very many.",
            fix="Makes the table four times as large, until the next start.",
        ),
        _connections_full,
        explains=("firewall-drop", "connection-rate", "firewall-ephemeral", "world-failed"),
    ),
)
