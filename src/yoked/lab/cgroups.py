"""The control groups of a lab: where they are made, and what this machine gives them.

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
import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from yoked.errors import LabError
from yoked.lab.hostgroup import (
    CONTROLLERS,
    DEADLINE_S,
    FILES,
    GIVES,
    HostGroup,
    children,
    remove_group,
)

PREFIX = "yoked-lab-"
# Where our own processes wait while their group hands out controllers.
LEAF = "yoked-cli"
SCOPE = "systemd-run --user --scope -p Delegate=yes yoked lab up ..."


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


def trees_here() -> list[Hierarchy]:
    """The trees of use to a lab on this machine."""
    try:
        mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8")
        return hierarchies(mounts, Path("/proc/self/cgroup").read_text(encoding="utf-8"))
    except OSError:
        return []


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
        for tree in trees_here():
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
            for path in children(folder):
                found.setdefault(path.name, []).append(path)
        return [HostGroup(name, tuple(found[name]), self.notes) for name in sorted(found)]

    def remove(self) -> None:
        """End what still runs in these groups, all of which is the lab's, and remove them."""
        for host in self.hosts():
            host.kill()
            host.remove()
        for folder in self.folders:
            remove_group(folder)


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
    for tree in trees_here():
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
    for path in children(top):
        if path.name.startswith(PREFIX):
            yield path
        elif depth > 1:
            yield from _search(path, depth - 1)


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
    given = {name for name, files in FILES.items() if any((folder / f).exists() for f in files)}
    handed_down = folder / "cgroup.subtree_control"
    if handed_down.exists():
        given = given & {"freezer"} | {"cpu", "memory"}.intersection(
            handed_down.read_text().split()
        )
    return given


def _notes(given: set[str], reasons: list[str], is_root: bool) -> tuple[str, ...]:
    lacking = [GIVES[name] for name in CONTROLLERS if name not in given]
    if not lacking:
        return ()
    why = f" ({'; '.join(reasons)})" if reasons else ""
    help_ = "this kernel or container does not hand them out"
    if not is_root:
        help_ = f"start it as root, or with cgroup version 2 by `{SCOPE}`"
    return (f"{', '.join(lacking)}: control groups are missing{why}; {help_}",)
