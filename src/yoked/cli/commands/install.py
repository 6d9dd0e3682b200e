"""`yoked install`: an environment on every host with exactly the versions that are here."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from contextlib import closing
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.commands.hosts import ask_all, reach_quietly
from yoked.cli.flags import FleetFile, JsonFlag, same_fleet
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.errors import UsageError, YokedError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.requirements import train_requirements
from yoked.remote.client import AgentClient

if TYPE_CHECKING:
    from yoked.launch.install import HostEnvironment

HostsFlag = Annotated[
    tuple[str, ...], Parameter(help="Only this host; may be given several times.", negative="")
]
_SHOWN_DIFFERENCES = 8


def command(
    *,
    fleet: FleetFile = None,
    host: HostsFlag = (),
    cuda: Annotated[
        bool, Parameter(help="Take torch for a GPU, whatever the hosts have.", negative="")
    ] = False,
    cpu: Annotated[
        bool, Parameter(help="Take torch for the CPU, whatever the hosts have.", negative="")
    ] = False,
    torch_index: Annotated[
        str | None,
        Parameter(
            help="Address of an index of torch builds in place of PyTorch's own: one that ends "
            "in /cu130 or the like for hosts with a GPU, others for hosts without; for all with "
            "--cuda or --cpu."
        ),
    ] = None,
    python: Annotated[
        str | None,
        Parameter(help="The Python on the hosts to base it on. Default: the best that is there."),
    ] = None,
    offline: Annotated[
        bool, Parameter(help="Fetch wheels here and send them.", negative="")
    ] = False,
    anew: Annotated[
        bool, Parameter(help="Make it anew where it is there, and does not work.", negative="")
    ] = False,
    check: Annotated[bool, Parameter(help="Look, and change nothing.", negative="")] = False,
    json_output: JsonFlag = False,
) -> int:
    """Make on every host an environment with exactly the versions that are here, or check it.

    A host whose `python` is named in yoked.toml is checked only. Hosts that reach no package index
    get their wheels from here.
    """
    given = {"--cuda": cuda, "--cpu": cpu, "--check": check, "--anew": anew}
    for one, other in (("--cuda", "--cpu"), ("--check", "--anew")):
        if given[one] and given[other]:
            raise UsageError(f"{one} and {other} exclude each other", fix="give one, or none")
    from yoked.launch.install import InstallOptions, check_environment, install_environment

    output = Output(json_mode=json_output)
    wishes = InstallOptions(
        requirements=train_requirements(),
        build="cuda" if cuda else "cpu" if cpu else None,
        torch_index=torch_index,
        python=python,
        offline=offline,
        anew=anew,
    )
    wanted = selected(open_fleet(fleet), host)
    with closing(StageProgress(output.console)) as progress, reach_quietly(wanted) as hosts:

        def act(each: Host, client: AgentClient) -> HostEnvironment:
            if check:
                return check_environment(client, each, wishes.requirements)
            return install_environment(client, each, wishes, output.say, progress)

        found = ask_all(hosts, act)
    return report(found, output, same_fleet(fleet))


def selected(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """A fleet of the hosts that are named, or of all where none is. Raises UsageError."""
    known = {host.name: host for host in fleet.hosts}
    for name in names:
        if name not in known:
            if list(known) == [HERE] and not fleet.path.is_file():
                raise UsageError(
                    f"there is no yoked.toml here, so no host {name}",
                    fix=f"yoked init . {name}    or --fleet FILE",
                )
            raise UsageError(
                f"there is no host {name} in {fleet.path}", fix=f"there are: {', '.join(known)}"
            )
    hosts = tuple(host for host in fleet.hosts if not names or host.name in names)
    return dataclasses.replace(fleet, hosts=hosts)


def report(
    found: dict[str, HostEnvironment | YokedError], output: Output, fleet_flag: str = ""
) -> int:
    """Say how hosts stand; returns the exit status."""
    good = [
        name
        for name, each in found.items()
        if not isinstance(each, YokedError) and not each.differences
    ]
    all_good = len(good) == len(found)
    evidence = [line for name, each in found.items() for line in _lines(name, each)]
    output.result(
        {
            "ok": all_good,
            "hosts": [_payload(name, each) for name, each in found.items()],
        },
        verdict=f"{len(good)} of {len(found)} hosts can train with the versions that are here",
        evidence=evidence,
        next_commands=[f"yoked train{fleet_flag}"] if all_good else [],
    )
    return 0 if all_good else 1


def _lines(name: str, each: HostEnvironment | YokedError) -> list[str]:
    if isinstance(each, YokedError):
        first, *rest = each.what.splitlines()
        return [
            f"{name:<12} failed   {first.removeprefix(f'{name}: ')}",
            *(f"{'':<21} {line}" for line in rest),
            *(f"{'':<21} fix: {line}" for line in each.fix),
        ]
    torch = f", torch for {each.torch_build}" if each.torch_build else ""
    lines = [f"{name:<12} {each.state:<8} Python {each.python_version} at {each.python}{torch}"]
    lines += [f"{'':<21} {each}" for each in each.differences[:_SHOWN_DIFFERENCES]]
    if len(each.differences) > _SHOWN_DIFFERENCES:
        lines.append(f"{'':<21} and {len(each.differences) - _SHOWN_DIFFERENCES} more")
    return [*lines, *(f"{'':<21} fix: {line}" for line in _fix(name, each))]


def _fix(name: str, each: HostEnvironment) -> list[str]:
    if not each.differences:
        return []
    if each.state == "named":
        return [f"remove `python` of {name} from yoked.toml, then yoked install --host {name}"]
    return [f"yoked install --host {name}"]


def _payload(name: str, each: HostEnvironment | YokedError) -> dict[str, Any]:
    if isinstance(each, YokedError):
        return {"name": name, "state": "failed", "what": each.what, "fix": list(each.fix)}
    return {
        "name": name,
        "state": each.state,
        "python": each.python,
        "python_version": each.python_version,
        "torch_build": each.torch_build,
        "differences": [dataclasses.asdict(one) for one in each.differences],
        "fix": _fix(name, each),
    }
