"""`yoked attach`: look on while a run goes on."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from yoked.cli.bringing import bring_record
from yoked.cli.flags import FleetFlag, JsonFlag, RawFlag, RunName, same_fleet
from yoked.cli.live import LiveView, report_end
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.attach import left_running, watch_line
from yoked.launch.hosts import reach_hosts


def command(
    run: RunName = None,
    *,
    fleet: FleetFlag = None,
    tail: Annotated[
        int, Parameter(help="Lines of rank 0's earlier output to begin with, of each stream.")
    ] = 20,
    raw: RawFlag = False,
    json_output: JsonFlag = False,
) -> int:
    """Show rank 0's output as it comes, and how the run ended; its status is this command's.

    Ctrl-C leaves the run alone. Works from every machine that reaches the hosts. At the end what is
    small of the run comes into its folder below `runs` here.
    """
    if tail < 0:
        raise UsageError(f"--tail {tail}: below 0", fix="--tail 20")
    output, flag = Output(json_mode=json_output, raw=raw), same_fleet(fleet)
    with reach_hosts(opened := open_fleet(fleet), output.note, wait=False) as hosts:
        found = (None if run is None else hosts.active_run(run)) or hosts.run(run)
        with left_running(found.record.name, output.note, flag):
            if found.record.active:
                output.note(watch_line(found.record.name, flag))
            end = found.follow(LiveView(output), tail_lines=tail)
        bring_record(end, found, opened.path, output.note)
    return report_end(end, output, flag)
