"""`yoked init`: look at the hosts, find out how they reach each other, write yoked.toml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from yoked.cli.commands.hosts import (
    Look,
    ask_all,
    cores_text,
    gpus_text,
    init_lines,
    look,
    payload,
    reach_quietly,
)
from yoked.cli.flags import JsonFlag
from yoked.cli.output import Output
from yoked.core.faults import fault
from yoked.errors import HostError, UsageError, YokedError
from yoked.fleet.choose import Choice
from yoked.fleet.discover import require_distinct, survey
from yoked.fleet.file import format_fleet, load_fleet, read_fleet, require_free, write_fleet
from yoked.fleet.model import Fleet, Host
from yoked.fleet.trust import remember
from yoked.records.rules import SSH_NAME
from yoked.units import format_bit_per_s, format_bytes, plural

_MOST_HOSTS = 8


def command(
    *host: Annotated[
        str, Parameter(help="Names that ssh understands, rank 0's first; `.` is this machine.")
    ],
    fleet: Annotated[Path, Parameter(help="The file to write.")] = Path("yoked.toml"),
    force: Annotated[
        bool,
        Parameter(
            negative="",
            help="Replace a file that is there: it is kept as FILE.old, and ranks, device and "
            "python of its hosts are taken over. Without a HOST: the hosts of that file.",
        ),
    ] = False,
    ssh_config: Annotated[
        Path | None, Parameter(help="A file instead of ~/.ssh/config, also for later commands.")
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
    wanted = _wanted(host, fleet, ssh_config, ranks)
    found, seen, choices = _look(wanted)
    comments = {name: _comment(seen[name], choices.get(name)) for name in seen}
    kept = write_fleet(fleet, format_fleet(found, comments), force=force)
    remember(read_fleet(fleet))
    missing = any(each.torch is None for each in seen.values())
    if kept is not None:
        output.note(f"the file that was there is {kept} now")
    for name, each in seen.items():
        if each.facts.get("has_proc") is False:
            output.note(fault("no-proc", host=name).what)
    output.result(
        {
            "fleet": str(fleet),
            "hosts": [
                payload(each, seen[each.name], choices.get(each.name)) for each in found.hosts
            ],
        },
        verdict=f"{fleet}: {plural(len(found.hosts), 'host')}"
        + (", every pair of them reached with traffic" if choices else ""),
        evidence=init_lines(found.hosts, seen, choices),
        next_commands=[f"yoked {'install' if missing else 'train'} --fleet {fleet}"],
    )
    return 0


def _wanted(names: Sequence[str], path: Path, ssh_config: Path | None, ranks: int | None) -> Fleet:
    """The fleet as asked for, with what a person set in the file that is replaced."""
    old = load_fleet(path) if path.is_file() else Fleet("home", (), path)
    names = names or [each.name for each in old.hosts]
    if not names:
        raise UsageError("no host is named", fix="yoked init HOST...    `.` is this machine")
    _check(names, ranks, ssh_config)
    known = {each.name: each for each in old.hosts}
    hosts = []
    for name in names:
        before = known.get(name, Host(name))
        # Its interface is what we are about to find out.
        hosts.append(
            dataclasses.replace(before, interface=None, address=None, ranks=ranks or before.ranks)
        )
    wanted = dataclasses.replace(old, hosts=tuple(hosts), path=path)
    if ssh_config is None:
        return wanted
    return dataclasses.replace(wanted, ssh_config=ssh_config.absolute(), agreed=None)


def _check(names: Sequence[str], ranks: int | None, ssh_config: Path | None) -> None:
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks {ranks}: a host has one rank at least", fix="--ranks 1")
    if ssh_config is not None and not ssh_config.is_file():
        raise UsageError(f"there is no file {ssh_config}", fix="leave --ssh-config out")
    if len(names) > _MOST_HOSTS:
        raise UsageError(f"{len(names)} hosts: a fleet has {_MOST_HOSTS} at most", fix="name fewer")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{name} is named twice", fix="name each host once")
        if not SSH_NAME.fullmatch(name):
            raise UsageError(f"{name!r} is no name for ssh", fix=f"ssh {name!r}    must work")


def _look(wanted: Fleet) -> tuple[Fleet, dict[str, Look], dict[str, Choice]]:
    """Reach all hosts, ask them, and let them reach each other."""
    with reach_quietly(wanted) as reached:
        answers = ask_all(reached, look)
        failures = {name: each for name, each in answers.items() if isinstance(each, YokedError)}
        if failures:
            raise _unreachable(failures, len(wanted.hosts))
        seen = {name: each for name, each in answers.items() if not isinstance(each, YokedError)}
        require_distinct({name: each.facts for name, each in seen.items()})
        many = len(wanted.hosts) > 1
        choices = dict(survey(wanted.hosts, reached.clients).choices) if many else {}
    hosts = tuple(
        dataclasses.replace(each, interface=choices[each.name].interface) if choices else each
        for each in wanted.hosts
    )
    return dataclasses.replace(wanted, hosts=hosts), seen, choices


def _unreachable(failures: Mapping[str, YokedError], total: int) -> HostError:
    """One failure that names all hosts that did not answer, each with its own reason."""
    parts = [problem.what for problem in failures.values()]
    fix = [line for problem in failures.values() for line in problem.fix]
    if len(failures) < total:
        fix.append(f"or leave out {', '.join(failures)}; nothing was written")
    return HostError("\n".join(parts), fix=list(dict.fromkeys(fix)))


def _comment(seen: Look, choice: Choice | None) -> str:
    """A line for the file: what the host is, and where it was reached."""
    facts = seen.facts
    parts = [facts["cpu_model"], f"{cores_text(facts)} cores"]
    if facts["memory_bytes"] is not None:
        parts.append(format_bytes(facts["memory_bytes"]))
    if facts["gpus"]:
        parts.append(gpus_text(facts["gpus"]))
    if choice is not None:
        parts.append(f"reached at {choice.address}")
        if choice.goodput_bytes_per_s:
            parts[-1] += f" with {format_bit_per_s(8 * choice.goodput_bytes_per_s)}"
    return ", ".join(parts)
