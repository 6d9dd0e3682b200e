"""Faults of file systems and folders: read-only, no programs, no inodes, too small."""

from __future__ import annotations

import os
import posixpath
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from yoked.errors import LabError
from yoked.lab import syscalls
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.machine import resize_storage
from yoked.lab.faults.mounts import mount_all

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_MIB = 1 << 20
_TMPFS = syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV
_BIND_AGAIN = syscalls.MS_REMOUNT | syscalls.MS_BIND
_SHM, _BATTERIES = "/dev/shm", "/sys/class/power_supply"  # noqa: S108 - a host's


@dataclass(frozen=True)
class MountFault(Fault):
    """A mount in the host's tree; it is gone when the host starts anew."""

    AFTER_BOOT = "again"

    @abstractmethod
    def mounts(self, act: Act) -> list[list[Any]]:
        """What to do, as `mount_all` takes it."""

    @abstractmethod
    def unmounts(self, act: Act) -> list[list[Any]]:
        """What undoes it."""

    def apply(self, act: Act) -> None:
        """Mount, over nothing of an earlier time."""
        host = act.host(self.host)
        self._do(act, host.pid, [*self.unmounts(act), *self.mounts(act)])

    def undo(self, act: Act) -> None:
        """Unmount; a host that is down has no mounts."""
        host = act.lab.host(self.host)
        if host.alive:
            self._do(act, host.pid, self.unmounts(act))

    def _do(self, act: Act, pid: int, acts: list[list[Any]]) -> None:
        try:
            mount_all(act.lab, pid, acts)
        except LabError as problem:
            raise LabError(f"{self.host}: {problem.what}") from problem


@dataclass(frozen=True)
class FolderMount(MountFault):
    """A folder that is mounted over itself, with other flags."""

    folder: str

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a folder; ~ is the account's home."""
        words = Words(cls.USAGE, lab, args)
        host, folder = words.host(), words.take("FOLDER")
        path = str(Path(folder).expanduser())
        if not path.startswith("/") or posixpath.normpath(path) in ("/", "/proc", "/sys", "/dev"):
            raise words.wrong(f"{folder!r} is not the absolute path of a folder of files")
        return words.done(cls(host, posixpath.normpath(path)))

    def same_as(self, other: Fault) -> bool:
        """Of the same folder."""
        return (
            isinstance(other, FolderMount)
            and super().same_as(other)
            and self.folder == other.folder
        )

    def mounts(self, act: Act) -> list[list[Any]]:
        """On top of those that are there."""
        if not act.host(self.host).exists(self.folder):
            raise LabError(
                f"{self.host} has no folder {self.folder}",
                fix=f"yoked lab exec {self.host} -- mkdir -p {self.folder}",
            )
        return _over([each for _, each in self._beside(act)], self)

    def unmounts(self, act: Act) -> list[list[Any]]:
        """This one and those above it, which are then mounted again."""
        place = act.record["place"]
        below = [each for at, each in self._beside(act) if at < place]
        above = [each for at, each in self._beside(act) if at > place]
        # Lazily: somebody may be in it.
        acts: list[list[Any]] = [
            ["unmount", each.folder, syscalls.MNT_DETACH] for each in [*above[::-1], self]
        ]
        for each in above:
            acts += _over(below, each)
            below.append(each)
        return acts

    def _beside(self, act: Act) -> list[tuple[int, FolderMount]]:
        """The others that are mounted on this host, with their places, the lowest first."""
        now = act.host(self.host).process.to_json()
        mounted = [
            (record["place"], fault)
            for fault, record in act.beside(self.host)
            if isinstance(fault, FolderMount) and record.get("mounted") == now
        ]
        return sorted(mounted, key=lambda pair: pair[0])

    def apply(self, act: Act) -> None:
        """Once: a second time would lie over the first."""
        host = act.host(self.host)
        if act.record.get("mounted") == host.process.to_json():
            return
        acts = self.mounts(act)
        place = 1 + max((at for at, _ in self._beside(act)), default=0)
        act.remember(mounted=host.process.to_json(), place=place)
        self._do(act, host.pid, acts)

    def undo(self, act: Act) -> None:
        """Only what was mounted: the folder may be a mount of the host's own."""
        if act.record.get("mounted") == act.lab.host(self.host).process.to_json():
            super().undo(act)

    @property
    @abstractmethod
    def flag(self) -> int:
        """Of mount(2)."""


