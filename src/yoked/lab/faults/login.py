"""Faults of logging in: the ssh server, its keys, the account's shell."""

from __future__ import annotations

import contextlib
import os
import pwd
import signal
import time
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self

from yoked.core.proc import ProcessId
from yoked.errors import LabError
from yoked.lab import ssh
from yoked.lab.faults.base import Act, Fault, Words
from yoked.lab.faults.processes import is_ssh_server, send
from yoked.lab.faults.textfiles import TextFileFault

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

_LIMIT_S = 10.0
_CONFIG = f"{ssh.SERVER_FOLDER}/sshd_config"
_OTHER_KEY = f"{ssh.SERVER_FOLDER}/other_key"


def _servers(host: LabHost) -> list[ProcessId]:
    """The ssh server of a host: not what serves a login."""
    found = []
    for process in host.processes():
        if is_ssh_server(process) and process.state != "Z":
            with contextlib.suppress(ProcessLookupError):
                found.append(ProcessId.of(process.outer_pid))
    return found


def _listens(host: LabHost) -> bool:
    return bool(host.tool(["ss", "-Hltn", "sport", "=", ":22"]).stdout.strip())


def _await(host: LabHost, *, listens: bool) -> None:
    end_s = time.monotonic() + _LIMIT_S
    while _listens(host) is not listens:
        if time.monotonic() > end_s:
            raise LabError(
                f"the ssh server of {host.name} does not {'start' if listens else 'end'}"
            )
        time.sleep(0.02)


def _stop_server(host: LabHost) -> None:
    for process in _servers(host):
        send(process, signal.SIGTERM)
    _await(host, listens=False)


def _start_server(host: LabHost) -> None:
    """It becomes a daemon of the host's own."""
    command = ssh.server_command()
    assert command is not None
    host.run([word for word in command if word != "-D"], env=ssh.SERVER_ENVIRONMENT)
    _await(host, listens=True)


@dataclass(frozen=True)
class SshFault(Fault):
    """A fault of the ssh server. It is gone with a new start of the host."""

    AFTER_BOOT = "again"

    @classmethod
    def blocked(cls, _lab: Lab) -> str | None:
        """Hosts of some machines have none."""
        return None if ssh.server_command() else "hosts have no ssh server: install openssh-server"


@dataclass(frozen=True)
class NoSsh(SshFault):
    """The ssh server is not running, or was never installed."""

    KIND = "no-ssh"
    SUMMARY = "the ssh server is stopped: connections to port 22 are refused"
    USAGE = "no-ssh HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has no ssh server"

    def apply(self, act: Act) -> None:
        """End it; logins that are there go on."""
        _stop_server(act.awake(self.host))

    def undo(self, act: Act) -> None:
        """Start it."""
        host = act.lab.host(self.host)
        if host.alive and not _listens(host):
            _start_server(act.awake(self.host))


@dataclass(frozen=True)
class ServerSetting(SshFault):
    """Another configuration of the server, which reads it when told to."""

    @abstractmethod
    def settings(self, act: Act) -> dict[str, str]:
        """Keys of sshd_config(5) and what they are to be."""

    def apply(self, act: Act) -> None:
        """Change the lines, and have them read."""
        act.remember(changed=True)
        _settle(act, self.host, (*act.others, self))

    def undo(self, act: Act) -> None:
        """As the lab has it, but for the others; a host that is down gets it when it starts."""
        if act.lab.host(self.host).alive and "changed" in act.record:
            _settle(act, self.host, act.others)


def _settle(act: Act, name: str, faults: Sequence[Fault]) -> None:
    """Give a host's server the lab's configuration with what these faults set."""
    spec = act.lab.topology.host(name)
    text = ssh.Keys(act.lab.folder / "ssh").server_files(spec)["sshd_config"]
    for fault in faults:
        if isinstance(fault, ServerSetting) and fault.host == name:
            for key, value in fault.settings(act).items():
                kept = [line for line in text.splitlines() if line.partition(" ")[0] != key]
                text = "".join(f"{line}\n" for line in [f"{key} {value}", *kept])
    _configure(act.awake(name), text)


def _configure(host: LabHost, text: str) -> None:
    if host.read_text(_CONFIG) == text:
        return
    host.write_text(_CONFIG, text)
    if _listens(host):
        _stop_server(host)
        _start_server(host)


@dataclass(frozen=True)
class HostKey(ServerSetting):
    """The host was installed anew, or another one has its address."""

    KIND = "host-key"
    SUMMARY = "the host shows another key than the one that is known: ssh refuses to go on"
    USAGE = "host-key HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"{self.host} has another host key"

    def settings(self, act: Act) -> dict[str, str]:
        """A new key."""
        host = act.awake(self.host)
        if not host.exists(_OTHER_KEY):
            host.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", _OTHER_KEY])
        return {"HostKey": _OTHER_KEY}

    def undo(self, act: Act) -> None:
        """The key that everybody knows."""
        super().undo(act)
        host = act.lab.host(self.host)
        if host.alive:
            host.run(["rm", "-f", _OTHER_KEY, f"{_OTHER_KEY}.pub"])


@dataclass(frozen=True)
class LooseKeys(ServerSetting):
    """The server ignores keys in a file that others may write to."""

    KIND = "loose-keys"
    SUMMARY = "others may write to ~/.ssh/authorized_keys, so the ssh server ignores it"
    USAGE = "loose-keys HOST"

    @property
    def text(self) -> str:
        """What it does."""
        return f"on {self.host}, others may write to ~/.ssh/authorized_keys"

    def settings(self, _act: Act) -> dict[str, str]:
        """As sshd has it, unless told otherwise."""
        return {"AuthorizedKeysFile": ".ssh/authorized_keys", "StrictModes": "yes"}

    def apply(self, act: Act) -> None:
        """Keys that everybody may change, and a server that minds."""
        keys = str(Path.home() / ".ssh" / "authorized_keys")
        act.awake(self.host).run(["chmod", "666", keys])
        super().apply(act)

    def undo(self, act: Act) -> None:
        """The lab's own keys and manners."""
        super().undo(act)
        host = act.lab.host(self.host)
        if host.alive:
            host.run(["chmod", "600", str(Path.home() / ".ssh" / "authorized_keys")])


@dataclass(frozen=True)
class LoginShell(TextFileFault):
    """The account has a shell that runs nothing."""

    KIND = "login-shell"
    SUMMARY = "the account has another login shell (default: /usr/sbin/nologin)"
    USAGE = "login-shell HOST [SHELL]"

    shell: str = "/usr/sbin/nologin"

    @classmethod
    def parse(cls, lab: Lab, args: Sequence[str]) -> Self:
        """From a host, and perhaps the path of a program."""
        words = Words(cls.USAGE, lab, args)
        host, shell = words.host(), words.optional() or cls.shell
        if not shell.startswith("/") or ":" in shell:
            raise words.wrong(f"{shell!r} is not the path of a program")
        return words.done(cls(host, shell))

    @property
    def text(self) -> str:
        """What it does."""
        return f"the login shell on {self.host} is {self.shell}"

    def path(self, _act: Act) -> str:
        """Where accounts are."""
        return "/etc/passwd"

    def change(self, _act: Act, text: str) -> str:
        """Another last field of the account's line."""
        name = pwd.getpwuid(os.getuid()).pw_name
        lines = text.splitlines()
        for place, line in enumerate(lines):
            if line.startswith(f"{name}:"):
                lines[place] = f"{line.rpartition(':')[0]}:{self.shell}"
        return "".join(f"{line}\n" for line in lines)
