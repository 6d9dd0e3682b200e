"""How bytes flow on links that are open: full-size packets, loss, jitter, speed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from statistics import median
from typing import TypeVar

from yoked.doctor.check import Match, check
from yoked.doctor.checks.bursts import NOTHING_BYTES, crawls, is_stalled
from yoked.doctor.checks.link_groups import described
from yoked.doctor.checks.links import ABORTED, broke, connected, failing, reached
from yoked.doctor.checks.path import Cause, Symptom, cause_of
from yoked.doctor.checks.query import (
    at,
    chosen_address,
    chosen_interface,
    interface_kind,
    own_interfaces,
    part,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.network import keep_radio_awake, send_smaller_packets
from yoked.records.examination import Dial, Examination, Fix, HostSeen, Purpose
from yoked.units import plural

_FEW_ECHOES, _FEW_LOST = 8, 2
# TCP sends again what is lost after a fifth of a second at least. Source: RFC 6298, TCP_RTO_MIN.
_RETRY_S = 0.19
# Radio of a home is within a few milliseconds; a second one's peaks are what all wait for.
_JITTER_S = 0.020
_UNEVEN = 3.0
_CABLE_S = 0.0005
_WEAK_DBM = -75
_EVERY_PURPOSE: tuple[Purpose, ...] = ("bulk", "burst", "rest", "ephemeral", "rendezvous")
_SYMPTOMS: Mapping[str, Symptom] = {
    "breaks": "breaks",
    "rests": "breaks",
    "stalls": "stalls",
    "limited": "slow",
}
# PPPoE, tunnels of several kinds, what IPv6 asks of every link; the last is tried where nothing
# answers.
_SIZES = (8000, 1492, 1480, 1460, 1440, 1420, 1400, 1380, 1280, 1000, 576)


def open_pairs(seen: Examination) -> Iterator[tuple[HostSeen, HostSeen]]:
    """The links whose small messages pass."""
    closed = {link.name for link in failing(seen)}
    for target in seen.up:
        for source in seen.up:
            if source != target and (source.name, target.name) not in closed:
                yield source, target


def _stalled(seen: Examination) -> Iterator[tuple[HostSeen, HostSeen, Dial]]:
    """Links whose small messages pass, and whose bulk does not."""
    for source, target in open_pairs(seen):
        for dial in seen.between(source.name, target.name, ("bulk",)):
            if not reached(dial) and connected(dial) and not broke(dial):
                yield source, target, dial
                break


_Value = TypeVar("_Value")
Pair = tuple[str, str]


def by_host(
    seen: Examination, links: Mapping[Pair, _Value]
) -> Iterator[tuple[HostSeen, dict[Pair, _Value]]]:
    """Links with one trouble, put together by as few hosts as have a part in all of them."""
    rest = dict(links)
    while rest:
        count = Counter(name for pair in rest for name in pair)
        host = max(seen.up, key=lambda each: count[each.name])
        yield host, {pair: value for pair, value in rest.items() if host.name in pair}
        rest = {pair: value for pair, value in rest.items() if host.name not in pair}


def all_at(host: HostSeen, links: Iterable[Pair]) -> tuple[str, ...]:
    """A host, and who is at the other ends of its links."""
    others = dict.fromkeys(name for pair in links for name in pair if name != host.name)
    return (host.name, *others)


def more(links: Sized) -> str:
    return f" (and {plural(len(links) - 1, 'other link')})" if len(links) > 1 else ""


@check(
    "mtu",
    question="Do full-size packets pass on every link?",
    reads=("dials",),
    severity="error",
    saw="{source} to {target}: small messages pass, and of full-size packets "
    "{bulk_bytes:bytes} arrived{more}; {name} sends {mtu} bytes in one packet{rule}",
    why="something between them carries less, and does not say so: the first gradient hangs",
    symptom="The rendezvous works, small tensors are exchanged, the first large one hangs; "
    "ssh hangs when much is printed.",
    cause="A VPN, a tunnel or a switch without jumbo frames carries less than the MTU of "
    "both ends, and no message says so. Unequal ends alone are settled by TCP. Or a queue, a "
    "filter or a rule of one of the hosts takes no large packets: then that is named.",
    fix="Tries with ping which size passes, and gives the way to the peer that MTU, until "
    "the next start; a router on that way stays in it. One end is enough: the other is "
    "told by TCP. Where a VPN is the cause, set the MTU in its configuration.",
    on_cluster="Kubernetes: an overlay (VXLAN takes 50 bytes) on nodes that think they have "
    "1500. NCCL hangs in its first all-reduce.",
    explains=("world-failed", "loss", "jitter", "slow-link", "agent-failed"),
    quick=True,
)
def mtu(seen: Examination) -> Iterator[Match]:
    holes = {
        (source.name, target.name): dial
        for source, target, dial in _stalled(seen)
        if (dial.bulk_bytes or 0) <= NOTHING_BYTES
    }
    for host, own in by_host(seen, holes):
        link, dial = next(iter(own.items()))
        names = all_at(host, own)
        mtu_bytes = mtu_bytes_of(seen, host)
        peers = (chosen_address(seen, seen.host(name)) for name in names[1:])
        smaller = [each for each in _SIZES if each < mtu_bytes]
        cause = cause_of(seen, dial, "large")
        yield Match(
            first_of(cause.host, names),
            *(cause.fix or (send_smaller_packets(host.name, str(each), smaller) for each in peers)),
            link=link,
            bulk_bytes=dial.bulk_bytes or 0,
            more=more(own),
            name=host.name,
            mtu=mtu_bytes,
            rule=cause.words,
        )


def mtu_bytes_of(seen: Examination, host: HostSeen) -> int:
    interface = str(chosen_interface(seen, host))
    told = at(own_interfaces(host).get(interface), "mtu_bytes")
    return int(told or part(host, "links", interface, "mtu_bytes") or 1500)


@check(
    "bulk-stalls",
    question="Does a connection last on every link, and a long transfer come to its end?",
    reads=("dials", "health.firewall", "health.links", "health.settings", "health.writers"),
    severity="error",
    saw={
        "breaks": "{described}; it stood, and was ended from outside{rule}",
        "rests": "{source} to {target}: a connection on which nothing was sent for a moment gave "
        "no answer then{rule}",
        "stalls": "{described}; {bulk_bytes:bytes} arrived before it stopped{rule}",
        "limited": "{source} to {target}: {bulk_bytes:bytes} came at {rate:bit/s}{rule}",
    },
    why="an exchange of gradients would stop, or crawl, the same way",
    symptom="Steps begin, then `Connection reset by peer`, or a stall.",
    cause="A bad cable or switch, a radio that gives up, a firewall or a program that ends "
    "connections (`ss -K`), or a rule that counts bytes: a quota, a limit of so many a second. "
    "What is unusual on the way at one of the hosts alone is named as the cause.",
    fix="Lets all between the hosts pass before the rule that counts, where its rules were read "
    "(root, or `--sudo`); sets a setting of the kernel back; else by hand.",
    explains=("world-failed", "loss", "jitter", "slow-link", "agent-failed"),
    quick=True,
)
def bulk_stalls(seen: Examination) -> Iterator[Match]:
    """Each cause once; a link without any only where the other direction has none either."""
    found = list(_ended(seen))
    explained = {frozenset(link) for link, cause, _ in found if cause.host}
    for link, cause, match in found:
        if cause.host or frozenset(link) not in explained:
            yield match


def _ended(seen: Examination) -> Iterator[tuple[Pair, Cause, Match]]:
    told: set[tuple[str, ...]] = set()
    for source, target in open_pairs(seen):
        for dial in seen.between(source.name, target.name, _EVERY_PURPOSE):
            how = _how_it_ended(seen, dial)
            if not how:
                continue
            cause = _cause_of_end(seen, dial, how)
            link = (source.name, target.name)
            place = (cause.host, cause.words) if cause.host else link
            if (how == "limited" and "rule" not in cause.kinds) or place in told:
                continue
            told.add(place)
            match = Match(
                first_of(cause.host, (target.name, source.name)),
                *(cause.fix or (_look_between(source.name, target.name, how),)),
                link=link,
                how=how,
                described=described(dial),
                bulk_bytes=dial.bulk_bytes or 0,
                rate=8 * (dial.goodput_bytes_per_s or 0.0),
                rule=cause.words,
            )
            yield link, cause, match
            break


def _look_between(source: str, target: str, how: str) -> Fix:
    if how == "breaks":
        return by_hand(
            target,
            "look for what ends connections between {source} and {target}: a firewall or a program "
            "on either, or what is between",
            source=source,
            target=target,
        )
    return by_hand(
        target,
        "check cable, switch and radio between {source} and {target}",
        source=source,
        target=target,
    )


def _how_it_ended(seen: Examination, dial: Dial) -> str:
    """Which of the sentences of bulk-stalls fits a dial; empty: none."""
    if broke(dial):
        return "breaks"
    if dial.purpose in ("bulk", "burst", "rest") and is_stalled(dial):
        return "rests" if dial.purpose == "rest" else "stalls"
    return "limited" if crawls(seen, dial) else ""


def _cause_of_end(seen: Examination, dial: Dial, how: str) -> Cause:
    """The cause of its end. Without anything unusual: the host whose kernel was told to end it."""
    cause = cause_of(seen, dial, _SYMPTOMS[how])
    enders = {each.source for each in seen.dials if broke(each) and each.error == ABORTED}
    if how != "breaks" or cause.host or len(enders) != 1:
        return cause
    name = enders.pop()
    look = by_hand(name, "find the program there that ends connections of others, as `ss -K` does")
    words = f"; the kernel of {name} was told by a program there to end such connections"
    return Cause(name, f"{cause.words}{words}", (look,))


def first_of(host: str | None, names: Sequence[str]) -> tuple[str, ...]:
    """Names with that of a host in front, if there is one."""
    return tuple(dict.fromkeys((host, *names))) if host else tuple(names)


def _echoes(seen: Examination, source: HostSeen, target: HostSeen) -> tuple[float, ...]:
    dials = seen.between(source.name, target.name, ("ephemeral", "rendezvous", "bulk"))
    return tuple(each for dial in dials for each in dial.echo_s)


def cause_on(seen: Examination, link: Pair, symptom: Symptom) -> Cause:
    """What on a link's way can be why; of its bursts, which show most, if there are any."""
    dials = seen.between(*link, ("burst",)) or seen.between(*link, ("bulk", "ephemeral"))
    cause = cause_of(seen, dials[0], symptom) if dials else Cause()
    if cause.host or symptom == "slow":
        return cause
    # An echo goes both ways, and waits behind what a shaper lets through slowly.
    bursts = [dial for way in (link, link[::-1]) for dial in seen.between(*way, ("burst",))]
    slow = (cause_of(seen, dial, "slow") for dial in bursts if crawls(seen, dial))
    return next((each for each in slow if each.host), cause)


