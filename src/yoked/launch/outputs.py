"""What programs of a run wrote, from its hosts to `outputs/<host>/` of the run's folder here.

Which files these are a person says by patterns, below the folder where ranks run. A host may list
anything all the same. So only regular files come, by names of which no part begins with a dot, in
the sizes in which they were listed, and so many as are asked about first. They get no right to be
run. A file of the same size and time of change is taken for the same, as rsync does; one that
came in part goes on where it ended.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from os import SEEK_END
from pathlib import Path
from typing import Any
from unicodedata import normalize

from yoked.agent.jobfolder import WORK
from yoked.core.faults import fault
from yoked.core.fs import free_bytes, read_json, write_bytes
from yoked.core.patterns import any_matches
from yoked.errors import UsageError
from yoked.launch.listing import TAKEN, is_taken, paths_to, tell_refused
from yoked.launch.mirror import pieces
from yoked.launch.registry import Record
from yoked.paths import private_folder
from yoked.remote.client import AgentClient
from yoked.runs import MARK, is_program, require_ours, require_plain
from yoked.units import format_bytes, listed, plural

FOLDER = "outputs"
# More than these is asked about.
LIMIT_BYTES = 1_000_000_000
LIMIT_FILES = 1_000
_LAUNCH = ".yoked-launch"
_UNFINISHED = ".yoked-unfinished-"
# Of a path below the folder, and of each part of it: file systems take 255 bytes.
_LONGEST, _LONGEST_PART = 1000, 200
_PLAIN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._@:-]{0,79}")
_CHANGED = "changed while it came"
_TOO_LONG = "its name is too long"


@dataclass(frozen=True)
class _File:
    """A file that is to come. name: below the folder where ranks run, and below the host's here."""

    name: str
    size_bytes: int
    changed_ns: int

    def same_as(self, path: Path) -> bool:
        """Whether a file here is this one."""
        try:
            found = path.lstat()
        except OSError:
            return False
        # Some file systems keep microseconds.
        is_then = found.st_mtime_ns // 1000 == self.changed_ns // 1000
        return is_then and found.st_size == self.size_bytes

    def unfinished(self, folder: Path) -> Path:
        """Where the beginning of it lies; of another content of the same file elsewhere."""
        said = f"{self.name}\0{self.size_bytes}\0{self.changed_ns}"
        return folder / f"{_UNFINISHED}{hashlib.sha256(said.encode()).hexdigest()[:32]}"


@dataclass
class HostOutputs:
    """Files of one host. remote: where ranks run there; folder: where they come to here.

    wanted: what a pattern names; new: of these, what is not here yet; refused: why others stay.
    came_bytes: what came of them.
    """

    host: str
    client: AgentClient
    remote: str
    folder: Path
    wanted: list[_File]
    new: list[_File]
    refused: dict[str, str]
    came_bytes: int = 0

    @property
    def here(self) -> list[_File]:
        """What is here, once all came."""
        return [file for file in self.wanted if file.name not in self.refused]

    def begun_bytes(self) -> int:
        """What came before of files that did not come whole."""
        paths = [file.unfinished(self.folder) for file in self.new]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def bring(self, told: Callable[[int], None]) -> None:
        """Copy what is new. told: is called with the bytes of each piece."""
        private_folder(self.folder)
        for file in self.new:
            for piece in self._bring(file):
                self.came_bytes += piece
                told(piece)
        # Beginnings of what has changed since.
        for left in self.folder.glob(f"{_UNFINISHED}*"):
            left.unlink(missing_ok=True)

    def _bring(self, file: _File) -> Iterator[int]:
        target, unfinished = self.folder / file.name, file.unfinished(self.folder)
        private_folder(target.parent)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(unfinished, flags, 0o600), "ab", buffering=0) as begun:
            here = begun.seek(0, SEEK_END)
            # What is added while it comes belongs to another time of change.
            left = file.size_bytes - here
            for piece in pieces(self.client, f"{self.remote}/{file.name}", here, left, cut=True):
                yield begun.write(piece)
            is_whole = begun.tell() == file.size_bytes
        if not is_whole:
            unfinished.unlink()
            self.refused[file.name] = _CHANGED
            return
        with contextlib.suppress(OSError, OverflowError):
            os.utime(unfinished, ns=(file.changed_ns, file.changed_ns))
        unfinished.replace(target)


