"""`yoked install`: an environment on every host with exactly the versions that are here."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.completers import host_names
from yoked.cli.flags import FleetFile, JsonFlag, same_fleet
from yoked.cli.live import StatusLine
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import HERE, Fleet
from yoked.units import format_bytes, plural

if TYPE_CHECKING:
    from yoked.launch.install import HostEnvironment

HostsFlag = Annotated[
    tuple[str, ...],
    Parameter(
        help="Only this host; may be given several times.", negative="", completer=host_names
    ),
]
_SHOWN_DIFFERENCES = 8


def command(
    *,
    fleet: FleetFile = None,
    host: HostsFlag = (),
    requirement: Annotated[
        tuple[Path, ...],
        Parameter(
            name=["--requirement", "-r"],
            negative="",
            help="What a program of your own needs besides: a file such as requirements.txt, with "
            "names and versions; may be repeated. What trains keeps its versions.",
        ),
    ] = (),
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
    undo: Annotated[
        bool,
        Parameter(help="Remove what install made on the hosts, and nothing else.", negative=""),
    ] = False,
    yes: Annotated[bool, Parameter(help="With --undo: do not ask.", negative="")] = False,
    json_output: JsonFlag = False,
) -> int:
    """Make on every host an environment with exactly the versions that are here, or check it.

    A host whose `python` is named in yoked.toml is checked only. Hosts that reach no package index
    get their wheels from here. What each host will get, and its size, is told before.
    """
    given = {"--cuda": cuda, "--cpu": cpu, "--check": check, "--anew": anew, "--undo": undo}
    given |= {"--torch-index": torch_index is not None, "--python": python is not None}
    given |= {"--offline": offline, "-r": bool(requirement)}
    _refuse_contradictions(given, yes=yes)
    from yoked.console import HostsProgress
    from yoked.launch.install import InstallOptions, InstallPlan
    from yoked.launch.requirement_files import read_requirements
    from yoked.launch.requirements import train_requirements
    from yoked.workflows.environments import check_all, make_all, plan_all, unlike_versions
    from yoked.workflows.looks import reach_quietly
    from yoked.workflows.passed import note_passed

    output = Output(json_mode=json_output)
    wanted = selected(open_fleet(fleet), host)
    if undo:
        return _undo(wanted, output, only=host, yes=yes)
    trains = train_requirements()
    added = [line for file in requirement for line in read_requirements(file, trains)]
    wishes = InstallOptions(
        requirements=trains,
        added=tuple(dict.fromkeys(added)),
        build="cuda" if cuda else "cpu" if cpu else None,
        torch_index=torch_index,
        python=python,
        offline=offline,
        anew=anew,
    )
    with closing(HostsProgress(output.console)) as progress, reach_quietly(wanted) as hosts:
        if check:
            found = check_all(hosts, wishes.all)
            return report(found, output, same_fleet(fleet), requirement)
        notes: list[str] = []
        with StatusLine(output) as status:
            status.show("what is there, and how much is to come")
            planned = plan_all(hosts, wishes, notes.append)
        plans = [each for each in planned.values() if isinstance(each, InstallPlan)]
        notes += [line for each in plans for line in each.lines]
        for line in notes:
            output.say(line)

        def say(line: str) -> None:
            progress.close()
            output.say(line)

        found = make_all(hosts, planned, wishes, say, progress)
        for line in unlike_versions(found, wishes.added):
            say(line)
    status_code = report(found, output, same_fleet(fleet), requirement)
    if status_code == 0 and not host:
        note_passed(wanted, "install", f"{plural(len(found), 'host')} can train")
    return status_code


def _refuse_contradictions(given: Mapping[str, bool], *, yes: bool) -> None:
    """Raise UsageError for flags that cannot be meant together. given: which of them are."""
    makes = ("--anew", "--cuda", "--cpu", "--torch-index", "--python", "--offline")
    pairs = [("--cuda", "--cpu"), *(("--check", each) for each in makes)]
    pairs += [("--undo", each) for each in ("--check", *makes, "-r")]
    for one, other in pairs:
        if given[one] and given[other]:
            raise UsageError(f"{one} and {other} exclude each other", fix="give one, or none")
    if yes and not given["--undo"]:
        raise UsageError("--yes is for --undo: install asks nothing", fix="leave --yes out")


def _undo(wanted: Fleet, output: Output, *, only: Sequence[str], yes: bool) -> int:
    """`yoked install --undo`: the exit status."""
    from yoked.workflows.environments import remove_all
    from yoked.workflows.looks import reach_quietly
    from yoked.workflows.passed import forget_passed

    with reach_quietly(wanted) as hosts:
        found = remove_all(hosts, really=False)
        lines = _environment_lines(found)
        agreed = bool(lines) and (yes or output.agrees("Remove all of this?", lines))
        if agreed:
            found = remove_all(hosts, really=True)
    if agreed:
        forget_passed(wanted, "install")
    failures = {name: each for name, each in found.items() if isinstance(each, YokedError)}
    there = {name: each for name, each in found.items() if not isinstance(each, YokedError)}
    left = any(not each["removed"] for own in there.values() for each in own)
    verdict = "nothing that install made is there"
    if lines:
        verdict = "removed:" if agreed else "would remove:"
    again = shlex.join(["yoked", "install", "--undo", *(w for n in only for w in ("--host", n))])
    output.result(
        {
            "ok": not failures and not left,
            "removed": agreed,
            "hosts": [
                *({"name": name, "environments": own} for name, own in there.items()),
                *(
                    {"name": name, "what": each.what, "fix": list(each.fix)}
                    for name, each in failures.items()
                ),
            ],
        },
        verdict=verdict,
        evidence=[*_environment_lines(found), *(each.what for each in failures.values())],
        next_commands=[f"{again}{wanted.flag} --yes"] if lines and not agreed else [],
    )
    return 1 if failures or (agreed and left) else 0


def _environment_lines(found: Mapping[str, list[dict[str, Any]] | YokedError]) -> list[str]:
    return [
        f"{name}: {each['path']}, {format_bytes(each['size_bytes'])}"
        + (": left, a process uses it" if each["why"] else "")
        for name, own in found.items()
        if not isinstance(own, YokedError)
        for each in own
    ]


def selected(fleet: Fleet, names: Sequence[str]) -> Fleet:
    """A fleet of the hosts that are named, or of all where none is. Raises UsageError."""
    known = {host.name: host for host in fleet.hosts}
    for name in names:
        if name not in known:
            if list(known) == [HERE] and not fleet.path.is_file():
                raise UsageError(
                    f"--host {name}: there is no yoked.toml here, so no such host",
                    fix=f"yoked init . {shlex.quote(name)}    or --fleet FILE",
                )
            raise UsageError(
                f"--host {name}: there is none in {fleet.path}",
                fix=f"there are: {', '.join(known)}",
            )
    hosts = tuple(host for host in fleet.hosts if not names or host.name in names)
    return dataclasses.replace(fleet, hosts=hosts)


def report(
    found: Mapping[str, HostEnvironment | YokedError],
    output: Output,
    fleet_flag: str = "",
    files: Sequence[Path] = (),
) -> int:
    """Say how hosts stand; returns the exit status. files: of requirements besides."""
    good = [
        name
        for name, each in found.items()
        if not isinstance(each, YokedError) and not each.differences
    ]
    all_good = len(good) == len(found)
    evidence = [
        line for name, each in found.items() for line in _lines(name, each, files, fleet_flag)
    ]
    output.result(
        {
            "ok": all_good,
            "hosts": [_payload(name, each, files, fleet_flag) for name, each in found.items()],
        },
        verdict=f"{len(good)} of {len(found)} hosts can train with the versions that are here",
        evidence=evidence,
        next_commands=[f"yoked train{fleet_flag}"] if all_good else [],
    )
    return 0 if all_good else 1


def _lines(
    name: str, each: HostEnvironment | YokedError, files: Sequence[Path], fleet_flag: str
) -> list[str]:
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
    return [*lines, *(f"{'':<21} fix: {line}" for line in _fix(name, each, files, fleet_flag))]


def _fix(name: str, each: HostEnvironment, files: Sequence[Path], fleet_flag: str) -> list[str]:
    if not each.differences:
        return []
    words = [word for file in files for word in ("-r", str(file))]
    if name == HERE and files:
        # It is the person's own, and the file is here.
        return [shlex.join([each.python, "-m", "pip", "install", *words])]
    install = shlex.join(["yoked", "install", *words, "--host", name]) + fleet_flag
    if each.state != "named":
        return [install]
    ours = f"remove `python` of {name} from the fleet's file, then {install}"
    if not files:
        return [ours]
    packages = [f"{one.package}{_specifier(one.wanted)}" for one in each.differences]
    by_hand = shlex.join([each.python, "-m", "pip", "install", *packages])
    return [f"{by_hand}    on {name}", f"or {ours}"]


def _specifier(wanted: str) -> str:
    """For pip, of what a Difference has: a bare version is that very one."""
    return f"=={wanted}" if wanted[:1].isdecimal() else wanted


def _payload(
    name: str, each: HostEnvironment | YokedError, files: Sequence[Path], fleet_flag: str
) -> dict[str, Any]:
    if isinstance(each, YokedError):
        return {"name": name, "state": "failed", "what": each.what, "fix": list(each.fix)}
    return {
        "name": name,
        "state": each.state,
        "python": each.python,
        "python_version": each.python_version,
        "torch_build": each.torch_build,
        "differences": [dataclasses.asdict(one) for one in each.differences],
        "fix": _fix(name, each, files, fleet_flag),
    }
