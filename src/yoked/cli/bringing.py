"""Bring what a run's programs wrote home: ask where it is much, copy, say what stayed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.errors import UsageError, YokedError
from yoked.fleet.model import HERE
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reconnecting
from yoked.launch.outputs import Outputs, find_outputs
from yoked.launch.runrecord import bring_program, bring_said

if TYPE_CHECKING:
    from yoked.fleet.model import Fleet
    from yoked.launch.attach import JobEnd
    from yoked.launch.registry import Record
    from yoked.remote.client import AgentClient
    from yoked.workflows.fleet_job import FleetJob


def bring_outputs(
    clients: Mapping[str, AgentClient],
    record: Record,
    here: Path,
    patterns: Sequence[str],
    output: Output,
    *,
    again: str,
    yes: bool = False,
) -> Outputs:
    """Copy what is new of the outputs of a run to its folder here.

    again: the command that does the same. Raises UsageError where it is too much and nobody says
    yes, and HostError.
    """
    found = find_outputs(clients, record, here, patterns)
    if found.is_large and not (yes or output.agrees(f"{found.question()}. Bring them?")):
        fix = (f"{again} --yes    brings it", "--outputs PATTERN    names less of it")
        raise UsageError(found.question(), fix=fix)
    progress = StageProgress(output.console)
    try:
        if found.new_files:
            found.bring(progress.comes)
    finally:
        progress.close()
    for line in found.refused():
        output.note(line)
    return found


def bring_record(
    end: JobEnd,
    handle: RunHandle,
    fleet_file: Path,
    note: Callable[[str], None],
    result: Mapping[str, Any] | None = None,
) -> None:
    """Bring what is small of a run that was looked at to its end into its folder here.

    fleet_file: of its hosts. result: what is printed of a program; None: what its hosts tell. How
    the run went is what is told: a reason that it did not come is a note beside it.
    """
    record = end.record
    if end.detached or record.active:
        return
    here = Path("runs") / record.name
    try:
        if record.trains is None:
            bring_program(record, here, handle.reach, note, result or end.to_dict())
        elif record.run_dir is None:
            _bring_training(end, handle, here, fleet_file, note)
        elif set(record.hosts) == {HERE} and Path(record.run_dir).is_dir():
            # No other machine knows a folder of this one.
            bring_said(record, Path(record.run_dir), handle.reach, note)
    except (YokedError, OSError) as problem:
        why = problem.what if isinstance(problem, YokedError) else problem
        note(f"the record of run {record.name} is still on its hosts: {why}")


def _bring_training(
    end: JobEnd, handle: RunHandle, here: Path, fleet_file: Path, note: Callable[[str], None]
) -> None:
    """Of a training whose folder is on the host of its rank 0."""
    from yoked.workflows.fetching import bring_ended

    host = end.record.host_of(0)
    if host is None:
        if here.is_dir():
            bring_said(end.record, here, handle.reach, note)
        return
    there = end.record.training_folder(host)
    bring_ended(handle, host, there, here, end, fleet_file=fleet_file, note=note)


def bring_after(job: FleetJob, fleet: Fleet, output: Output, flag: str) -> Outputs | None:
    """Bring the outputs of a run that was followed to its end; None: they are still there.

    flag: what a command line about the same hosts ends with. How the run went is what is told: a
    reason that they did not come is a note beside it.
    """
    end = job.end
    if end is None or end.detached or end.record.active or not end.record.outputs:
        return None
    handle = RunHandle.of(job.started, reconnecting(fleet))
    try:
        with ExitStack() as stack:
            clients = {host: stack.enter_context(handle.reach(host)) for host in end.record.hosts}
            return bring_outputs(
                clients,
                end.record,
                Path("runs") / end.run,
                end.record.outputs,
                output,
                again=f"yoked fetch {end.run}{flag}",
            )
    except KeyboardInterrupt:
        output.note("interrupted: what came of the outputs stays, and `yoked fetch` goes on")
        return None
    except (YokedError, OSError) as problem:
        why = problem.what if isinstance(problem, YokedError) else problem
        output.note(f"the outputs are still on the hosts: {why}")
        return None
