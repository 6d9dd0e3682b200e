"""Looks at a fleet, and judges what is seen, or what a bundle kept."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Collection, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from queue import Empty, Queue
from typing import Protocol

from yoked.doctor.bundle import read_saved
from yoked.doctor.causes import findings_of
from yoked.doctor.compare import with_contents
from yoked.doctor.examine import look
from yoked.doctor.replay import from_json
from yoked.errors import HostError, YokedError
from yoked.fleet.model import Fleet
from yoked.records.examination import Examination, Finding, Need
from yoked.remote.client import AgentClient
from yoked.remote.connect import connect_host


@dataclass(frozen=True)
class Seen:
    """An examination, and what it comes to. fleet: the fleet's name."""

    fleet: str
    examination: Examination
    findings: tuple[Finding, ...]


class Status(Protocol):
    """Where what goes on is shown."""

    def show(self, doing: str) -> None:
        """Show the current action."""
        ...


@dataclass(frozen=True)
class Examiner:
    """Looks at a fleet, again and again. status: a context with a place to show what goes on.

    folders: compared on all hosts, by what they are. sudo: whether it may be used to look.
    travelling: gives the names of what a launch would send of the folder where this was typed.
    """

    need: Need
    status: Callable[[], AbstractContextManager[Status]]
    quick: bool = False
    bandwidth: bool = False
    folders: Mapping[str, Path] | None = None
    sudo: bool = False
    travelling: Callable[[Fleet], Collection[str]] | None = None

    def __call__(self, fleet: Fleet, *, quick: bool | None = None) -> Seen:
        """Look at a fleet, and judge. quick: None is as was asked for."""
        is_quick = self.quick if quick is None else quick
        sent = None if is_quick else _begun(self.travelling, fleet)
        with self.status() as line:
            examination = look(
                fleet,
                self.need,
                quick=is_quick,
                bandwidth=self.bandwidth and not is_quick,
                say=line.show,
                sudo=self.sudo,
            )
            if sent is not None:
                examination = _with_left(examination, sent)
            if self.folders:
                line.show("comparing folders")
                examination = with_contents(
                    examination, self.folders, lambda host: connect(fleet, host)
                )
        return Seen(fleet.name, examination, findings_of(examination))


def _begun(
    travelling: Callable[[Fleet], Collection[str]] | None, fleet: Fleet
) -> Queue[Collection[str]] | None:
    """Have the folder listed while hosts are looked at; the queue gets the names, or nothing."""
    if travelling is None:
        return None
    names: Queue[Collection[str]] = Queue()

    def find() -> None:
        # Who cannot list it, a launch tells; there is nothing to compare with then.
        with contextlib.suppress(YokedError, OSError):
            names.put(travelling(fleet))

    threading.Thread(target=find, daemon=True, name="travelling").start()
    return names


def _with_left(seen: Examination, sent: Queue[Collection[str]]) -> Examination:
    """The examination with what no host would get: `left`, of which the program here is made, and
    `left_named`, files that it names, and `left_folders`, those into which it writes.
    """
    try:
        names = sent.get_nowait()
    except Empty:
        return seen
    left = {
        kind: [each for each in seen.controller.get(of) or () if each not in names]
        for kind, of in (("left", "own"), ("left_named", "named"))
    }
    folders = {above for name in names for above in (name, *map(str, PurePosixPath(name).parents))}
    filled = seen.controller.get("asks", {}).get("fills", {})
    left["left_folders"] = [each for each in filled if each not in folders]
    return dataclasses.replace(seen, controller={**seen.controller, **left})


def replayed(path: Path) -> Seen:
    """A saved examination, judged. Raises UsageError or YokedError for what is none."""
    examination = from_json(read_saved(path), where=f"--from {path}")
    return Seen(path.name, examination, findings_of(examination))


def connect(fleet: Fleet, name: str) -> AgentClient:
    """An agent on a host of a fleet. Raises HostError, also for one that is no longer in it."""
    host = next((host for host in fleet.hosts if host.name == name), None)
    if host is None:
        raise HostError(f"{name} is not in {fleet.path}", fix=f"yoked hosts --fleet {fleet.path}")
    return connect_host(host, fleet.ssh_file)
