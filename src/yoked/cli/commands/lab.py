"""`yoked lab`: a fleet of virtual hosts on this machine, its logins and its faults."""

from __future__ import annotations

import dataclasses
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NoReturn

from cyclopts import App, Parameter

from yoked.cli.commands import lab_text
from yoked.cli.completers import fault_kinds, lab_hosts, topologies
from yoked.cli.flags import JsonFlag
from yoked.cli.interrupt import ends_as_interrupt
from yoked.cli.output import Output
from yoked.core.names import path_word
from yoked.errors import LabError, UsageError
from yoked.table import table
from yoked.units import plural

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

LabName = Annotated[
    str | None, Parameter(name="--lab", help="Name of the lab. Default: the one that is up.")
]
Root = Annotated[
    bool,
    Parameter(
        negative="",
        help="As root of the host, in a lab that an ordinary user brought up. "
        "In a lab of root, programs are root anyway.",
    ),
]

app = App(
    name="lab",
    help="A fleet of virtual hosts on this Linux machine: real ssh, shaped links, faults.",
)


@app.command
def up(
    topology: Annotated[
        str,
        Parameter(
            help="Name of a topology that comes with yoked, or a TOML file.", completer=topologies
        ),
    ] = "two-hosts-1gbe",
    /,
    *,
    name: Annotated[
        str | None, Parameter(help="Name of the lab. Default: that of the topology.")
    ] = None,
    json_output: JsonFlag = False,
) -> int:
    """Bring a lab up: hosts with networks, logins and files of their own.

    It stays up until `yoked lab down`, or until the machine restarts.
    """
    from yoked.lab import needs
    from yoked.lab.lab import NAME, Lab
    from yoked.lab.topology_load import load

    output = Output(json_mode=json_output)
    wanted = load(topology)
    # It becomes part of folder and group names.
    if name is not None and not NAME.fullmatch(name):
        raise UsageError(
            f"--name {name!r} cannot name a lab",
            fix="write up to 40 lower-case letters, digits and hyphens",
        )
    name = name or wanted.name
    needs.require(needs.check())
    others = [lab.name for lab in Lab.all()]
    if name in others:
        raise LabError(
            f"the lab {name} is up already",
            fix=[
                f"yoked lab status --lab {name}",
                f"yoked lab down {name}",
                f"yoked lab up {path_word(topology)} --name ANOTHER",
            ],
        )
    # Closing the terminal is an interrupt too: nothing may stay half up.
    with ends_as_interrupt(signal.SIGTERM, signal.SIGHUP):
        lab = Lab.up(wanted, name=name)
    output.result(
        lab_text.up_payload(lab),
        verdict=f"up: lab {lab.name}, {plural(len(lab.topology.hosts), 'host')}",
        evidence=lab_text.up_lines(lab),
        next_commands=lab_text.next_commands(lab, named=bool(others)),
    )
    return 0


@app.command
def down(
    name: Annotated[str | None, Parameter(help="Name of the lab. Default: the one that is up.")] = (
        None
    ),
    /,
    *,
    everything: Annotated[
        bool,
        Parameter(name="--all", negative="", help="All labs, and what killed ones left behind."),
    ] = False,
    json_output: JsonFlag = False,
) -> int:
    """Take a lab down: processes, networks and files of its hosts are gone."""
    from yoked.lab.lab import Lab, down_all

    if everything and name is not None:
        raise UsageError(f"--all takes every lab down, not only {name}", fix="give one of both")
    if everything:
        gone = down_all()
    else:
        lab = _open_for_down(name, Lab)
        lab.down()
        gone = [lab.name]
    verdict = f"down: {', '.join(gone)}" if gone else "nothing was up, and nothing was left behind"
    Output(json_mode=json_output).result({"down": gone}, verdict=verdict)
    return 0


def _open_for_down(name: str | None, labs: type[Lab]) -> Lab:
    try:
        return labs.open(name)
    except UsageError:
        names = [lab.name for lab in labs.all()]
        raise UsageError(
            f"several labs are up: {', '.join(names)}",
            fix=[*(f"yoked lab down {each}" for each in names), "yoked lab down --all"],
        ) from None
    except LabError as problem:
        raise LabError(
            problem.what, fix="yoked lab down --all    clears what a killed lab left"
        ) from problem


@app.command
def status(*, lab: LabName = None, json_output: JsonFlag = False) -> int:
    """Show a lab: hosts, addresses, links, faults and processes."""
    from yoked.lab import faults

    opened = _open(lab)
    active = faults.active(opened)
    hosts = [lab_text.host_payload(host, active) for host in opened.hosts.values()]
    dead = sum(not entry["up"] for entry in hosts)
    Output(json_mode=json_output).result(
        lab_text.lab_payload(opened, hosts),
        verdict=f"lab {opened.name}: {plural(len(hosts), 'host')}, {plural(len(active), 'fault')}"
        + (f", {dead} switched off" if dead else ""),
        evidence=lab_text.status_lines(opened, hosts),
        next_commands=[f"yoked lab heal{_flag(lab)}"] if active else [],
    )
    return 0


@app.command(name="exec")
def execute(
    host: Annotated[str, Parameter(help="Name of the host.", completer=lab_hosts)],
    /,
    *command: Annotated[str, Parameter(help="The program and its arguments.")],
    lab: LabName = None,
    root: Root = False,
) -> int:
    """Run a program on a host: `yoked lab exec alpha -- ls -l`.

    Streams and exit status are the program's own. Options of ours come before the program, and
    `--` may part the two. It starts in the home folder, as with ssh.
    """
    if not command:
        raise UsageError(
            "no program is named",
            fix=f"yoked lab exec{_flag(lab)} {shlex.quote(host)} -- hostname",
        )
    _become(_open(lab).host(host), command, as_root=root)


