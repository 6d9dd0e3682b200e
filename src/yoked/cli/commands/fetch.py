"""`yoked fetch`: a checkpoint of a run, from the host that has it."""

from __future__ import annotations

from collections.abc import Container
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
    same_checkpoint,
)
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.core.faults import fault
from yoked.errors import CheckpointError, UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import connected
from yoked.launch.listing import TOKENIZER, TOKENIZER_FILE
from yoked.launch.mirror import find_checkpoint, mirror_run
from yoked.runs import find_run, list_runs
from yoked.units import format_bytes


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
    name = run or find_run(None, runs_dir).name
    here = runs_dir / name
    progress = StageProgress(output.console)
    with connected(open_fleet(fleet)) as clients:
        found = {}
        for host, client in clients.items():
            folder = f"{client.call('facts')['state']}/runs/{name}"
            if client.call("file_list", folder=folder):
                found[host] = (client, folder)
        if not found and here in list_runs(runs_dir):
            raise UsageError(
                f"run {name} is this machine's own: it is in {here}", fix=f"yoked sample {name}"
            )
        if not found:
            raise UsageError(
                f"no host of the fleet has a run {name}", fix="yoked runs    lists what there is"
            )
        host, (client, folder) = next(iter(found.items()))
        files = find_checkpoint(client, folder, checkpoint)
        if not files and checkpoint != "latest" and find_checkpoint(client, folder):
            why = " that was evaluated" if checkpoint == "best" else f" of step {checkpoint}"
            raise CheckpointError(
                f"{host} has no checkpoint of {name}{why}",
                fix=f"yoked fetch {name}    takes the latest",
            )
        if not files:
            raise fault("no-checkpoint", name=name, host=host)
        mirror_run(client, folder, here, note=output.note)
        came = mirror_run(
            client,
            folder,
            here,
            wanted=files.__contains__,
            digests=files,
            progress=lambda done, total: progress.update(f"from {host}", done, total, "bytes"),
        )
        progress.close()
    _make_tokenizer(here, files, output)
    output.result(
        {"run": name, "host": host, "dir": str(here), "bytes": came},
        verdict=f"fetched {_named(checkpoint)} of {name} from {host}: {format_bytes(came)}",
        next_commands=[f"yoked sample {name}{same_checkpoint(checkpoint)}"],
    )
    return 0


def _named(checkpoint: str) -> str:
    if checkpoint in ("latest", "best"):
        return f"the {checkpoint} checkpoint"
    return f"the checkpoint of step {checkpoint}"


def _make_tokenizer(here: Path, came: Container[str], output: Output) -> None:
    """Make nanochat's forms of a fetched run's tokenizer from ours; a host's pickle never comes.

    came: what the checkpoint consists of. Raises DataError for a tokenizer that is damaged.
    """
    if TOKENIZER_FILE not in came:
        output.note(f"no tokenizer came: the host has no {TOKENIZER_FILE}")
        return
    try:
        from yoked.train.nanochat_format import export_tokenizer
    except ImportError as problem:
        # What trains need not be on the controller; yoked itself reads the JSON.
        output.note(f"tokenizer.pkl, which only nanochat reads, was not made: {problem}")
        return
    export_tokenizer(here / TOKENIZER, here / TOKENIZER)
