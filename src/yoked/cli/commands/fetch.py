"""`yoked fetch`: what a run left on its hosts: a checkpoint, or what a program wrote."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.bringing import bring_outputs
from yoked.cli.completers import run_names
from yoked.cli.flags import (
    CheckpointFlag,
    FleetHere,
    JsonFlag,
    RunsDir,
    check_checkpoint,
    check_patterns,
    check_run_name,
    named_checkpoint,
    same_checkpoint,
    same_fleet,
)
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.attach import JobEnd
from yoked.launch.hosts import Hosts, reach_hosts, require_all
from yoked.launch.outputs import FOLDER as OUTPUTS
from yoked.launch.registry import Record, pick
from yoked.launch.runrecord import Reach, bring_program, bring_said
from yoked.runs import find_run, same_runs
from yoked.units import format_bytes, listed, plural
from yoked.workflows.fetching import fetch_run


def command(
    run: Annotated[
        str | None, Parameter(help="Name of the run. Default: the latest.", completer=run_names)
    ] = None,
    /,
    *,
    checkpoint: CheckpointFlag = "latest",
    outputs: Annotated[
        tuple[str, ...],
        Parameter(
            help="PATTERN of files that a program of `yoked run` wrote, such as 'out/*.pt'; may be "
            "repeated. Default: what `yoked run --outputs` named.",
            negative="",
        ),
    ] = (),
    yes: Annotated[
        bool, Parameter(help="Do not ask, however much would come.", negative="")
    ] = False,
    fleet: FleetHere = None,
    runs_dir: RunsDir = Path("runs"),
    json_output: JsonFlag = False,
) -> int:
    """Copy a checkpoint of a training, or what a program of `yoked run` wrote, into the run's
    folder here.

    What is small of a run (journals, run.json, what was said of it) comes by itself; checkpoints
    come when asked for. Of a program, files come from all its hosts, each host's to outputs/HOST.
    """
    output = Output(json_mode=json_output)
    check_checkpoint(checkpoint)
    check_patterns("--outputs", outputs)
    named = None if run is None else check_run_name(run)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        record = _record(hosts, named)
        if record is not None and record.trains is None:
            return _fetch_outputs(hosts, record, outputs, runs_dir, output, fleet, yes=yes)
        newest = None if record is None or record.run_dir else record.name
        name = named or newest or check_run_name(find_run(None, runs_dir).name)
        if outputs:
            raise UsageError(
                f"{name} is no run of `yoked run` on these hosts: it has no outputs",
                fix=("yoked runs    lists what there is", f"yoked fetch {name}"),
            )
        status = _fetch_checkpoint(hosts, name, checkpoint, runs_dir, output)
        if record is not None:
            bring_said(record, runs_dir / name, _reach(hosts), output.note)
        return status


def _record(hosts: Hosts, run: str | None) -> Record | None:
    """The run that is meant; None: hosts know no such job, though they may have its folder."""
    records = hosts.records()
    if run is not None:
        records = [record for record in records if run in (record.name, record.run)]
    return pick(records, run) if records else None


def _reach(hosts: Hosts) -> Reach:
    """The agents that are there."""
    return lambda host: nullcontext(hosts.clients[host])


def _fetch_outputs(
    hosts: Hosts,
    record: Record,
    patterns: Sequence[str],
    runs_dir: Path,
    output: Output,
    fleet: Path | None,
    *,
    yes: bool,
) -> int:
    name = record.name
    named = "".join(f" --outputs {shlex.quote(each)}" for each in patterns)
    patterns, here = patterns or record.outputs, runs_dir / name
    result = None if record.active else JobEnd(record).to_dict()
    if not patterns:
        bring_program(record, here, _reach(hosts), output.note, result)
        output.note(f"{here} has what was said of run {name}")
        raise UsageError(
            f"run {name} was started without --outputs: which files are they?",
            fix=f"yoked fetch {name} --outputs 'out/*.pt'    a pattern, as .gitignore has them",
        )
    if record.active:
        output.note(f"run {name} goes on: a file may come half written, and anew the next time")
    again = f"yoked fetch {shlex.quote(name)}{named}{same_runs(runs_dir)}{same_fleet(fleet)}"
    clients = {host: hosts.clients[host] for host in record.hosts}
    found = bring_outputs(clients, record, here, patterns, output, again=again, yes=yes)
    bring_program(record, here, _reach(hosts), output.note, result)
    # By number: another controller may know the hosts by other names.
    told = {each["node_rank"] for each in record.hosts.values()}
    silent = [node["host"] for number, node in enumerate(record.nodes) if number not in told]
    payload = {"run": name, **found.to_dict()}
    count = plural(sum(len(each["files"]) for each in payload["hosts"]), "file")
    new = format_bytes(payload["bytes"])
    verdict = f"outputs of {name}: {count} in {found.here / OUTPUTS}, {new} of them new"
    is_empty = not any(each.wanted or each.refused for each in found.hosts)
    if is_empty:
        verdict = f"no file of {name} matches {', '.join(patterns)}"
    if silent:
        output.note(f"{listed(silent)} did not answer: what is there did not come")
    output.result(
        payload,
        verdict=verdict,
        evidence=found.lines(),
        next_commands=[again] * bool(silent),
    )
    return 1 if silent or is_empty else 0


def _fetch_checkpoint(
    hosts: Hosts, name: str, checkpoint: str, runs_dir: Path, output: Output
) -> int:
    require_all(hosts.unreachable)
    with closing(StageProgress(output.console)) as progress:
        fetched = fetch_run(
            hosts.clients,
            runs_dir / name,
            checkpoint,
            fleet_file=hosts.fleet.path,
            note=output.note,
            progress=progress.comes,
        )
    host, came = fetched.host, fetched.checkpoint_bytes
    output.result(
        {"run": name, "host": host, "dir": str(runs_dir / name), "bytes": came},
        verdict=f"fetched {named_checkpoint(checkpoint)} of {name} from {host}: "
        f"{format_bytes(came)}",
        next_commands=[f"yoked sample {name}{same_checkpoint(checkpoint)}{same_runs(runs_dir)}"],
    )
    return 0
