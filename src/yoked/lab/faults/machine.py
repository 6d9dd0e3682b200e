"""Faults of a whole machine: power, processor, memory, disk, clock."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from yoked.errors import LabError
from yoked.lab import syscalls
from yoked.lab.faults.base import Act, Fault, Words, found, lacking
from yoked.lab.faults.mounts import mount_all
from yoked.lab.ssh import CLOCK_SHARED
from yoked.units import format_bytes

if TYPE_CHECKING:
    from yoked.lab.hostgroup import HostGroup
    from yoked.lab.lab import Lab

_MIB = 1 << 20
# While a disk is being filled others write to it.
_FILL_ATTEMPTS = 5
# Makes what libfaketime shares, so that the ssh server need not. Runs in the host.
_SHARE = """
import ctypes, os, sys
libc = ctypes.CDLL(None, use_errno=True)
semaphore, memory = (name.encode() for name in sys.argv[1:])
libc.sem_open.restype = ctypes.c_void_p
if not libc.sem_open(semaphore, os.O_CREAT, 0o600, 1):
    sys.exit(os.strerror(ctypes.get_errno()))
os.ftruncate(libc.shm_open(memory, os.O_CREAT | os.O_RDWR, 0o600), 4096)
"""
_PRELOAD, _FAKETIMERC = "/etc/ld.so.preload", "/etc/faketimerc"
_MOST_SKEW_S = 100 * 365 * 86_400


@dataclass(frozen=True)
class Kill(Fault):
    """Power gone: every process at once, without a word to anybody."""

    KIND = "kill"
    SUMMARY = "power gone: every process at once; healing starts the host"
    USAGE = "kill HOST"
    BOOTS = True

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has no power"

    def apply(self, act: Act) -> None:
        """Off."""
        _switch_off(act, self.host)

    def undo(self, act: Act) -> None:
        """On."""
        _switch_on(act, self.host)


@dataclass(frozen=True)
class Reboot(Fault):
    """Off and on: processes and /tmp are gone, files stay."""

    KIND = "reboot"
    SUMMARY = "off and on again: processes and /tmp are gone, files stay; nothing to heal"
    USAGE = "reboot HOST"
    LASTS = False
    BOOTS = True

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} was rebooted"

    def apply(self, act: Act) -> None:
        """Off and on."""
        _switch_off(act, self.host)
        act.lab.start_host(self.host)

    def undo(self, act: Act) -> None:
        """On, when it was left off."""
        _switch_on(act, self.host)


def _switch_off(act: Act, name: str) -> None:
    act.remember(process=act.lab.host(name).process.to_json())
    act.lab.stop_host(name)


def _switch_on(act: Act, name: str) -> None:
    host = act.lab.host(name)
    if host.alive and host.process.to_json() == act.record.get("process"):
        # Whoever switched it off died over it, and it may be about to end.
        act.lab.stop_host(name)
    if not act.lab.host(name).alive:
        act.lab.start_host(name)


def _group(act: Act, name: str) -> HostGroup:
    group = act.lab.host(name).group
    if group is None:
        raise LabError(f"{name} has no control group", fix=lacking("cgroups") or ())
    return group


@dataclass(frozen=True)
class SlowCpu(Fault):
    """Heat, power save, or somebody else's program."""

    KIND = "slow-cpu"
    SUMMARY = "the host computes at a fraction of its own speed"
    USAGE = "slow-cpu HOST FRACTION"
    AFTER_BOOT = "again"

    fraction: float

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a fraction of its speed."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(cls(host, words.number(words.take("FRACTION"), "FRACTION", 0.01, 1)))

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """A quota of the control group."""
        return _without(lab, "cpu")

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} computes at {self.fraction:g} of its speed"

    def apply(self, act: Act) -> None:
        """A quota of what the host has."""
        host = act.lab.topology.host(self.host)
        _group(act, self.host).set_cpu(host.cpus * host.speed * self.fraction)

    def undo(self, act: Act) -> None:
        """The topology's."""
        _group(act, self.host).set_cpu(act.lab.topology.host(self.host).cores)


