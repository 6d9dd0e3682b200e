"""Faults of processes: stopped, frozen, left behind."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab.faults.base import Act, Fault, Words, no_rules
from yoked.lab.faults.firewall import RENDEZVOUS_PORT
from yoked.lab.faults.links import silence, unsilence

if TYPE_CHECKING:
    from yoked.lab.host import HostProcess, LabHost
    from yoked.lab.lab import Lab

# Programs start others while they are being stopped.
_STOP_ROUNDS = 5
_STOPPED = "tTZX"
# PID_MAX_LIMIT of 64-bit Linux, include/linux/threads.h.
_MOST_PID = 2**22
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


def send(process: ProcessId, number: signal.Signals) -> None:
    """Signal a process, if it is still the one that is meant."""
    try:
        handle = os.pidfd_open(process.pid)
    except OSError:
        return
    try:
        # The handle holds the number: what is checked now is what is signalled.
        if process.alive:
            signal.pidfd_send_signal(handle, number)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def end_marked(host: LabHost, fault_id: str) -> None:
    """Kill what a fault started on a host, which has the fault's id in its environment."""
    mark = f"YOKED_LAB_FAULT={fault_id}".encode()
    for process in host.processes():
        with contextlib.suppress(OSError):
            found = ProcessId.of(process.outer_pid)
            if mark in Path(f"/proc/{found.pid}/environ").read_bytes().split(b"\0"):
                found.kill()


def leave(
    host: LabHost, argv: Sequence[str], *, env: Mapping[str, str], cwd: str | None = None
) -> str | None:
    """Start a Python program in a host, wait until it prints `ready`, and leave it to PID 1.

    argv: what follows the interpreter. None: it runs; else its last words.
    """
    started = host.run(
        ["python3", "-c", _LEAVE, *argv], env=env, cwd=cwd, check=False, timeout_s=_START_S
    )
    return started.stderr.strip().rpartition("\n")[2] if started.returncode else None


def _stop(act: Act, processes: Iterable[HostProcess]) -> int:
    """SIGSTOP, written down first; how many."""
    found = []
    for process in processes:
        with contextlib.suppress(ProcessLookupError):
            found.append(ProcessId.of(process.outer_pid))
    known = [*act.record.get("stopped", []), *(each.to_json() for each in found)]
    act.remember(stopped=known)
    for each in found:
        send(each, signal.SIGSTOP)
    return len(found)


def _stop_all(act: Act, host: LabHost, spared: Iterable[int]) -> int:
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
        count += _stop(act, running)
    return count


def _continue(act: Act) -> None:
    for each in act.record.get("stopped", []):
        send(ProcessId.from_json(each), signal.SIGCONT)


