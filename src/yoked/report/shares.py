"""Where the ranks' time went, as their hosts saw it: for programs that tell of no steps.

Source: the lines "shares" of diagnosis.jsonl, each over the last 20 s (diagnosis/gate.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from statistics import fmean
from typing import Any

from yoked.diagnosis.cause import SLOW
from yoked.report.run_record import RunRecord
from yoked.shape import amount, misfit, quantity

# What a rank does at a time, in the order in which it is drawn.
MEANT = {"computes": "computing", "waits_for_core": "waiting for a core", "waits": "waiting"}
_SPAN_S = 20.0
_CAUSE = {"time_s": quantity, "cause": str, "since_s?": quantity, "lasted_s?": quantity}
_BEGIN = {"time_s": quantity, "event": lambda event: event == "begin"}
_HOLDS = {"event": lambda event: event == "cause", "hosts": [str], "what": str}
_ENDS = {"time_s": quantity, "event": lambda event: event in ("begin", "end")}
_SHARES = {
    "time_s": quantity,
    "ranks": [
        {
            "rank": amount,
            "computes": (quantity, None),
            "waits_for_core": quantity,
            "waits": (quantity, None),
        }
    ],
}


def shares_of_time(record: RunRecord) -> dict[str, Any] | None:
    """By column: time_s, seconds since the diagnosis began; of each rank the parts of
    MEANT, None where they are not known. None: nothing is on record.
    """
    lines = list(_lines(record))
    if not lines:
        return None
    begins = (line for line in record.timeline if misfit(line, _BEGIN) is None)
    begin_s = next(begins, lines[0])["time_s"]
    ranks = sorted({each["rank"] for line in lines for each in line["ranks"]})
    by_rank = [{each["rank"]: each for each in line["ranks"]} for line in lines]
    return {
        "time_s": [line["time_s"] - begin_s for line in lines],
        "ranks": [
            {
                "rank": rank,
                "host": record.host_of(rank),
                **{name: [told.get(rank, {}).get(name) for told in by_rank] for name in MEANT},
            }
            for rank in ranks
        ],
    }


def mean_shares(shares: Mapping[str, Any]) -> dict[str, float]:
    """The mean part of each of MEANT, of all ranks and times that know it. shares: as above."""
    columns = {name: [part for rank in shares["ranks"] for part in rank[name]] for name in MEANT}
    known = {name: [part for part in parts if part is not None] for name, parts in columns.items()}
    return {name: fmean(parts) for name, parts in known.items() if parts}


def _lines(record: RunRecord) -> Iterator[Mapping[str, Any]]:
    """Those in whose seconds no cause held that stops a rank: of its time nothing is known then."""
    stops = list(_stops(record))
    for line in record.timeline:
        if line.get("event") == "shares" and misfit(line, _SHARES) is None:
            end_s = line["time_s"]
            if not any(first < end_s and end_s - _SPAN_S < last for first, last in stops):
                yield line


def _stops(record: RunRecord) -> Iterator[tuple[float, float]]:
    """Since when, and until when, each cause held that is no mere slowness."""
    held: dict[tuple[str, str, str], float] = {}
    for line in record.timeline:
        if misfit(line, _CAUSE) is None and line["cause"] not in SLOW:
            who = (line["cause"], str(line.get("hosts")), str(line.get("rank")))
            lasted_s = line.get("lasted_s", line.get("since_s", 0.0))
            yield line["time_s"] - lasted_s, line["time_s"]
            if line.get("event") == "over":
                held.pop(who, None)
            elif misfit(line, _HOLDS) is None:
                held.setdefault(who, line["time_s"] - lasted_s)
        elif misfit(line, _ENDS) is None:
            # A cause that held until the end of an attempt has no `over`.
            yield from ((since_s, line["time_s"]) for since_s in held.values())
            held.clear()
    yield from ((since_s, math.inf) for since_s in held.values())
