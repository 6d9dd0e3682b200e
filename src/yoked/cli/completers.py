"""What a shell proposes for a word that only this machine knows: runs, hosts, checkpoints.

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


def _typed(context: CompletionContext, name: str) -> str | None:
    """What was typed for another flag of the command line; None: nothing, or it has no such."""
    found = context.get(name)
    return None if found is None else found.raw
