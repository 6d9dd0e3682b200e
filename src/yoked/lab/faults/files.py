"""Faults of what lies on a host: another torch, other data, other code than on the others.

The host's own file tree takes the changes; the machine's files stay as they are, which is checked.
"""

from __future__ import annotations

import functools
import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Self

import yoked
from yoked.errors import LabError
from yoked.lab.faults import inside_files
from yoked.lab.faults.base import Act, Fault, Words
from yoked.paths import cache_root

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

# Beside what people keep, and on the disk, so that it outlives a reboot.
_KEPT = "~/.yoked-lab/{0}"
_UNCOMMITTED = "\n# A change that was never committed.\n"
# What a person would take for versions of torch: 2.12.1, 2.12.1+cpu.
_VERSION = re.compile(r"\d+(\.\d+)+([a-z]+\d+)?(\+[\w.]+)?")


@functools.cache
def _program() -> str:
    return Path(inside_files.__file__).read_text(encoding="utf-8")


def ask(host: LabHost, do: str, *, env: dict[str, str] | None = None, **request: Any) -> Any:
    """Have the host's Python look at or change the host's files."""
    words = ["python3", "-c", _program(), json.dumps({"do": do, **request})]
    done = host.run(words, env=env, check=False, as_root=True)
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        raise LabError(
            f"{host.name}: its files cannot be changed: {why}",
            fix="what belongs to root only a lab of root can change",
        )
    return json.loads(done.stdout)


def _not_the_machines(host: LabHost, path: str) -> None:
    """Raise LabError where a host's file is the machine's own and not the host's copy of it."""
    try:
        # A link by itself: where it leads would be looked up among the machine's own files.
        there, here = Path(f"/proc/{host.pid}/root{path}").lstat(), Path(path).lstat()
    except OSError:
        return  # only one of them has it
    if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
        raise LabError(
            f"{path} of {host.name} is the machine's own file: it cannot be changed for one host",
            fix="name a folder on another file system",
        )


@dataclass(frozen=True)
class FileFault(Fault):
    """Changes files of a host; the originals are kept on it, under the fault's id."""

    WRITES_FILES = True

    @abstractmethod
    def changes(self, act: Act, host: LabHost) -> list[dict[str, Any]]:
        """What to change, as `inside_files` takes it; and tell with `act.say`."""

    def apply(self, act: Act) -> None:
        """Choose, check, change."""
        host = act.writable(self.host)
        changes = self.changes(act, host)
        for change in changes:
            _not_the_machines(host, change["path"])
        ask(host, "change", keep=_KEPT.format(act.id), changes=changes)

    def undo(self, act: Act) -> None:
        """Put back what is still as it was left."""
        ask(act.writable(self.host), "restore", keep=_KEPT.format(act.id))


@dataclass(frozen=True)
class DifferentTorch(FileFault):
    """Another version of torch than on the other hosts, as it tells itself."""

    KIND = "different-torch"
    SUMMARY = "torch and its package metadata report another version"
    USAGE = "different-torch HOST VERSION"

    version: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a version."""
        words = Words(cls.USAGE, lab, args)
        host, version = words.host(), words.take("VERSION")
        if not _VERSION.fullmatch(version):
            raise words.wrong(
                f"{version!r} is not a version", "write it as in 2.12.1 or 2.12.1+cpu"
            )
        return words.done(cls(host, version))

    @property
    def text(self) -> str:
        """What it does."""
        return f"torch on {self.host} says that it is {self.version}"

    def changes(self, _act: Act, host: LabHost) -> list[dict[str, Any]]:
        """Where torch and the package tools look."""
        found = ask(host, "find", package="torch")
        if found is None:
            raise LabError(
                f"the python3 of {self.host} has no torch",
                fix="bring the lab up from a shell in which `python3 -c 'import torch'` works",
            )
        by = f"__version__ = {self.version!r}"
        changes = [
            {"path": f"{found['folder']}/version.py", "replace": [r"^__version__ *=.*$", by]}
        ]
        if "metadata" in found:
            changes.append(
                {"path": found["metadata"], "replace": ["^Version:.*$", f"Version: {self.version}"]}
            )
        return changes


@dataclass(frozen=True)
class FolderFault(FileFault):
    """Files of one folder differ. folder: None is the usual one."""

    folder: str | None

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and perhaps a folder."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.optional()))

    def same_as(self, other: Fault) -> bool:
        """Of the same folder."""
        return (
            isinstance(other, FolderFault)
            and super().same_as(other)
            and self.folder == other.folder
        )


@dataclass(frozen=True)
class DifferentData(FolderFault):
    """The host's data is not that of the others: a file less, and other bytes."""

    KIND = "different-data"
    SUMMARY = "a data file is missing, and bytes of another differ"
    USAGE = "different-data HOST [FOLDER]"

    @property
    def text(self) -> str:
        """What it does."""
        return f"data on {self.host} differs"

    def changes(self, act: Act, host: LabHost) -> list[dict[str, Any]]:
        """Remove one by chance, flip bytes in the middle of another."""
        found = ask(host, "list", folder=self.folder or str(cache_root()))
        folder, files = found["folder"], [file for file in found["files"] if file[1] > 0]
        if not files:
            raise LabError(
                f"{self.host} has no data in {folder}",
                fix=f"name the folder: yoked lab fault {self.KIND} {self.host} FOLDER",
            )
        name, size_bytes = act.random.choice(files)
        at_byte = size_bytes // 2
        told = [f"from byte {at_byte} on, {folder}/{name} has other bytes"]
        changes: list[dict[str, Any]] = [{"path": f"{folder}/{name}", "flip": at_byte}]
        if rest := [file for file in files if file[0] != name]:
            gone = act.random.choice(rest)[0]
            told.append(f"{folder}/{gone} is missing")
            changes.append({"path": f"{folder}/{gone}", "remove": True})
        act.say(f"on {self.host}, {'; '.join(told)}")
        return changes


@dataclass(frozen=True)
class DifferentCode(FolderFault):
    """A source file has a change that the others do not have."""

    KIND = "different-code"
    SUMMARY = "a source file differs by a line"
    USAGE = "different-code HOST [FOLDER]"

    @property
    def text(self) -> str:
        """What it does."""
        return f"code on {self.host} differs"

    def changes(self, act: Act, host: LabHost) -> list[dict[str, Any]]:
        """A comment more in one by chance."""
        folder = self.folder or self._package(host)
        found = ask(host, "list", folder=folder)
        files = [
            name
            for name, size_bytes in found["files"]
            if name.endswith(".py") and size_bytes and not _is_hidden(name)
        ]
        if not files:
            raise LabError(
                f"{self.host} has no Python files in {found['folder']}",
                fix=f"name the folder: yoked lab fault {self.KIND} {self.host} FOLDER",
            )
        path = f"{found['folder']}/{act.random.choice(files)}"
        act.say(f"on {self.host}, {path} has a line more")
        return [{"path": path, "append": _UNCOMMITTED}]

    def _package(self, host: LabHost) -> str:
        """The yoked that the host's Python imports, else the one that brought up the lab."""
        found = ask(host, "find", package="yoked")
        return found["folder"] if found else str(Path(yoked.__file__).parent)


def _is_hidden(name: str) -> bool:
    """Tools' own folders, which nobody syncs or imports."""
    return any(part.startswith(".") for part in PurePosixPath(name).parts)
