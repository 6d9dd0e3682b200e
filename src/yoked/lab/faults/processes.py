"""Processes: stopped, frozen, started and left behind."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab.faults.args import Arg
from yoked.lab.faults.base import Effect, Fault, FaultContext, InMemory, no_rules
from yoked.lab.faults.rules import RENDEZVOUS_PORT, silence, unsilence

if TYPE_CHECKING:
    from yoked.lab.host import HostProcess, LabHost
    from yoked.lab.lab import Lab

# Programs start others while they are being stopped.
_STOP_ROUNDS = 5
_STOPPED = "tTZX"
_START_S = 20.0

# Runs in the host, with its Python: starts a program with the arguments, and ends once that is
# ready, which leaves it to PID 1.
_LEAVE = """
import subprocess, sys
program = subprocess.Popen(
    [sys.executable, *sys.argv[1:]],
    stdin=subprocess.DEVNULL,
    stdout=subprocess.PIPE,
    stderr=subprocess.STDOUT,
    text=True,
    start_new_session=True,
)
line = program.stdout.readline()
if line != "ready\\n":
    sys.exit((line + program.stdout.read()).strip().rpartition("\\n")[2])
"""


def _end_marked(host: LabHost, fault_id: str) -> None:
    """Kill what a fault started on a host, which has the fault's id in its environment."""
    for process in identified(host.processes()):
        if process.environment().get("YOKED_LAB_FAULT") == fault_id:
            process.kill()


def identified(processes: Iterable[HostProcess]) -> Iterator[ProcessId]:
    """Those that are still there, so that each can be told from a later one of its number."""
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            yield ProcessId.of(process.outer_pid)


def _leave(
    host: LabHost, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None
) -> str | None:
    """Start a Python program in a host, wait until it prints `ready`, and leave it to PID 1.

    argv: what follows the interpreter. None: it runs; else its last words.
    """
    started = host.run(
        ["python3", "-c", _LEAVE, *argv], env=env, cwd=cwd, check=False, timeout_s=_START_S
    )
    return started.stderr.strip().rpartition("\n")[2] if started.returncode else None


def _stop(context: FaultContext, processes: Iterable[HostProcess]) -> int:
    """SIGSTOP, written down first; how many."""
    found = list(identified(processes))
    known = [*context.record.get("stopped", []), *(each.to_json() for each in found)]
    context.remember(stopped=known)
    for each in found:
        each.signal(signal.SIGSTOP)
    return len(found)


def _stop_all(context: FaultContext, host: LabHost, spared: Iterable[int]) -> int:
    """SIGSTOP to all but the spared (PIDs of the host) and what is stopped already; how many."""
    apart = set(spared)
    count = 0
    for _ in range(_STOP_ROUNDS):
        running = [
            each
            for each in host.processes()
            if each.pid not in apart and each.state not in _STOPPED
        ]
        if not running:
            break
        apart |= {each.pid for each in running}
        count += _stop(context, running)
    return count


def _continue(context: FaultContext) -> None:
    for each in context.record.get("stopped", []):
        ProcessId.from_json(each).signal(signal.SIGCONT)


@dataclass(frozen=True)
class Stopped(Effect):
    """SIGSTOP to one process, or to all that anybody started."""

    AFTER_BOOT = "gone"

    pid: Arg[Any]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host, pid = context.host(fault.host), fault[self.pid]
        if pid is not None:
            processes = {each.pid: each for each in host.processes()}
            if pid not in processes:
                raise LabError(
                    f"{fault.host} has no process {pid}",
                    fix=f"yoked lab exec {fault.host} -- ps -e",
                )
            _stop(context, [processes[pid]])
            return
        spared = [1, *(each.pid for each in host.processes() if is_ssh_server(each))]
        count = _stop_all(context, host, spared)
        context.say(f"{fault.text}: {count} of them")

    def undo(self, _fault: Fault, context: FaultContext) -> None:
        """SIGCONT to those that were stopped and are still there."""
        _continue(context)


