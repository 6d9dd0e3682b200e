"""Looks at a fleet, and judges what is seen, or what a bundle kept."""

from __future__ import annotations

import contextlib
import dataclasses
import posixpath
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from queue import Empty, Queue
from typing import Any, Protocol

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

_MOST_LINKS = 40
# Beyond a look, for a folder with very many files: a launch waits for as long as it takes.
_LISTED_S = 3.0


@dataclass(frozen=True)
class Seen:
    """An examination, and what it comes to. fleet: the fleet's name."""

    fleet: str
    examination: Examination
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class Sent:
    """What a launch would send of the folder where this was typed.

    names: below it; None: nothing, for it refuses: then refused is why, with the lines that mend
    it. links: what travels as a link, with what it leads to. remarks: what else a launch says.
    sizes: of large files, where each lies and the bytes that it had.
    """

    names: Collection[str] | None
    refused: tuple[str, ...] = ()
    links: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[Path, int]] = field(default_factory=dict)

    def changed(self) -> list[str]:
        """Large files that have another size now, or are gone."""
        return [name for name, (path, size) in self.sizes.items() if _size(path) != size]


class Status(Protocol):
    """Where what goes on is shown."""

    def show(self, doing: str) -> None:
        """Show the current action."""
        ...


@dataclass(frozen=True)
class Examiner:
    """Looks at a fleet, again and again. status: a context with a place to show what goes on.

    folders: compared on all hosts, by what they are. sudo: whether it may be used to look.
    travelling: tells what a launch would send of the folder where this was typed.
    """

    need: Need
    status: Callable[[], AbstractContextManager[Status]]
    quick: bool = False
    bandwidth: bool = False
    folders: Mapping[str, Path] | None = None
    sudo: bool = False
    travelling: Callable[[Fleet], Sent] | None = None

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


def _begun(travelling: Callable[[Fleet], Sent] | None, fleet: Fleet) -> Queue[Sent] | None:
    """Have the folder listed while hosts are looked at; the queue gets what is found, if any."""
    if travelling is None:
        return None
    found: Queue[Sent] = Queue()

    def find() -> None:
        # A folder that is removed meanwhile tells nothing.
        with contextlib.suppress(YokedError, OSError):
            found.put(travelling(fleet))

    threading.Thread(target=find, daemon=True, name="travelling").start()
    return found


def _with_left(seen: Examination, queue: Queue[Sent]) -> Examination:
    """The examination with what a launch would say of the folder, and what no host would get.

    refused, remarks, growing: see `Sent`; left: of what the program here is made of; left_named,
    files that it names; left_folders, those into which it writes; left_beside, files that may be
    modules of its; dead_links: links that lead to
    nothing there; sent_links: those that travel.
    """
    # Without a program, as in a home folder, nobody waits for its end.
    limit_s = _LISTED_S if seen.controller.get("programs") else 0.001
    try:
        sent = queue.get(timeout=limit_s)
    except Empty:
        return seen
    told: dict[str, Any] = {"refused": list(sent.refused), "remarks": list(sent.remarks)}
    if sent.names is not None:
        told |= _left(seen, sent.names)
        told["growing"] = sent.changed()
        told["sent_links"] = list(sent.links)
        told["dead_links"] = [f"{name} -> {sent.links[name]}" for name in _dead_links(sent)]
    return dataclasses.replace(seen, controller={**seen.controller, **told})


def _left(seen: Examination, names: Collection[str]) -> dict[str, list[str]]:
    left = {
        kind: [each for each in seen.controller.get(of) or () if each not in names]
        for kind, of in (("left", "own"), ("left_named", "named"))
    }
    folders = _folders(names)
    filled = seen.controller.get("asks", {}).get("fills", {})
    left["left_folders"] = [each for each in filled if each not in folders]
    beside = [str(each["file"]) for each in seen.controller.get("beside") or ()]
    left["left_beside"] = [each for each in beside if each not in folders]
    return left


def _folders(names: Collection[str]) -> set[str]:
    """Names, and the folders above them."""
    return {above for name in names for above in (name, *map(str, PurePosixPath(name).parents))}


def _dead_links(sent: Sent) -> Iterator[str]:
    """Links that lead to nothing of what travels with them."""
    folders = _folders(set(sent.names or ()) - set(sent.links))
    for name in sent.links:
        path = name
        # As many as the kernel follows: path_resolution(7).
        for _ in range(_MOST_LINKS):
            parts = PurePosixPath(path)
            link = next((each for each in (parts, *parts.parents) if str(each) in sent.links), None)
            # What an absolute path is there, hosts are asked.
            if link is None or path.startswith("/"):
                break
            led = posixpath.join(str(link.parent), sent.links[str(link)])
            path = posixpath.normpath(posixpath.join(led, parts.relative_to(link)))
        if not path.startswith("/") and path not in folders:
            yield name


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except OSError:
        return None


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
