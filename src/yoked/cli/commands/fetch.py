"""`yoked fetch`: a checkpoint of a run, from the host that has it."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.completers import run_names
from yoked.cli.flags import (
    CheckpointFlag,
    FleetHere,
    JsonFlag,
    RunsDir,
    check_checkpoint,
    check_run_name,
    named_checkpoint,
    same_checkpoint,
)
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import connected
from yoked.runs import find_run
from yoked.units import format_bytes
from yoked.workflows.fetching import fetch_run


def command(
    run: Annotated[
        str | None, Parameter(help="Name of the run. Default: the latest.", completer=run_names)
    ] = None,
    /,
    *,
    checkpoint: CheckpointFlag = "latest",
    fleet: FleetHere = None,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Copy a checkpoint of a run from the fleet into the run's folder here.

    What is small of a run (journals, run.json) comes by itself; checkpoints come when asked for.
    """
    output = Output(json_mode=json_output)
    check_checkpoint(checkpoint)
    name = check_run_name(run or find_run(None, runs_dir).name)
    here = runs_dir / name
    found = open_fleet(fleet)
    with closing(StageProgress(output.console)) as progress, connected(found) as clients:
        fetched = fetch_run(
            clients,
            here,
            checkpoint,
            fleet_file=found.path,
            note=output.note,
            progress=lambda host, done, total: progress.update(
                f"from {host}", done, total, "bytes"
            ),
        )
    host, came = fetched.host, fetched.checkpoint_bytes
    output.result(
        {"run": name, "host": host, "dir": str(here), "bytes": came},
        verdict=f"fetched {named_checkpoint(checkpoint)} of {name} from {host}: "
        f"{format_bytes(came)}",
        next_commands=[f"yoked sample {name}{same_checkpoint(checkpoint)}"],
    )
    return 0