def is_ssh_server(process: HostProcess) -> bool:
    """Whether it is what takes connections for ssh."""
    # Not those that serve a login: they are what a person started.
    return process.parent == 1 and "sshd" in process.program


class Suspended(Effect):
    """The lid is closed: nothing runs and nothing answers, but the link stays up."""

    AFTER_BOOT = "gone"
    NO_PROGRAMS = "is suspended"

    def unsupported(self, lab: Lab) -> str | None:
        """Silence is made by rules in the switch."""
        return no_rules(lab)

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Silence first: a kernel that sleeps acknowledges nothing either."""
        host = context.host(fault.host)
        ports = [each.port for each in host.spec.joined]
        silence(context, [f'iifname "{port}" drop' for port in ports], "prerouting")
        silence(context, [f'oifname "{port}" drop' for port in ports], "postrouting")
        if host.group is not None and host.group.can("freezer"):
            host.group.freeze()
            return
        # PID 1 only reaps; stopped, it would be no more silent.
        count = _stop_all(context, host, [1])
        context.say(f"{fault.text} (no freezer here: {count} processes got SIGSTOP)")

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Wake the processes, then the network."""
        host = context.lab.host(fault.host)
        if host.group is not None:
            host.group.thaw()
        _continue(context)
        for hook in ("prerouting", "postrouting"):
            unsilence(context, hook)


@dataclass(frozen=True)
class Started(InMemory):
    """A program of somebody's, which ends with the host's power.

    program: Python source that prints `ready` once it is; number: its argument.
    """

    AFTER_BOOT = "gone"

    program: str
    number: Arg[int]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        argv = ["-I", "-S", "-u", "-c", self.program, str(fault[self.number])]
        why = _leave(context.awake(fault.host), argv, env={"YOKED_LAB_FAULT": context.id})
        if why is not None:
            raise LabError(f"{fault.text}: {why}", fix=f"yoked lab exec {fault.host} -- ss -ltnp")

    def undo(self, fault: Fault, context: FaultContext) -> None:
        _end_marked(context.awake(fault.host), context.id)


_SILENTLY = """
import os
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
"""
# The number of cores.
BUSY = f"""
import os, sys
for _ in range(int(sys.argv[1]) - 1):
    if os.fork() == 0:
        break
{_SILENTLY}
while True:
    pass
"""
# The port; what is accepted is closed.
LISTEN = f"""
import socket, sys
listener = socket.create_server(("", int(sys.argv[1])))
{_SILENTLY}
while True:
    listener.accept()[0].close()
"""
_STALE_RANK = f"""
import os, signal, socket
listener = socket.create_server(("", int(os.environ["STALE_PORT"])))
{_SILENTLY}
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class StaleRank(InMemory):
    """A rank that outlived its launcher and holds a port."""

    AFTER_BOOT = "gone"

    port: Arg[int]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """Start it with what torchrun gives a rank, and leave it."""
        rank = {
            "RANK": "1",
            "LOCAL_RANK": "0",
            "GROUP_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": context.lab.topology.hosts[0].address,
            "MASTER_PORT": str(RENDEZVOUS_PORT),
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "STALE_PORT": str(fault[self.port]),
            "YOKED_LAB_FAULT": context.id,
        }
        host, folder = context.awake(fault.host), f"/tmp/{context.id}"  # noqa: S108
        host.run(["mkdir", "-p", f"{folder}/scripts"])
        host.write_text(f"{folder}/scripts/__init__.py", "")
        host.write_text(f"{folder}/scripts/base_train.py", _STALE_RANK)
        why = _leave(host, ["-u", "-m", "scripts.base_train", "--depth=8"], env=rank, cwd=folder)
        if why is not None:
            raise LabError(
                f"nothing can listen on {fault.host} at port {fault[self.port]}: {why}",
                fix=f"yoked lab exec {fault.host} -- ss -ltnp",
            )

    def undo(self, fault: Fault, context: FaultContext) -> None:
        host = context.awake(fault.host)
        _end_marked(host, context.id)
        host.run(["rm", "-rf", f"/tmp/{context.id}"])  # noqa: S108
