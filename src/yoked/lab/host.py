"""A virtual host, from outside: run programs in it, read and write its files, see its processes."""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab.hostgroup import HostGroup
from yoked.lab.inside import Inside
from yoked.lab.process import own_program
from yoked.lab.ssh import ALWAYS_SET, LOGIN_PATH
from yoked.lab.topology import Host

# What a program in a host takes over from whoever starts it.
_TAKEN_OVER = ("PATH", "LANG", "LC_ALL", "TERM", "COLORTERM", "VIRTUAL_ENV", "PYTHONPATH")
_File = int | IO[Any] | None


@dataclass(frozen=True)
class HostProcess:
    """A process of a host. pid: as the host sees it; outer_pid: as the machine does.

    state: the letter of proc_pid_stat(5), R running, S sleeping, T stopped ...
    """

    pid: int
    outer_pid: int
    parent: int
    state: str
    command: list[str]

    @property
    def program(self) -> str:
        """The first word of its command; "": it has ended, or runs nothing yet."""
        return self.command[0] if self.command else ""


@dataclass(frozen=True)
class LabHost:
    """One host of a lab that is up; `process` is its PID 1."""

    spec: Host
    lab_id: str
    process: ProcessId
    cpus: tuple[int, ...]
    user: tuple[int, int] | None
    group: HostGroup | None
    storage: Path
    """The host's own tmpfs, as the machine can reach it."""

    @property
    def name(self) -> str:
        """The host's name, in the lab and as it knows itself."""
        return self.spec.name

    @property
    def pid(self) -> int:
        """PID 1 of the host, as the machine sees it."""
        return self.process.pid

    @property
    def alive(self) -> bool:
        """Whether the host is up."""
        return self.process.alive

    @property
    def inside(self) -> Inside:
        """Its namespaces."""
        return Inside(self.process, self.user is not None)

    def tool(
        self, argv: Sequence[str], *, input: str = "", check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run the machine's ip, tc, nft or ss in this host's network namespace."""
        return self.inside.tool(argv, input=input, check=check)

    def enter_command(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        as_root: bool = False,
        tied: bool = False,
    ) -> list[str]:
        """The command that runs argv in this host, as the host's own program.

        as_root: as root of the host's namespaces where its programs run as an ordinary user.
        tied: it dies with the thread that starts it.
        """
        if not self.alive:
            raise LabError(f"{self.name} is not up", fix=f"yoked lab heal {self.name}")
        config = {
            **self.process.to_json(),
            "user": self.user,
            "as_root": as_root,
            "procs_files": [str(path) for path in self.group.procs_files] if self.group else [],
            "cpus": self.cpus,
            "tied": tied,
            "cwd": cwd or str(Path.home()),
            "env": {**self._environment(), **(env or {})},
            "command": list(argv),
        }
        return own_program("enter", json.dumps(config))

    def _environment(self) -> dict[str, str]:
        user = pwd.getpwuid(os.getuid())
        taken = {name: os.environ[name] for name in _TAKEN_OVER if name in os.environ}
        own = {
            "HOME": str(Path.home()),
            "USER": user.pw_name,
            "LOGNAME": user.pw_name,
            "SHELL": user.pw_shell or "/bin/sh",
            "YOKED_LAB": self.lab_id,
            "YOKED_LAB_HOST": self.name,
        }
        return {"PATH": LOGIN_PATH, **taken, **own, **ALWAYS_SET}

    def popen(
        self,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        as_root: bool = False,
        tied: bool = False,
        stdin: _File = subprocess.DEVNULL,
        stdout: _File = subprocess.PIPE,
        stderr: _File = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        """Start a program in this host; it dies with the process that is returned."""
        return subprocess.Popen(
            self.enter_command(argv, env=env, cwd=cwd, as_root=as_root, tied=tied),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    def run(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,
        check: bool = True,
        timeout_s: float = 60.0,
        env: Mapping[str, str] | None = None,
        cwd: str | None = None,
        as_root: bool = False,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in this host to its end.

        Raises LabError when it fails (with check) or takes longer than timeout_s.
        """
        process = self.popen(
            argv, env=env, cwd=cwd, as_root=as_root, tied=True, stdin=subprocess.PIPE
        )
        with process:
            try:
                out, err = process.communicate(input or "", timeout=timeout_s)
            except subprocess.TimeoutExpired:
                process.kill()
                raise LabError(
                    f"{self.name}: {' '.join(argv)} did not end in {timeout_s:g} s"
                ) from None
        if check and process.returncode:
            raise LabError(
                f"{self.name}: {' '.join(argv)} ended with {process.returncode}: {err.strip()}"
            )
        return subprocess.CompletedProcess(list(argv), process.returncode, out, err)

    def read_text(self, path: str) -> str:
        """A file of this host."""
        return self.run(["cat", path]).stdout

    def write_text(self, path: str, text: str) -> None:
        """Write a file of this host as its root; the machine's own file stays as it is."""
        self.run(["sh", "-c", 'cat > "$1"', "sh", path], input=text, as_root=True)

    def exists(self, path: str) -> bool:
        """Whether this host has such a file or folder."""
        return self.run(["test", "-e", path], check=False).returncode == 0

    def remove(self, path: str) -> None:
        """Remove a file of this host, if it is there."""
        self.run(["rm", "-f", path], as_root=True)

    def processes(self) -> list[HostProcess]:
        """All processes of this host, its PID 1 included; none when it is down."""
        statuses = list(_statuses_beside(self.pid)) if self.alive else []
        # The last of a process's numbers is that of the namespace which it is in.
        numbers = {int(each["Pid"]): int(each["NSpid"].split()[-1]) for each in statuses}
        found = []
        for status in statuses:
            outer_pid = int(status["Pid"])
            with contextlib.suppress(OSError):
                line = Path(f"/proc/{outer_pid}/cmdline").read_text(errors="replace")
                command = line.rstrip("\0").split("\0") if line else []
                # A parent outside of the host has no number in it.
                parent = numbers.get(int(status["PPid"]), 0)
                found.append(
                    HostProcess(numbers[outer_pid], outer_pid, parent, status["State"][0], command)
                )
        return sorted(found, key=lambda process: process.pid)


def _statuses_beside(pid: int) -> Iterator[dict[str, str]]:
    """What /proc/PID/status says of all processes in the PID namespace of one."""
    with contextlib.suppress(OSError):
        namespace = os.readlink(f"/proc/{pid}/ns/pid")
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                if os.readlink(f"/proc/{name}/ns/pid") == namespace:
                    lines = Path(f"/proc/{name}/status").read_text(errors="replace").splitlines()
                    parts = (line.partition(":") for line in lines)
                    yield {key: value.strip() for key, _, value in parts}