@dataclass
class Outputs:
    """Files of a run on all its hosts. here: the run's folder on this machine."""

    run: str
    launch_id: str
    here: Path
    patterns: tuple[str, ...]
    hosts: list[HostOutputs]

    @property
    def new_files(self) -> int:
        """How many would come."""
        return sum(len(each.new) for each in self.hosts)

    @property
    def new_bytes(self) -> int:
        """Bytes of these files."""
        return sum(file.size_bytes for each in self.hosts for file in each.new)

    @property
    def is_large(self) -> bool:
        """Whether a person is to be asked."""
        return self.new_bytes > LIMIT_BYTES or self.new_files > LIMIT_FILES

    def question(self) -> str:
        """What a person is asked."""
        names = listed(each.host for each in self.hosts if each.new)
        return (
            f"{plural(self.new_files, 'file')} ({format_bytes(self.new_bytes)}) of run {self.run} "
            f"would come from {names} to {self.here / FOLDER}, more than "
            f"{format_bytes(LIMIT_BYTES)} or {LIMIT_FILES:,} files"
        )

    def bring(self, progress: Callable[[str, int, int], None] | None = None) -> int:
        """Copy what is new; returns the bytes that came. Raises YokedError and HostError.

        progress: is told a host, and of how many bytes in all so many came.
        """
        begun = sum(each.begun_bytes() for each in self.hosts)
        free, needed = free_bytes(self.here.absolute()), self.new_bytes - begun
        if needed > free:
            raise fault(
                "disk-full-here",
                here=self.here,
                needed=format_bytes(needed),
                free=format_bytes(free),
            )
        private_folder(self.here / FOLDER)
        (self.here / MARK).touch()
        write_bytes(self.here / FOLDER / _LAUNCH, self.launch_id.encode(), mode=0o600)
        came = 0
        # One after another: they share this machine's cable.
        for each in self.hosts:

            def told(piece: int, host: str = each.host) -> None:
                nonlocal came
                came += piece
                if progress is not None:
                    progress(host, came, needed)

            each.bring(told)
        return came

    def refused(self) -> list[str]:
        """Of each host that has files which stay there, a line."""
        return [tell_refused(each.host, each.refused) for each in self.hosts if each.refused]

    def lines(self) -> list[str]:
        """Where they lie here, host by host."""
        return [
            f"{each.folder}: {plural(len(each.here), 'file')}, "
            f"{format_bytes(sum(file.size_bytes for file in each.here))}"
            for each in self.hosts
            if each.here
        ]

    def to_dict(self) -> dict[str, Any]:
        """As --json has it."""
        return {
            "dir": str(self.here / FOLDER),
            "bytes": sum(each.came_bytes for each in self.hosts),
            "hosts": [
                {
                    "name": each.host,
                    "dir": str(each.folder),
                    "files": [file.name for file in each.here],
                    "refused": each.refused,
                }
                for each in self.hosts
            ],
        }


def find_outputs(
    clients: Mapping[str, AgentClient], record: Record, here: Path, patterns: Sequence[str]
) -> Outputs:
    """Ask the hosts of a run what they have. here: the run's folder on this machine.

    Raises UsageError where that folder is something else, or has a link in it, and HostError.
    """
    require_same_program(record, here)
    folders = host_folders(record.hosts)
    hosts = []
    for host, client in clients.items():
        remote = f"{record.hosts[host]['folder']}/{WORK}"
        folder = here / FOLDER / folders[host]
        wanted, refused = _wanted(client, remote, folder, patterns)
        new = [file for file in wanted if not file.same_as(folder / file.name)]
        hosts.append(HostOutputs(host, client, remote, folder, wanted, new, refused))
    return Outputs(record.name, record.launch_id, here, tuple(patterns), hosts)


