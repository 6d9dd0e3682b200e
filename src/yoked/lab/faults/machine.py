"""A whole machine: its power, its control group, its clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from yoked.errors import LabError
from yoked.lab.faults import mounts, processes
from yoked.lab.faults.args import HOST, Arg, Number, Optional, Whole
from yoked.lab.faults.base import Effect, Fault, FaultContext, Kind, found, lacking
from yoked.lab.faults.textfiles import TextFile
from yoked.lab.ssh import CLOCK_SHARED
from yoked.lab.tools import text_of
from yoked.lab.topology import hint

if TYPE_CHECKING:
    from yoked.lab.hostgroup import HostGroup
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Host

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
# libfaketime 0.9.10 refuses to sleep until a moment of the monotonic clock, where that is not to be
# faked: every time.sleep of Python 3.11 and later fails with EINVAL. This sleeps without it.
_SLEEP = """
#define _GNU_SOURCE
#include <errno.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left)
{
    return syscall(SYS_clock_nanosleep, clock, flags, until, left) == -1 ? errno : 0;
}
"""
_COMPILE = 'cc -shared -fPIC -o "$1" -x c -'
_PRELOAD, _FAKETIMERC, _SLEEPS = "/etc/ld.so.preload", "/etc/faketimerc", "/etc/yoked-sleep.so"


class PowerGone(Effect):
    """Every process at once, without a word to anybody."""

    BOOTS = True

    def apply(self, fault: Fault, context: FaultContext) -> None:
        context.remember(process=context.lab.host(fault.host).process.to_json())
        context.lab.stop_host(fault.host)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        host = context.lab.host(fault.host)
        if host.alive and host.process.to_json() == context.record.get("process"):
            # Whoever switched it off died over it, and it may be about to end.
            context.lab.stop_host(fault.host)
        if not context.lab.host(fault.host).alive:
            context.lab.start_host(fault.host)


class Rebooted(PowerGone):
    """The power comes back at once."""

    IS_OVER = True

    def apply(self, fault: Fault, context: FaultContext) -> None:
        super().apply(fault, context)
        context.lab.start_host(fault.host)


@dataclass(frozen=True)
class GroupLimit(Effect):
    """A limit of the host's control group. set: as the fault has it, or, for None, the topology."""

    AFTER_BOOT = "again"

    controller: Literal["cpu", "memory"]
    set: Callable[[Fault | None, Host, HostGroup], None]

    def unsupported(self, lab: Lab) -> str | None:
        groups = [host.group for host in lab.hosts.values()]
        if all(group is not None and group.can(self.controller) for group in groups):
            return None
        no_group = f"this lab's hosts have no control group with {self.controller}"
        return lacking("cgroups") or no_group

    def apply(self, fault: Fault, context: FaultContext) -> None:
        self._set(fault, fault.host, context)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        self._set(None, fault.host, context)

    def _set(self, fault: Fault | None, name: str, context: FaultContext) -> None:
        host = context.lab.host(name)
        if host.group is None:
            raise LabError(f"{name} has no control group", fix=lacking("cgroups") or ())
        self.set(fault, host.spec, host.group)


@dataclass(frozen=True)
class ClockSkew(Effect):
    """The clock is wrong, for programs that start from now on; the machine's own is not."""

    AFTER_BOOT = "again"
    WRITES_FILES = True

    skew_s: Arg[float]

    def unsupported(self, _lab: Lab) -> str | None:
        return lacking("libfaketime")

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Have every program load libfaketime, and tell it the offset."""
        host = context.writable(fault.host)
        host.run(["python3", "-c", _SHARE, *CLOCK_SHARED])
        host.write_text(_FAKETIMERC, f"{fault[self.skew_s]:+.3f}\n")
        compiler = ["sh", "-c", _COMPILE, "sh", _SLEEPS]
        able = host.run(compiler, input=_SLEEP, check=False, as_root=True).returncode == 0
        ours = [_SLEEPS, _faketime()] if able else [_faketime()]
        now = host.read_text(_PRELOAD).split() if host.exists(_PRELOAD) else []
        others = [each for each in now if each not in ours]
        host.write_text(_PRELOAD, text_of([*others, *ours]))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Programs that run keep the wrong clock."""
        host = context.writable(fault.host)
        if host.exists(_PRELOAD):
            ours = (_SLEEPS, _faketime())
            others = [each for each in host.read_text(_PRELOAD).split() if each not in ours]
            if others:
                host.write_text(_PRELOAD, text_of(others))
            else:
                host.remove(_PRELOAD)
        host.remove(_FAKETIMERC)
        host.remove(_SLEEPS)
        semaphore, memory = (name.removeprefix("/") for name in CLOCK_SHARED)
        host.run(["rm", "-f", f"/dev/shm/sem.{semaphore}", f"/dev/shm/{memory}"])  # noqa: S108


def _faketime() -> str:
    """libfaketime, in the form that programs with threads need, where it is there."""
    path = found("libfaketime")
    assert path is not None
    threads = Path(path).with_name("libfaketimeMT.so.1")
    return str(threads) if threads.exists() else path