def _over(below: Sequence[FolderMount], top: FolderMount) -> list[list[Any]]:
    """Mount a folder over itself, with the flags of what it hides, too."""
    flags = top.flag
    for each in below:
        if each.folder == top.folder:
            flags |= each.flag
    # With what is mounted below the folder: the flags are then its own alone.
    bind = syscalls.MS_BIND | syscalls.MS_REC
    return [
        ["mount", top.folder, top.folder, None, bind, None],
        ["mount", "none", top.folder, None, _BIND_AGAIN | flags, None],
    ]


@dataclass(frozen=True)
class ReadOnly(FolderMount):
    """What a kernel does to a disk with errors."""

    KIND = "read-only"
    SUMMARY = "a folder is mounted read-only, as after errors of a disk"
    USAGE = "read-only HOST FOLDER"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.folder} of {self.host} is read-only"

    @property
    def flag(self) -> int:
        """Nothing can be written."""
        return syscalls.MS_RDONLY


@dataclass(frozen=True)
class NoExec(FolderMount):
    """A hardened system: no program or library is loaded from there."""

    KIND = "no-exec"
    SUMMARY = "a folder is mounted noexec: no program or library is loaded from it"
    USAGE = "no-exec HOST FOLDER"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.folder} of {self.host} is noexec"

    @property
    def flag(self) -> int:
        """No program starts from it, no library is mapped."""
        return syscalls.MS_NOEXEC


@dataclass(frozen=True)
class SmallShm(MountFault):
    """What Docker gives a container: 64 MB of shared memory, unless told otherwise."""

    KIND = "small-shm"
    SUMMARY = f"{_SHM} has so many MiB (Docker gives containers 64)"
    USAGE = "small-shm HOST MIB"

    size_bytes: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and MiB."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(cls(host, words.whole(words.take("MIB"), "MIB", 1, 2**24) * _MIB))

    @property
    def text(self) -> str:
        """What it does."""
        return f"{_SHM} of {self.host} has {self.size_bytes // _MIB} MiB"

    def mounts(self, _act: Act) -> list[list[Any]]:
        """Smaller."""
        return [["mount", "none", _SHM, None, _TMPFS, f"mode=1777,size={self.size_bytes}"]]

    def unmounts(self, _act: Act) -> list[list[Any]]:
        """Half of the memory in whole pages, as the kernel gives; size=50% would round up."""
        half = os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE")
        return [["mount", "none", _SHM, None, _TMPFS, f"mode=1777,size={half}"]]


@dataclass(frozen=True)
class NoInodes(Fault):
    """Room for bytes, but not for one more file."""

    KIND = "no-inodes"
    SUMMARY = "its disk takes no more files, though there is room (/tmp and /run are no disk)"
    USAGE = "no-inodes HOST"
    NEEDS_HOST = False

    @property
    def text(self) -> str:
        """What it does."""
        return f"the disk of {self.host} takes no more files"

    def apply(self, act: Act) -> None:
        """As many as there are."""
        now = os.statvfs(act.lab.host(self.host).storage)
        if "files" not in act.record:
            act.remember(files=now.f_files)
        resize_storage(act.lab, self.host, f"nr_inodes={now.f_files - now.f_ffree}")

    def undo(self, act: Act) -> None:
        """As many as it could take before."""
        if "files" in act.record:
            resize_storage(act.lab, self.host, f"nr_inodes={act.record['files']}")


@dataclass(frozen=True)
class Battery(MountFault):
    """A laptop whose plug is out."""

    KIND = "battery"
    SUMMARY = "the host is a laptop that runs on its battery"
    USAGE = "battery HOST [PERCENT]"

    percent: int = 60

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and perhaps how full it is."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(cls(host, words.optional_whole("PERCENT", 0, 100, cls.percent)))

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """The kernel must have the folder in which it tells of batteries."""
        return None if Path(_BATTERIES).is_dir() else f"the kernel has no {_BATTERIES}"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} runs on its battery, {self.percent}% full"

    def mounts(self, _act: Act) -> list[list[Any]]:
        """What the kernel would tell. Source: its Documentation/ABI/testing/sysfs-class-power."""
        told = {
            "AC/type": "Mains",
            "AC/online": "0",
            "BAT0/type": "Battery",
            "BAT0/scope": "System",
            "BAT0/present": "1",
            "BAT0/status": "Discharging",
            "BAT0/capacity": str(self.percent),
        }
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        return [
            ["mount", "none", _BATTERIES, "tmpfs", flags, "size=64k,mode=755"],
            *(["mkdir", f"{_BATTERIES}/{name}"] for name in ("AC", "BAT0")),
            *(["write", f"{_BATTERIES}/{path}", f"{text}\n"] for path, text in told.items()),
        ]

    def unmounts(self, _act: Act) -> list[list[Any]]:
        """None."""
        return [["unmount", _BATTERIES, syscalls.MNT_DETACH]]
