"""Processes by number and start; those of a launch by YOKED_LAUNCH_ID in their environment.

A number alone may have been given to another process since, and a command line proves nothing:
somebody may run the same program by hand. Source: proc(5), pidfd_open(2).
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

LAUNCH_VARIABLE = "YOKED_LAUNCH_ID"
FOLDER_VARIABLE = "YOKED_JOB_FOLDER"
_PROC = Path("/proc")
_DEAD_STATES = "ZX"
_POLL_S = 0.02
_KILL_S = 5.0


class ProcessId(NamedTuple):
    """A process by its number and its start, in clock ticks since the machine booted."""

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this number now. Raises ProcessLookupError when there is none."""
        return cls(pid, int(_stat(pid)[_START]))

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> ProcessId:
        """What `to_json` wrote, maybe among other keys."""
        return cls(int(content["pid"]), int(content["start_ticks"]))

    def to_json(self) -> dict[str, int]:
        """As it lies in files."""
        return {"pid": self.pid, "start_ticks": self.start_ticks}

    @property
    def alive(self) -> bool:
        """Whether it still runs; a zombie does not."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return False
        return int(fields[_START]) == self.start_ticks and fields[_STATE] not in _DEAD_STATES

    @property
    def parent(self) -> int | None:
        """The number of its parent; None: it is gone, or a zombie."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return None
        return None if fields[_STATE] in _DEAD_STATES else int(fields[_PARENT])

    @property
    def may_run(self) -> bool:
        """Whether its main thread is on a core, or waits for one."""
        try:
            return _stat(self.pid)[_STATE] == "R"
        except ProcessLookupError:
            return False

    @property
    def uid(self) -> int | None:
        """The number of its user; None: it is gone."""
        try:
            return (_PROC / str(self.pid)).stat().st_uid
        except OSError:
            return None

    @property
    def age_s(self) -> float:
        """How long ago it began."""
        try:
            up_s = float((_PROC / "uptime").read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return 0.0
        return max(0.0, round(up_s - self.start_ticks / os.sysconf("SC_CLK_TCK"), 1))

    def environment(self) -> dict[str, str]:
        """What it was started with; empty when that is not ours to read."""
        try:
            content = (_PROC / str(self.pid) / "environ").read_bytes()
        except OSError:
            return {}
        pairs = (entry.partition(b"=") for entry in content.split(b"\0") if entry)
        return {os.fsdecode(name): os.fsdecode(value) for name, _, value in pairs}

    def command(self) -> str:
        """Its command line, for people."""
        try:
            words = (_PROC / str(self.pid) / "cmdline").read_bytes().split(b"\0")
        except OSError:
            return ""
        return " ".join(os.fsdecode(word) for word in words if word)

    def usage(self) -> tuple[float, int]:
        """(CPU seconds so far, resident bytes); zeros when it is gone."""
        try:
            fields = _stat(self.pid)
        except ProcessLookupError:
            return 0.0, 0
        if int(fields[_START]) != self.start_ticks:
            return 0.0, 0
        ticks = int(fields[_USER]) + int(fields[_SYSTEM])
        pages = int(fields[_RESIDENT])
        return ticks / os.sysconf("SC_CLK_TCK"), pages * os.sysconf("SC_PAGE_SIZE")

    def signal(self, number: int, launch_id: str | None = None) -> bool:
        """Send a signal if it still runs and is of the launch, if named; whether it was sent."""

        def is_meant() -> bool:
            return self.alive if launch_id is None else self.belongs_to(launch_id)

        try:
            handle = os.pidfd_open(self.pid)
        except (OSError, AttributeError):
            # A kernel before 5.3; or it is gone, which the check finds.
            return is_meant() and _kill(self.pid, number)
        try:
            # The handle is of whoever has the number now; once it is checked, it stays with him.
            if not is_meant():
                return False
            signal.pidfd_send_signal(handle, number)
        except OSError:
            return False
        else:
            return True
        finally:
            os.close(handle)

    def wait(self, deadline_s: float) -> bool:
        """Wait until it has ended; whether it has. Needs a kernel from 5.3 on."""
        try:
            handle = os.pidfd_open(self.pid)
        except OSError:
            return True
        try:
            return not self.alive or bool(select.select([handle], [], [], deadline_s)[0])
        finally:
            os.close(handle)

    def kill(self, deadline_s: float = _KILL_S) -> bool:
        """SIGKILL, then wait until it is gone; whether it is."""
        self.signal(signal.SIGKILL)
        return self.wait(deadline_s)

    def terminate(self, deadline_s: float) -> bool:
        """SIGTERM, time to end in good order, then SIGKILL; whether it is gone."""
        self.signal(signal.SIGTERM)
        return self.wait(deadline_s) or self.kill()

    def belongs_to(self, launch_id: str) -> bool:
        """Whether it is of that launch, on this very host, and runs."""
        return (
            self.environment().get(LAUNCH_VARIABLE) == launch_id
            and self.shares("pid")
            and self.alive
        )

    def shares(self, *kinds: str) -> bool:
        """Whether it is in our namespaces of these kinds, pid or mnt.

        What runs in a container on this machine is of another host: it is not ours to end, and a
        folder that is not here may well be there.
        """
        try:
            return all(
                _namespace(str(self.pid), kind) == _namespace("self", kind) for kind in kinds
            )
        except OSError:
            return False


class KernelView(NamedTuple):
    """What the kernel says of a process now.

    state: its letter (proc_pid_stat(5)): R runs, S waits, D waits for a disk or mount, T is
    stopped, t is traced, Z has ended. cpu_s: used so far. waits_in: the kernel's function where it
    waits, or empty.
    """

    state: str
    cpu_s: float
    waits_in: str


def kernel_view(pid: int) -> KernelView | None:
    """A process as the kernel has it; None: it is gone. Source: proc_pid_wchan(5)."""
    try:
        fields = _stat(pid)
    except ProcessLookupError:
        return None
    cpu_s = (int(fields[_USER]) + int(fields[_SYSTEM])) / os.sysconf("SC_CLK_TCK")
    return KernelView(fields[_STATE], cpu_s, _waits_in(pid) if fields[_STATE] in "DS" else "")


def _waits_in(pid: int) -> str:
    try:
        told = (_PROC / str(pid) / "wchan").read_text(errors="replace").strip()
    except OSError:
        return ""
    # So it says of what is not ours to look into.
    return "" if told == "0" else told


# All that the kernel cannot read again from a file: what a process has of its own and shares in
# memory, in RAM or swapped. A kernel before 4.5 has one figure for all that is in RAM.
_MEMORY, _MEMORY_BEFORE = ("RssAnon", "RssShmem", "VmSwap"), ("VmRSS", "VmSwap")


def memory_bytes(pid: int) -> int:
    """What a process needs of memory; 0: it is gone, or not known. Source: proc_pid_status(5)."""
    try:
        lines = (_PROC / str(pid) / "status").read_text(errors="replace").splitlines()
    except OSError:
        return 0
    told = dict(line.split(":", 1) for line in lines if line.endswith(" kB"))
    names = _MEMORY if "RssAnon" in told else _MEMORY_BEFORE
    return sum(int(told[name].split()[0]) for name in names if name in told) << 10


class ThreadTimes(NamedTuple):
    """Seconds so far. main_cpu_s: of the main thread on a core; main_delayed_s: in which it could
    run and had none; delayed_s: the same, of all threads that run now.
    """

    main_cpu_s: float
    main_delayed_s: float
    delayed_s: float


def thread_times(pid: int) -> ThreadTimes | None:
    """None: the process is gone, or this kernel does not count.

    Costs a small file for each thread. Source: Documentation/scheduler/sched-stats.rst (schedstat).
    """
    delayed_ns, main = 0, None
    # Where the process goes meanwhile, the folder is closed all the same.
    with contextlib.suppress(OSError), os.scandir(_PROC / str(pid) / "task") as threads:
        for thread in threads:
            # A thread may end meanwhile.
            with contextlib.suppress(OSError, ValueError):
                ran_ns, waited_ns, _ = map(int, Path(thread.path, "schedstat").read_text().split())
                delayed_ns += waited_ns
                if thread.name == str(pid):
                    main = (ran_ns, waited_ns)
    if main is None or not main[0]:
        return None
    return ThreadTimes(main[0] / 1e9, main[1] / 1e9, delayed_ns / 1e9)


def has_open(pid: int, *starts: str) -> bool:
    """Whether a process has a file open whose path starts so; not, where we may not look."""
    folder = _PROC / str(pid) / "fd"
    with contextlib.suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208 - names are all that is wanted
            with contextlib.suppress(OSError):
                if os.readlink(folder / name).startswith(starts):  # noqa: PTH115 - a label
                    return True
    return False


# Places in /proc/PID/stat, counted from the state, which follows the name in parentheses.
_STATE, _PARENT, _USER, _SYSTEM, _START, _RESIDENT = 0, 1, 11, 12, 19, 21


def _stat(pid: int) -> list[str]:
    try:
        content = (_PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        raise ProcessLookupError(pid) from None
    # A name may hold blanks and parentheses; nothing after it does.
    return content.rpartition(")")[2].split()


def _namespace(pid: str, kind: str) -> str:
    return os.readlink(f"/proc/{pid}/ns/{kind}")  # noqa: PTH115 - it is a label, no path


def _kill(pid: int, number: int) -> bool:
    try:
        os.kill(pid, number)
    except OSError:
        return False
    return True


def has_proc() -> bool:
    """Whether this system tells of its processes as Linux does: jobs need that."""
    return (_PROC / "self" / "stat").exists()


def all_processes() -> Iterator[ProcessId]:
    """Every process that runs now; none where there is no /proc, and so no job of ours."""
    if not has_proc():
        return
    for entry in os.listdir(_PROC):  # noqa: PTH208 - names are all that is wanted, of hundreds
        if entry.isdigit():
            with contextlib.suppress(ProcessLookupError):
                yield ProcessId.of(int(entry))


def children_of(pid: int) -> list[ProcessId]:
    """The processes that a process has started and that still run."""
    return [each for each in all_processes() if each.parent == pid]


def processes_of(launch_id: str) -> list[ProcessId]:
    """The processes of a launch."""
    return [process for process in all_processes() if process.belongs_to(launch_id)]


def kill_all(launch_id: str) -> list[int]:
    """SIGKILL what is of a launch until nothing is left; the numbers of those it was sent to."""
    killed: set[int] = set()
    until_s = time.monotonic() + _KILL_S
    while (found := processes_of(launch_id)) and time.monotonic() < until_s:
        killed.update(one.pid for one in found if one.signal(signal.SIGKILL, launch_id))
        time.sleep(_POLL_S)
    return sorted(killed)


def boot_id() -> str:
    """Changes with every start of the machine; empty where the system does not say."""
    try:
        return (_PROC / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
