"""`yoked push`: a folder of data to all hosts, where programs find it by a variable."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from yoked.cli.commands.install import HostsFlag, selected
from yoked.cli.flags import FleetFile, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.core.parallel import at_once
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.hosts import connected
from yoked.launch.pushed import check_data_name, name_of, push_named, pushed_there, variable_of
from yoked.launch.trees import Tree
from yoked.remote.client import AgentClient
from yoked.units import format_bytes, listed, plural


def command(
    folder: Annotated[
        Path | None, Parameter(help="Folder to send. Without one: what hosts have is shown.")
    ] = None,
    /,
    *,
    name: Annotated[
        str | None,
        Parameter(help="Ranks find it in YOKED_DATA_NAME. Default: after the folder."),
    ] = None,
    remove: Annotated[
        str | None, Parameter(help="Remove the data of this name from the hosts.")
    ] = None,
    fleet: FleetFile = None,
    host: HostsFlag = (),
    json_output: JsonFlag = False,
) -> int:
    """Send a folder of data to all hosts; programs of `yoked run` find its path in a variable.

    All of it travels, whatever .gitignore says, but for .git, bytecode, virtual environments and
    caches of tools. A host that has the same content gets nothing, and of a folder that changed
    only what changed. What was cut off goes on. The copies are read only.
    """
    output, flag = Output(json_mode=json_output), same_fleet(fleet)
    if folder is not None and remove is not None:
        raise UsageError(
            "--remove and a folder: which?", fix=f"yoked push --remove {shlex.quote(remove)}"
        )
    if name is not None and folder is None:
        raise UsageError(
            "--name: of which folder?", fix=f"yoked push FOLDER --name {shlex.quote(name)}"
        )
    hosts = selected(open_fleet(fleet), host)
    if remove is not None:
        check_data_name(remove)
        with connected(hosts) as clients:
            return _remove(clients, remove, output, flag)
    sent: dict[str, int] = {}
    if folder is None:
        with connected(hosts) as clients:
            return _report(clients, sent, None, output, flag)
    name = name_of(folder) if name is None else check_data_name(name)
    with closing(StageProgress(output.console)) as progress:
        tree = Tree.of_data(folder, progress)
        if tree.from_outside:
            # A folder that was given to somebody may have a link to his own secrets.
            count = plural(tree.from_outside, "file")
            output.note(f"{count} of {folder} lie elsewhere: links in it lead there")
        with connected(hosts) as clients:
            # One after another: they share this machine's cable.
            for each, client in clients.items():
                sent[each] = push_named(client, name, tree, progress)
            progress.close()
            return _report(clients, sent, name, output, flag)


def _report(
    clients: Mapping[str, AgentClient],
    sent: Mapping[str, int],
    name: str | None,
    output: Output,
    flag: str,
) -> int:
    """Say what hosts have. sent: bytes, by host; name: what was pushed; None: all is shown.

    flag: what a command line about the same hosts ends with.
    """
    told = dict(zip(clients, at_once(pushed_there, clients.values()), strict=True))
    data: dict[str, list[dict[str, Any]]] = {}
    evidence = []
    for host, found in told.items():
        for each in found:
            if name not in (None, each.name):
                continue
            row = {**asdict(each), "name": host, "sent_bytes": sent.get(host)}
            data.setdefault(each.name, []).append(row)
            evidence.append(
                f"{variable_of(each.name)} on {host}: {plural(each.files, 'file')}, "
                f"{format_bytes(each.size_bytes)}, {each.path}{_sent(sent.get(host))}"
            )
    payload = [
        {"name": each, "variable": variable_of(each), "hosts": rows}
        for each, rows in sorted(data.items())
    ]
    if name is not None:
        verdict = f"data {name} is on {listed(clients)}; ranks find it in {variable_of(name)}"
    elif payload:
        verdict = f"data on {listed(clients)}"
    else:
        verdict = f"nothing was pushed to {listed(clients)}"
    output.result(
        {"data": payload, "removed": None},
        verdict=verdict,
        evidence=evidence,
        next_commands=[
            f"yoked run{flag} -- SCRIPT.py ARGS" if name else f"yoked push FOLDER{flag}"
        ],
    )
    return 0


def _sent(sent_bytes: int | None) -> str:
    if sent_bytes is None:
        return ""
    return f", got {format_bytes(sent_bytes)}" if sent_bytes else ", had it"


def _remove(clients: Mapping[str, AgentClient], name: str, output: Output, flag: str) -> int:
    def act(client: AgentClient) -> bool:
        return bool(client.call("pushed_remove", label=name))

    was_there = dict(zip(clients, at_once(act, clients.values()), strict=True))
    hosts = [host for host, had_it in was_there.items() if had_it]
    if not hosts:
        raise UsageError(
            f"no host has data {shlex.quote(name)}", fix="yoked push    shows what there is"
        )
    output.result(
        {"data": [], "removed": {"name": name, "hosts": hosts}},
        verdict=f"data {name} was removed from {listed(hosts)}",
        next_commands=[f"yoked push{flag}"],
    )
    return 0
