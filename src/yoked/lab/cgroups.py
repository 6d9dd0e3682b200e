"""Control groups: a host's share of the CPU, its limit of memory, and how it is frozen.

A lab has a folder `yoked-lab-ID` in each hierarchy that it needs, and in it one for each host.
Root makes them at the hierarchy's root; an ordinary user in the version 2 subtree that was
delegated to him. Machines have version 2 alone, version 1 alone, or controllers in version 1
beside a version 2 without any, which freezes and kills all the same. What is missing is told.

Standard library only: the lab's keeper imports this.
Source: the kernel's admin-guide/cgroup-v2.rst, cgroup-v1/ and scheduler/sched-bwc.rst.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from yoked.errors import LabError

PREFIX = "yoked-lab-"
# Where our own processes wait while their group hands out controllers.
LEAF = "yoked-cli"
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
_GIVES = {
    "cpu": "no share of the CPU (hosts run at full speed)",
    "memory": "no limit of memory",
    "freezer": "no freezer",
}
# A group gives what it has the file for; version 2 first.
_FILES = {
    "cpu": ("cpu.max", "cpu.cfs_quota_us"),
    "memory": ("memory.max", "memory.limit_in_bytes"),
    "freezer": ("cgroup.freeze", "freezer.state"),
}
_SCOPE = "systemd-run --user --scope -p Delegate=yes yoked lab up ..."


@dataclass(frozen=True)
class Hierarchy:
    """A mounted tree of groups. controllers: of version 1; version 2 tells them by itself."""

    mount: Path
    version: int
    controllers: frozenset[str]
    own: Path
    """The folder of the process that asks."""


def hierarchies(mountinfo: str, own_groups: str) -> list[Hierarchy]:
    """The trees of use to a lab, version 2 first, of /proc/self/mountinfo and /proc/self/cgroup."""
    own = {}
    for line in own_groups.splitlines():
        _, names, path = line.split(":", 2)
        own.update(dict.fromkeys(names.split(","), path))
    found: dict[frozenset[str], Hierarchy] = {}
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        kind, _, options = after.split(" ", 2)
        if kind not in ("cgroup", "cgroup2"):
            continue
        root, mount = (_unescaped(field) for field in before.split()[3:5])
        version = 2 if kind == "cgroup2" else 1
        controllers = frozenset(options.split(",")).intersection(
            CONTROLLERS if version == 1 else ()
        )
        if version == 2 or controllers:
            path = own.get(min(controllers) if controllers else "", "/")
            inside = _below(path, root)
            tree = Hierarchy(Path(mount), version, controllers, Path(mount) / inside)
            found.setdefault(controllers, tree)
    return sorted(found.values(), key=lambda tree: (-tree.version, tree.mount))


def _unescaped(field: str) -> str:
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def _below(path: str, root: str) -> str:
    """A group's path relative to the mount; "" when it lies outside of what is mounted."""
    inside = path.removeprefix(root.rstrip("/"))
    return "" if inside.startswith("/..") or not path.startswith(root) else inside.lstrip("/")


