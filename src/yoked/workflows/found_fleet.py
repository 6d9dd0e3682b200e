"""A fleet from ssh names: reach its hosts, see how they come together, write yoked.toml."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path

from yoked.errors import FleetError, HostError, UsageError, YokedError
from yoked.fleet.choose import Choice
from yoked.fleet.discover import require_distinct, survey
from yoked.fleet.file import FILE_NAME, format_fleet, load_fleet, read_fleet, write_fleet
from yoked.fleet.model import Fleet, Host
from yoked.fleet.trust import remember
from yoked.records.rules import SSH_NAME
from yoked.units import format_bit_per_s, format_bytes
from yoked.workflows.looks import Look, ask_all, cores_text, gpus_text, look, reach_quietly

_MOST_HOSTS = 8


def wanted_fleet(
    names: Sequence[str],
    path: Path,
    ssh_config: Path | None,
    ranks: int | None,
    besides: Sequence[Host] = (),
) -> Fleet:
    """The fleet as asked for, with what a person set in the file that is replaced.

    names: none: the hosts of that file. besides: hosts as they are known where that file has none
    of their names. Raises UsageError, and FleetError for a file with flaws.
    """
    old = load_fleet(path) if path.is_file() else Fleet("home", (), path)
    names = names or [each.name for each in old.hosts]
    if not names:
        raise UsageError("no host is named", fix="yoked init HOST...    `.` is this machine")
    _check(names, ranks, ssh_config)
    known = {each.name: each for each in (*besides, *old.hosts)}
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


def hosts_of_lab(ssh_config: Path | None) -> tuple[Host, ...]:
    """The hosts of the fleet that a lab wrote beside its ssh configuration; none where none did.

    Their own python3 is this machine's, and need not have torch; that fleet names one that has.
    """
    if ssh_config is None or not ssh_config.is_file():
        return ()
    file = ssh_config.absolute().with_name(FILE_NAME)
    if not file.is_file():
        return ()
    try:
        fleet = load_fleet(file)
    except FleetError:
        # It has flaws, or is somebody's whom nobody trusts.
        return ()
    of_this = fleet.ssh_config is not None and fleet.ssh_config.samefile(ssh_config)
    return fleet.hosts if of_this else ()


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
            raise UsageError(
                f"{name!r} is no name for ssh",
                fix="name a host, USER@HOST, or a `Host` of ~/.ssh/config, for such as it has",
            )


@dataclasses.dataclass(frozen=True)
class FoundFleet:
    """A fleet that was looked at. choices: by host, how its peers reach it; none for one host."""

    fleet: Fleet
    seen: Mapping[str, Look]
    choices: Mapping[str, Choice]

    @property
    def comments(self) -> Mapping[str, str]:
        """Of each host, what it is and where it was reached, in a line."""
        return {name: _comment(each, self.choices.get(name)) for name, each in self.seen.items()}

    def write(self, *, force: bool) -> Path | None:
        """Write yoked.toml, and agree to what it names: it is the person's own. Returns the new
        name of a file that was there. Raises FleetError.
        """
        text = format_fleet(self.fleet, self.comments)
        kept = write_fleet(self.fleet.path, text, force=force)
        remember(read_fleet(self.fleet.path))
        return kept


def look_at(wanted: Fleet) -> FoundFleet:
    """Reach all hosts, ask them, and let them reach each other. Raises HostError, FleetError."""
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
    return FoundFleet(dataclasses.replace(wanted, hosts=hosts), seen, choices)


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
