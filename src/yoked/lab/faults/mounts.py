"""File systems of a host: mounted over, too small, full. Made by the machine: no host may mount."""

from __future__ import annotations

import json
import os
import posixpath
import shlex
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from yoked.errors import LabError
from yoked.lab import syscalls
from yoked.lab.faults.args import HOST, Arg, Parsed, Whole
from yoked.lab.faults.base import Effect, Fault, FaultContext, InMemory, Kind
from yoked.units import format_bytes

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

SHM, _BATTERIES = "/dev/shm", "/sys/class/power_supply"  # noqa: S108 - a host's
_TMPFS = syscalls.MS_REMOUNT | syscalls.MS_NOSUID | syscalls.MS_NODEV
# While a disk is being filled others write to it.
_FILL_ATTEMPTS = 5
# One step: its name and its arguments, as `_mount_all` has them.
Step = list[Any]

# Runs as a process of its own, for a namespace is entered for good.
_PROGRAM = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
from yoked.lab import syscalls
pid, user_namespace, acts = json.loads(sys.argv[2])
syscalls.enter_namespaces(
    syscalls.open_namespaces(pid, ["mnt"], user_namespace=user_namespace)
)
for act, *words in acts:
    if act == "mkdir":
        os.makedirs(words[0], exist_ok=True)
        continue
    if act == "write":
        open(words[0], "w").write(words[1])
        continue
    try:
        getattr(syscalls, act)(*words)
    except OSError as problem:
        if act != "unmount":
            sys.exit(problem.strerror)
"""


def _mount_all(lab: Lab, pid: int, name: str, steps: list[Step]) -> None:
    """Do what is listed in the mount namespace of process `pid` of the lab, in order.

    steps: ["mount", source, target, kind, flags, data], ["unmount", target] (harmless where
    nothing is mounted), ["mkdir", path], ["write", path, text]. Raises LabError with the kernel's
    reason, which begins with `name`.
    """
    source = str(Path(syscalls.__file__).parents[2])
    request = json.dumps([pid, not lab.is_root, steps])
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _PROGRAM, source, request],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise LabError(f"{name}: {done.stderr.strip().rpartition(chr(10))[2]}")


# ---- mounts in the host's tree, which are gone when the host starts anew ----


@dataclass(frozen=True)
class Mounted(InMemory):
    """mount, unmount: what to do, and what undoes it. folder: of the machine's kernel, to be there.

    Unmounting comes before mounting, too: nothing of an earlier time lies below.
    """

    mount: Callable[[Fault], list[Step]]
    unmount: Callable[[], list[Step]]
    folder: str = "/"

    def unsupported(self, _lab: Lab) -> str | None:
        return None if Path(self.folder).is_dir() else f"the kernel has no {self.folder}"

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.host(fault.host)
        _mount_all(context.lab, host.pid, fault.host, [*self.unmount(), *self.mount(fault)])

    def undo(self, fault: Fault, context: FaultContext) -> None:
        pid = context.lab.host(fault.host).pid
        _mount_all(context.lab, pid, fault.host, self.unmount())


def smaller_shm(mib: Arg[int]) -> Mounted:
    """Shared memory of so many MiB."""

    def sized(size_bytes: int) -> list[Step]:
        return [["mount", "none", SHM, None, _TMPFS, f"mode=1777,size={size_bytes}"]]

    def half() -> list[Step]:
        # Half of the memory in whole pages, as the kernel gives; size=50% would round up.
        return sized(os.sysconf("SC_PHYS_PAGES") // 2 * os.sysconf("SC_PAGE_SIZE"))

    return Mounted(lambda fault: sized(fault[mib] << 20), half)


def on_battery(percent: Arg[int]) -> Mounted:
    """What the kernel would tell. Source: its Documentation/ABI/testing/sysfs-class-power."""

    def mount(fault: Fault) -> list[Step]:
        told = {
            "AC/type": "Mains",
            "AC/online": "0",
            "BAT0/type": "Battery",
            "BAT0/scope": "System",
            "BAT0/present": "1",
            "BAT0/status": "Discharging",
            "BAT0/capacity": str(fault[percent]),
        }
        flags = syscalls.MS_NOSUID | syscalls.MS_NODEV
        return [
            ["mount", "none", _BATTERIES, "tmpfs", flags, "size=64k,mode=755"],
            *(["mkdir", f"{_BATTERIES}/{name}"] for name in ("AC", "BAT0")),
            *(["write", f"{_BATTERIES}/{path}", f"{text}\n"] for path, text in told.items()),
        ]

    return Mounted(mount, lambda: [["unmount", _BATTERIES]], _BATTERIES)


@dataclass(frozen=True)
class FolderFlag(InMemory):
    """A folder is mounted over itself, with a flag more. flag: of mount(2).

    Several such mounts of a host may lie over each other; each has a place among them.
    """

    folder: Arg[str]
    flag: int

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """On top of those that are there, once: a second time would lie over the first."""
        host = context.host(fault.host)
        if context.record.get("mounted") == host.process.to_json():
            return
        if not host.exists(fault[self.folder]):
            raise LabError(
                f"{fault.host} has no folder {fault[self.folder]}",
                fix=fault.fill("yoked lab exec {host} -- mkdir -p {folder}", quote=shlex.quote),
            )
        beside = _mounted_beside(fault, context)
        place = 1 + max((at for at, _ in beside), default=0)
        context.remember(mounted=host.process.to_json(), place=place)
        below = [layer for _, layer in beside]
        _mount_all(context.lab, host.pid, fault.host, _over(below, self._layer(fault)))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Unmount this one and those above it, which are then mounted again.

        Only what was mounted: the folder may be a mount of the host's own.
        """
        host = context.lab.host(fault.host)
        if context.record.get("mounted") != host.process.to_json():
            return
        place, beside = context.record["place"], _mounted_beside(fault, context)
        below = [layer for at, layer in beside if at < place]
        above = [layer for at, layer in beside if at > place]
        steps: list[Step] = [
            ["unmount", folder] for folder, _ in [*above[::-1], self._layer(fault)]
        ]
        for layer in above:
            steps += _over(below, layer)
            below.append(layer)
        _mount_all(context.lab, host.pid, fault.host, steps)

    def _layer(self, fault: Fault) -> tuple[str, int]:
        return fault[self.folder], self.flag


