"""The process that keeps a lab, and takes it away again. Standard library only.

The keeper (outside) makes the lab's namespaces and its first process, PID 1 of a PID namespace:
when that one dies, the kernel kills all that runs in the lab, and with the processes go network
namespaces and mounts. The keeper dies or is told to stop: the same. What remains then, control
groups and the lab's folder, the keeper removes; where it was killed, `yoked lab down --all` does.

It reads one JSON line from stdin: {"folder", "id", "user": null or [uid, gid], "owner": null or a
process}, and writes one to stdout: {"init": PID}, or {"error": why not}. Until it reads "keep", the
end of stdin is the end of the lab; the end of its owner always is.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

from yoked.core.fs import write_json
from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab import cgroups, syscalls
from yoked.lab.process import until

# The PID namespace is made by the parent: it begins with the next child.
NAMESPACES = (
    syscalls.CLONE_NEWNS | syscalls.CLONE_NEWNET | syscalls.CLONE_NEWIPC | syscalls.CLONE_NEWUTS
)
KEEP = b"keep"
REMOVAL_DEADLINE_S = 2.0
_MADE = b"."
_WORD_BYTES = 1000
# File systems that only wait for somebody to look at them; a host must not.
_AUTOMATIC = {"autofs", "fuse.gvfsd-fuse", "fuse.portal"}


def main() -> None:
    """Start the lab's first process; see the lab to its end."""
    config = json.loads(_read_line(0))
    os.setsid()
    folder = Path(config["folder"])
    _log_to(folder / "keeper.log")
    known = {**ProcessId.of(os.getpid()).to_json(), "id": config["id"]}
    write_json(folder / "keeper.json", known)
    stopping, stop = os.pipe()
    signal.signal(signal.SIGTERM, lambda *_: os.write(stop, b"."))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    init = None
    try:
        init, made = _start_first_process(config["user"])
        # For whoever clears up after both of us were killed.
        write_json(folder / "keeper.json", {**known, "init": ProcessId.of(init).to_json()})
        # Before its namespaces are made, its network is still the machine's.
        word = os.read(made, _WORD_BYTES)
        _tell({"init": init} if word == _MADE else {"error": word.decode(errors="replace")})
        # Nobody may wait for the end of our output.
        os.dup2(2, 1)
        _watch(init, stopping, config["owner"])
    except OSError as problem:
        _tell({"error": str(problem)})
        raise
    finally:
        # Also when nobody is there any more to be told, or the disk is full.
        _take_away(init, config["id"], folder)


def _start_first_process(user: list[int] | None) -> tuple[int, int]:
    """Its PID, and a pipe from which comes _MADE, or why its namespaces could not be made."""
    if user is not None:
        syscalls.unshare(syscalls.CLONE_NEWUSER)
        syscalls.map_own_user(0, 0, user[0], user[1])
    syscalls.unshare(syscalls.CLONE_NEWPID)
    alive, hold = os.pipe()
    made, tell = os.pipe()
    init = os.fork()
    if init == 0:
        try:
            os.close(hold)
            os.close(made)
            _first_process(alive, tell)
        except BaseException as problem:  # noqa: BLE001 - the keeper must hear it, whatever it is
            with contextlib.suppress(OSError):
                os.write(tell, str(problem).encode()[:_WORD_BYTES])
            traceback.print_exc()
        finally:
            # Nothing of what the keeper does at its end.
            os._exit(1)
    os.close(alive)
    os.close(tell)
    return init, made


def _tell(message: dict[str, Any]) -> None:
    # Whoever wanted to know may have been killed.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(message).encode() + b"\n")


def _take_away(init: int | None, lab_id: str, folder: Path) -> None:
    if init is not None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(init, signal.SIGKILL)
    # Before the wait: where a host is frozen, its processes end only when this thaws them.
    with contextlib.suppress(LabError):
        cgroups.remove_lab(lab_id)
    if init is not None:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(init, 0)
    remove_folder(folder)


def _read_line(fd: int) -> bytes:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(fd, 1)
        if not piece:
            sys.exit(1)
        line += piece
    return line


def remove_folder(folder: Path) -> bool:
    """Remove a lab's folder, into which a dying program may still write; whether it is gone."""

    def is_gone() -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return not folder.exists()

    return until(is_gone, REMOVAL_DEADLINE_S)


def _log_to(path: Path) -> None:
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 2)
    os.close(log)


def _watch(init: int, stopping: int, owner: dict[str, Any] | None) -> None:
    """Until the first process or the owner has ended, a stop is asked for, or the tether breaks."""
    ends = [os.pidfd_open(init), stopping]
    if owner is not None:
        if not ProcessId.from_json(owner).alive:
            return
        ends.append(os.pidfd_open(owner["pid"]))
    tether: list[int] = [0]
    while True:
        ready = select.select([*ends, *tether], [], [])[0]
        if any(end in ready for end in ends):
            return
        word = os.read(0, len(KEEP))
        if word != KEEP:
            return
        syscalls.to_null(0)
        tether = []


def _first_process(alive: int, tell: int) -> None:
    """PID 1 of the lab: holds its namespaces, and reaps. tell: a pipe for "they are made"."""
    syscalls.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)  # the keeper died before the kernel was asked to tell
    syscalls.to_null(0, 1)
    syscalls.unshare(NAMESPACES)
    syscalls.mount("none", "/", None, syscalls.MS_REC | syscalls.MS_PRIVATE)
    for target in [path for path, kind in mounts() if kind in _AUTOMATIC]:
        # In a user namespace what the machine mounted is locked, and stays.
        with contextlib.suppress(OSError):
            syscalls.unmount(target)
    syscalls.mount("tmpfs", "/run", "tmpfs", syscalls.MS_NOSUID | syscalls.MS_NODEV, "mode=755")
    os.mkdir("/run/hosts")
    socket.sethostname("switch")
    os.write(tell, _MADE)
    os.close(tell)
    reap_for_ever()


def mounts() -> list[tuple[str, str]]:
    """(mount point, type of file system) of this process's mounts, in the order of mounting.

    Source: proc_pid_mountinfo(5), whose blanks are written as octal escapes.
    """
    found = []
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        path = before.split()[4].encode().decode("unicode_escape").encode("latin-1").decode()
        found.append((path, after.split()[0]))
    return found


def reap_for_ever() -> Any:
    """What PID 1 does: collect the dead of its namespace."""
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGCHLD])
    while True:
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        signal.sigwait([signal.SIGCHLD])