@dataclass(frozen=True)
class Oom(Fault):
    """Too little memory: the kernel kills who wants more."""

    KIND = "oom"
    SUMMARY = "the host has so many MiB of memory; who needs more is killed by the kernel (-9)"
    USAGE = "oom HOST MIB"
    AFTER_BOOT = "again"

    limit_bytes: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and MiB."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        return words.done(cls(host, words.whole(words.take("MIB"), "MIB", 16, 2**24) * _MIB))

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """A limit of the control group."""
        return _without(lab, "memory")

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has {self.limit_bytes // _MIB} MiB of memory"

    def apply(self, act: Act) -> None:
        """Limit it."""
        _group(act, self.host).set_memory(self.limit_bytes)

    def undo(self, act: Act) -> None:
        """The topology's."""
        _group(act, self.host).set_memory(act.lab.topology.host(self.host).memory_bytes)


def _without(lab: Lab, controller: str) -> str | None:
    """Why hosts of this lab have no limit of that kind; None: they have."""
    groups = [host.group for host in lab.hosts.values()]
    if all(group is not None and group.can(controller) for group in groups):
        return None
    return lacking("cgroups") or f"this lab's hosts have no control group with {controller}"


@dataclass(frozen=True)
class DiskFull(Fault):
    """No room: what is written to a file fails with ENOSPC."""

    KIND = "disk-full"
    SUMMARY = "its disk is full: writing a file fails (/tmp, /run and /dev/shm are no disk)"
    USAGE = "disk-full HOST"
    NEEDS_HOST = False

    @property
    def text(self) -> str:
        """What it does."""
        return f"the disk of {self.host} is full"

    def apply(self, act: Act) -> None:
        """Make its storage as small as what lies in it."""
        storage = act.lab.host(self.host).storage
        before = os.statvfs(storage)
        act.remember(size_bytes=before.f_blocks * before.f_frsize)
        for attempt in range(_FILL_ATTEMPTS):
            now = os.statvfs(storage)
            used_bytes = (now.f_blocks - now.f_bfree) * now.f_frsize
            try:
                _resize(act.lab, self.host, used_bytes)
            except LabError:
                # Somebody wrote in between, and less than there is cannot be.
                if attempt + 1 == _FILL_ATTEMPTS:
                    raise
            else:
                act.say(f"{self.text} ({format_bytes(used_bytes)} written)")
                return

    def undo(self, act: Act) -> None:
        """The size that it had."""
        now = os.statvfs(act.lab.host(self.host).storage)
        size_bytes = act.record.get("size_bytes")
        if size_bytes not in (None, now.f_blocks * now.f_frsize):
            _resize(act.lab, self.host, size_bytes)


def _resize(lab: Lab, name: str, size_bytes: int) -> None:
    """Another size for a host's storage, which is mounted in the lab's own namespaces."""
    # In a tmpfs, 0 would mean no limit.
    resize_storage(lab, name, f"size={max(size_bytes, 1)}")


def resize_storage(lab: Lab, name: str, option: str) -> None:
    """Another size or number of inodes for a host's storage. option: as tmpfs(5) has it."""
    flags = syscalls.MS_REMOUNT | syscalls.MS_NODEV
    try:
        mount_all(lab, lab.init.pid, [["mount", "none", f"/run/hosts/{name}", None, flags, option]])
    except LabError as problem:
        raise LabError(f"the disk of {name} cannot have {option}: {problem.what}") from problem


@dataclass(frozen=True)
class ClockSkew(Fault):
    """The clock is wrong, for programs that start from now on; the machine's own is not."""

    KIND = "clock-skew"
    SUMMARY = "programs started from now on see a clock so many seconds ahead (or behind: -30)"
    USAGE = "clock-skew HOST SECONDS"
    WRITES_FILES = True
    AFTER_BOOT = "again"

    skew_s: float

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and seconds; a minus is behind."""
        words = Words(cls.USAGE, lab, args)
        host = words.host()
        skew_s = words.number(words.take("SECONDS"), "SECONDS", -_MOST_SKEW_S, _MOST_SKEW_S)
        return words.done(cls(host, skew_s))

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """By libfaketime."""
        return lacking("libfaketime")

    @property
    def text(self) -> str:
        """What it does."""
        way = "ahead" if self.skew_s >= 0 else "behind"
        return f"the clock of {self.host} is {abs(self.skew_s):g} s {way}"

    def apply(self, act: Act) -> None:
        """Have every program load libfaketime, and tell it the offset."""
        host = act.writable(self.host)
        host.run(["python3", "-c", _SHARE, *CLOCK_SHARED])
        host.write_text(_FAKETIMERC, f"{self.skew_s:+.3f}\n")
        library = _faketime()
        now = host.read_text(_PRELOAD) if host.exists(_PRELOAD) else ""
        if library not in now.split():
            host.write_text(_PRELOAD, f"{now.strip()}\n{library}\n".lstrip())

    def undo(self, act: Act) -> None:
        """Programs that run keep the wrong clock."""
        host = act.writable(self.host)
        if host.exists(_PRELOAD):
            others = [each for each in host.read_text(_PRELOAD).split() if each != _faketime()]
            if others:
                host.write_text(_PRELOAD, "".join(f"{each}\n" for each in others))
            else:
                host.remove(_PRELOAD)
        host.remove(_FAKETIMERC)
        semaphore, memory = (name.removeprefix("/") for name in CLOCK_SHARED)
        host.run(["rm", "-f", f"/dev/shm/sem.{semaphore}", f"/dev/shm/{memory}"])  # noqa: S108


def _faketime() -> str:
    """libfaketime, in the form that programs with threads need, where it is there."""
    path = found("libfaketime")
    assert path is not None
    threads = Path(path).with_name("libfaketimeMT.so.1")
    return str(threads) if threads.exists() else path