def _mounted_beside(fault: Fault, context: FaultContext) -> list[tuple[int, tuple[str, int]]]:
    """Place, folder and flag of the others that are mounted on this host, the lowest first."""
    now = context.host(fault.host).process.to_json()
    return sorted(
        (record["place"], (other[effect.folder], effect.flag))
        for other, record in context.beside(fault.host)
        for effect in other.effects(FolderFlag)
        if record.get("mounted") == now
    )


def _over(below: Sequence[tuple[str, int]], top: tuple[str, int]) -> list[Step]:
    """Mount a folder over itself, with the flags of what it hides, too."""
    folder, flags = top
    for each, flag in below:
        if each == folder:
            flags |= flag
    # With what is mounted below the folder: the flags are then its own alone.
    bind = syscalls.MS_BIND | syscalls.MS_REC
    again = syscalls.MS_REMOUNT | syscalls.MS_BIND
    return [
        ["mount", folder, folder, None, bind, None],
        ["mount", "none", folder, None, again | flags, None],
    ]


# ---- the host's disk, which is mounted in the lab's own namespaces ----


@dataclass(frozen=True)
class StorageFull(Effect):
    """The host's storage is as small as what lies in it: writing fails with ENOSPC.

    option: what of it, as tmpfs(5) has it, bytes or files.
    """

    NEEDS_HOST = False
    NO_FILES = "has no room on its disk"

    option: Literal["size", "nr_inodes"]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        total, used = self._amounts(fault, context)
        if "before" not in context.record:
            context.remember(before=total)
        for attempt in range(_FILL_ATTEMPTS):
            try:
                # In a tmpfs, 0 would mean no limit.
                _resize(context.lab, fault.host, f"{self.option}={max(used, 1)}")
            except LabError:
                # Somebody wrote in between, and less than there is cannot be.
                if attempt + 1 == _FILL_ATTEMPTS:
                    raise
                used = self._amounts(fault, context)[1]
            else:
                break
        if self.option == "size":
            context.say(f"{fault.text} ({format_bytes(used)} written)")

    def undo(self, fault: Fault, context: FaultContext) -> None:
        before = context.record.get("before")
        if before not in (None, self._amounts(fault, context)[0]):
            _resize(context.lab, fault.host, f"{self.option}={max(before, 1)}")

    def _amounts(self, fault: Fault, context: FaultContext) -> tuple[int, int]:
        """How much there is, and how much of it is used."""
        now = os.statvfs(context.lab.host(fault.host).storage)
        if self.option == "nr_inodes":
            return now.f_files, now.f_files - now.f_ffree
        return now.f_blocks * now.f_frsize, (now.f_blocks - now.f_bfree) * now.f_frsize


def _resize(lab: Lab, name: str, option: str) -> None:
    """Another size or number of inodes."""
    flags = syscalls.MS_REMOUNT | syscalls.MS_NODEV
    what = f"the disk of {name} cannot have {option}"
    steps = [["mount", "none", f"/run/hosts/{name}", None, flags, option]]
    _mount_all(lab, lab.init.pid, what, steps)


# ---- the faults ----


def _folder(text: str) -> str:
    """An absolute path of a folder of files; ~ is the account's home. Raises ValueError."""
    path = str(Path(text).expanduser())
    if not path.startswith("/") or posixpath.normpath(path) in ("/", "/proc", "/sys", "/dev"):
        raise ValueError(text)
    return posixpath.normpath(path)


_FOLDER = Parsed(
    "FOLDER",
    parse=_folder,
    problem="is not the absolute path of a folder of files",
    tells_apart=True,
)
_SHM_MIB = Whole("MIB", least=1, most=2**24)

STORAGE = (
    Kind(
        "disk-full",
        (HOST,),
        "its disk is full: writing a file fails (/tmp, /run and /dev/shm are no disk)",
        "the disk of {host} is full",
        (StorageFull("size"),),
    ),
    Kind(
        "no-inodes",
        (HOST,),
        "its disk takes no more files, though there is room (/tmp and /run are no disk)",
        "the disk of {host} takes no more files",
        (StorageFull("nr_inodes"),),
    ),
    Kind(
        "read-only",
        (HOST, _FOLDER),
        "a folder is mounted read-only, as after errors of a disk",
        "{folder} of {host} is read-only",
        (FolderFlag(_FOLDER, syscalls.MS_RDONLY),),
    ),
    # A hardened system.
    Kind(
        "no-exec",
        (HOST, _FOLDER),
        "a folder is mounted noexec: no program or library is loaded from it",
        "{folder} of {host} is noexec",
        (FolderFlag(_FOLDER, syscalls.MS_NOEXEC),),
    ),
    Kind(
        "small-shm",
        (HOST, _SHM_MIB),
        f"{SHM} has so many MiB (Docker gives containers 64)",
        f"{SHM} of {{host}} has {{mib}} MiB",
        (smaller_shm(_SHM_MIB),),
    ),
)
