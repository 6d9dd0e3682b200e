"""What hosts say of the folders that a run writes to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

from yoked.doctor.checks.query import mapping, part
from yoked.records.examination import Examination, HostSeen, Severity
from yoked.units import listed

# Those that a run writes to.
WRITTEN = ("state", "cache", "tmp")
# Python and compilers find another folder for temporary files.
MUST = ("state", "cache")

Folder = Mapping[str, Any]


def folders_of(host: HostSeen, *names: str) -> dict[str, Folder]:
    """What a host says of some folders, as far as it says anything."""
    told = mapping(part(host, "folders"))
    return {name: told[name] for name in names if isinstance(told.get(name), Mapping)}


def hosts_with(
    seen: Examination, names: Iterable[str], flaw: Callable[[Folder], object]
) -> Iterator[tuple[HostSeen, dict[str, Folder]]]:
    """Hosts that have folders with a flaw, and these folders. names: of those that count."""
    for host in seen.up:
        if found := {name: each for name, each in folders_of(host, *names).items() if flaw(each)}:
            yield host, found


def failed(folder: Folder, *symbols: str) -> bool:
    """Whether writing a file there ended with one of some symbols."""
    return str(folder.get("error") or "").partition(":")[0] in symbols


def shown(folders: Mapping[str, Folder]) -> str:
    """Their paths, once each."""
    return listed(dict.fromkeys(str(each.get("path")) for each in folders.values()))


def severity_of(folders: Mapping[str, Folder]) -> Severity:
    """How grave it is that these have a flaw."""
    return "error" if any(name in MUST for name in folders) else "warning"


def place_of(folders: Mapping[str, Folder]) -> str:
    """The path of the first."""
    return str(next(iter(folders.values())).get("path"))


def is_below(path: str, home: str) -> bool:
    """Whether a folder is a user's own; a home that is all there is has nothing of its own."""
    own, place = PurePosixPath(home), PurePosixPath(path)
    return len(own.parts) > 1 and own in place.parents and ".." not in place.parts
