"""What a shell proposes for a word that is one of many, or that only this machine knows.

Called while somebody holds the tab key: files are read, and no host is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion import CompletionContext


def run_names(context: CompletionContext) -> list[str]:
    """Runs of the folder of runs and jobs of this machine, the one that was last alive first."""
    from yoked.agent.jobfolder import jobs_root
    from yoked.core.names import RUN_NAME
    from yoked.runs import list_runs

    runs_dir = _typed(context, "runs_dir")
    names = [run.name for run in list_runs(Path(runs_dir or "runs"))]
    jobs = jobs_root()
    if jobs.is_dir():
        names += sorted(job.name for job in jobs.iterdir() if job.is_dir())
    # Others are no names for a command line, nor for a terminal.
    return [name for name in dict.fromkeys(names) if RUN_NAME.fullmatch(name)]


def host_names(context: CompletionContext) -> Mapping[str, str]:
    """Hosts of the fleet's file, with what it says of each."""
    from yoked.fleet.file import find_fleet, read_fleet

    fleet = _typed(context, "fleet")
    path = find_fleet(None if fleet is None else Path(fleet))
    if path is None:
        return {}
    return {host.name: host.interface or "" for host in read_fleet(path).hosts}


def checkpoints(context: CompletionContext) -> Mapping[str, str]:
    """The two that every run may have."""
    del context
    return {"latest": "saved last", "best": "of the best validation"}


def checks(context: CompletionContext) -> Mapping[str, str]:
    """Checks of the doctor, with what each asks."""
    from yoked.doctor.catalog import CHECKS

    del context
    return {check.code: check.question for check in CHECKS}


def simulated_fleets(context: CompletionContext) -> Mapping[str, str]:
    """Fleets that come with yoked."""
    from yoked.plan.simulated_fleet import presets

    del context
    return presets()


def topologies(context: CompletionContext) -> Mapping[str, str]:
    """Topologies of labs that come with yoked."""
    from yoked.lab.topology_load import shipped

    del context
    return shipped()


def lab_hosts(context: CompletionContext) -> list[str]:
    """Hosts of the labs that are up."""
    from yoked.lab.lab import Lab

    named = _typed(context, "lab")
    return [host for lab in Lab.all() if named in (None, lab.name) for host in lab.hosts]


def fault_kinds(context: CompletionContext) -> Mapping[str, str]:
    """What a lab can have go wrong."""
    from yoked.lab.faults import FAULTS

    del context
    return {kind.name: kind.summary for kind in FAULTS}


def _typed(context: CompletionContext, name: str) -> str | None:
    """What was typed for another flag of the command line; None: nothing, or it has no such."""
    found = context.get(name)
    return None if found is None else found.raw
