"""Whether every host reaches itself: a rank and its store, a launcher and its ranks do."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.interfaces import link_of
from yoked.doctor.checks.path import cause_at_home
from yoked.doctor.checks.query import at, chosen_address, mapping, part
from yoked.doctor.firewalls import allow_loopback, held_by, refusals, ruleset_of
from yoked.doctor.packets import Packet
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import add_address, set_link_up
from yoked.doctor.ruleset import Suspect
from yoked.records.examination import Examination, Fix, HostSeen

_LOOPBACK = "127.0.0.1"
# The host answered that there is no such address, or not at all, or with a no.
_NO_ADDRESS, _REFUSALS = "EADDRNOTAVAIL", ("ETIMEDOUT", "ECONNREFUSED", "EPERM", "EHOSTUNREACH",
                                           "ENETUNREACH", "EACCES")  # fmt: skip
# It was connected, and what was sent did not come.
_LATE = "ETIME"
_PORTS = (1024, 65_535)


@check(
    "loopback",
    question="Does every host reach itself?",
    reads=("health.loopback", "health.links", "health.firewall"),
    severity="error",
    saw={
        "down": "the interface lo of {host} is switched off: it reaches itself at no address",
        "no-address": "lo of {host} does not have the address {address}",
        "rule": "{firewall} on {host} keeps it from {address}, its own address: {error}; {rule}",
        "slow": "{host} reaches itself at {address}, and data does not come there within "
        "0.4 s{rule}",
        "unknown": "{host} cannot connect to {address}, its own address: {error}{rule}",
    },
    why="torch's store is at 127.0.0.1, and a launcher meets its ranks on loopback: they wait "
    "until their timeout, and nothing is said",
    symptom="`The client socket has timed out after 60s while trying to connect to "
    "(127.0.0.1, 40417)`, or `Cannot assign requested address`.",
    cause="lo was switched off or lost its address with interfaces that nobody needed; or a "
    "firewall written by hand has no rule that lets loopback pass; or a queue (`tc`) of lo lets "
    "little through.",
    fix="Switches lo on, gives it its address, lets all pass there, or takes the queue away.",
    explains=("world-failed", "dial-failed"),
    quick=True,
)
def loopback(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        told = mapping(part(host, "loopback"))
        if at(link_of(host, "lo"), "up") is False:
            yield _match(host, "down", set_link_up(host.name, "lo"))
        elif told.get(_LOOPBACK) == _NO_ADDRESS:
            yield _match(host, "no-address", add_address(host.name, _LOOPBACK, 8, "lo"))
        else:
            # Others of its addresses are no part of a run.
            used = [_LOOPBACK, chosen_address(seen, host)]
            failed = [each for each in used if each and told.get(each) in _REFUSALS]
            if failed:
                yield _refused(seen, host, failed[0], str(told[failed[0]]))
            elif told.get(_LOOPBACK) == _LATE:
                yield _late(seen, host)


def _late(seen: Examination, host: HostSeen) -> Match:
    """It reaches itself, and hardly with data."""
    told, rules, cause = part(host, "firewall"), _rules(host, _LOOPBACK), cause_at_home(seen, host)
    if cause.host is None and rules:
        words = f"; perhaps by {held_by(told, rules)}: {rules[0].words}"
        return _match(host, "slow", *allow_loopback(host.name, told, rules), rule=words)
    look = by_hand(host.name, "`tc -s qdisc show dev lo` shows what waits there")
    return _match(host, "slow", *(cause.fix or (look,)), rule=cause.words)


def _match(host: HostSeen, how: str, *fix: Fix, **found: str) -> Match:
    params = {"address": _LOOPBACK, "error": "", "firewall": "", "rule": "", **found}
    return Match(
        host.name,
        *fix,
        how=how,
        address=params["address"],
        error=params["error"],
        firewall=params["firewall"],
        rule=params["rule"],
    )


def _refused(seen: Examination, host: HostSeen, address: str, error: str) -> Match:
    """It does not reach itself, and a rule of its own is what keeps it from that."""
    told = part(host, "firewall")
    rules = _rules(host, address)
    if rules:
        return _match(
            host,
            "rule",
            *allow_loopback(host.name, told, rules),
            address=address,
            error=error,
            firewall=held_by(told, rules),
            rule=f"{'by' if rules[0].sure else 'perhaps by'} {rules[0].words}",
        )
    cause = cause_at_home(seen, host)
    if cause.host:
        return _match(host, "unknown", *cause.fix, address=address, error=error, rule=cause.words)
    if ruleset_of(told) is None:
        rule = "; only root reads its rules"
        look = by_hand(
            host.name,
            "`sudo nft list ruleset` shows which rule drops or rejects what comes in by lo; "
            "`yoked doctor --sudo` names it",
        )
    else:
        rule = "; no rule of its firewall does that"
        look = by_hand(
            host.name,
            "`ip rule; ip route show table local; ip xfrm policy` shows what else decides there",
        )
    return _match(host, "unknown", look, address=address, error=error, rule=rule)


def _rules(host: HostSeen, address: str) -> list[Suspect]:
    """The rules that keep a host from itself, on the way there and back."""
    told = part(host, "firewall")
    there = Packet(address, address, _PORTS, _PORTS, "lo")
    back = Packet(address, address, _PORTS, _PORTS, "lo", answer=True)
    found = [
        each
        for packet in (there, back)
        for each in (refusals(told, packet, "out") or []) + (refusals(told, packet, "in") or [])
    ]
    return sorted(dict.fromkeys(found), key=lambda each: not each.sure)


CHECKS = (loopback,)
