"""What firewalls on hosts do to the connections that ranks open among themselves."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from yoked.agent.settings import SETTINGS
from yoked.agent.virtual import WSL_CREATOR
from yoked.doctor import firewalls
from yoked.doctor.check import Match, check
from yoked.doctor.checks.blame import blame
from yoked.doctor.checks.link_groups import Group, groups
from yoked.doctor.checks.links import Link, reached
from yoked.doctor.checks.path import cause_of, stop_first
from yoked.doctor.checks.query import at, chosen_address, mapping, part
from yoked.doctor.checks.verdicts import by_source, verdicts
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import drop_policy
from yoked.doctor.repairs.system import sysctl
from yoked.records.examination import Dial, Examination, Fix
from yoked.units import listed, plural

_AFTER = (
    "rendezvous-port", "mtu", "bulk-stalls", "loss", "jitter", "world-failed",
    "conntrack-full",
)  # fmt: skip
_RANKS = "Gloo's connections go to ports that the kernel picks, and each host dials some of them"
_FIX = (
    "Lets everything from the address of the host that was kept out in: the line is that of the "
    "firewall which is there (ufw, firewalld, nftables, iptables). For nftables it goes to the top "
    "of the very chain that drops, for to be accepted by another chain is not enough. It lasts "
    "until the next start; `ufw` and `firewall-cmd --permanent` keep it. Where root's rules were "
    "read (`--sudo`), the finding names the rule, and the line is for its chain. A program that "
    "makes the rules again and again is to be ended first."
)
_NONE = "; none of its rules does it: `tc -s qdisc` there shows what else drops"
# How long the kernel knows a connection on which nothing comes; and what asks for that.
_KEPT = "net/netfilter/nf_conntrack_tcp_timeout_established"
_USUAL_KEPT = next(each.usual for each in SETTINGS if each.name == _KEPT)
_OF_CONNECTIONS = re.compile(r"\bct (state|status)\b|\bctstate\b|-m (state|conntrack)\b")
_UNREAD = "; only root reads its rules: `sudo nft list ruleset` there, or `yoked doctor --sudo`"
# What most of these checks have in common.
_check = partial(
    check, reads=("dials", "health.firewall", "health.routes"), severity="error", fix=_FIX,
    explains=_AFTER, quick=True,
)  # fmt: skip


def _open(group: Group) -> tuple[Fix, ...]:
    """Let in whoever was kept out, once nobody takes that back."""
    peers = group.far_ends
    if _is_by_source(group):
        # Whose connections came through was lucky.
        others = (chosen_address(group.seen, each) for each in group.seen.up if each != group.host)
        peers = list(dict.fromkeys([*peers, *filter(None, others)]))
    opened = firewalls.allow(
        group.host.name,
        part(group.host, "firewall"),
        peers,
        program=at(group.host.torch, "python"),
        found=group.found,
    )
    return (*stop_first(group.host, "rules")[0], *opened)


def _is_by_source(group: Group) -> bool:
    """Whether the port decides from which a connection comes."""
    return bool(group.blames) and all(map(by_source, group.blames))


def _range(group: Group) -> str:
    low, high = part(group.host, "ports", "range") or (32768, 60999)
    return f"{low} to {high}"


def _who(group: Group) -> str:
    name = firewalls.held_by(part(group.host, "firewall"), group.found)
    return (
        f"{name} on {group.host.name}" if group.proven else f"perhaps {name} on {group.host.name}"
    )


def _rule(group: Group) -> str:
    """The rule that does it, and what makes it again and again; or why none is named."""
    return f"{_only_rule(group)}{stop_first(group.host, 'rules')[1]}"


def _only_rule(group: Group) -> str:
    told = part(group.host, "firewall")
    if not group.found:
        unsure = "" if group.proven else "; whether it, or what is between, cannot be told"
        if firewalls.kind_of(told) == "macos":
            return unsure
        return f"{unsure}{_UNREAD}" if firewalls.ruleset_of(told) is None else f"{unsure}{_NONE}"
    first, *others = group.found
    # Some came through, and some did not: it is the port that decides.
    sure = first.sure or _is_by_source(group)
    more = f" (and {plural(len(others), 'other rule')})" if others else ""
    return f"; {'by' if sure else 'perhaps by'} {first.words}{more}"


def _from(group: Group) -> str:
    return listed(each.name for each in group.peers)


def _kept_out(group: Group, **more: Any) -> Match:
    """Peers that a firewall of the host keeps out, and the lines that let them in."""
    return group.match(
        *_open(group), who=_who(group), peers=_from(group), rule=_rule(group), **more
    )


@_check(
    "firewall-drop",
    question="Does every host let connections of the others in?",
    saw={
        "connections": "{who} lets no connection from {peers} in, on any port that was tried: "
        "{evidence}, although ssh works{rule}",
        "data": "{who} has connections between {host} and {peers} come about, and drops what is "
        "said on them: {evidence}{rule}",
        "answers": "{who} lets no answer of {peers} in, to whom {host} connects: {evidence}{rule}",
        "cards": "{who} keeps {host} and {peers} from asking for each other's network cards: "
        "{evidence}{rule}",
    },
    why="ranks wait for each other until torch's timeout, 30 minutes, and nothing is said",
    symptom="`The client socket has timed out after 60s while trying to connect to "
    "(192.168.1.35, 29500)`.",
    cause="A firewall drops what comes in: silence, where a closed port would refuse. One that "
    "does not follow connections drops answers too, and then both directions fail. A rule for "
    "flags of TCP with a mistaken mask lets connections come about, and drops what is said.",
    on_cluster="Clouds: the security group lacks a rule for its own members.",
)
def firewall_drop(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-drop"):
        yield _kept_out(group, how=_kept_back(group))


def _kept_back(group: Group) -> str:
    if group.found and all(each.of_cards for each in group.found):
        return "cards"
    if group.blames and all(each.data for each in group.blames):
        return "data"
    return "answers" if all(each.answers for each in group.blames) else "connections"


@_check(
    "firewall-ephemeral",
    question="Are the ports open that the kernel picks for Gloo?",
    saw="{who} lets {peers} in at port {open_port}, and drops the ports that the kernel picks "
    "({range}): {evidence}{rule}",
    why=f"the rendezvous works, then all hang: {_RANKS}",
    symptom="The hosts meet at port 29500, then all hang in silence. After a long while: "
    "`Gloo connectFullMesh failed with ... Connect timeout`.",
    cause="The firewall lets the rendezvous port in, as many guides say, and drops the "
    "rest. Gloo and NCCL connect the ranks at ports that the kernel picks.",
    on_cluster="A security group or NetworkPolicy that opens MASTER_PORT alone hangs the "
    "same way; NCCL stops in `ncclCommInitRank`. Allow all traffic within the group.",
)
def firewall_ephemeral(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-ephemeral"):
        open_port = next(each.port for each in group.links[0].dials if each.purpose == "rendezvous")
        yield _kept_out(group, open_port=open_port, range=_range(group))


@_check(
    "firewall-reject",
    question="Does any firewall turn connections away?",
    saw="{who} turns {peers} away: {evidence}, although somebody listened there{rule}",
    why=f"{_RANKS}; each would be refused",
    symptom="`errno: 113 - No route to host` at once, while ping works; or `Connection "
    "refused` at a port where somebody listens.",
    cause="A firewall that rejects, as firewalld and many nftables rules do. The host is "
    "there: only its firewall says that it is not.",
)
def firewall_reject(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-reject"):
        yield _kept_out(group)


@_check(
    "firewall-out",
    question="Does every host let its own connections out?",
    saw="{who} lets {what} out to {peers}: {evidence}{rule}",
    why=f"{_RANKS}: this one cannot",
    symptom="One host times out towards all others, and they reach each other; or it is refused at "
    "once, and nobody refused.",
    cause="A firewall with rules for what leaves: a hardened system, a VPN's kill switch, a "
    "transparent proxy's rule that sends it elsewhere. An IPsec policy without a key. A library in "
    "/etc/ld.so.preload, such as that of proxychains, which refuses for every program.",
    fix="Lets everything out to the addresses of the peers; deletes the policy where that is it. A "
    "library is left to a person.",
    on_cluster="Kubernetes: a NetworkPolicy with policyTypes Egress.",
    explains=(*_AFTER, "loopback"),
)
def firewall_out(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-out"):
        who, rule = _who_out(group)
        data = bool(group.blames) and all(each.data for each in group.blames)
        what = "connections, and nothing that is said on them," if data else "nothing"
        yield group.match(*_let_out(group), who=who, what=what, peers=_from(group), rule=rule)


def _who_out(group: Group) -> tuple[str, str]:
    """(What keeps packets back, the rule or policy by which it does)."""
    name = group.host.name
    if any(each.by_library for each in group.blames):
        loaded = list(dict.fromkeys(one for each in group.blames for one in each.libraries))
        which = f", {listed(loaded)}," if loaded else ""
        return f"a library that programs of {name} load{which}", "; no kernel refuses its own ways"
    if any(each.ipsec for each in group.blames):
        found = next((each.policy for each in group.blames if each.policy), None)
        rule = f"; by the policy `{found.words}`" if found else "; `sudo ip xfrm policy` has them"
        return f"an IPsec policy of {name}, for which there is no key,", rule
    if group.proven and not group.found:
        return f"the kernel of {name}", _rule(group)
    return _who(group), _rule(group)


def _let_out(group: Group) -> Iterator[Fix]:
    name = group.host.name
    if any(each.by_library for each in group.blames):
        yield by_hand(
            name, "`env | grep ^LD_; cat /etc/ld.so.preload` there shows what programs load"
        )
    elif any(each.ipsec for each in group.blames):
        policies = dict.fromkeys(each.policy for each in group.blames if each.policy)
        for policy in policies:
            yield drop_policy(name, policy.selector, policy.way, policy.demand)
        if not policies:
            yield by_hand(
                name, "`sudo ip xfrm policy` shows which VPN's it is: start that VPN, or remove it"
            )
    elif group.proven and _only_rule(group) == _NONE:
        yield by_hand(name, "`tc -s qdisc; sudo bpftool cgroup tree` there shows what else drops")
    else:
        told = part(group.host, "firewall")
        yield from stop_first(group.host, "rules")[0]
        yield from firewalls.allow(name, told, group.far_ends, "out", found=group.found)


@_check(
    "firewall-range",
    question="Are all of the ports open that the kernel may pick?",
    saw={
        "": "{who} lets {peers} in at some high ports and not at others: {open} open, {closed} "
        "closed{rule}",
        "source": "{who} lets {peers} in from some ports and not from others: {evidence}, and "
        "{accepted:plural connection} came through{rule}",
    },
    why="each run is lucky or hangs, by the ports that the kernel picks of {range}",
    symptom="The same command works one time and hangs the next.",
    cause="A firewall opens, or closes, a part of the range of "
    "net.ipv4.ip_local_port_range: for the port that is dialled, or for that from which it is. "
    "Gloo has no setting for its ports (GLOO_PORT_RANGE does nothing).",
    on_cluster="NCCL picks ports the same way.",
)
def firewall_range(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "firewall-range"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        yield _kept_out(
            group,
            how="source" if _is_by_source(group) else "",
            accepted=sum(map(reached, dials)),
            open=_ports(dials, passed=True),
            closed=_ports(dials, passed=False),
            range=_range(group),
        )


def _ports(dials: list[Dial], *, passed: bool) -> str:
    return listed(str(each.port) for each in dials if reached(each) == passed)


@_check(
    "connection-rate",
    question="Does any firewall limit new connections?",
    saw="{who} let {accepted:plural connection} from {peers} in and then none: {evidence}{rule}",
    why="it limits how many new connections a second it lets in, and all ranks connect at once",
    symptom="Two ranks come together, eight hang; the next try does otherwise.",
    cause="`ufw limit`, hashlimit or a meter of nftables against guessed passwords counts "
    "all ports.",
)
def connection_rate(seen: Examination) -> Iterator[Match]:
    for group in groups(seen, "connection-rate"):
        dials = [dial for link in group.links for dial in link.ephemeral]
        yield _kept_out(group, accepted=sum(map(reached, dials)))


@check(
    "rendezvous-port",
    question="Is the usual port of torchrun open?",
    reads=("dials",),
    severity="error",
    saw="{firewall} on {host} closes port {port} to {sources:list} ({error}); high ports are open"
    "{rule}",
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
            and not reached(each)
            and each.error in ("ETIMEDOUT", "EHOSTUNREACH", "EACCES", "ECONNREFUSED")
            and _ephemeral_passed(seen, each)
        ]
        if not failed:
            continue
        first = failed[0]
        cause = cause_of(seen, first, "silent", known=True).host
        # Told with the links that it disturbs.
        if cause is not None and any(each.host == cause for each in verdicts(seen)):
            continue
        sources = [each.source_address for each in failed if each.source_address]
        told = part(target, "firewall")
        link = Link(seen, seen.host(first.source), target, (first,))
        guilty = blame(link)
        found = guilty.found if guilty and guilty.host == target.name else ()
        counts = bool(found) and firewalls.limits_rate(told, found)
        yield Match(
            target.name,
            *firewalls.allow(target.name, told, sources, found=found),
            link=(first.source, target.name) if len(failed) == 1 else None,
            # A rule that counts closes whichever port comes late.
            severity="error" if counts else "warning",
            firewall=firewalls.held_by(told, found),
            rule=f"; perhaps by {found[0].words}" if found else "",
            port=first.port,
            sources=[each.source for each in failed],
            error=first.error,
        )


def _ephemeral_passed(seen: Examination, dial: Dial) -> bool:
    others = seen.between(dial.source, dial.target)
    return bool(others) and all(map(reached, others))


@check(
    "conntrack-full",
    question="Does the firewall remember all connections, for as long as they last?",
    reads=("health.kernel", "health.settings", "health.firewall"),
    severity="error",
    saw={
        "full": "{host} keeps track of {count:,} connections, and {most:,} is the most it can",
        "forgets": "{host} forgets a connection on which nothing is sent for {kept:duration} "
        "({setting}){rule}",
    },
    why={
        "full": "new connections are dropped as soon as the table is full",
        "forgets": "ranks say nothing to each other while they compute; what they send then "
        "belongs to no connection that the firewall knows, and is dropped",
    },
    symptom="Connections time out now and then; the kernel's log says `nf_conntrack: table "
    "full, dropping packet`. Or a run stands after a long step.",
    cause="A firewall that remembers connections, on a host that has very many; or one that was "
    "told to forget them soon, by a guide for small routers.",
    fix="Makes the table four times as large, or the time what Linux has by itself, until the next "
    "start.",
    explains=(
        "firewall-drop",
        "connection-rate",
        "firewall-ephemeral",
        "world-failed",
        "bulk-stalls",
    ),
)
def conntrack_full(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        kept = str(mapping(part(host, "settings")).get(_KEPT) or "")
        rules = firewalls.ruleset_of(part(host, "firewall"))
        # Without a rule that asks for it, nothing depends on it.
        asks = rules is None or any(map(_OF_CONNECTIONS.search, rules))
        if kept.isdigit() and asks:
            yield Match(
                host.name,
                sysctl(host.name, _KEPT, _USUAL_KEPT, was=kept),
                how="forgets",
                severity="warning" if rules is None else "error",
                kept=int(kept),
                setting=_KEPT,
                rule="; only root reads whether a rule depends on it" if rules is None else "",
            )
        count = part(host, "kernel", "conntrack_count")
        most = part(host, "kernel", "conntrack_max")
        if count is None or not most or count < 0.9 * most:
            continue
        yield Match(
            host.name,
            sysctl(host.name, "net.netfilter.nf_conntrack_max", 4 * most, was=most),
            how="full",
            severity="error" if count >= most else "warning",
            count=count,
            most=most,
        )


@_check(
    "wsl-firewall",
    question="Does Windows let connections in to its Linux?",
    reads=("dials", "health.virtual"),
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
