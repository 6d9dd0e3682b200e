"""Run one program inside a host, as its own. Standard library only.

Its first argument is JSON: {"pid", "start_ticks", "user", "as_root", "procs_files", "cpus",
"tied", "cwd", "env", "command"}. Streams are the caller's; the exit status is the program's own; a
signal that ended the program ends this one too. 125: the host could not be entered; 126, 127 as
in a shell.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
from typing import Any

from yoked.core.proc import ProcessId
from yoked.lab import syscalls
from yoked.lab.hostinit import as_user, restore_signals

NOT_ENTERED, NOT_EXECUTABLE, NOT_FOUND = 125, 126, 127


def main() -> None:
    """Enter, start, wait."""
    config: dict[str, Any] = json.loads(sys.argv[1])
    if config["tied"]:
        syscalls.die_with_parent(signal.SIGKILL)
    try:
        _enter(config)
    except OSError as problem:
        sys.stderr.write(f"the host could not be entered: {problem}\n")
        sys.exit(NOT_ENTERED)
    child = os.fork()
    if child == 0:
        _become(config)
    sys.exit(_outlive(child))


def _enter(config: dict[str, Any]) -> None:
    host = ProcessId(config["pid"], config["start_ticks"])
    handles = syscalls.open_namespaces(
        host.pid, syscalls.NAMESPACES_OF_A_HOST, user_namespace=config["user"] is not None
    )
    if not host.alive:
        raise ProcessLookupError(f"its first process {host.pid} is gone")
    groups = [os.open(path, os.O_WRONLY) for path in config["procs_files"]]
    os.sched_setaffinity(0, config["cpus"])
    syscalls.enter_namespaces(handles)
    config["groups"] = groups


def _become(config: dict[str, Any]) -> None:
    try:
        for group in config["groups"]:
            # The kernel refuses an ordinary user who comes from another login session.
            with contextlib.suppress(PermissionError):
                os.write(group, b"0")
            os.close(group)
        os.umask(0o022)
        if config["user"] is None or not config["as_root"]:
            as_user(config["user"])
        # Last, because the kernel forgets it when capabilities change.
        syscalls.die_with_parent(signal.SIGKILL)
        restore_signals()
        os.chdir(config["cwd"])
        command, environment = config["command"], config["env"]
        os.execvpe(command[0], command, environment)  # noqa: S606 - an argument list, no shell
    except FileNotFoundError as problem:
        sys.stderr.write(f"{problem}\n")
        os._exit(NOT_FOUND)
    except OSError as problem:
        sys.stderr.write(f"{problem}\n")
        os._exit(NOT_EXECUTABLE)


def _outlive(child: int) -> int:
    """Hand signals on, wait, and end as the program did."""

    def hand_on(number: int, _frame: object) -> None:
        os.kill(child, number)

    # A terminal sends its own to the whole group, the program included.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGQUIT, signal.SIG_IGN)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, hand_on)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code
