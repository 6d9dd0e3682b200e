"""`yoked trust`: agree to what a yoked.toml that somebody else wrote has run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from yoked.cli.flags import FleetHere, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet import trust
from yoked.fleet.file import find_fleet, read_fleet
from yoked.text import one_line


def command(
    file: FleetHere = None,
    /,
    *,
    revoke: Annotated[
        bool, Parameter(negative="", help="Forget all that was agreed to of this file.")
    ] = False,
    json_output: JsonFlag = False,
) -> int:
    """Agree to what a yoked.toml has run: `ssh_config`, each host's `python`, `[notify]`.

    A file that `yoked init` wrote is known already. Of any other, a command asks once for each
    value, and where nobody can be asked it names this line. Look at the file first, and at the
    ssh_config that it names: a ProxyCommand in there runs on this machine.
    """
    output = Output(json_mode=json_output)
    path = find_fleet(file)
    if path is None:
        raise UsageError("there is no yoked.toml here", fix="yoked trust FILE")
    if revoke:
        was_known = trust.revoke(path)
        output.result(
            {"fleet": str(path), "trusted": {}},
            verdict=f"nothing of {path} is trusted" + (" any more" if was_known else ""),
        )
        return 0
    values = trust.remember(read_fleet(path))
    output.result(
        {"fleet": str(path), "trusted": dict(values)},
        verdict=f"trusted: {path}" if values else f"{path} names nothing that has to be trusted",
        evidence=[one_line(f"{key} = {value}") for key, value in values.items()],
        next_commands=[f"yoked hosts{same_fleet(file)}"],
    )
    return 0