def tell_place(patterns: Sequence[str], folders: Mapping[str, str]) -> str:
    """Where outputs lie, for a person. folders: by host, the folder in which its ranks run."""
    hosts: dict[str, list[str]] = {}
    for host, folder in folders.items():
        hosts.setdefault(folder, []).append(host)
    places = ", ".join(f"{folder} on {listed(names)}" for folder, names in hosts.items())
    return f"outputs ({', '.join(patterns)}) lie in {places}"


def host_folders(hosts: Iterable[str]) -> dict[str, str]:
    """For each host the name of its folder: its own, if that is a plain one."""
    found: dict[str, str] = {}
    for host in hosts:
        name = stem = host if _PLAIN.fullmatch(host) else re.sub(r"[^A-Za-z0-9_-]", "_", host)[:80]
        if host == ".":
            name = stem = "here"
        number = 2
        # Where a file system takes two for one, so does this.
        while name.lower() in (other.lower() for other in found.values()):
            name, number = f"{stem}_{number}", number + 1
        found[host] = name
    return found


def require_same_program(record: Record, here: Path) -> None:
    """Raise UsageError for a folder that is not that of this run of a program."""
    require_ours(here)
    if here.exists():
        require_plain(here)
    if (here / "run.json").exists() and not is_program(here):
        raise UsageError(
            f"{here} is a training, and {record.name} on the hosts is another run",
            fix="--runs-dir FOLDER    names another folder for what comes",
        )
    what, known = "the record", (read_json(here / "run.json") or {}).get("launch_id")
    with contextlib.suppress(OSError):
        what, known = "the outputs", (here / FOLDER / _LAUNCH).read_text(encoding="utf-8")
    if known not in (None, record.launch_id):
        raise UsageError(
            f"{here} has {what} of another run of that name than the one on the hosts",
            fix=f"move it away: mv {shlex.quote(str(here))} {shlex.quote(str(here))}.other",
        )


def _wanted(
    client: AgentClient, remote: str, folder: Path, patterns: Sequence[str]
) -> tuple[list[_File], dict[str, str]]:
    """What a host lists that may come to a folder here, and why the rest may not."""
    told = client.call("file_list", folder=remote, patterns=list(patterns))
    wanted: dict[str, _File] = {}
    refused: dict[str, str] = {}
    # Each path, and each folder on the way to it, as it was spelt first.
    spelt: dict[str, str] = {}
    for name, size, changed_ns in sorted(told):
        # Matching takes longer for longer names, and a host may make them up.
        if len(name) <= _LONGEST and not any_matches(patterns, name):
            # It was not asked for.
            continue
        why = _flaw(name)
        if why is None and any(
            spelt.setdefault(normalize("NFC", path).casefold(), path) != path
            for path in paths_to(name)
        ):
            why = "differs from another by case alone"
        if why is None and any(path in wanted for path in paths_to(name)):
            why = "is a file and a folder, or was listed twice"
        if why is None and is_taken(folder, name):
            why = TAKEN
        if why is None:
            wanted[name] = _File(name, size, changed_ns)
        else:
            refused[name] = why
    return list(wanted.values()), refused


def _flaw(name: str) -> str | None:
    """Why a file of this name does not come; None: it may."""
    parts = name.split("/")
    if len(name) > _LONGEST:
        return _TOO_LONG
    # What is printable has no halves of surrogate pairs, which no file system takes.
    if not name.isprintable() or "" in parts:
        return "its name is no plain one"
    if any(len(os.fsencode(part)) > _LONGEST_PART for part in parts):
        return _TOO_LONG
    if any(part.startswith(".") for part in parts):
        return "a part of its name begins with a dot"
    if parts[-1].casefold() == "head":
        # With objects/ and refs/ beside it git takes the folder for a repository, whose
        # configuration names programs that git runs.
        return "git takes its folder for a repository"
    return None
