"""A host's files: the machine's, with everything written kept apart. Standard library only.

Each of the machine's directories appears under the host's own root as an overlay whose upper
side lies in the host's storage, a tmpfs; what is mounted below a directory is overlaid on its
own (an ordinary user's namespace may not overlay a directory with mounts below it). /dev, /proc,
/run, /sys and /tmp are new.
"""

from __future__ import annotations

import contextlib
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from yoked.lab import syscalls
from yoked.lab.keeper import mounts

NEW = ("/dev", "/proc", "/run", "/sys", "/tmp")
# What holds no files of the machine's, wherever it is mounted.
_VIRTUAL = {
    *("autofs", "binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts"),
    *("devtmpfs", "efivarfs", "fuse.gvfsd-fuse", "fuse.portal", "fusectl", "hugetlbfs", "mqueue"),
    *("nsfs", "proc", "pstore", "rpc_pipefs", "securityfs", "sysfs", "tracefs"),
}
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
# Graphics devices, where the machine has them.
_GPU_DEVICES = ("nvidia", "dri", "kfd")
_NOSUID_NODEV = syscalls.MS_NOSUID | syscalls.MS_NODEV


@dataclass
class FileTree:
    """Builds the tree of one host at `root`; `storage` is the host's own tmpfs."""

    storage: Path
    user_namespace: bool
    carried: tuple[str, ...] = ()
    """Folders that hosts need although they lie below a new one: a checkout in /tmp, say."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = str(self.storage / "root")
        self._mounts = [path for path, kind in mounts() if kind not in _VIRTUAL]
        self._virtual = {path for path, kind in mounts() if kind in _VIRTUAL}

    def build(self) -> None:
        """Mount everything; afterwards `enter` makes it the root."""
        os.makedirs(self.root, exist_ok=True)
        syscalls.mount("tmpfs", self.root, "tmpfs", _NOSUID_NODEV, "mode=755")
        self._graft("/")
        self._make_tmp()
        for path in self.carried:
            self._carry(path)
        self._make_dev()
        self._make_proc_and_sys()

    def enter(self) -> None:
        """Make the tree the root of this process's mount namespace, and leave the old one."""
        old = f"{self.root}/run/.machine"
        os.mkdir(old)
        syscalls.pivot_root(self.root, old)
        os.chdir("/")
        syscalls.unmount("/run/.machine", syscalls.MNT_DETACH)
        os.rmdir("/run/.machine")

    def _graft(self, folder: str) -> None:
        """Show what the machine has in a folder, one by one."""
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            target = self.root + entry.path
            if entry.path in NEW:
                continue
            with contextlib.suppress(PermissionError, FileNotFoundError):
                if entry.is_symlink():
                    os.symlink(os.readlink(entry.path), target)
                elif entry.is_dir():
                    self._graft_folder(entry.path, target)
                elif entry.is_file():
                    Path(target).touch()
                    syscalls.bind(entry.path, target, read_only=not self.user_namespace)

    def _graft_folder(self, path: str, target: str) -> None:
        mode = stat.S_IMODE(os.stat(path).st_mode)
        os.mkdir(target)
        os.chmod(target, mode)
        if path in self._virtual:
            return
        below = path + "/"
        if any(mount.startswith(below) for mount in (*self._mounts, *self._virtual)):
            self._graft(path)
            return
        if os.access(path, os.R_OK | os.X_OK):
            self._overlay(path, target)

    def _overlay(self, path: str, target: str) -> None:
        name = path.strip("/").replace("%", "%25").replace("/", "%2F")
        upper, work = self.storage / "upper" / name, self.storage / "work" / name
        if not upper.exists():
            upper.mkdir(parents=True)
            # The upper directory's owner and mode are those that are seen.
            machine = os.stat(path)
            with contextlib.suppress(PermissionError, OSError):
                os.chown(upper, machine.st_uid, machine.st_gid)
            upper.chmod(stat.S_IMODE(machine.st_mode))
        work.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={_escaped(path)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        if self.user_namespace:
            options += ",userxattr"
        try:
            syscalls.mount("overlay", target, "overlay", 0, options)
        except OSError as problem:
            # Some file systems (FAT, network mounts) cannot be the lower side.
            try:
                syscalls.bind(path, target, read_only=not self.user_namespace)
            except OSError:
                self.notes.append(f"{path} is empty in the hosts: {problem}")
            else:
                self.notes.append(f"{path} cannot be overlaid ({problem}): hosts share it")

    def _make_tmp(self) -> None:
        os.mkdir(f"{self.root}/tmp")
        syscalls.mount("tmpfs", f"{self.root}/tmp", "tmpfs", _NOSUID_NODEV, "mode=1777")
        os.mkdir(f"{self.root}/run")
        syscalls.mount("tmpfs", f"{self.root}/run", "tmpfs", _NOSUID_NODEV, "mode=755")

    def _carry(self, path: str) -> None:
        target = self.root + path
        # A folder that was carried with one above it is there already.
        below_new = path.startswith(("/tmp/", "/run/")) and os.path.isdir(path)
        if below_new and not os.path.exists(target):
            os.makedirs(target)
            self._overlay(path, target)

    def _make_dev(self) -> None:
        dev = f"{self.root}/dev"
        os.mkdir(dev)
        syscalls.mount("tmpfs", dev, "tmpfs", syscalls.MS_NOSUID, "mode=755")
        gpus = [name for name in os.listdir("/dev") if name.startswith(_GPU_DEVICES)]
        for name in (*_DEVICES, *gpus):
            if os.path.isdir(f"/dev/{name}"):
                os.mkdir(f"{dev}/{name}")
            else:
                Path(dev, name).touch()
            syscalls.mount(
                f"/dev/{name}", f"{dev}/{name}", None, syscalls.MS_BIND | syscalls.MS_REC
            )
            if not self.user_namespace:
                # They are the machine's own: usable, but their owner and mode are to stay.
                syscalls.make_read_only(f"{dev}/{name}")
        for name, target in (("fd", "/proc/self/fd"), ("ptmx", "pts/ptmx")):
            os.symlink(target, f"{dev}/{name}")
        for number, name in enumerate(("stdin", "stdout", "stderr")):
            os.symlink(f"/proc/self/fd/{number}", f"{dev}/{name}")
        os.mkdir(f"{dev}/pts")
        syscalls.mount(
            "devpts",
            f"{dev}/pts",
            "devpts",
            syscalls.MS_NOSUID,
            "newinstance,ptmxmode=0666,mode=620",
        )
        os.mkdir(f"{dev}/shm")
        syscalls.mount("tmpfs", f"{dev}/shm", "tmpfs", _NOSUID_NODEV, "mode=1777")

    def _make_proc_and_sys(self) -> None:
        proc, sys = f"{self.root}/proc", f"{self.root}/sys"
        os.mkdir(proc)
        os.mkdir(sys)
        quiet = _NOSUID_NODEV | syscalls.MS_NOEXEC
        syscalls.mount("proc", proc, "proc", quiet)
        try:
            syscalls.mount("sysfs", sys, "sysfs", quiet | syscalls.MS_RDONLY)
        except OSError as problem:
            self.notes.append(f"hosts have an empty /sys: {problem}")
        if self.user_namespace:
            return  # an ordinary user cannot write to these anyway
        # Root in a host is uid 0, to which these files of the whole machine belong.
        for name in ("sys", "sysrq-trigger", "irq", "bus", "acpi", "fs"):
            if os.path.exists(f"{proc}/{name}"):
                syscalls.bind(f"{proc}/{name}", f"{proc}/{name}", read_only=True)
        # The network's settings are the host's own.
        syscalls.bind(f"{proc}/sys/net", f"{proc}/sys/net")
        syscalls.mount("none", f"{proc}/sys/net", None, syscalls.MS_REMOUNT | syscalls.MS_BIND)


def _escaped(path: str | Path) -> str:
    """As the options of an overlay take it: a colon parts lower directories, a comma options."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