@app.command
def shell(
    host: Annotated[str, Parameter(help="Name of the host.", completer=lab_hosts)],
    /,
    *,
    lab: LabName = None,
    root: Root = False,
) -> int:
    """Open a shell on a host, on a terminal of its own."""
    opened = _open(lab).host(host)
    _become(opened, _shell_command(sys.stdin.isatty() and sys.stdout.isatty()), as_root=root)


def _shell_command(terminal: bool) -> list[str]:
    own = os.environ.get("SHELL") or "/bin/sh"
    if not terminal:
        return [own]
    from yoked.lab import terminal as relay

    source = Path(relay.__file__).read_text(encoding="utf-8")
    # A virtual environment may lie where hosts have files of their own, as in /tmp.
    return [os.path.realpath(sys.executable), "-I", "-S", "-c", source, own, "-i"]


def _become(host: LabHost, command: Sequence[str], *, as_root: bool) -> NoReturn:
    """Turn this process into the program: streams, signals and status are then its own."""
    argv = host.enter_command(list(command), as_root=as_root)
    sys.stdout.flush()
    sys.stderr.flush()
    os.execv(argv[0], argv)  # noqa: S606 - an argument list, no shell


@app.command
def fault(
    kind: Annotated[
        str | None, Parameter(help="What shall go wrong; see --list.", completer=fault_kinds)
    ] = None,
    /,
    *words: Annotated[
        str, Parameter(allow_leading_hyphen=True, help="Host, and what the kind takes.")
    ],
    list_kinds: Annotated[
        bool, Parameter(name="--list", negative="", help="List the kinds of faults.")
    ] = False,
    seed: Annotated[
        int | None, Parameter(help="Decides what the fault leaves to chance, such as which file.")
    ] = None,
    lab: LabName = None,
    json_output: JsonFlag = False,
) -> int:
    """Break something: `yoked lab fault cut alpha`. `yoked lab heal` undoes it."""
    from yoked.lab import faults

    output = Output(json_mode=json_output)
    if list_kinds:
        return _list_kinds(lab, output)
    if kind is None:
        raise UsageError("no kind of fault is named", fix="yoked lab fault --list")
    opened = _open(lab)
    found = faults.apply(opened, kind, words, seed=seed)
    stays = any(each.id == found.id for each in faults.active(opened))
    output.result(
        {
            "id": found.id,
            "kind": found.kind,
            "hosts": list(found.hosts),
            "text": found.text,
            "active": stays,
        },
        verdict=f"fault {found.id}: {found.text}",
        next_commands=[f"yoked lab heal{_flag(lab)} {found.id}"] if stays else [],
    )
    return 0


def _list_kinds(lab: str | None, output: Output) -> int:
    from yoked.lab.faults import FAULTS
    from yoked.lab.lab import Lab

    opened = Lab.open(lab) if lab is not None else next(iter(Lab.all()), None)
    kinds = lab_text.fault_kinds(FAULTS, opened)
    unknown = "" if opened else "; which of them this machine can is told when a lab is up"
    output.result(
        {"faults": kinds},
        verdict=f"{len(kinds)} kinds of faults{unknown}",
        evidence=lab_text.fault_kind_lines(kinds),
        next_commands=["yoked lab fault cut HOST"],
    )
    return 0


@app.command
def heal(
    which: Annotated[
        list[str] | None, Parameter(help="Ids of faults, or hosts. Default: all faults.")
    ] = None,
    /,
    *,
    lab: LabName = None,
    json_output: JsonFlag = False,
) -> int:
    """Undo faults, the newest first."""
    from yoked.lab import faults

    opened = _open(lab)
    healed = faults.heal(opened, which or None)
    Output(json_mode=json_output).result(
        {"healed": [lab_text.fault_payload(each) for each in healed]},
        verdict=f"healed: {plural(len(healed), 'fault')}"
        if healed
        else "there was no fault to heal",
        evidence=[f"{each.id}  {each.text}" for each in healed],
    )
    return 0


@app.command(name="list")
def list_all(*, json_output: JsonFlag = False) -> int:
    """List the topologies that come with yoked, the labs that are up, and what is missing here."""
    from yoked.lab import needs
    from yoked.lab.lab import Lab
    from yoked.lab.topology_load import shipped

    topologies, found = shipped(), needs.check()
    labs = [{"name": lab.name, "hosts": list(lab.hosts)} for lab in Lab.all()]
    missing = [need for need in found if not need.ok]
    evidence = table(["topology", ""], topologies.items())
    evidence += ["", *lab_text.need_lines(found), ""]
    evidence += [f"up: {each['name']} ({', '.join(each['hosts'])})" for each in labs] or [
        "no lab is up"
    ]
    Output(json_mode=json_output).result(
        {
            "topologies": [{"name": n, "description": text} for n, text in topologies.items()],
            "labs": labs,
            "needs": [dataclasses.asdict(need) for need in found],
        },
        verdict=f"{len(topologies)} topologies, {plural(len(labs), 'lab')} up, "
        f"{plural(len(missing), 'thing')} missing on this machine",
        evidence=evidence,
        next_commands=["yoked lab up two-hosts-1gbe"],
    )
    return 1 if any(need.required for need in missing) else 0


def _flag(lab: str | None) -> str:
    return "" if lab is None else f" --lab {shlex.quote(lab)}"


def _open(name: str | None) -> Lab:
    """The lab that is meant. Raises LabError or UsageError with what to type."""
    from yoked.lab.lab import Lab

    return Lab.open(name)
