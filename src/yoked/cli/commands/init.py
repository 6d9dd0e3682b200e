"""`yoked init`: look at the hosts, find out how they reach each other, write yoked.toml."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.commands.hosts import init_lines, payload
from yoked.cli.flags import JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.core.faults import fault
from yoked.fleet.file import require_free
from yoked.units import plural
from yoked.workflows.found_fleet import hosts_of_lab, look_at, wanted_fleet
from yoked.workflows.looks import torch_lines


def command(
    *host: Annotated[
        str, Parameter(help="Names that ssh understands, rank 0's first; `.` is this machine.")
    ],
    fleet: Annotated[Path, Parameter(help="The file to write.")] = Path("yoked.toml"),
    force: Annotated[
        bool,
        Parameter(
            negative="",
            help="Replace a file that is there: it is kept as FILE.old, and ranks, device, "
            "python and nice of its hosts are taken over. Without a HOST: the hosts of that file.",
        ),
    ] = False,
    ssh_config: Annotated[
        Path | None,
        Parameter(
            help="A file instead of ~/.ssh/config, also for later commands. Of a lab's, hosts keep "
            "the python that its yoked.toml names.",
        ),
    ] = None,
    ranks: Annotated[
        int | None,
        Parameter(help="Ranks on each host. Default: one on the CPU, or one for each GPU."),
    ] = None,
    json_output: JsonFlag = False,
) -> int:
    """Look at hosts by ssh, find out by traffic which interfaces they can use, write yoked.toml.

    Nothing is written unless every host answers and every pair of them comes together.
    """
    output = Output(json_mode=json_output)
    require_free(fleet, force=force)
    found = look_at(wanted_fleet(host, fleet, ssh_config, ranks, hosts_of_lab(ssh_config)))
    kept = found.write(force=force)
    hosts, seen, choices = found.fleet.hosts, found.seen, found.choices
    flag = same_fleet(fleet)
    if kept is not None:
        output.note(f"the file that was there is {kept} now")
    for name, each in seen.items():
        if each.facts.get("has_proc") is False:
            output.note(fault("no-proc", host=name).what)
    output.result(
        {
            "fleet": str(fleet),
            "hosts": [payload(each, seen[each.name], choices.get(each.name)) for each in hosts],
        },
        verdict=f"{fleet}: {plural(len(hosts), 'host')}"
        + (", every pair of them reached with traffic" if choices else ""),
        evidence=init_lines(hosts, seen, choices),
        next_commands=torch_lines(hosts, seen, flag) or [f"yoked train{flag}"],
    )
    return 0
