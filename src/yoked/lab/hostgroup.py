"""A host's control groups: its share of the CPU, its limit of memory, how it is frozen and killed.

One folder for each hierarchy, of version 1 or 2; `yoked.lab.cgroups` makes them.

Standard library only: the lab's keeper imports this.
Source: the kernel's admin-guide/cgroup-v2.rst, cgroup-v1/ and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import signal
from dataclasses import dataclass
from pathlib import Path

from yoked.errors import LabError
from yoked.lab.process import until

# A host that used up its share stands still for the rest of a period: short ones look smooth.
PERIOD_US = 10_000
# Who stood still comes back to cold caches and a lower clock: work lost for each microsecond of
# standing, added to the quota. 0.12 to 0.3 ms after 8 ms, next to nothing after 2 ms
# (benchmarks/lab, EPYC of family 25).
WARM_UP = 0.03
# The kernel's own least quota (min_cfs_quota_period).
MIN_QUOTA_US = 1_000
DEADLINE_S = 5.0

CONTROLLERS = ("cpu", "memory", "freezer")
GIVES = {
    "cpu": "no share of the CPU (hosts run at full speed)",
    "memory": "no limit of memory",
    "freezer": "no freezer",
}
# A group gives what it has the file for; version 2 first.
FILES = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "freezer": ("cgroup.freeze", "freezer.state"),
}


def quota(cores: float) -> int:
    """Microseconds of CPU time in each PERIOD_US that do the work of so many cores.

    More than that share of the time, because every burst begins with a warm-up.
    """
    standing = math.ceil(cores) - cores
    return round((cores + WARM_UP * standing) * PERIOD_US)


@dataclass(frozen=True)
class HostGroup:
    """A host's groups, one folder for each hierarchy. notes: what they cannot do, and why."""

    name: str
    folders: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    def _file(self, *names: str) -> Path | None:
        for folder in self.folders:
            for name in names:
                if (folder / name).exists():
                    return folder / name
        return None

    def can(self, controller: str) -> bool:
        """Whether there is that one of CONTROLLERS for this host."""
        return self._file(*FILES[controller]) is not None

    def _need(self, controller: str) -> Path:
        path = self._file(*FILES[controller])
        if path is None:
            raise LabError(
                f"{self.name}: {GIVES[controller]} on this machine",
                fix=self.notes or "yoked lab list",
            )
        return path

    @property
    def procs_files(self) -> list[Path]:
        """A process joins by writing its PID, or 0 for itself, into each of these."""
        return [folder / "cgroup.procs" for folder in self.folders]

    def procs(self) -> list[int]:
        """The PIDs in these groups and below, as this process sees them."""
        found: set[int] = set()
        for folder in self.folders:
            for group in [folder, *_descendants(folder)]:
                with contextlib.suppress(OSError):
                    found.update(map(int, (group / "cgroup.procs").read_text().split()))
        # 0 is a process that our own PID namespace does not show.
        return sorted(found - {0})

    def set_cpu(self, cores: float | None) -> None:
        """Limit all processes together to the work of so many cores, such as 0.5; None: no limit.

        Raises LabError: no such controller here, or a share that the kernel cannot give.
        """
        path = self._need("cpu")
        quota_us = None if cores is None else quota(cores)
        if cores is not None and cores * PERIOD_US < MIN_QUOTA_US:
            least = MIN_QUOTA_US / PERIOD_US
            raise LabError(
                f"{self.name}: {cores:g} of a core is less than the kernel can give",
                fix=f"the smallest share is {least:g} of a core",
            )
        if path.name == "cpu.max":
            _set(path, f"{'max' if quota_us is None else quota_us} {PERIOD_US}")
            return
        # Between the two writes the quota must be right for either period.
        _set(path, "-1")
        _set(path.with_name("cpu.cfs_period_us"), str(PERIOD_US))
        if quota_us is not None:
            _set(path, str(quota_us))

    def set_memory(self, limit_bytes: int | None) -> None:
        """Limit memory, without a way out into swap; None is no limit.

        Who needs more is killed by the kernel. Raises LabError: no such controller here, or so
        much is in use already that the kernel refuses.
        """
        path = self._need("memory")
        if path.name == "memory.max":
            _set(path, "max" if limit_bytes is None else str(limit_bytes))
            swap = path.with_name("memory.swap.max")
            if swap.exists():
                _set(swap, "max" if limit_bytes is None else "0")
            return
        both = path.with_name("memory.memsw.limit_in_bytes")
        # The sum with swap may never be below the limit of memory.
        if both.exists():
            _set(both, "-1")
        _set(path, str(-1 if limit_bytes is None else limit_bytes))
        if both.exists() and limit_bytes is not None:
            _set(both, str(limit_bytes))

    @property
    def frozen(self) -> bool:
        """Whether all processes stand still."""
        path = self._file(*FILES["freezer"])
        if path is None:
            return False
        try:
            if path.name == "freezer.state":
                return path.read_text().strip() == "FROZEN"
            return "frozen 1" in path.with_name("cgroup.events").read_text().splitlines()
        except OSError:
            # The group is gone, with all that was frozen.
            return False

    def freeze(self) -> None:
        """Stop all processes where they are; returns when they stand still. Raises LabError."""
        path = self._need("freezer")
        _set(path, "FROZEN" if path.name == "freezer.state" else "1")
        if not until(lambda: self.frozen, DEADLINE_S):
            self.thaw()
            raise LabError(f"{self.name}: its processes did not freeze within {DEADLINE_S:g} s")

    def thaw(self) -> None:
        """Let all processes go on; harmless where none is frozen. Raises LabError."""
        path = self._file(*FILES["freezer"])
        if path is None:
            return
        _set(path, "THAWED" if path.name == "freezer.state" else "0")
        if not until(lambda: not self.frozen, DEADLINE_S):
            raise LabError(f"{self.name}: its processes did not thaw within {DEADLINE_S:g} s")

    def kill(self) -> None:
        """End all processes at once, frozen ones too. Raises LabError."""
        every = self._file("cgroup.kill")
        if every is not None:
            # Somebody else may be removing the group: the wait below judges.
            with contextlib.suppress(OSError):
                every.write_text("1")
        elif self.can("freezer"):
            # Frozen, none can fork while the others are killed; the signals wait for the thaw.
            with contextlib.suppress(LabError):
                self.freeze()
            self._signal_all()
            self.thaw()
        left = self._signal_all if every is None else self.procs
        if not until(lambda: not left(), DEADLINE_S):
            raise LabError(f"{self.name}: processes {self.procs()} cannot be ended")

    def _signal_all(self) -> list[int]:
        pids = self.procs()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pids

    def remove(self) -> None:
        """Remove the groups, which must be empty or about to be. Raises LabError."""
        for folder in self.folders:
            remove_group(folder)