def _lost(echo_s: Sequence[float]) -> list[float]:
    """The echoes that took so long that TCP sent them again."""
    return [each for each in echo_s if each > _RETRY_S + median(echo_s)]


@check(
    "loss",
    question="Do all packets arrive?",
    reads=("dials",),
    severity="warning",
    saw="{source} to {target}: {lost} of {echoes} echoes took up to {longest:duration}, others "
    "{median:duration}{more}{rule}",
    why="packets are lost and sent again, and all ranks wait for each",
    symptom="Some steps take a fifth of a second longer, without a pattern.",
    cause="Packets are lost: a bad cable, a full queue, a weak radio; or a queue (`tc qdisc`) of "
    "one of the hosts loses them, which is then named.",
    fix="By hand.",
    on_cluster="`NCCL WARN ... IB timeout` on a fabric that loses packets.",
    explains=("jitter", "slow-link"),
)
def loss(seen: Examination) -> Iterator[Match]:
    found: dict[Pair, tuple[float, ...]] = {}
    for source, target in open_pairs(seen):
        echo_s = _echoes(seen, source, target)
        if len(echo_s) >= _FEW_ECHOES and len(_lost(echo_s)) >= _FEW_LOST:
            found[source.name, target.name] = echo_s
    for host, own in by_host(seen, found):
        link, echo_s = next(iter(own.items()))
        lost, cause = _lost(echo_s), cause_on(seen, link, "loses")
        yield Match(
            first_of(cause.host, all_at(host, own)),
            *(cause.fix or (by_hand(host.name, "check the cable or the radio of {host}"),)),
            link=link,
            lost=len(lost),
            echoes=len(echo_s),
            longest=max(lost),
            median=median(echo_s),
            more=more(own),
            rule=cause.words,
        )