# ---- the faults ----

# PID_MAX_LIMIT of 64-bit Linux, include/linux/threads.h.
_PID = Optional("[PID]", tells_apart=True, of=Whole("PID", least=2, most=2**22))
_FRACTION = Number("FRACTION", least=0.01, most=1)
_CORES = Whole("[CORES]", least=1, most=256, default=1)
_MEMORY_MIB = Whole("MIB", least=16, most=2**24)
_PORT = Whole("PORT", least=1, most=65535, tells_apart=True)
_MOST_SKEW_S = 100 * 365 * 86_400
_SKEW_S = Number("SECONDS", least=-_MOST_SKEW_S, most=_MOST_SKEW_S)
_BATTERY_PERCENT = Whole("[PERCENT]", least=0, most=100, default=60)


def _set_share(fault: Fault | None, host: Host, group: HostGroup) -> None:
    group.set_cpu(host.cpus * host.speed * fault[_FRACTION] if fault else host.cores)


def _set_memory(fault: Fault | None, host: Host, group: HostGroup) -> None:
    group.set_memory(fault[_MEMORY_MIB] << 20 if fault else host.memory_bytes)


def _stop_text(fault: Fault) -> str:
    which = "all processes" if fault[_PID] is None else f"process {fault[_PID]}"
    return f"{which} of {fault[HOST]} stopped (SIGSTOP)"


def _busy_text(fault: Fault) -> str:
    cores = fault[_CORES]
    return f"a program on {fault[HOST]} keeps {cores} core{'s' * (cores > 1)} busy"


def _skew_text(fault: Fault) -> str:
    skew_s = fault[_SKEW_S]
    way = "ahead" if skew_s >= 0 else "behind"
    return f"the clock of {fault[HOST]} is {abs(skew_s):g} s {way}"


def _logout_kills(_fault: Fault, _lab: Lab, text: str) -> str:
    """As some distributions and administrators have it."""
    section = "[Login]"
    lines = text.splitlines() or [section]
    if section not in lines:
        raise LabError("logind.conf has no [Login]", fix=hint(section, lines, "lines that it has"))
    lines.insert(lines.index(section) + 1, "KillUserProcesses=yes")
    return text_of(lines)


MACHINE = (
    Kind(
        "stop",
        (HOST, _PID),
        "processes are stopped (SIGSTOP): all but the ssh server, or one",
        _stop_text,
        (processes.Stopped(_PID),),
    ),
    Kind(
        "suspend",
        (HOST,),
        "the lid is closed: all processes frozen, silent on the network",
        "{host} is suspended",
        (processes.Suspended(),),
    ),
    Kind(
        "kill",
        (HOST,),
        "power gone: every process at once; healing starts the host",
        "{host} has no power",
        (PowerGone(),),
    ),
    Kind(
        "reboot",
        (HOST,),
        "off and on again: processes and /tmp are gone, files stay; nothing to heal",
        "{host} was rebooted",
        (Rebooted(),),
    ),
    # Heat, power save, or somebody else's program.
    Kind(
        "slow-cpu",
        (HOST, _FRACTION),
        "the host computes at a fraction of its own speed",
        "{host} computes at {fraction:g} of its speed",
        (GroupLimit("cpu", _set_share),),
    ),
    # A game, a browser tab, a build.
    Kind(
        "busy-cpu",
        (HOST, _CORES),
        "somebody's program keeps so many cores busy (default: 1)",
        _busy_text,
        (processes.Started(processes.BUSY, _CORES),),
    ),
    Kind(
        "oom",
        (HOST, _MEMORY_MIB),
        "the host has so many MiB of memory; who needs more is killed by the kernel (-9)",
        "{host} has {mib} MiB of memory",
        (GroupLimit("memory", _set_memory),),
    ),
    Kind(
        "stale-process",
        (HOST, _PORT),
        "a rank of an earlier run was left behind (parent 1) and listens at a port",
        "a rank of an earlier run listens on {host} at port {port}",
        (processes.StaleRank(_PORT),),
    ),
    # Another service at the port where ranks would meet.
    Kind(
        "taken-port",
        (HOST, _PORT),
        "somebody's program, no rank, listens at a port",
        "a program on {host} listens at port {port}",
        (processes.Started(processes.LISTEN, _PORT),),
    ),
    Kind(
        "clock-skew",
        (HOST, _SKEW_S),
        "programs started from now on see a clock so many seconds ahead (or behind: -30)",
        _skew_text,
        (ClockSkew(_SKEW_S),),
    ),
    # A laptop whose plug is out.
    Kind(
        "battery",
        (HOST, _BATTERY_PERCENT),
        "the host is a laptop that runs on its battery",
        "{host} runs on its battery, {percent}% full",
        (mounts.on_battery(_BATTERY_PERCENT),),
    ),
    Kind(
        "logout-kills",
        (HOST,),
        "logind.conf says KillUserProcesses=yes: a logout ends what was left running",
        "a logout on {host} ends the account's processes",
        (TextFile("/etc/systemd/logind.conf", _logout_kills),),
    ),
)
