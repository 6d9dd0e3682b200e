"""Queues and filters that a person set at a network card, which shape or drop packets.

The kernel's own queues are known without a program; only where another one is there is tc(8) asked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from yoked.agent import netlink
from yoked.agent.ask import run_quiet
from yoked.agent.firewall import tool

# What systems choose by themselves, with no limit but that of memory.
_USUAL = frozenset({"noqueue", "noop", "mq", "pfifo_fast", "fq_codel", "fq"})
_OF_FILTERS = ("ingress", "clsact")
_CLASSES = frozenset({"htb", "hfsc", "cbq", "drr", "qfq", "ets", "prio"})
_QUEUE = re.compile(r"qdisc (\S+) \S+ dev (\S+) (?:root |parent \S+ )?(?:refcnt \d+ )?(.*)")
# Of a filter only what it does with packets.
_DOES = re.compile(r"(action order \d+: .*|police .*|.*\bbpf\b.*|.*\bdirect-action\b.*)")
_MOST_LINES, _LONGEST = 20, 200


def unusual_queues() -> dict[str, list[str]]:
    """{interface: lines of tc's} where a person chose what becomes of packets there.

    Each line begins with its side: `out: tbf rate 3Mbit burst 8Kb lat 200ms`, or `in: action order
    1: mirred (Egress Redirect to device ifb1) stolen`. Without tc the kind is all that is told.
    """
    try:
        kinds = netlink.queues() if netlink.can_ask() else {}
    except OSError:
        # A kernel without queues of its own choice.
        return {}
    chosen = {name: own - _USUAL for name, own in kinds.items() if own - _USUAL}
    tc = tool("tc") if chosen else None
    if tc is None:
        return {
            name: [f"{'in' if kind in _OF_FILTERS else 'out'}: {kind}" for kind in sorted(own)]
            for name, own in chosen.items()
        }
    queues = run_quiet([tc, "qdisc", "show"])
    return {
        name: [line[:_LONGEST] for line in _lines(tc, name, own, queues)][:_MOST_LINES]
        for name, own in chosen.items()
    }


def _lines(tc: str, name: str, kinds: set[str], queues: str) -> Iterator[str]:
    yield from queue_lines(queues).get(name, ())
    filters: list[tuple[str, list[str]]] = []
    if kinds & _CLASSES:
        filters.append(("out", []))
        for line in run_quiet([tc, "class", "show", "dev", name]).splitlines():
            yield f"out: {line.strip()}"
    if kinds & {*_OF_FILTERS}:
        filters.append(("in", ["ingress"]))
    if "clsact" in kinds:
        filters.append(("out", ["egress"]))
    for side, where in filters:
        for line in filter_lines(run_quiet([tc, "filter", "show", "dev", name, *where])):
            yield f"{side}: {line}"


def queue_lines(said: str) -> Mapping[str, list[str]]:
    """{interface: its lines}, of what `tc qdisc show` says, but those that systems choose."""
    found: dict[str, list[str]] = {}
    for kind, name, rest in _QUEUE.findall(said):
        if kind not in _USUAL and kind not in _OF_FILTERS:
            found.setdefault(name, []).append(f"out: {kind} {rest.strip()}")
    return found


def filter_lines(said: str) -> list[str]:
    """What each filter does, of what `tc filter show` says; filters that do the same once."""
    lines = (" ".join(line.split()) for line in said.splitlines())
    return list(dict.fromkeys(found[1] for line in lines if (found := _DOES.search(line))))