@check(
    "jitter",
    question="Do messages take about the same time?",
    reads=("dials",),
    severity="warning",
    saw="{source} to {target}: echoes take {shortest:duration} to {longest:duration}, half of "
    "them more than {median:duration}{more}{rule}",
    why="a step waits for the slowest of its messages",
    symptom="Step times vary by tens of milliseconds, and all ranks wait.",
    cause="Radio, a VPN over the internet, or a host whose cores are all busy.",
    fix="By hand: a cable.",
)
def jitter(seen: Examination) -> Iterator[Match]:
    found: dict[Pair, list[float]] = {}
    for source, target in open_pairs(seen):
        echo_s = sorted(_echoes(seen, source, target))
        pair = frozenset((source.name, target.name))
        few = len(echo_s) < _FEW_ECHOES
        if not few and best_s(seen, pair) >= _CABLE_S and _is_uneven(echo_s):
            found[source.name, target.name] = echo_s
    for host, own in by_host(seen, found):
        link, echo_s = next(iter(own.items()))
        cause = cause_on(seen, link, "late")
        nearer = by_hand(
            host.name, "use a cable for {host}, or bring it nearer to the access point"
        )
        yield Match(
            first_of(cause.host, all_at(host, own)),
            *(cause.fix or (nearer,)),
            link=link,
            shortest=echo_s[0],
            longest=echo_s[-1],
            median=median(echo_s),
            more=more(own),
            rule=cause.words,
        )