def _here() -> list[Hierarchy]:
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        return hierarchies(mounts, Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    except OSError:
        return []


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
        return self._file(*_FILES[controller]) is not None

    def _need(self, controller: str) -> Path:
        path = self._file(*_FILES[controller])
        if path is None:
            raise LabError(
                f"{self.name}: {_GIVES[controller]} on this machine",
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
        path = self._file(*_FILES["freezer"])
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
        if not _until(lambda: self.frozen):
            self.thaw()
            raise LabError(f"{self.name}: its processes did not freeze within {DEADLINE_S:g} s")

    def thaw(self) -> None:
        """Let all processes go on; harmless where none is frozen. Raises LabError."""
        path = self._file(*_FILES["freezer"])
        if path is None:
            return
        _set(path, "THAWED" if path.name == "freezer.state" else "0")
        if not _until(lambda: not self.frozen):
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
        if not _until(lambda: not (self._signal_all() if every is None else self.procs())):
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
            _remove(folder)


@dataclass(frozen=True)
class Cgroups:
    """A lab's groups. folders: one for each hierarchy. notes: what they cannot do, and why."""

    lab_id: str
    folders: tuple[Path, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def find(cls, lab_id: str, is_root: bool) -> Cgroups:
        """Make the lab's groups as far as this machine gives them; they may be there already."""
        folders: list[Path] = []
        given: set[str] = set()
        reasons: list[str] = []
        for tree in _here():
            # Version 1 has nothing for ordinary users.
            if tree.version == 1 and (not is_root or given.issuperset(tree.controllers)):
                continue
            try:
                folder = _make(tree, PREFIX + lab_id, is_root)
            except OSError as error:
                reasons.append(f"{tree.mount}: {error.strerror}")
                continue
            folders.append(folder)
            given |= _given(folder)
        return cls(lab_id, tuple(folders), _notes(given, reasons, is_root))

    @classmethod
    def open(cls, lab_id: str) -> Cgroups:
        """The groups that a lab has; makes none."""
        return cls(lab_id, tuple(path for path in _labs() if path.name == PREFIX + lab_id))

    def host(self, name: str) -> HostGroup:
        """The groups of a host, made where they are not there. Raises LabError."""
        for folder in self.folders:
            try:
                (folder / name).mkdir(exist_ok=True)
            except OSError as error:
                raise LabError(
                    f"the control group {folder / name} cannot be made: {error.strerror}"
                ) from None
        return HostGroup(name, tuple(folder / name for folder in self.folders), self.notes)

    def hosts(self) -> list[HostGroup]:
        """The groups of hosts that are there; a host need not have one in each hierarchy."""
        found: dict[str, list[Path]] = {}
        for folder in self.folders:
            for path in _children(folder):
                found.setdefault(path.name, []).append(path)
        return [HostGroup(name, tuple(found[name]), self.notes) for name in sorted(found)]

    def remove(self) -> None:
        """End what still runs in these groups, all of which is the lab's, and remove them."""
        for host in self.hosts():
            host.kill()
            host.remove()
        for folder in self.folders:
            _remove(folder)


def remove_lab(lab_id: str) -> None:
    """Remove a lab's groups with all that runs in them; harmless where none are left."""
    Cgroups.open(lab_id).remove()


def leftovers() -> list[str]:
    """Ids of labs of which nothing but empty groups is left, for DEADLINE_S at least.

    A lab that is just coming up has empty groups, too, but younger ones.
    """
    found: dict[str, bool] = {}
    for folder in _labs():
        lab_id = folder.name.removeprefix(PREFIX)
        with contextlib.suppress(FileNotFoundError):
            is_old = time.time() - folder.stat().st_mtime > DEADLINE_S
            is_left = is_old and not HostGroup("", (folder,)).procs()
            found[lab_id] = found.get(lab_id, True) and is_left
    return sorted(lab_id for lab_id, is_left in found.items() if is_left)


def _labs() -> Iterator[Path]:
    """Folders of labs that this process may remove, wherever they may have been made."""
    seen = set()
    for tree in _here():
        tops = [(tree.mount, 1)]
        if not os.access(tree.mount, os.W_OK) and tree.version == 2:
            # An ordinary user, who may ask from another login than the one that made the lab.
            tops = [(tree.mount / "user.slice" / f"user-{os.getuid()}.slice", 9)]
            writable = [path for path in (tree.own, *tree.own.parents) if os.access(path, os.W_OK)]
            tops += [(path, 9) for path in writable[-1:]]
        for top, depth in tops:
            for path in _search(top, depth):
                if path not in seen and os.access(path, os.W_OK):
                    seen.add(path)
                    yield path


def _search(top: Path, depth: int) -> Iterator[Path]:
    for path in _children(top):
        if path.name.startswith(PREFIX):
            yield path
        elif depth > 1:
            yield from _search(path, depth - 1)


def _children(folder: Path) -> list[Path]:
    try:
        with os.scandir(folder) as entries:
            return sorted(Path(entry.path) for entry in entries if entry.is_dir())
    except OSError:
        return []


def _make(tree: Hierarchy, name: str, is_root: bool) -> Path:
    """A lab's folder in a tree, with what controllers there are. Raises OSError."""
    parent = tree.mount if is_root else tree.own
    if parent.name == LEAF:
        parent = parent.parent
    if not is_root and not os.access(parent / "cgroup.procs", os.W_OK):
        raise PermissionError(errno.EACCES, "nothing is delegated to this user here")
    folder = parent / name
    folder.mkdir(exist_ok=True)
    if tree.version == 2 and (is_root or _made_way(parent)):
        for group in (parent, folder):
            _enable(group)
    return folder


def _enable(group: Path) -> None:
    """Hand the controllers that a group has down to its children, as far as it lets us."""
    has = (group / "cgroup.controllers").read_text().split()
    for controller in sorted({"cpu", "memory"}.intersection(has)):
        # Each by itself: one that is refused must not take the other with it.
        with contextlib.suppress(OSError):
            (group / "cgroup.subtree_control").write_text(f"+{controller}")


def _made_way(group: Path) -> bool:
    """Move the processes of a group into a leaf, as a group that hands down must have none.

    Only where the group was delegated, and all in it are this process's own kin: others may
    be of a program that counts on its group, and are left alone. Returns whether it is empty.
    """
    pids = [int(pid) for pid in (group / "cgroup.procs").read_text().split()]
    if not pids:
        return True
    me = os.getpid()
    kin = set(_ancestors(me))
    if not _is_delegated(group) or any(
        pid not in kin and me not in _ancestors(pid) for pid in pids
    ):
        return False
    leaf = group / LEAF
    leaf.mkdir(exist_ok=True)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            (leaf / "cgroup.procs").write_text(str(pid))
    return True


def _is_delegated(group: Path) -> bool:
    """Whether a group is a user's own to divide: systemd marks it, or it is the topmost of his."""
    with contextlib.suppress(OSError):
        return os.getxattr(group, "user.delegate") == b"1"
    return group.stat().st_uid != group.parent.stat().st_uid


def _ancestors(pid: int) -> list[int]:
    """A process, its parent, and so on."""
    line = []
    while pid > 0 and pid not in line:
        line.append(pid)
        try:
            status = Path(f"/proc/{pid}/status").read_text(encoding="utf-8", errors="replace")
        except OSError:
            break
        pid = int(re.findall(r"^PPid:\s*(\d+)", status, re.M)[0])
    return line


def _given(folder: Path) -> set[str]:
    """Which of CONTROLLERS the groups below a lab's folder will have."""
    given = {name for name, files in _FILES.items() if any((folder / f).exists() for f in files)}
    handed_down = folder / "cgroup.subtree_control"
    if handed_down.exists():
        given = given & {"freezer"} | {"cpu", "memory"}.intersection(
            handed_down.read_text().split()
        )
    return given


def _notes(given: set[str], reasons: list[str], is_root: bool) -> tuple[str, ...]:
    lacking = [_GIVES[name] for name in CONTROLLERS if name not in given]
    if not lacking:
        return ()
    why = f" ({'; '.join(reasons)})" if reasons else ""
    help_ = "this kernel or container does not hand them out"
    if not is_root:
        help_ = f"start it as root, or with cgroup version 2 by `{_SCOPE}`"
    return (f"{', '.join(lacking)}: control groups are missing{why}; {help_}",)


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


def _until(ready: Callable[[], bool]) -> bool:
    """Poll until it is so, for DEADLINE_S at most; whether it was."""
    end = time.monotonic() + DEADLINE_S
    while not ready():
        if time.monotonic() > end:
            return False
        time.sleep(0.002)
    return True


def _remove(folder: Path) -> None:
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

    if not _until(is_gone):
        raise LabError(
            f"the control group {folder} still holds processes",
            fix=f"see cat {folder}/cgroup.procs",
        )


def _descendants(folder: Path) -> list[Path]:
    """The groups below one, deepest first."""
    return [path for child in _children(folder) for path in [*_descendants(child), child]]
