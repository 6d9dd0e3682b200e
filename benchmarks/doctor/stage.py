"""A lab with a fleet in it, as a person has it: yoked.toml in a folder, ssh that knows the hosts.

`Stage` breaks things, asks the doctor, carries out what it prints, and launches.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cases import Case

import yoked
from yoked.errors import FleetError
from yoked.fleet.file import read_fleet
from yoked.fleet.trust import remember
from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.topology import Topology

PROGRAM = Path(__file__).parent / "program" / "allreduce.py"
SOURCES = Path(yoked.__file__).parents[1]
COMMAND = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
DOCTOR_S, LAUNCH_S, FIX_S = 60.0, 60.0, 45.0
TRAINED = "RANKS AGREE"
# Exit statuses of yoked: fine, and a finding.
FINE, FOUND = 0, 1
_UID = 1500


@dataclass(frozen=True)
class Verdict:
    """What the doctor said. took_s: as the whole command took, from outside."""

    report: Mapping[str, Any]
    took_s: float
    text: str = ""

    def findings(self, severity: str | None = None) -> list[Mapping[str, Any]]:
        found = self.report["findings"]
        return [each for each in found if severity in (None, each["severity"])]


@dataclass
class Stage:
    """One lab, up. entries: of yoked.toml, by host."""

    lab: Lab
    folder: Path
    entries: dict[str, dict[str, Any]]
    users: dict[str, str] = field(default_factory=dict)
    fixes: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._make_programs()
        self._ssh_config = self.lab.ssh_config.read_text()
        shutil.copy(PROGRAM, self.folder)

    @property
    def fleet_file(self) -> Path:
        return self.folder / "yoked.toml"

    def _make_programs(self) -> None:
        """`yoked` and `ssh` as a person has them: installed, and configured for these hosts."""
        programs = self.folder / "bin"
        programs.mkdir()
        config = shlex.quote(str(self.lab.ssh_config))
        lines = {
            "yoked": f'exec {shlex.join([sys.executable, "-c", COMMAND])} "$@"',
            "ssh": f'exec /usr/bin/ssh -F {config} "$@"',
            "ssh-copy-id": f'exec /usr/bin/ssh-copy-id -F {config} "$@"',
            "sudo": 'exec "$@"',
        }
        for name, line in lines.items():
            (programs / name).write_text(f"#!/bin/sh\n{line}\n")
            (programs / name).chmod(0o755)
        self.environment = {
            **os.environ,
            "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": str(SOURCES),
        }

    def write_fleet(self) -> None:
        lines = ["[fleet]", 'name = "home"', f'ssh_config = "{self.lab.ssh_config}"']
        for name, entry in self.entries.items():
            lines += ["", "[[host]]", f'name = "{name}"']
            lines += [f"{key} = {json.dumps(value)}" for key, value in entry.items()]
        self.fleet_file.write_text("\n".join(lines) + "\n")

    # ---- break ----

    def add_user(self, host: str, user: str) -> None:
        """An ordinary account, with which ssh logs in from now on."""
        uid = _UID + len(self.users)
        home = f"/home/{user}"
        # The interpreter may lie below the home of root.
        closed = [each for each in Path(sys.base_prefix).parents if str(each) != "/"]
        self.as_root(
            host,
            f"echo '{user}:x:{uid}:{uid}::{home}:/bin/bash' >> /etc/passwd; "
            f"echo '{user}:x:{uid}:' >> /etc/group; mkdir -p {home} && chown {uid}:{uid} {home}; "
            f"chmod 644 /run/yoked/authorized_keys; chmod a+x {shlex.join(map(str, closed))}",
        )
        self.users[host] = user
        config = self.lab.ssh_config
        blocks = config.read_text().split("\nHost ")
        changed = [
            block.replace("User root", f"User {user}")
            if block.splitlines()[0].removeprefix("Host ") == host
            else block
            for block in blocks
        ]
        config.write_text("\nHost ".join(changed))

    def alias(self, name: str, of: str) -> None:
        """One more name that ssh knows, for a host or for nobody."""
        config = self.lab.ssh_config
        blocks = config.read_text().split("\nHost ")
        known = {block.splitlines()[0]: block for block in blocks[1:]}
        if of in known:
            blocks.append(known[of].replace(of, name, 1))
        else:
            blocks = [block for block in blocks if block.splitlines()[0] != name]
            blocks.append(f"{name}\n  HostName {of}\n  BatchMode yes\n")
        config.write_text("\nHost ".join(blocks))

    def as_root(self, host: str, line: str) -> None:
        """What somebody did on a host, beyond the faults that the lab knows. Raises LabError."""
        self.lab.host(host).run(["sh", "-ec", line])

    def inject(self, lines: Sequence[str]) -> None:
        """`firewall alpha`: a fault of the lab; `alpha$ chmod ...`: a line for a host's root."""
        for line in lines:
            host, is_line, command = line.partition("$ ")
            if is_line:
                self.as_root(host, command)
            else:
                kind, *words = shlex.split(line)
                faults.apply(self.lab, kind, words, seed=1)

    # ---- ask ----

    def run_here(self, words: Sequence[str], limit_s: float) -> subprocess.CompletedProcess[str]:
        """A command of the person at the controller, in the folder of yoked.toml."""
        # The file is the person's own; what is wrong in it is for the command to tell.
        with contextlib.suppress(FleetError):
            remember(read_fleet(self.fleet_file))
        with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
            # Into files: what a command leaves in the background would hold a pipe open.
            process = subprocess.Popen(
                list(words),
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            try:
                status = process.wait(timeout=limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, 9)
                process.wait()
                status = 124
            out.seek(0)
            err.seek(0)
            return subprocess.CompletedProcess(list(words), status, out.read(), err.read())

    def doctor(self, *flags: str) -> Verdict:
        """`yoked doctor --json`. Raises RuntimeError when it says no JSON."""
        began_s = time.monotonic()
        words = ["yoked", "doctor", "--json", *flags]
        done = self.run_here(words, DOCTOR_S)
        took_s = time.monotonic() - began_s
        if done.returncode not in (FINE, FOUND):
            raise RuntimeError(f"{' '.join(words)}: {done.returncode}\n{done.stdout}{done.stderr}")
        return Verdict(json.loads(done.stdout), took_s, done.stderr)

    # ---- mend ----

    def carry_out(self, fix: Mapping[str, Any]) -> str | None:
        """Do what a fix says, as printed, where it says. None: done; else what went wrong."""
        command = str(fix["command"])
        if not fix["host"]:
            done = self.run_here(["sh", "-c", command], FIX_S)
        else:
            done = subprocess.run(
                self._in_host(fix["host"], command, as_root=bool(fix.get("root"))),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=FIX_S,
                check=False,
            )
        if done.returncode == FINE:
            return None
        return f"{command}: status {done.returncode}: {done.stderr.strip() or done.stdout.strip()}"

    def _in_host(self, name: str, command: str, *, as_root: bool) -> list[str]:
        host = self.lab.host(name)
        # Hosts have no sudo: its line is run as root.
        line = command.removeprefix("sudo ")
        if "mount -o remount" in line:
            # Root of a lab's host may not mount; that of a machine may.
            kinds = ("mount", "net", "uts", "ipc", "pid")
            namespaces = [f"--{kind}" for kind in kinds]
            return ["nsenter", f"--target={host.pid}", *namespaces, "sh", "-c", line]
        user = self.users.get(name)
        if user is None or as_root or line != command:
            return host.enter_command(["sh", "-c", line], tied=True)
        become = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups"]
        env = {"HOME": f"/home/{user}", "USER": user, "LOGNAME": user}
        return host.enter_command(
            [*become, "sh", "-c", line], env=env, cwd=f"/home/{user}", tied=True
        )

    def repair(self, case: Case) -> None:
        """What a person does by hand, or a registry would bring: things are as they should be."""
        faults.heal(self.lab)
        for name, entry in case.toml.items():
            self.entries[name].update({"python": sys.executable} if "python" in entry else {})
        if case.aliases:
            self.lab.ssh_config.write_text(self._ssh_config)
        self.write_fleet()

    # ---- launch ----

    def launch(self, *flags: str, limit_s: float = LAUNCH_S) -> str | None:
        """Train over the fleet, as a person would. None: it trained; else what was said."""
        run = f"proof-{secrets.token_hex(3)}"
        words = ["yoked", "run", "--run", run, *flags, "--", PROGRAM.name]
        done = self.run_here(words, limit_s)
        if done.returncode == FINE and TRAINED in done.stdout + done.stderr:
            return None
        if done.returncode == 124:
            self.run_here(["yoked", "stop", run, "--now"], LAUNCH_S)
        return f"status {done.returncode}: {(done.stdout + done.stderr).strip()[-1500:]}"


def console(lab: str, host: str) -> list[str]:
    """A shell of root on a host, by another way than ssh: at home another account."""
    return ["yoked", "lab", "exec", "--root", "--lab", lab, host, "--", "sh"]


@contextlib.contextmanager
def stage(
    topology: Topology, entries: Mapping[str, Mapping[str, Any]], *, consoles: bool = True
) -> Iterator[Stage]:
    """A lab of that topology, and a folder with a yoked.toml of these entries."""
    # Connections that are shared for a minute must not be those of an earlier lab.
    name = f"doctor-{secrets.token_hex(3)}"
    with (
        tempfile.TemporaryDirectory(prefix="yd-") as folder,
        tempfile.TemporaryDirectory(prefix="yr-") as runtime,
        Lab.up(topology, name=name, tethered=True) as lab,
    ):
        own = Stage(
            lab,
            Path(folder),
            # As the yoked.toml has it that a lab writes itself.
            {
                host: {**entry, **({"console": console(name, host)} if consoles else {})}
                for host, entry in entries.items()
            },
        )
        own.environment["XDG_RUNTIME_DIR"] = runtime
        own.write_fleet()
        yield own
