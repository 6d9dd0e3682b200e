"""A host's files: the machine's, with everything written kept apart. Standard library only.

Each of the machine's directories appears under the host's own root as an overlay whose upper
side lies in the host's storage, a tmpfs; what is mounted below a directory is overlaid on its
own (an ordinary user's namespace may not overlay a directory with mounts below it), and the files
beside it are copied into the storage. /dev, /proc, /run, /sys and /tmp are new.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
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
# Copies take memory: of one file, and of all together, no more than this.
_COPY_BYTES, _COPIES_BYTES = 16 << 20, 256 << 20


@dataclass
class FileTree:
    """Builds the tree of one host at `root`; `storage` is the host's own tmpfs."""

    storage: Path
    user_namespace: bool
    home: str
    carried: tuple[str, ...] = ()
    """Folders that hosts need although they lie below a new one: a checkout in /tmp, say."""
    apart: tuple[str, ...] = ()
    """Folders of the machine's that a host has for itself, empty at first."""
    notes: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.root = str(self.storage / "root")
        self._mounts = [path for path, kind in mounts() if kind not in _VIRTUAL]
        self._virtual = {path for path, kind in mounts() if kind in _VIRTUAL}
        self._room_bytes = _COPIES_BYTES

    def build(self) -> None:
        """Mount everything; afterwards `enter` makes it the root."""
        os.makedirs(self.root, exist_ok=True)
        syscalls.mount("tmpfs", self.root, "tmpfs", _NOSUID_NODEV, "mode=755")
        self._graft("/")
        self._make_tmp()
        for path in self.carried:
            self._carry(path)
        self._open_home()
        for path in self.apart:
            self._keep_apart(os.path.realpath(path))
        self._make_dev()
        self._make_proc_and_sys()

    def enter(self) -> None:
        """Make the tree the root of this process's mount namespace, and leave the old one."""
        old = f"{self.root}/run/.machine"
        os.mkdir(old)
        syscalls.pivot_root(self.root, old)
        os.chdir("/")
        syscalls.unmount("/run/.machine")
        os.rmdir("/run/.machine")

    def _graft(self, folder: str, *, first_time: bool = True) -> None:
        """Show what the machine has in a folder, one by one.

        first_time: the host was never up; later, links and files are as it left them.
        """
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            target = self.root + entry.path
            if entry.path in NEW:
                continue
            with contextlib.suppress(PermissionError, FileNotFoundError):
                if entry.is_symlink():
                    if first_time:
                        os.symlink(os.readlink(entry.path), target)
                elif entry.is_dir():
                    self._graft_folder(entry.path, target)
                elif entry.is_file():
                    self._graft_file(entry.path, target, first_time=first_time)

    def _graft_folder(self, path: str, target: str) -> None:
        if os.path.lexists(target):
            # Of an earlier time. A link in its place would lead out of the host.
            if not stat.S_ISDIR(os.lstat(target).st_mode):
                return
        else:
            os.mkdir(target)
            os.chmod(target, stat.S_IMODE(os.stat(path).st_mode))
        if path not in self._virtual:
            self._show(path, target)

    def _show(self, path: str, target: str) -> None:
        """Have a folder of the machine's at target, which is there."""
        below = path + "/"
        if any(mount.startswith(below) for mount in (*self._mounts, *self._virtual)):
            own = self.storage / "grafted" / _one_name(path)
            first_time = self._make_like(path, own)
            syscalls.bind(str(own), target)
            self._graft(path, first_time=first_time)
            return
        if os.access(path, os.R_OK | os.X_OK):
            self._overlay(path, target)

    def _graft_file(self, path: str, target: str, *, first_time: bool) -> None:
        """A copy, because the host may write to it, and may replace it: a mount cannot be."""
        size_bytes = os.stat(path).st_size
        if size_bytes <= min(_COPY_BYTES, self._room_bytes):
            self._room_bytes -= size_bytes
            if first_time:
                _copy(path, target)
        elif self.user_namespace:
            self.notes.append(f"{path} is not in the hosts: it is too large to be copied")
        else:
            if first_time:
                Path(target).touch()
            if _is_empty_file(target):
                syscalls.bind(path, target, read_only=True)

    def _make_like(self, path: str, own: Path) -> bool:
        """A folder in the storage with the owner and mode of the machine's; whether it is new."""
        if own.exists():
            return False
        own.mkdir(parents=True)
        machine = os.stat(path)
        with contextlib.suppress(PermissionError, OSError):
            os.chown(own, machine.st_uid, machine.st_gid)
        own.chmod(stat.S_IMODE(machine.st_mode))
        return True

    def _overlay(self, path: str, target: str) -> None:
        name = _one_name(path)
        upper, work = self.storage / "upper" / name, self.storage / "work" / name
        # The upper directory's owner and mode are those that are seen.
        self._make_like(path, upper)
        work.mkdir(parents=True, exist_ok=True)
        options = f"lowerdir={_escaped(path)},upperdir={_escaped(upper)},workdir={_escaped(work)}"
        if self.user_namespace:
            options += ",userxattr"
        try:
            syscalls.mount("overlay", target, "overlay", 0, options)
        except OSError as problem:
            # Some file systems (FAT, network mounts) cannot be the lower side.
            if self.user_namespace:
                # A host's root could write to whatever it shared.
                self.notes.append(f"{path} is empty in the hosts: {problem}")
                return
            try:
                syscalls.bind(path, target, read_only=True)
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
            self._show(path, target)

    def _open_home(self) -> None:
        """Below folders of other users, an ordinary user's overlay takes nothing; its own does."""
        home = os.path.realpath(self.home)
        target = self.root + home
        try:
            os.mkdir(f"{target}/.yoked-lab")
            os.rmdir(f"{target}/.yoked-lab")
        except OSError as problem:
            if problem.errno == errno.EOVERFLOW:
                self._show(home, target)

    def _keep_apart(self, path: str) -> None:
        """A folder in the storage in its place: what lies there is as it was after a reboot."""
        own = self.storage / "apart" / _one_name(path)
        try:
            own.mkdir(parents=True, exist_ok=True)
            own.chmod(0o700)
            os.makedirs(self.root + path, exist_ok=True)
            syscalls.bind(str(own), self.root + path)
        except OSError as problem:
            self.notes.append(f"hosts see the machine's own {path} ({problem.strerror})")

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


def _copy(path: str, target: str) -> None:
    """With owner, mode and times, as far as this user may."""
    shutil.copyfile(path, target)
    machine = os.stat(path)
    with contextlib.suppress(OSError):
        os.chown(target, machine.st_uid, machine.st_gid)
    with contextlib.suppress(OSError):
        shutil.copystat(path, target)


def _is_empty_file(path: str) -> bool:
    """Whether a file waits there for a mount; a link is none."""
    there = os.lstat(path)
    return stat.S_ISREG(there.st_mode) and there.st_size == 0


def _one_name(path: str) -> str:
    """A path as the name of one folder."""
    return path.strip("/").replace("%", "%25").replace("/", "%2F")


def _escaped(path: str | Path) -> str:
    """As the options of an overlay take it: a colon parts lower directories, a comma options."""
    return str(path).replace("\\", "\\\\").replace(":", "\\:").replace(",", "\\,")
