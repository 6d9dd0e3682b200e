"""The links of an examination: a matrix of hosts by hosts, a word for each that does not work."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from yoked.records.examination import Dial, Examination, Purpose
from yoked.table import table
from yoked.units import format_bit_per_s, format_duration, listed

_WORDS = {
    "ETIMEDOUT": "no answer",
    "ECONNREFUSED": "refused",
    "EHOSTUNREACH": "no host",
    "ENETUNREACH": "no route",
    "EACCES": "forbidden",
    "EPERM": "forbidden",
    "ECONNRESET": "cut off",
    "EPIPE": "cut off",
    "EADDRNOTAVAIL": "no port",
    "EAGAIN": "no port",
}
_MEANINGS = {
    "no answer": "packets vanish, as behind a firewall that drops them",
    "refused": "somebody says no: the host that is dialled, or a rule of that which dials",
    "no host": "a router or firewall on the way says that it cannot be reached",
    "no route": "the host that dials knows no way to that address",
    "no port": "the host that dials has no port left to do it from",
    "forbidden": "the host that dials has a rule of its own against it",
    "cut off": "it was accepted, and then ended",
    "other host": "another machine has that address",
    "stops": "small packets arrive, a burst of megabytes does not come to its end",
    "large lost": "small packets arrive, large ones do not",
    "not dialled": "one of the two has no agent",
}
_LINK: tuple[Purpose, ...] = ("ephemeral", "rendezvous", "bulk")
# What Ethernet carries; anything else is worth a word.
_USUAL_MTU = 1500


def links_lines(examination: Examination, width: int) -> list[str]:
    """The matrix, and what its words mean. width: columns that there are; a row dials a column."""
    names = [host.name for host in examination.hosts]
    if len(names) < 2 or not examination.dials:
        return []
    cells = {pair: _cell(examination, *pair) for pair in _pairs(examination)}
    rows = [[source, *(cells.get((source, target), "-") for target in names)] for source in names]
    lines = table(["links from, to", *names], rows)
    if max(map(len, lines)) > width:
        # Too many hosts for a matrix here: a line for each link.
        lines = table(["from", "to", "link"], [[*pair, cell] for pair, cell in cells.items()])
    if over := sorted(_tunnels(examination)):
        told = f"over {listed(over)}, as the fleet's file has it: a VPN encrypts on one core"
        lines += textwrap.wrap(told, width, subsequent_indent="  ")
    used = [word for word in _MEANINGS if any(word in cell for cell in cells.values())]
    for word in used:
        lines += textwrap.wrap(f"{word}: {_MEANINGS[word]}", width, subsequent_indent="  ")
    return lines


def _tunnels(examination: Examination) -> set[str]:
    """The interfaces of VPNs at which hosts are dialled."""
    return {
        dial.interface
        for dial in examination.dials
        for each in examination.host(dial.target).interfaces
        if dial.chosen and each["name"] == dial.interface and each["kind"] == "vpn"
    }


def _cell(examination: Examination, source: str, target: str) -> str:
    dials = examination.between(source, target, _LINK)
    if not dials:
        return "not dialled"
    if failed := [dial for dial in dials if not dial.ok]:
        return ", ".join(dict.fromkeys(_failure(dial, dials) for dial in failed))
    if not _came(examination, source, target, "burst"):
        return "stops"
    if not _came(examination, source, target, "rest"):
        return "cut off"
    return " ".join(_figures(dials))


def _came(examination: Examination, source: str, target: str, purpose: Purpose) -> bool:
    return all(dial.ok for dial in examination.between(source, target, (purpose,)))


def _failure(failed: Dial, dials: Sequence[Dial]) -> str:
    """A word for a dial, and the port where others of the link pass."""
    if failed.answered_by not in (None, failed.target):
        return "other host"
    connects = all(each.ok for each in dials if each.purpose == "ephemeral")
    if failed.purpose == "bulk" and len(dials) > 1 and connects:
        return "large lost"
    word = _WORDS.get(failed.error or "", (failed.error or "failed").lower())
    if any(each.ok for each in dials):
        where = f"port {failed.port}" if failed.purpose == "rendezvous" else "high ports"
        return f"{word} at {where}"
    return word


def _figures(dials: Sequence[Dial]) -> Iterator[str]:
    times_s = [each.rtt_s for each in dials if each.rtt_s is not None]
    yield format_duration(min(times_s)) if times_s else "ok"
    rates = [each.goodput_bytes_per_s for each in dials if each.goodput_bytes_per_s]
    if rates:
        yield format_bit_per_s(8 * max(rates))
    mtus = [each.path_mtu_bytes for each in dials if each.path_mtu_bytes]
    if mtus and min(mtus) != _USUAL_MTU:
        yield f"MTU {min(mtus)}"


def link_payload(examination: Examination) -> list[dict[str, Any]]:
    """The links for programs."""
    found = []
    for source, target in _pairs(examination):
        dials = examination.between(source, target, _LINK)
        if not dials:
            continue
        later: tuple[Purpose, ...] = ("burst", "rest")
        ok = all(each.ok for each in (*dials, *examination.between(source, target, later)))
        goodputs = (each.goodput_bytes_per_s for each in dials)
        found.append(
            {
                "from": source,
                "to": target,
                "ok": ok,
                "interface": dials[0].interface,
                "address": dials[0].address,
                "problem": None if ok else _cell(examination, source, target),
                "rtt_s": _least([each.rtt_s for each in dials]),
                "path_mtu_bytes": _least([each.path_mtu_bytes for each in dials]),
                "goodput_bytes_per_s": next(filter(None, goodputs), None),
            }
        )
    return found


def _pairs(examination: Examination) -> Iterator[tuple[str, str]]:
    return itertools.permutations((host.name for host in examination.hosts), 2)


def _least(values: Sequence[float | None]) -> float | None:
    return min((value for value in values if value is not None), default=None)
