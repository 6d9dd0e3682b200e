"""What was told of a run while it went on, in one list: its own events, the diagnosis, the doctor.

Each has a time, a kind and a sentence; `step` where it is known after how many steps it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yoked.report.run_record import RunRecord
from yoked.shape import amount, misfit, quantity
from yoked.units import plural

_EVENT = {"time_s": quantity, "event": str, "attempt?": amount, "step?": amount}
_ROWS = [amount]
# What an event is called, and how much it asks for a look.
_KINDS = {
    "start": "start",
    "shares": "rows",
    "save_failed": "not saved",
    "lines_lost": "lines lost",
}
_LEVELS = {"save_failed": "bad", "lines_lost": "warning"}


def told(record: RunRecord) -> list[dict[str, Any]]:
    """All that was told, the oldest first; lines of an unknown kind are passed over."""
    found = [
        {
            "time_s": event["time_s"],
            "step": event.get("step"),
            "attempt": event.get("attempt"),
            "kind": _KINDS[event["event"]],
            "level": _LEVELS.get(event["event"], "plain"),
            "text": text,
        }
        for event in record.events
        if misfit(event, _EVENT) is None and (text := _sentence(record, event)) is not None
    ]
    return sorted(found, key=lambda each: each["time_s"])


def _sentence(record: RunRecord, event: Mapping[str, Any]) -> str | None:
    """None: of a kind that is not known here, or not in the form that it has."""
    kind = event["event"]
    if kind == "start" and misfit(event, {"ranks": amount, "rows": _ROWS}) is None:
        begins = f"went on after {event['step']:,} steps" if event.get("step") else "started"
        ranks, rows = plural(event["ranks"], "rank"), _rows(event["rows"])
        return f"{begins} on {ranks}, with {rows} rows of a step"
    if kind == "shares" and misfit(event, {"rows": _ROWS, "before": _ROWS, "why": str}) is None:
        return f"{_moved(record, event)}: {_rows(event['before'])} -> {_rows(event['rows'])} rows"
    if kind == "save_failed" and isinstance(event.get("what"), str):
        return f"a checkpoint could not be saved: {event['what']}"
    if kind == "lines_lost" and amount(event.get("lines")):
        return f"{plural(event['lines'], 'line')} of the journals found no room and are lost"
    return None


def _moved(record: RunRecord, event: Mapping[str, Any]) -> str:
    if amount(event.get("rank")):
        host = record.facts.host_of(event["rank"])
        return f"{host or 'rank ' + str(event['rank'])} got {event['why']}"
    return "rows were moved by the steps measured"


def _rows(rows: list[int]) -> str:
    return ":".join(map(str, rows))
