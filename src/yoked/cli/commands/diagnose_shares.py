"""Where the ranks' time goes, as `yoked diagnose` shows it of a run that gets on."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.diagnosis.words import waits_for
from yoked.launch.registry import Record
from yoked.table import table
from yoked.units import format_duration, listed

# Of the time, without a core.
_STARVES = 0.3


def shares_payload(record: Record) -> dict[str, Any] | None:
    """As `--json` has them; None: nothing is known yet."""
    shares = record.shares
    if shares is None:
        return None
    step_s, ahead = shares["step_s"], shares["ahead"]
    return {
        "step_s": step_s,
        "gate": shares["gate"],
        "gating": list(shares["gating"]),
        "ahead": ahead,
        "ahead_s": None if ahead is None or step_s is None else round(ahead * step_s, 4),
        "since_s": round(shares["since_s"], 1),
        "why": shares["why"] or None,
        "fix": list(shares["fix"]),
        "ranks": [{**each, "host": record.host_of(each["rank"])} for each in shares["ranks"]],
    }


def busy_lines(busy: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A line for each rank that does something else than train. busy: as Record.busy has them."""
    for each in busy:
        at = f", at {each['at']}" if each["at"] else ""
        where = f"rank {each['rank']} on {each['host'] or '?'}"
        means = waits_for(each.get("waits_in", ""))
        now = f"; now it waits {means}" if means else ""
        yield f"{where} has been {each['doing']} for {format_duration(each['for_s'])}{at}{now}"


def starving(shown: Mapping[str, Any] | None) -> list[Mapping[str, Any]]:
    """Ranks that gate the run and have no core in much of the time."""
    if shown is None or shown["gate"] != "rank":
        return []
    gating = [each for each in shown["ranks"] if each["rank"] in shown["gating"]]
    return [each for each in gating if each["waits_for_core"] >= _STARVES]


def starving_fix(shown: Mapping[str, Any] | None) -> list[str]:
    """Where the hosts found no reason themselves."""
    hosts = dict.fromkeys(each["host"] or "that host" for each in starving(shown))
    return [
        line
        for host in hosts
        for line in (
            f"top    on {host}, and on the machine beneath it: what else runs there?",
            f"cat /sys/fs/cgroup/cpu.stat    on {host}: nr_throttled grows where a limit stops it",
        )
    ]


def shares_lines(shown: Mapping[str, Any] | None) -> Iterator[str]:
    """For people. shown: as `shares_payload` gave it."""
    if shown is None:
        yield "where the ranks' time goes is told after some 20 s of training"
        return
    loads = any(each["loads_data"] >= 0.05 for each in shown["ranks"])
    headings = ("rank", "host", "computes", "waits for a core", "waits for others")
    yield from table(
        (*headings, *(["loads data"] if loads else [])),
        [
            (
                str(each["rank"]),
                each["host"] or "?",
                _percent(each["computes"]),
                _percent(each["waits_for_core"]),
                _percent(each["waits"]),
                *([_percent(each["loads_data"])] if loads else []),
            )
            for each in shown["ranks"]
        ],
    )
    yield _gate(shown)


def _gate(shown: Mapping[str, Any]) -> str:
    """Who sets the pace, in a sentence."""
    since = f", for {format_duration(shown['since_s'])}"
    took = "" if shown["step_s"] is None else f" of {format_duration(shown['step_s'])}"
    hosts = {each["rank"]: each["host"] for each in shown["ranks"]}
    who = listed([f"rank {rank} on {hosts.get(rank)}" for rank in shown["gating"]])
    several = len(shown["gating"]) > 1
    if shown["gate"] == "rank":
        longer = (
            f"{shown['ahead']:.0%} of the time"
            if shown["ahead_s"] is None
            else f"{format_duration(shown['ahead_s'])} in each step{took}"
        )
        gates, are = ("gate", "they are") if several else ("gates", "it is")
        why = f": {shown['why']}" if shown["why"] else ""
        if starved := starving(shown):
            share = _percent(max(each["waits_for_core"] for each in starved))
            could = "they could compute, and have" if several else "it could compute, and has"
            return f"{who} {gates} the run{since}: for {share} of the time {could} no core{why}"
        return f"{who} {gates} the run{since}: {are} busy for {longer} while all others wait{why}"
    if shown["gate"] == "data":
        waits = "load" if several else "loads"
        return f"{who} {waits} data in much of each step{took}, and the others wait{since}"
    if shown["gate"] == "network":
        return f"what the ranks exchange takes most of each step{took}: all of them wait{since}"
    if shown["gate"] == "nobody":
        return f"all ranks are busy for about as long in each step{took}: nobody waits for one rank"
    if any(each["gpu"] for each in shown["ranks"]):
        return (
            "a GPU computes, whose time the kernel does not tell: so nor does it who gates the run"
        )
    if len(shown["ranks"]) > 1:
        return (
            "who gates the run is not known: threads beside the main one compute, or nobody counts"
        )
    return f"a rank alone waits for data and disks{took}"


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"
