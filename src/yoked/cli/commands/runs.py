"""`yoked runs`: what ran and what runs, on all hosts."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from ipaddress import ip_address
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from yoked.agent.jobstatus import training_progress
from yoked.cli.flags import FleetFlag, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.core.schema import decode
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import Hosts, reach_hosts
from yoked.launch.listing import MOST_JSON_BYTES
from yoked.launch.registry import Record, fault_line, newest_starts, without_job
from yoked.runs import list_runs
from yoked.table import table
from yoked.units import format_duration, plural

# Of a command line, in columns.
_WIDEST = 60
_COLUMNS = ("run", "state", "hosts", "ranks", "started", "took", "step", "loss")


def command(
    *,
    fleet: FleetFlag = None,
    runs_dir: Annotated[
        Path, Parameter(help="Folder that holds the runs of this machine alone.")
    ] = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """List the runs of a fleet, the newest first, and those of this machine's folder of runs."""
    output = Output(json_mode=json_output)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        records = hosts.records()
        listeners = _listeners(hosts) if any(record.active for record in records) else {}
        unreachable = hosts.unreachable
    newest = newest_starts(records)
    rows = [_describe(record) for record in newest]
    rows += [_describe_folder(path) for path in without_job(list_runs(runs_dir), newest)]
    rows.sort(key=lambda row: row["started_s"], reverse=True)
    for row in rows:
        row["listeners"] = listeners.get(row["run"], [])
    causes = [f"{row['run']}: {fault_line(fault)}" for row in rows for fault in row["faults"]]
    causes += [f"{row['run']}: {row['restarted']}" for row in rows if row["restarted"]]
    causes += [f"{row['run']}: {row['held_up']}" for row in rows if row["held_up"]]
    causes += [f"{row['run']}: {row['refused']}" for row in rows if row["refused"]]
    output.result(
        {"runs": rows, "unreachable": {name: why.what for name, why in unreachable.items()}},
        verdict=plural(len(rows), "run") if rows else "there is no run yet",
        evidence=[*_lines(rows), *causes, *_listener_lines(rows)],
        next_commands=[] if rows else [f"yoked train{same_fleet(fleet)}"],
    )
    return 1 if unreachable else 0


def _listeners(hosts: Hosts) -> dict[str, list[dict[str, Any]]]:
    """Where programs of runs listen beside the address of the run, by run."""
    found: dict[str, list[dict[str, Any]]] = {}
    for host, runs in hosts.ask("job_listeners").items():
        for run, places in runs.items():
            found.setdefault(run, []).extend({"host": host, **place} for place in places)
    return found


def _listener_lines(rows: list[dict[str, Any]]) -> Iterator[str]:
    for row in rows:
        for each in row["listeners"]:
            anywhere = ip_address(each["address"]).is_unspecified
            where = "all addresses" if anywhere else each["address"]
            yield (
                f"{row['run']}: {each['command'][:_WIDEST]} (process {each['pid']}) listens on "
                f"{each['host']} at port {each['port']} of {where}; whoever reaches that reaches it"
            )


def _describe(record: Record) -> dict[str, Any]:
    progress = record.progress or {}
    return {
        "run": record.name,
        "job": record.run,
        "state": record.state,
        "hosts": [node["host"] for node in record.nodes],
        "ranks": record.ranks,
        "started_s": record.started_s,
        "ended_s": record.ended_s,
        "step": progress.get("step"),
        "loss": progress.get("loss"),
        "faults": record.faults,
        "restarted": record.restarted_line,
        "held_up": record.held_up_line,
        "refused": record.refused,
        "dir": record.run_dir,
        "folders": {host: told["folder"] for host, told in record.hosts.items()},
    }


def _describe_folder(folder: Path) -> dict[str, Any]:
    """A run of which no job is known: it was brought home, or a person's own torchrun trained it.

    How it stands without a result its folder does not tell. The result of one that failed is its
    verdict, without a step.
    """
    result, plan = _read(folder / "result.json"), _read(folder / "run.json")
    hosts, progress = _hosts(result) or _hosts(plan), training_progress(folder) or {}
    ranks = [host.get("ranks", 1) for host in hosts]
    return {
        "run": folder.name,
        "job": None,
        "state": _of(result, "state", str, "finished") if result else "unknown",
        "hosts": list(dict.fromkeys(_of(host, "name", str) for host in hosts)),
        "ranks": sum(each for each in ranks if isinstance(each, int)) or None,
        "started_s": folder.stat().st_mtime,
        "ended_s": None,
        "step": _of(result, "steps", int, progress.get("step")),
        "loss": _of(result, "loss", float, progress.get("loss")),
        "faults": _faults(result),
        "restarted": None,
        "held_up": None,
        "refused": None,
        "dir": str(folder.absolute()),
        "folders": {".": str(folder.absolute())},
    }


@dataclass(frozen=True)
class _Fault:
    """Of a verdict (yoked.agent.verdict)."""

    cause: str
    host: str
    hosts: tuple[str, ...]
    rank: int | None
    evidence: tuple[str, ...]
    fix: tuple[str, ...]
    certainty: str | None = None
    detected_after_s: float | None = None


def _faults(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What a result says that ended the run; empty: it tells of nothing that can be one."""
    try:
        found: tuple[_Fault, ...] = decode(tuple[_Fault, ...], result.get("faults") or ())
    except ValueError:
        return []
    return [asdict(fault) for fault in found if fault.evidence]


def _hosts(content: Mapping[str, Any]) -> list[dict[str, Any]]:
    hosts = content.get("hosts")
    return [host for host in hosts if isinstance(host, dict)] if isinstance(hosts, list) else []


def _of(content: Mapping[str, Any], name: str, kind: type, missing: Any = None) -> Any:
    """A value of a file that somebody may have given us; of another kind it is missing."""
    value = content.get(name)
    return value if isinstance(value, kind) else missing


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = path.lstat()
        # A folder that somebody gave us may have a device in its place.
        if not stat.S_ISREG(found.st_mode) or found.st_size > MOST_JSON_BYTES:
            return {}
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return content if isinstance(content, dict) else {}


def _lines(rows: list[dict[str, Any]]) -> list[str]:
    cells: list[list[str]] = []
    named: set[str] = set()
    for row in rows:
        name, took = row["run"], ""
        if name in named:
            # Of another folder, and older: this is the name by which it is found.
            name = row["job"] or name
        named.add(row["run"])
        if row["ended_s"] is not None:
            took = format_duration(max(0.0, row["ended_s"] - row["started_s"]))
        values = [
            name,
            row["state"],
            ", ".join(map(str, row["hosts"])),
            row["ranks"],
            f"{datetime.fromtimestamp(row['started_s']).astimezone():%Y-%m-%d %H:%M}",
            took,
            row["step"],
            None if row["loss"] is None else f"{row['loss']:.4f}",
        ]
        cells.append(["" if value is None else str(value) for value in values])
    return table(_COLUMNS, cells) if rows else []
