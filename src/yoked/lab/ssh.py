"""The lab's own ssh: keys, server and client configuration. The user's ~/.ssh is never touched."""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from yoked.errors import LabError
from yoked.lab.inside import TOOL_PATH
from yoked.lab.process import own_program
from yoked.lab.topology import Host, Topology

SERVER_FOLDER = "/run/yoked"
# What a program that comes in by ssh finds, as on most distributions.
LOGIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Wanted by the clock-skew fault: only the time of day is to differ.
ALWAYS_SET = {"FAKETIME_DONT_FAKE_MONOTONIC": "1"}
# What libfaketime shares between processes: a semaphore and a piece of memory, in /dev/shm.
CLOCK_SHARED = ("/yoked_clock_sem", "/yoked_clock_shm")
# Of the server itself, not of who logs in: its sandbox kills it when libfaketime reads a file to
# tell the time, or removes at the end what it shares.
SERVER_ENVIRONMENT = {
    "LANG": "C.UTF-8",
    "PATH": LOGIN_PATH,
    "FAKETIME_SKIP_CMDS": "sshd",
    "FAKETIME_SHARED": " ".join(CLOCK_SHARED),
}


def server_command() -> list[str] | None:
    """How a host starts its ssh server; None where the machine has none."""
    path = shutil.which("sshd", path=TOOL_PATH)
    if path is None:
        return None
    return [path, "-D", "-f", f"{SERVER_FOLDER}/sshd_config", "-E", f"{SERVER_FOLDER}/sshd.log"]


class Keys:
    """The key with which one logs in, and a key for each host."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.login = folder / "id_ed25519"

    def make(self, hosts: Sequence[str]) -> None:
        """Make all keys, side by side."""
        self.folder.mkdir(mode=0o700, exist_ok=True)
        makers = [
            subprocess.Popen(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],  # noqa: S607
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                text=True,
            )
            for path, comment in [
                (self.login, "yoked-lab"),
                *((self._host_key(name), name) for name in hosts),
            ]
        ]
        # All, also when one has failed: none may still write when the folder is removed.
        problems = [maker.communicate()[1] for maker in makers]
        for maker, problem in zip(makers, problems, strict=True):
            if maker.returncode:
                raise LabError(f"ssh-keygen failed: {problem.strip()}")

    def _host_key(self, name: str) -> Path:
        return self.folder / f"host_{name}"

    def server_files(self, host: Host) -> dict[str, str]:
        """What lies in SERVER_FOLDER of a host."""
        return {
            "sshd_config": _server_config(),
            "host_key": self._host_key(host.name).read_text(),
            "authorized_keys": self.login.with_suffix(".pub").read_text(),
        }

    def client_files(self, topology: Topology, user: str) -> dict[str, str]:
        """What lies in ~/.ssh of every host: each reaches all others."""
        return {
            "id_ed25519": self.login.read_text(),
            "id_ed25519.pub": self.login.with_suffix(".pub").read_text(),
            "authorized_keys": self.login.with_suffix(".pub").read_text(),
            "known_hosts": self.known_hosts(topology),
            "config": f"Host *\n  User {user}\n  BatchMode yes\n  ConnectTimeout 10\n",
        }

    def known_hosts(self, topology: Topology) -> str:
        """Every host's key, under its name and its addresses."""
        lines = []
        for host in topology.hosts:
            key = self._host_key(host.name).with_suffix(".pub").read_text().split()[:2]
            lines.append(" ".join([",".join(names_of(host)), *key]))
        return "\n".join(lines) + "\n"

    def write_client_config(self, path: Path, lab: Path, topology: Topology, user: str) -> None:
        """The configuration for `ssh -F`, from outside of the lab."""
        known = self.folder / "known_hosts"
        known.write_text(self.known_hosts(topology))
        blocks = [f"# Hosts of a lab of yoked. Use: ssh -F {path} HOST\n"]
        for host in topology.hosts:
            command = shlex.join([*own_program("connect", str(lab)), host.address])
            blocks.append(
                f"Host {host.name}\n"
                f"  HostName {host.address}\n"
                f"  HostKeyAlias {host.name}\n"
                f"  User {user}\n"
                f'  IdentityFile "{_for_ssh(self.login)}"\n'
                "  IdentitiesOnly yes\n"
                f'  UserKnownHostsFile "{_for_ssh(known)}"\n'
                "  GlobalKnownHostsFile /dev/null\n"
                "  StrictHostKeyChecking yes\n"
                # ssh hands it to a shell.
                f"  ProxyCommand {_for_ssh(command)} %p\n"
                "  ProxyUseFdpass yes\n"
            )
        path.write_text("\n".join(blocks))


def _for_ssh(text: str | Path) -> str:
    """ssh takes % for a token of its own; ssh_config(5), TOKENS."""
    return str(text).replace("%", "%%")


def names_of(host: Host) -> list[str]:
    """A host's name and addresses."""
    addresses = (address for interface in host.joined for address in interface.addresses)
    return [host.name, *(str(address.ip) for address in addresses)]


def _server_config() -> str:
    setting = " ".join(f"{name}={value}" for name, value in ALWAYS_SET.items())
    return f"""\
Port 22
HostKey {SERVER_FOLDER}/host_key
AuthorizedKeysFile {SERVER_FOLDER}/authorized_keys
PidFile none
UsePAM no
UseDNS no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
# The folders above belong to the lab, not to the user who logs in.
StrictModes no
PrintMotd no
PrintLastLog no
SetEnv {setting}
Subsystem sftp internal-sftp
"""
