"""`yoked stop`: end a run in good order."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag, JsonFlag, RunName, check_seconds, same_fleet
from yoked.cli.output import Output
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import reach_hosts
from yoked.launch.registry import Record

_STEPS = {
    "checkpoint": "asked to save and stop",
    "terminate": "told to end",
    "kill": "killed",
}

_NOT_BEGUN = "it had not begun: there is nothing to resume, and the same command starts it anew"


def command(
    run: RunName = None,
    *,
    fleet: FleetFlag = None,
    now: Annotated[bool, Parameter(help="Do not ask for a checkpoint.", negative="")] = False,
    wait: Annotated[float, Parameter(help="Seconds that saving may take.")] = 60.0,
    json_output: JsonFlag = False,
) -> int:
    """Ask a run for a checkpoint and its end; terminate it if it does not come, then kill it.

    Only processes of that very launch get a signal.
    """
    check_seconds("--wait", wait, fix="--wait 60", zero=True)
    output, flag = Output(json_mode=json_output), same_fleet(fleet)
    with reach_hosts(open_fleet(fleet), output.note) as hosts:
        found = hosts.run(run)
        record = found.record
        if not record.active:
            output.result(
                {"run": record.name, "state": record.state, "did": []},
                verdict=f"run {record.name} is over already: {record.state}",
                next_commands=_next(record, flag),
            )
            return 0
        did = found.stop(save_s=0.0 if now else wait, say=output.note)
        record = found.record
        missing = len(record.nodes) - len(record.hosts)
    output.result(
        {"run": record.name, "state": record.state, "did": did},
        verdict=f"run {record.name}: {record.state}",
        evidence=[
            ", then ".join(_STEPS[how] for how in did),
            *([f"{missing} of its hosts did not answer"] if missing else []),
            *([_NOT_BEGUN] if record.trains and not record.may_resume else []),
        ],
        next_commands=([f"yoked runs{flag}"] if record.active or missing else _next(record, flag)),
    )
    return 1 if record.active or missing else 0


def _next(record: Record, flag: str) -> list[str]:
    """What to do with a run that is over. flag: what a command line about its hosts ends with."""
    fetch = [f"yoked fetch {record.name}{flag}"] if record.outputs else []
    return [*record.go_on(flag), *fetch]
