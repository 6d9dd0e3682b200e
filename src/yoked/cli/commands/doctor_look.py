"""Looks at a fleet for `yoked doctor`, and judges what it sees, or what a bundle kept."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from yoked.errors import HostError
from yoked.records.examination import Examination, Finding, Need

if TYPE_CHECKING:
    from yoked.cli.output import Output
    from yoked.fleet.model import Fleet
    from yoked.remote.client import AgentClient


@dataclass(frozen=True)
class Seen:
    """An examination, and what it comes to. fleet: the fleet's name."""

    fleet: str
    examination: Examination
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Eyes:
    """Looks at a fleet, again and again. folders: compared on all hosts, by what they are. sudo:
    whether it may be used to look.
    """

    need: Need
    output: Output
    quick: bool = False
    bandwidth: bool = False
    folders: Mapping[str, Path] | None = None
    sudo: bool = False

    def __call__(self, fleet: Fleet, *, quick: bool | None = None) -> Seen:
        """Look at a fleet, and judge. quick: None is as was asked for."""
        from yoked.cli.commands.probe import StatusLine
        from yoked.doctor.causes import findings_of
        from yoked.doctor.compare import with_contents
        from yoked.doctor.examine import look

        is_quick = self.quick if quick is None else quick
        with StatusLine(self.output) as line:
            examination = look(
                fleet,
                self.need,
                quick=is_quick,
                bandwidth=self.bandwidth and not is_quick,
                say=line.show,
                sudo=self.sudo,
            )
            if self.folders:
                line.show("comparing folders")
                examination = with_contents(
                    examination, self.folders, lambda host: connect(fleet, host)
                )
        return Seen(fleet.name, examination, findings_of(examination))


def replayed(path: Path) -> Seen:
    """A saved examination, judged. Raises UsageError or YokedError for what is none."""
    from yoked.doctor.bundle import read_saved
    from yoked.doctor.causes import findings_of
    from yoked.doctor.replay import from_json

    examination = from_json(read_saved(path), where=f"--from {path}")
    return Seen(path.name, examination, findings_of(examination))


def connect(fleet: Fleet, name: str) -> AgentClient:
    """An agent on a host of a fleet. Raises HostError, also for one that is no longer in it."""
    from yoked.remote.connect import connect_host

    host = next((host for host in fleet.hosts if host.name == name), None)
    if host is None:
        raise HostError(f"{name} is not in {fleet.path}", fix=f"yoked hosts --fleet {fleet.path}")
    return connect_host(host, fleet.ssh_file)
