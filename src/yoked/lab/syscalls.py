"""The kernel's calls for namespaces, mounts and capabilities, which Python 3.11 does not have.

Standard library only. Sources: unshare(2), setns(2), mount(2), pivot_root(2), prctl(2),
capabilities(7), and the kernel's headers for the numbers.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from pathlib import Path

CLONE_NEWNS = 0x0002_0000
CLONE_NEWUTS = 0x0400_0000
CLONE_NEWIPC = 0x0800_0000
CLONE_NEWUSER = 0x1000_0000
CLONE_NEWPID = 0x2000_0000
CLONE_NEWNET = 0x4000_0000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x4_0000
_MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15
_PR_CAPBSET_DROP = 24
_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL = 47, 4
_CAPABILITY_VERSION_3 = 0x2008_0522
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41, "riscv64": 41}

# linux/capability.h. What a host keeps reaches no further than its own namespaces.
_CAPABILITIES_KEPT = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "KILL": 5,
    "SETGID": 6,
    "SETUID": 7,
    "SETPCAP": 8,
    "NET_BIND_SERVICE": 10,
    "NET_ADMIN": 12,
    "NET_RAW": 13,
    "SYS_CHROOT": 18,
    "SYS_PTRACE": 19,
    "AUDIT_WRITE": 29,
}

_libc = ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """New namespaces for this process (a new PID namespace: for its next children)."""
    _check(_libc.unshare(flags), f"unshare({flags:#x})")


def setns(fd: int) -> None:
    """Enter the namespace that fd stands for, of whichever kind it is."""
    _check(_libc.setns(fd, 0), "setns")


# All that makes a host or a lab, but for the user namespace.
NAMESPACES_OF_A_HOST = ("pid", "net", "uts", "ipc", "mnt")


def open_namespaces(pid: int, names: Sequence[str], *, user_namespace: bool) -> list[int]:
    """Descriptors of a process's namespaces, the user namespace first: it permits the others."""
    wanted = ["user", *names] if user_namespace else names
    handles: list[int] = []
    try:
        for name in wanted:
            handle = os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY)
            handles.append(handle)
    except OSError:
        for handle in handles:
            os.close(handle)
        raise
    return handles


def enter_namespaces(handles: Sequence[int]) -> None:
    """Enter what `open_namespaces` opened, and close it. A PID namespace: for the next child."""
    for handle in handles:
        setns(handle)
        os.close(handle)


def mount(
    source: str, target: str, kind: str | None = None, flags: int = 0, data: str | None = None
) -> None:
    """mount(2); data: the options of the file system."""
    arguments = [None if text is None else os.fsencode(text) for text in (source, target, kind)]
    options = None if data is None else os.fsencode(data)
    result = _libc.mount(*arguments, ctypes.c_ulong(flags), options)
    _check(result, f"mount {kind or 'bind'} on {target}")


def bind(source: str, target: str, *, read_only: bool = False) -> None:
    """Show source at target, too."""
    mount(source, target, None, MS_BIND)
    if read_only:
        # The flag of a bind mount can only be changed once it is there.
        make_read_only(target)


def make_read_only(target: str) -> None:
    """A bind mount, without those below it. A device on it can still be written to."""
    mount("none", target, None, MS_REMOUNT | MS_BIND | MS_RDONLY)


def unmount(target: str) -> None:
    """Take a mount out of sight at once; it ends with the last one who is in it."""
    _check(_libc.umount2(os.fsencode(target), _MNT_DETACH), f"unmount {target}")


def to_null(*fds: int) -> None:
    """Have these descriptors be /dev/null, whatever they were."""
    null = os.open(os.devnull, os.O_RDWR)
    for fd in fds:
        os.dup2(null, fd)
    os.close(null)


def pivot_root(new_root: str, put_old: str) -> None:
    """Make new_root, a mount, the root; the old one is then at put_old, below it."""
    number = _SYS_PIVOT_ROOT[platform.machine()]
    _check(
        _libc.syscall(number, os.fsencode(new_root), os.fsencode(put_old)), f"pivot_root {new_root}"
    )


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when its parent dies; survives exec, not fork."""
    _check(_libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def name_process(name: str) -> None:
    """What /proc/PID/comm and ps say of this process, in up to 15 bytes, until it runs another."""
    _check(_libc.prctl(_PR_SET_NAME, os.fsencode(name), 0, 0, 0), "prctl(PR_SET_NAME)")


def drop_capabilities() -> None:
    """Give up, here and in all that is started from here, what reaches past own namespaces.

    Without SYS_TIME, SYS_BOOT, SYS_MODULE, SYS_ADMIN, SYS_RAWIO, MKNOD and the like, root in a
    host cannot set the machine's clock, reboot it, load modules, mount, or make device files.
    """
    last = int(Path("/proc/sys/kernel/cap_last_cap").read_text())
    kept = set(_CAPABILITIES_KEPT.values())
    for number in range(last + 1):
        if number not in kept:
            _check(_libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0), f"drop capability {number}")
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    mask = sum(1 << number for number in kept)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    # effective, permitted, inheritable; the lower 32 bits, then the upper.
    data = (ctypes.c_uint32 * 6)(mask, mask, 0, 0, 0, 0)
    _check(_libc.capset(header, data), "capset")


def map_own_user(inside_uid: int, inside_gid: int, outside_uid: int, outside_gid: int) -> None:
    """In a new user namespace: the one user and group that exist in it; user_namespaces(7)."""
    # The kernel wants this before an unprivileged process may map its group.
    Path("/proc/self/setgroups").write_text("deny")
    Path("/proc/self/gid_map").write_text(f"{inside_gid} {outside_gid} 1")
    Path("/proc/self/uid_map").write_text(f"{inside_uid} {outside_uid} 1")
