"""What was told of a run while it went on: its own events, the diagnosis, the doctor."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.diagnosis.words import place
from yoked.report.run_record import RunRecord
from yoked.shape import amount, misfit, quantity
from yoked.units import format_duration, listed, plural

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
_WHO = {"time_s": quantity, "event": str, "cause": str, "hosts": [str]}
_SAID = {**_WHO, "what": str, "fix": [str], "certainty": (str, None)}
_OVER = {**_WHO, "lasted_s": quantity}
_END = {"time_s": quantity, "finished": bool, "failure": ({"what": str}, None)}
_DOCTOR = {
    "time_s": quantity,
    "asked": bool,
    "findings": [
        {"check": str, "severity": str, "hosts": [str], "saw": str, "fix": [{"command": str}]}
    ],
}


def told(record: RunRecord) -> list[dict[str, Any]]:
    """All that was told, the oldest first; lines of an unknown kind are passed over.

    Each has time_s, kind, level (plain, good, warning or bad), text, fix, and step and attempt
    where they are known.
    """
    found = [*_events(record), *_diagnosed(record), *_doctor(record)]
    return sorted(found, key=lambda each: each["time_s"])


def _entry(
    time_s: float,
    kind: str,
    level: str,
    text: str,
    *,
    fix: Sequence[str] = (),
    step: int | None = None,
    attempt: int | None = None,
) -> dict[str, Any]:
    return {
        "time_s": time_s,
        "step": step,
        "attempt": attempt,
        "kind": kind,
        "level": level,
        "text": text,
        "fix": list(fix),
    }


# --- the run's own events


def _events(record: RunRecord) -> Iterator[dict[str, Any]]:
    for event in record.events:
        if misfit(event, _EVENT) is None and (text := _sentence(record, event)) is not None:
            kind = event["event"]
            yield _entry(
                event["time_s"],
                _KINDS[kind],
                _LEVELS.get(kind, "plain"),
                text,
                step=event.get("step"),
                attempt=event.get("attempt"),
            )


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
        host = record.host_of(event["rank"])
        return f"{host or 'rank ' + str(event['rank'])} got {event['why']}"
    return "rows were moved by the steps measured"


def _rows(rows: list[int]) -> str:
    return ":".join(map(str, rows))


# --- the diagnosis


def _diagnosed(record: RunRecord) -> Iterator[dict[str, Any]]:
    """One entry for each cause, as it was told last; it becomes sure after it was likely."""
    repeated = _told_again(record.timeline)
    for at, line in enumerate(record.timeline):
        kind = line.get("event")
        if kind in ("cause", "warning") and misfit(line, _SAID) is None:
            if at not in repeated:
                level = "bad" if kind == "cause" and line["certainty"] == "sure" else "warning"
                text = f"{_place(line)}: {line['what']} ({line['cause']})"
                yield _entry(line["time_s"], kind, level, text, fix=line["fix"])
        elif kind == "over" and misfit(line, _OVER) is None:
            lasted = format_duration(line["lasted_s"])
            text = f"{_place(line)}: {line['cause']} is over, after {lasted}"
            yield _entry(line["time_s"], "over", "good", text)
        elif kind == "end" and misfit(line, _END) is None:
            failure = line["failure"]
            if failure is not None:
                yield _entry(line["time_s"], "end", "bad", _failed(failure))
            elif line["finished"]:
                yield _entry(line["time_s"], "end", "good", "all ranks ended well")


def _place(said: Mapping[str, Any]) -> str:
    """The hosts of a line, with its rank where it is about one."""
    return place(said["hosts"], said["rank"] if amount(said.get("rank")) else None)


def _failed(failure: Mapping[str, Any]) -> str:
    """The cause that ended an attempt, with its place where the line tells it."""
    known = misfit(failure, {"hosts": [str]}) is None and failure["hosts"]
    return f"{_place(failure)}: {failure['what']}" if known else str(failure["what"])


def _told_again(lines: Sequence[Mapping[str, Any]]) -> set[int]:
    """The places of lines that say what is told anew before it is over."""
    found = set[int]()
    later: dict[object, str] = {}
    for at in reversed(range(len(lines))):
        line = lines[at]
        if misfit(line, _WHO) is None:
            who = (line["cause"], tuple(line["hosts"]), str(line.get("rank")))
            if later.get(who) == line["event"]:
                found.add(at)
            later[who] = line["event"]
    return found


# --- the doctor


def _doctor(record: RunRecord) -> Iterator[dict[str, Any]]:
    said = record.doctor
    if said is None or misfit(said, {"time_s": quantity, "asked": bool}) is not None:
        return
    if not said["asked"]:
        why = said.get("why")
        text = f"the doctor was not asked: {why}" if isinstance(why, str) else "it was not asked"
        yield _entry(said["time_s"], "doctor", "plain", text)
    elif misfit(said, _DOCTOR) is None:
        for each in said["findings"]:
            level = "bad" if each["severity"] == "error" else "warning"
            fix = [line["command"] for line in each["fix"]]
            where = f"{listed(each['hosts'])}: " if each["hosts"] else ""
            text = f"{where}{each['saw']} ({each['check']})"
            yield _entry(said["time_s"], "doctor", level, text, fix=fix)
        if not said["findings"]:
            yield _entry(said["time_s"], "doctor", "good", "nothing was in the way")