@dataclass(frozen=True)
class Stop(Fault):
    """SIGSTOP to one process, or to all that anybody started."""

    KIND = "stop"
    SUMMARY = "processes are stopped (SIGSTOP): all but the ssh server, or one"
    USAGE = "stop HOST [PID]"
    AFTER_BOOT = "gone"

    pid: int | None

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and a PID as the host sees it."""
        words = Words(cls.USAGE, lab, args)
        host, pid = words.host(), words.optional()
        return words.done(cls(host, words.whole(pid, "PID", 2, _MOST_PID) if pid else None))

    def same_as(self, other: Fault) -> bool:
        """Of the same process."""
        return isinstance(other, Stop) and (self.host, self.pid) == (other.host, other.pid)

    @property
    def text(self) -> str:
        """What it does."""
        which = "all processes" if self.pid is None else f"process {self.pid}"
        return f"{which} of {self.host} stopped (SIGSTOP)"

    def apply(self, act: Act) -> None:
        """Stop, and remember which."""
        host = act.host(self.host)
        if self.pid is not None:
            processes = {each.pid: each for each in host.processes()}
            if self.pid not in processes:
                raise LabError(
                    f"{self.host} has no process {self.pid}",
                    fix=f"yoked lab exec {self.host} -- ps -e",
                )
            _stop(act, [processes[self.pid]])
            return
        spared = [1, *(each.pid for each in host.processes() if is_ssh_server(each))]
        count = _stop_all(act, host, spared)
        act.say(f"{self.text}: {count} of them")

    def undo(self, act: Act) -> None:
        """SIGCONT to those that were stopped and are still there."""
        _continue(act)


def is_ssh_server(process: HostProcess) -> bool:
    """Whether it is what takes connections for ssh."""
    # Not those that serve a login: they are what a person started.
    return process.parent == 1 and bool(process.command) and "sshd" in process.command[0]


@dataclass(frozen=True)
class Suspend(Fault):
    """The lid is closed: nothing runs and nothing answers, but the link stays up."""

    KIND = "suspend"
    SUMMARY = "the lid is closed: all processes frozen, silent on the network"
    USAGE = "suspend HOST"
    AFTER_BOOT = "gone"

    @classmethod
    def blocked(cls, lab: Lab) -> str | None:
        """Silence is made by rules in the switch."""
        return no_rules(lab)

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} is suspended"

    def apply(self, act: Act) -> None:
        """Silence first: a kernel that sleeps acknowledges nothing either."""
        host = act.host(self.host)
        ports = [each.port for each in host.spec.joined]
        silence(act, [f'iifname "{port}" drop' for port in ports], "prerouting")
        silence(act, [f'oifname "{port}" drop' for port in ports], "postrouting")
        if host.group is not None and host.group.can("freezer"):
            host.group.freeze()
            return
        # PID 1 only reaps; stopped, it would be no more silent.
        count = _stop_all(act, host, [1])
        act.say(f"{self.text} (no freezer here: {count} processes got SIGSTOP)")

    def undo(self, act: Act) -> None:
        """Wake the processes, then the network."""
        host = act.lab.host(self.host)
        if host.group is not None:
            host.group.thaw()
        _continue(act)
        for hook in ("prerouting", "postrouting"):
            unsilence(act, hook)


_STALE_RANK = """
import os, signal, socket
listener = socket.create_server(("", int(os.environ["STALE_PORT"])))
print("ready", flush=True)
os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
os.dup2(1, 2)
while True:
    signal.pause()
"""


@dataclass(frozen=True)
class StaleProcess(Fault):
    """A rank that outlived its launcher and holds a port."""

    KIND = "stale-process"
    SUMMARY = "a rank of an earlier run was left behind (parent 1) and listens at a port"
    USAGE = "stale-process HOST PORT"
    AFTER_BOOT = "gone"

    port: int

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host and a port."""
        words = Words(cls.USAGE, lab, args)
        return words.done(cls(words.host(), words.whole(words.take("PORT"), "PORT", 1, 65535)))

    def same_as(self, other: Fault) -> bool:
        """At the same port."""
        mine = (self.host, self.port)
        return isinstance(other, StaleProcess) and mine == (other.host, other.port)

    @property
    def text(self) -> str:
        """What it does."""
        return f"a rank of an earlier run listens on {self.host} at port {self.port}"

    def apply(self, act: Act) -> None:
        """Start it with what torchrun gives a rank, and leave it."""
        rank = {
            "RANK": "1",
            "LOCAL_RANK": "0",
            "GROUP_RANK": "1",
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": act.lab.topology.hosts[0].address,
            "MASTER_PORT": str(RENDEZVOUS_PORT),
            "TORCHELASTIC_RUN_ID": "none",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "TORCHELASTIC_MAX_RESTARTS": "0",
            "STALE_PORT": str(self.port),
            "YOKED_LAB_FAULT": act.id,
        }
        host, folder = act.awake(self.host), f"/tmp/{act.id}"  # noqa: S108
        host.run(["mkdir", "-p", f"{folder}/scripts"])
        host.write_text(f"{folder}/scripts/__init__.py", "")
        host.write_text(f"{folder}/scripts/base_train.py", _STALE_RANK)
        why = leave(host, ["-u", "-m", "scripts.base_train", "--depth=8"], env=rank, cwd=folder)
        if why is not None:
            raise LabError(
                f"nothing can listen on {self.host} at port {self.port}: {why}",
                fix=f"yoked lab exec {self.host} -- ss -ltnp",
            )

    def undo(self, act: Act) -> None:
        """End it, if it is there; it is known by its environment."""
        host = act.lab.host(self.host)
        if not host.alive:
            return
        host = act.awake(self.host)
        end_marked(host, act.id)
        host.run(["rm", "-rf", f"/tmp/{act.id}"])  # noqa: S108
