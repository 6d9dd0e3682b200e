"""`yoked hosts`: the hosts of a fleet as they are now."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import JsonFlag
from yoked.cli.output import Output
from yoked.errors import YokedError

if TYPE_CHECKING:
    from yoked.cli.commands.fleet_text import Look
    from yoked.fleet.model import Fleet


def command(
    *,
    fleet: Annotated[
        Path | None, Parameter(help="The fleet's file. Default: yoked.toml, where there is one.")
    ] = None,
    json_output: JsonFlag = False,
) -> int:
    """Show the hosts of a fleet: CPU, memory, GPUs, torch, interface, free disk.

    A host that does not answer is shown with ssh's own reason, and the exit status is 1.
    """
    from yoked.cli.commands.fleet_text import hosts_lines
    from yoked.fleet.file import open_fleet

    output = Output(json_mode=json_output)
    wanted = open_fleet(fleet)
    seen = _look(wanted)
    down = [name for name, each in seen.items() if isinstance(each, YokedError)]
    up = len(seen) - len(down)
    output.result(
        {
            "ok": not down,
            "fleet": wanted.name,
            "hosts": [_payload(wanted, name, each) for name, each in seen.items()],
        },
        verdict=f"fleet {wanted.name}: {up} of {len(seen)} hosts are up",
        evidence=hosts_lines(wanted.hosts, seen),
        next_commands=_next(wanted, seen),
    )
    return 1 if down else 0


def _look(fleet: Fleet) -> dict[str, Look | YokedError]:
    """What each host says, or why it says nothing; in the fleet's order."""
    from yoked.cli.commands.fleet_text import look_at_all
    from yoked.fleet.discover import require_distinct
    from yoked.remote.connect import connect_all

    clients, failures = connect_all(fleet.hosts, fleet.ssh_file)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        found = {**failures, **look_at_all(fleet.hosts, clients)}
    require_distinct(
        {name: each.facts for name, each in found.items() if not isinstance(each, YokedError)}
    )
    return {host.name: found[host.name] for host in fleet.hosts}


def _payload(fleet: Fleet, name: str, seen: Look | YokedError) -> dict[str, Any]:
    from yoked.cli.commands.fleet_text import payload

    if isinstance(seen, YokedError):
        return {"name": name, "up": False, "what": seen.what, "fix": list(seen.fix)}
    return payload(next(host for host in fleet.hosts if host.name == name), seen)


def _next(fleet: Fleet, seen: dict[str, Look | YokedError]) -> list[str]:
    there = [each for each in seen.values() if not isinstance(each, YokedError)]
    flag = f" --fleet {fleet.path}" if fleet.path.is_file() else ""
    if any(each.torch is None for each in there):
        return [f"yoked install{flag}"]
    if len(seen) > 1 and any(host.interface is None for host in fleet.hosts):
        return [f"yoked init --force{flag}    finds out which interfaces they can use"]
    return []
