"""What every program takes for granted, tried for real and told in the kernel's own words.

Source: null(4), random(4) and Documentation/admin-guide/devices.txt of Linux for the numbers.
"""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

# Of memory, which is no file.
EXECUTABLE = "executable memory"
# The numbers by which the kernel knows them, and how they are opened.
_DEVICES = {
    "/dev/null": ((1, 3), os.O_RDWR),
    "/dev/zero": ((1, 5), os.O_RDONLY),
    "/dev/urandom": ((1, 9), os.O_RDONLY),
}
# What sh(1) of POSIX understands, and other shells do not.
_SCRIPT = 'x=1; f() { echo $((x + 2)); }; [ -n "$x" ] && f'
_ANSWER = b"3"
_SHELL_S = 1.0
_READ = ("/proc/self/status", "/proc/meminfo", "/proc/cpuinfo")


def probe_basics() -> dict[str, str]:
    """{what does not work: why}, of devices, /bin/sh, /proc and /sys. Nothing is changed."""
    if not sys.platform.startswith("linux"):
        return {}
    tries: dict[str, Callable[[], str | None]] = {
        **{
            path: partial(device_flaw, path, numbers, flags)
            for path, (numbers, flags) in _DEVICES.items()
        },
        "/bin/sh": partial(shell_flaw, "/bin/sh"),
        "/proc": _proc_flaw,
        "/sys": _sys_flaw,
        EXECUTABLE: _memory_flaw,
    }
    found = {}
    for name, tried in tries.items():
        try:
            flaw = tried()
        except OSError as problem:
            flaw = f"{errno.errorcode.get(problem.errno or 0, 'EIO')}: {problem.strerror}"
        if flaw is not None:
            found[name] = flaw
    return found


def device_flaw(path: str, numbers: tuple[int, int], flags: int) -> str | None:
    """Why a device is none; None: it is the one with these numbers. Raises OSError."""
    # A pipe in its place would hold up whoever opens it.
    descriptor = os.open(path, flags | os.O_NONBLOCK)
    try:
        found = os.fstat(descriptor)
    finally:
        os.close(descriptor)
    if not stat.S_ISCHR(found.st_mode):
        return f"a plain file of {found.st_size} bytes" if found.st_size else "no device"
    if found.st_rdev != os.makedev(*numbers):
        major, minor = os.major(found.st_rdev), os.minor(found.st_rdev)
        return f"the device with the numbers {major} and {minor}, not {numbers[0]} and {numbers[1]}"
    return None


def shell_flaw(shell: str) -> str | None:
    """Why a shell does not understand sh's language; None: it does. Raises OSError."""
    # Not DEVNULL: that may be what is broken.
    with contextlib.suppress(subprocess.TimeoutExpired):
        done = subprocess.run(
            [shell, "-c", _SCRIPT], input=b"", capture_output=True, timeout=_SHELL_S, check=False
        )
        if done.stdout.strip() != _ANSWER:
            said = done.stderr.decode(errors="replace").strip().splitlines()
            real = os.path.realpath(shell)
            return f"{real} does not understand sh: {' '.join(said[:1]) or 'it says nothing'}"
    # On a busy host an answer may take as long.
    return None


def _proc_flaw() -> str | None:
    # A system that has none is no fault of the host's: `has_proc` of the facts tells.
    if not Path("/proc/self").exists():
        return None
    return next((f"{name} is empty" for name in _READ if not Path(name).read_bytes()), None)


def _memory_flaw() -> None:
    """Make written memory executable, as whatever compiles while it runs does. Raises OSError.

    Source: PR_SET_MDWE(2const), SystemCallFilter= and MemoryDenyWriteExecute= of systemd.exec(5).
    """
    try:
        import ctypes
    except ImportError:
        # A Python that was built without libffi.
        return
    page = mmap.mmap(-1, mmap.PAGESIZE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    page.write(b"\xc3")
    place = ctypes.addressof(ctypes.c_char.from_buffer(page))
    libc = ctypes.CDLL(None, use_errno=True)
    allowed = mmap.PROT_READ | mmap.PROT_EXEC
    if libc.mprotect(ctypes.c_void_p(place), ctypes.c_size_t(mmap.PAGESIZE), allowed):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _sys_flaw() -> str | None:
    return None if any(Path("/sys").iterdir()) else "empty: no sysfs is mounted there"