def best_s(seen: Examination, pair: frozenset[str]) -> float:
    """The fastest answer of a pair, either way. Over a cable it is as fast as ever, however busy
    the hosts are: then the way is not what makes others wait.
    """
    dials = [each for each in seen.dials if {each.source, each.target} == pair and each.chosen]
    times_s = [time_s for each in dials for time_s in (each.rtt_s, *each.echo_s) if time_s]
    return min(times_s, default=0.0)


def _is_uneven(echo_s: Sequence[float]) -> bool:
    """Whether the way itself makes some messages wait; echo_s: sorted."""
    middle_s, high_s = median(echo_s), echo_s[int(0.75 * len(echo_s))]
    # A radio that wakes up now and then has most messages wait.
    napping = middle_s > max(_JITTER_S, _UNEVEN * echo_s[0])
    return napping or high_s > max(_JITTER_S, _UNEVEN * middle_s)


def _radio(seen: Examination) -> Iterator[tuple[HostSeen, str]]:
    """The hosts whose part in the run goes over radio, and its interface."""
    for host in seen.up:
        interface = chosen_interface(seen, host)
        if interface and interface_kind(host, interface) == "wireless":
            yield host, interface


@check(
    "wifi-power-save",
    question="Is the radio awake?",
    reads=("health.wireless",),
    severity="warning",
    saw="the radio of {interface} of {host} saves power",
    why="it sleeps between messages, and answers a tenth of a second late",
    symptom="Steps are jittery: 5 ms, 90 ms, 7 ms, 110 ms.",
    cause="A laptop's radio sleeps between beacons of the access point.",
    fix="Switches power save off, until the next start or the next network.",
    explains=("jitter",),
)
def wifi_power_save(seen: Examination) -> Iterator[Match]:
    for host, interface in _radio(seen):
        if part(host, "wireless", interface, "power_save") is True:
            yield Match(host.name, keep_radio_awake(host.name, interface), interface=interface)


@check(
    "wifi-weak",
    question="Is the radio near enough?",
    reads=("health.wireless",),
    severity="warning",
    saw="{interface} of {host} hears its access point at {signal_dbm} dBm",
    why="below -75 dBm a radio is slow and loses packets",
    symptom="Slow and uneven steps over WiFi.",
    cause="The signal is weak.",
    fix="By hand: nearer, another channel, or a cable.",
    explains=("jitter", "loss", "slow-link"),
)
def wifi_weak(seen: Examination) -> Iterator[Match]:
    for host, interface in _radio(seen):
        signal_dbm = part(host, "wireless", interface, "signal_dbm")
        if signal_dbm is not None and signal_dbm < _WEAK_DBM:
            yield Match(
                host.name,
                by_hand(host.name, "bring {host} nearer to the access point, or use a cable"),
                interface=interface,
                signal_dbm=signal_dbm,
            )


CHECKS = (mtu, bulk_stalls, loss, wifi_power_save, wifi_weak, jitter)
