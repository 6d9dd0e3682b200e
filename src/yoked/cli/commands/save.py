"""`yoked save`: a checkpoint now, of a training that goes on."""

from __future__ import annotations

from shlex import quote
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag, JsonFlag, RunName, check_seconds, same_fleet
from yoked.cli.output import Output
from yoked.errors import CheckpointError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import reach_hosts
from yoked.launch.registry import Record


def command(
    run: RunName = None,
    *,
    fleet: FleetFlag = None,
    wait: Annotated[float, Parameter(help="Seconds to wait for it.")] = 120.0,
    json_output: JsonFlag = False,
) -> int:
    """Have a training save a checkpoint after the step that it is at; it goes on meanwhile.

    The checkpoint stays where the run trains: yoked fetch brings it here.
    """
    check_seconds("--wait", wait, fix="--wait 120")
    output, flag = Output(json_mode=json_output), same_fleet(fleet)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        found = hosts.run(run)
        name = quote(found.record.name)
        step = found.save(wait)
        record = found.record
    if step is None:
        raise _not_saved(record, wait, flag)
    local = record.run_dir is not None
    output.result(
        {"run": record.name, "step": step, "host": record.host_of(0)},
        verdict=f"run {record.name} saved after {step:,} steps, and goes on",
        next_commands=[f"yoked sample {name}" if local else f"yoked fetch {name}{flag}"],
    )
    return 0


def _not_saved(record: Record, wait_s: float, flag: str) -> CheckpointError:
    """Why a run has saved none, as far as its hosts know."""
    name, again = quote(record.name), f"yoked save {quote(record.name)}{flag}"
    reason = record.no_step_because
    if not record.active:
        why = "" if reason is None else f": {reason}"
        return CheckpointError(
            f"run {record.name} is {record.state} meanwhile{why}", fix=f"yoked attach {name}{flag}"
        )
    if record.hung:
        fix = (f"yoked diagnose {name}{flag}", f"{again}    once it goes on")
    elif record.progress is None:
        fix = (f"yoked attach {name}{flag}    shows its start", f"{again}    after its first step")
    else:
        fix = (f"{again} --wait {3 * wait_s:g}", f"yoked logs {name}{flag} --tail 20")
    return CheckpointError(
        f"run {record.name} has saved none within {wait_s:g} s of being asked: "
        f"{reason or 'a step, or the disk, takes longer'}",
        fix=fix,
    )
