"""How bytes flow on links that are open: full-size packets, loss, jitter, speed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import replace
from statistics import median
from typing import TypeVar

from yoked.doctor.check import Check, page
from yoked.doctor.checks.groups import described
from yoked.doctor.checks.keeping import is_free
from yoked.doctor.checks.reading import (
    at,
    by_hand,
    choose_again,
    chosen_address,
    chosen_interface,
    finding,
    own_interfaces,
    part,
    plural,
)
from yoked.doctor.checks.verdicts import connected, failing, reached
from yoked.records.examination import Dial, Examination, Finding, Fix, HostSeen
from yoked.records.shell import joined, shell_line
from yoked.units import format_bit_per_s, format_bytes, format_duration

# A first window of full-size packets, of which not one arrived.
_NOTHING_BYTES = 14_600
_FEW_ECHOES, _FEW_LOST = 8, 2
# TCP sends again what is lost after a fifth of a second at least. Source: RFC 6298, TCP_RTO_MIN.
_RETRY_S = 0.19
# Radio of a home is within a few milliseconds; a second one's peaks are what all wait for.
_JITTER_S = 0.020
_UNEVEN = 3.0
_CABLE_S = 0.0005
_SLOW_BYTES_PER_S = 12.5e6
_FAR_BELOW = 0.5
_WEAK_DBM = -75
# PPPoE, tunnels of several kinds, what IPv6 asks of every link; the last is tried where nothing
# answers.
_SIZES = (8000, 1492, 1480, 1460, 1440, 1420, 1400, 1380, 1280, 1000, 576)


def _open_pairs(seen: Examination) -> Iterator[tuple[HostSeen, HostSeen]]:
    """The links whose small messages pass."""
    closed = {link.name for link in failing(seen)}
    for target in seen.up:
        for source in seen.up:
            if source != target and (source.name, target.name) not in closed:
                yield source, target


def _stalled(seen: Examination) -> Iterator[tuple[HostSeen, HostSeen, Dial]]:
    """Links whose small messages pass, and whose bulk does not."""
    for source, target in _open_pairs(seen):
        for dial in seen.between(source.name, target.name, ("bulk",)):
            if not reached(dial) and connected(dial):
                yield source, target, dial
                break


_Value = TypeVar("_Value")
_Pair = tuple[str, str]


def by_host(
    seen: Examination, links: Mapping[_Pair, _Value]
) -> Iterator[tuple[HostSeen, dict[_Pair, _Value]]]:
    """Links with one trouble, put together by as few hosts as have a part in all of them."""
    rest = dict(links)
    while rest:
        count = Counter(name for pair in rest for name in pair)
        host = max(seen.up, key=lambda each: count[each.name])
        yield host, {pair: value for pair, value in rest.items() if host.name in pair}
        rest = {pair: value for pair, value in rest.items() if host.name not in pair}


def _all_at(host: HostSeen, links: Iterable[_Pair]) -> tuple[str, ...]:
    """A host, and who is at the other ends of its links."""
    others = dict.fromkeys(name for pair in links for name in pair if name != host.name)
    return (host.name, *others)


def _more(links: Sized) -> str:
    return f" (and {plural(len(links) - 1, 'other link')})" if len(links) > 1 else ""


def _black_hole(seen: Examination) -> Iterator[Finding]:
    holes = {
        (source.name, target.name): dial
        for source, target, dial in _stalled(seen)
        if (dial.bulk_bytes or 0) <= _NOTHING_BYTES
    }
    for host, own in by_host(seen, holes):
        yield _narrow(seen, host, own)


def _narrow(seen: Examination, host: HostSeen, holes: Mapping[_Pair, Dial]) -> Finding:
    """The black holes at one host, which is an end of all of them."""
    (source, target), dial = next(iter(holes.items()))
    names = _all_at(host, holes)
    return finding(
        "mtu",
        "error",
        names,
        f"{source} to {target}: small messages pass, and of full-size packets "
        f"{format_bytes(dial.bulk_bytes or 0)} arrived{_more(holes)}; {host.name} sends "
        f"{_mtu(seen, host)} bytes in one packet",
        "something between them carries less, and does not say so: the first gradient hangs",
        *(_smaller_packets(seen, host, seen.host(name)) for name in names[1:]),
        link=(source, target),
    )


def _mtu(seen: Examination, host: HostSeen) -> int:
    interface = str(chosen_interface(seen, host))
    told = at(own_interfaces(host).get(interface), "mtu_bytes")
    return int(told or part(host, "links", interface, "mtu_bytes") or 1500)


def _smaller_packets(seen: Examination, host: HostSeen, peer: HostSeen) -> Fix:
    """Try which packets pass, and send none that are larger: for TCP one end is enough."""
    address = str(chosen_address(seen, peer))
    route = narrow_route(host.name, address)
    line = shell_line(
        "for m in {sizes}; do {ping} -c 1 -W 1 -M do -s $((m - {header})) {address} "
        ">/dev/null 2>&1 && break; done; {route}",
        sizes=joined(" ", (each for each in _SIZES if each < _mtu(seen, host))),
        ping=shell_line("ping -6") if ":" in address else shell_line("ping"),
        header=48 if ":" in address else 28,
        address=address,
        route=route.command,
    )
    return replace(route, command=line)


def narrow_route(host: str, address: str) -> Fix:
    """Send packets of at most $m bytes to an address, by the way that they take already.

    Routes to the very address that were there before come back with the undo.
    """
    # Of several routes to one address the one with the least metric counts; IPv6 has no 0.
    six = ":" in address
    kept = f".yoked-{re.sub(r'[^0-9A-Fa-f.:]', '', address)}"
    words = {
        "ip": shell_line("ip -6") if six else shell_line("ip"),
        "metric": shell_line(" metric 1") if six else shell_line(""),
        "address": address,
        # Routes do not outlive the start of a host, and neither does what is kept there.
        "before": joined("", ("/run/route", kept)),
    }
    line = shell_line(
        "{free} && "
        "{ip} route show exact {address} | sed 's/ linkdown//g; s/ dead//g' > {before} && "
        "way=$({ip} route get {address} | grep -oE '(via( inet6)?|dev) [^ ]+' | tr '\\n' ' ') && "
        "{ip} route replace {address} $way{metric} mtu $m",
        free=is_free(joined("", ("/run/route", kept))),
        **words,
    )
    undo = shell_line(
        "[ ! -e {before} ] || {{ {ip} route del {address}{metric} 2>/dev/null; "
        "while read -r route; do {ip} route replace $route; done < {before}; rm {before}; }}",
        **words,
    )
    return Fix(host, line, root=True, undo=undo, kept=kept)


def _bulk_stalls(seen: Examination) -> Iterator[Finding]:
    for source, target, dial in _stalled(seen):
        if (dial.bulk_bytes or 0) <= _NOTHING_BYTES:
            continue
        yield finding(
            "bulk-stalls",
            "error",
            (target.name, source.name),
            f"{described(dial)}; {format_bytes(dial.bulk_bytes or 0)} arrived before it stopped",
            "an exchange of gradients would stop the same way",
            by_hand(
                target.name,
                "check cable, switch and radio between {source} and {target}",
                source=source.name,
                target=target.name,
            ),
            link=(source.name, target.name),
        )


def _echoes(seen: Examination, source: HostSeen, target: HostSeen) -> tuple[float, ...]:
    dials = seen.between(source.name, target.name, ("ephemeral", "rendezvous", "bulk"))
    return tuple(each for dial in dials for each in dial.echo_s)


def _lossy(seen: Examination) -> Iterator[Finding]:
    found: dict[_Pair, tuple[float, ...]] = {}
    for source, target in _open_pairs(seen):
        echo_s = _echoes(seen, source, target)
        lost = [each for each in echo_s if each > _RETRY_S + median(echo_s)]
        if len(echo_s) >= _FEW_ECHOES and len(lost) >= _FEW_LOST:
            found[source.name, target.name] = echo_s
    for host, own in by_host(seen, found):
        (source_name, target_name), echo_s = next(iter(own.items()))
        lost = [each for each in echo_s if each > _RETRY_S + median(echo_s)]
        yield finding(
            "loss",
            "warning",
            _all_at(host, own),
            f"{source_name} to {target_name}: {len(lost)} of {len(echo_s)} echoes took up to "
            f"{format_duration(max(lost))}, others {format_duration(median(echo_s))}{_more(own)}",
            "packets are lost and sent again, and all ranks wait for each",
            by_hand(host.name, "check the cable or the radio of {host}", host=host.name),
            link=(source_name, target_name),
        )


def _jitter(seen: Examination) -> Iterator[Finding]:
    found: dict[_Pair, list[float]] = {}
    for source, target in _open_pairs(seen):
        echo_s = sorted(_echoes(seen, source, target))
        pair = frozenset((source.name, target.name))
        few = len(echo_s) < _FEW_ECHOES
        if not few and _best_s(seen, pair) >= _CABLE_S and _is_uneven(echo_s):
            found[source.name, target.name] = echo_s
    for host, own in by_host(seen, found):
        (source_name, target_name), echo_s = next(iter(own.items()))
        yield finding(
            "jitter",
            "warning",
            _all_at(host, own),
            f"{source_name} to {target_name}: echoes take {format_duration(echo_s[0])} to "
            f"{format_duration(echo_s[-1])}, half of them more than "
            f"{format_duration(median(echo_s))}{_more(own)}",
            "a step waits for the slowest of its messages",
            by_hand(host.name, "use a cable for {host}, or bring it nearer to the access point",
                    host=host.name),
            link=(source_name, target_name),
        )  # fmt: skip


def _best_s(seen: Examination, pair: frozenset[str]) -> float:
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
        if interface and at(own_interfaces(host).get(interface), "kind") == "wireless":
            yield host, interface


def _power_save(seen: Examination) -> Iterator[Finding]:
    for host, interface in _radio(seen):
        if part(host, "wireless", interface, "power_save") is True:
            yield finding(
                "wifi-power-save",
                "warning",
                host.name,
                f"the radio of {interface} of {host.name} saves power",
                "it sleeps between messages, and answers a tenth of a second late",
                Fix(
                    host.name,
                    shell_line("iw dev {it} set power_save off", it=interface),
                    root=True,
                    undo=shell_line("iw dev {it} set power_save on", it=interface),
                ),
            )


def _weak_signal(seen: Examination) -> Iterator[Finding]:
    for host, interface in _radio(seen):
        signal_dbm = part(host, "wireless", interface, "signal_dbm")
        if signal_dbm is not None and signal_dbm < _WEAK_DBM:
            yield finding(
                "wifi-weak",
                "warning",
                host.name,
                f"{interface} of {host.name} hears its access point at {signal_dbm} dBm",
                "below -75 dBm a radio is slow and loses packets",
                by_hand(
                    host.name,
                    "bring {host} nearer to the access point, or use a cable",
                    host=host.name,
                ),
            )


def _goodputs(seen: Examination, pair: _Pair) -> tuple[float, float, str] | None:
    """(of the way that is used, of the best one, its interface) in bytes a second."""
    measured = [
        each
        for each in seen.dials
        if (each.source, each.target) == pair and reached(each) and each.goodput_bytes_per_s
    ]
    used = [each.goodput_bytes_per_s or 0.0 for each in measured if each.chosen]
    if not used:
        return None
    best = max(measured, key=lambda each: each.goodput_bytes_per_s or 0.0)
    return max(used), best.goodput_bytes_per_s or 0.0, best.interface


def _slow_link(seen: Examination) -> Iterator[Finding]:
    found = {
        pair: rates
        for source, target in _open_pairs(seen)
        for pair in [(source.name, target.name)]
        for rates in [_goodputs(seen, pair)]
        if rates and (rates[0] < _FAR_BELOW * rates[1] or rates[0] < _SLOW_BYTES_PER_S)
    }
    for host, own in by_host(seen, found):
        (source_name, target_name), (rate, best, interface) = next(iter(own.items()))
        faster = rate < _FAR_BELOW * best
        other = f"; {interface} gives {format_bit_per_s(8 * best)}" if faster else ""
        yield finding(
            "slow-link",
            "warning",
            _all_at(host, own),
            f"{source_name} to {target_name} at {chosen_interface(seen, seen.host(target_name))}: "
            f"{format_bit_per_s(8 * rate)}{other}{_more(own)}",
            "every step sends the model's gradients over it; `yoked plan` says what that costs",
            choose_again(seen)
            if faster
            else by_hand(host.name, "use a cable for {host}", host=host.name),
            link=(source_name, target_name),
        )


CHECKS = (
    Check(
        "mtu",
        "Do full-size packets pass on every link?",
        ("dials",),
        "error",
        page(
            symptom="The rendezvous works, small tensors are exchanged, the first large one hangs; "
            "ssh hangs when much is printed.",
            cause="A VPN, a tunnel or a switch without jumbo frames carries less than the MTU of "
            "both ends, and no message says so. Unequal ends alone are settled by TCP.",
            fix="Tries with ping which size passes, and gives the way to the peer that MTU, until "
            "the next start; a router on that way stays in it. One end is enough: the other is "
            "told by TCP. Where a VPN is the cause, set the MTU in its configuration.",
            elsewhere="Kubernetes: an overlay (VXLAN takes 50 bytes) on nodes that think they have "
            "1500. NCCL hangs in its first all-reduce.",
        ),
        _black_hole,
        explains=("world-failed", "loss", "jitter", "slow-link"),
        quick=True,
    ),
    Check(
        "bulk-stalls",
        "Does a long transfer come to its end on every link?",
        ("dials",),
        "error",
        page(
            symptom="Steps begin, then `Connection reset by peer`, or a stall.",
            cause="A bad cable or switch, a radio that gives up, a firewall that ends connections.",
            fix="By hand.",
        ),
        _bulk_stalls,
        explains=("world-failed", "loss", "jitter", "slow-link"),
        quick=True,
    ),
    Check(
        "loss",
        "Do all packets arrive?",
        ("dials",),
        "warning",
        page(
            symptom="Some steps take a fifth of a second longer, without a pattern.",
            cause="Packets are lost: a bad cable, a full queue, a weak radio.",
            fix="By hand.",
            elsewhere="`NCCL WARN ... IB timeout` on a fabric that loses packets.",
        ),
        _lossy,
        explains=("jitter", "slow-link"),
    ),
    Check(
        "wifi-power-save",
        "Is the radio awake?",
        ("health.wireless",),
        "warning",
        page(
            symptom="Steps are jittery: 5 ms, 90 ms, 7 ms, 110 ms.",
            cause="A laptop's radio sleeps between beacons of the access point.",
            fix="Switches power save off, until the next start or the next network.",
        ),
        _power_save,
        explains=("jitter",),
    ),
    Check(
        "wifi-weak",
        "Is the radio near enough?",
        ("health.wireless",),
        "warning",
        page(
            symptom="Slow and uneven steps over WiFi.",
            cause="The signal is weak.",
            fix="By hand: nearer, another channel, or a cable.",
        ),
        _weak_signal,
        explains=("jitter", "loss", "slow-link"),
    ),
    Check(
        "jitter",
        "Do messages take about the same time?",
        ("dials",),
        "warning",
        page(
            symptom="Step times vary by tens of milliseconds, and all ranks wait.",
            cause="Radio, a VPN over the internet, or a host whose cores are all busy.",
            fix="By hand: a cable.",
        ),
        _jitter,
    ),
    Check(
        "slow-link",
        "Is every link as fast as it could be?",
        ("dials",),
        "warning",
        page(
            symptom="Two hosts are slower than one; all-reduce takes most of a step.",
            cause="WiFi, 100 Mbit/s, or a VPN beside a faster cable.",
            fix="Measures all interfaces and takes the fastest; where there is no other, a cable.",
            elsewhere="nccl-tests' busbw far below the wire's rate says the same.",
        ),
        _slow_link,
    ),
)