def _set(path: Path, value: str) -> None:
    try:
        path.write_text(value)
    except FileNotFoundError:
        raise LabError(f"the control group {path.parent} is gone", fix="yoked lab status") from None
    except OSError as error:
        hint = "more than that is in use already" if error.errno == errno.EBUSY else ()
        raise LabError(
            f"the kernel refused {value!r} in {path}: {error.strerror}", fix=hint
        ) from error


def remove_group(folder: Path) -> None:
    """Remove a group and those below it. Raises LabError when one does not get empty."""

    def is_gone() -> bool:
        for path in [*_descendants(folder), folder]:
            try:
                path.rmdir()
            except FileNotFoundError:
                continue
            except OSError as error:
                # The last process may be dead, but not yet accounted for.
                if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
                    raise LabError(f"{path} cannot be removed: {error.strerror}") from error
        return not folder.exists()

    if not until(is_gone, DEADLINE_S):
        raise LabError(
            f"the control group {folder} still holds processes",
            fix=f"see cat {folder}/cgroup.procs",
        )


def _descendants(folder: Path) -> list[Path]:
    """The groups below one, deepest first."""
    return [path for child in children(folder) for path in [*_descendants(child), child]]


def children(folder: Path) -> list[Path]:
    """The groups right below one."""
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []
