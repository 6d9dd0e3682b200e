"""Whether every host reaches itself: a rank and its store, a launcher and its ranks do."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from yoked.doctor.check import Match, check
from yoked.doctor.checks.interfaces import link_of
from yoked.doctor.checks.path import cause_at_home
from yoked.doctor.checks.query import at, chosen_address, mapping, part
from yoked.doctor.firewalls import allow_loopback, held_by, refusals, ruleset_of
from yoked.doctor.packets import CONFIRMS, DATA, Packet
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import add_address, set_link_up
from yoked.doctor.ruleset import Suspect
from yoked.records.examination import Examination, HostSeen

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
            yield Match(host.name, set_link_up(host.name, "lo"), how="down")
        elif told.get(_LOOPBACK) == _NO_ADDRESS:
            mend = add_address(host.name, _LOOPBACK, 8, "lo")
            yield Match(host.name, mend, how="no-address", address=_LOOPBACK)
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
    look = by_hand(host.name, "`tc -s qdisc show dev lo` shows what waits there")
    fixes, words = cause.fix or (look,), cause.words
    if cause.host is None and rules:
        fixes = allow_loopback(host.name, told, rules)
        words = f"; perhaps by {held_by(told, rules)}: {rules[0].words}"
    return Match(host.name, *fixes, how="slow", address=_LOOPBACK, rule=words)


def _refused(seen: Examination, host: HostSeen, address: str, error: str) -> Match:
    """It does not reach itself, and a rule of its own is what keeps it from that."""
    told = part(host, "firewall")
    rules = _rules(host, address)
    if rules:
        return Match(
            host.name,
            *allow_loopback(host.name, told, rules),
            how="rule",
            address=address,
            error=error,
            firewall=held_by(told, rules),
            rule=f"{'by' if rules[0].sure else 'perhaps by'} {rules[0].words}",
        )
    cause = cause_at_home(seen, host)
    if cause.host:
        fixes, rule = cause.fix, cause.words
    elif ruleset_of(told) is None:
        rule = "; only root reads its rules"
        look = by_hand(
            host.name,
            "`sudo nft list ruleset` shows which rule drops or rejects what comes in by lo; "
            "`yoked doctor --sudo` names it",
        )
        fixes = (look,)
    else:
        rule = "; no rule of its firewall does that"
        look = by_hand(
            host.name,
            "`ip rule; ip route show table local; ip xfrm policy` shows what else decides there",
        )
        fixes = (look,)
    return Match(host.name, *fixes, how="unknown", address=address, error=error, rule=rule)


def _rules(host: HostSeen, address: str) -> list[Suspect]:
    """The rules that keep a host from itself, on the way there and back."""
    told = part(host, "firewall")
    there = Packet(address, address, _PORTS, _PORTS, "lo")
    back = replace(there, answer=True)
    said = [replace(back, flags=(each,)) for each in (DATA, CONFIRMS)]
    found = [
        each
        for packet in (there, back, *said)
        for each in (refusals(told, packet, "out") or []) + (refusals(told, packet, "in") or [])
    ]
    return sorted(dict.fromkeys(found), key=lambda each: not each.sure)


CHECKS = (loopback,)
