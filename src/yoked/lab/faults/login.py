"""The ssh server of a host: stopped, or with other options."""

from __future__ import annotations

import os
import pwd
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from yoked.errors import LabError
from yoked.lab import ssh
from yoked.lab.faults.args import HOST, Parsed, Whole, matching, variable
from yoked.lab.faults.base import Fault, FaultContext, InMemory, Kind
from yoked.lab.faults.processes import identified, is_ssh_server
from yoked.lab.faults.textfiles import StartFile, TextFile
from yoked.lab.process import until
from yoked.lab.tools import text_of

if TYPE_CHECKING:
    from yoked.lab.host import LabHost
    from yoked.lab.lab import Lab

_LIMIT_S = 10.0
_CONFIG = f"{ssh.SERVER_FOLDER}/sshd_config"
_OTHER_KEY = f"{ssh.SERVER_FOLDER}/other_key"


def _listens(host: LabHost) -> bool:
    return bool(host.tool(["ss", "-Hltn", "sport", "=", ":22"]).stdout.strip())


def _await(host: LabHost, *, listens: bool) -> None:
    if not until(lambda: _listens(host) is listens, _LIMIT_S, 0.02):
        raise LabError(f"the ssh server of {host.name} does not {'start' if listens else 'end'}")


def _stop_server(host: LabHost) -> None:
    """End what listens, and not what serves a login."""
    servers = [each for each in host.processes() if is_ssh_server(each) and each.state != "Z"]
    for process in identified(servers):
        process.signal(signal.SIGTERM)
    _await(host, listens=False)


def _start_server(host: LabHost) -> None:
    """It becomes a daemon of the host's own."""
    command = ssh.server_command()
    assert command is not None
    host.run([word for word in command if word != "-D"], env=ssh.SERVER_ENVIRONMENT)
    _await(host, listens=True)


class SshServer(InMemory):
    """What a fault does to it is gone with a new start of the host."""

    def unsupported(self, _lab: Lab) -> str | None:
        return None if ssh.server_command() else "hosts have no ssh server: install openssh-server"


class NoSshServer(SshServer):
    """It is not running, or was never installed."""

    def apply(self, fault: Fault, context: FaultContext) -> None:
        """End it; logins that are there go on."""
        _stop_server(context.awake(fault.host))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        host = context.lab.host(fault.host)
        if not _listens(host):
            _start_server(context.awake(fault.host))


@dataclass(frozen=True)
class SshOptions(SshServer):
    """Keys of sshd_config(5) with other values; the server reads them.

    prepare, clear: lines for a shell of the host, for files that the options need; harmless when
    run again.
    """

    options: tuple[tuple[str, str], ...]
    prepare: str
    clear: str

    def apply(self, fault: Fault, context: FaultContext) -> None:
        context.remember(changed=True)
        _settle(context, fault.host, (*context.others, fault))

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """As the lab has it, but for the others."""
        if "changed" in context.record:
            _settle(context, fault.host, context.others)
        context.lab.host(fault.host).run(["sh", "-c", self.clear])


def _settle(context: FaultContext, name: str, faults: Sequence[Fault]) -> None:
    """Give a host's server the lab's configuration with what these faults set."""
    host = context.awake(name)
    spec = context.lab.topology.host(name)
    text = ssh.Keys(context.lab.folder / "ssh").server_files(spec)["sshd_config"]
    for fault in faults:
        for effect in fault.effects(SshOptions) if fault.host == name else ():
            host.run(["sh", "-c", effect.prepare])
            for key, value in effect.options:
                kept = [line for line in text.splitlines() if line.partition(" ")[0] != key]
                text = text_of([f"{key} {value}", *kept])
    if host.read_text(_CONFIG) == text:
        return
    host.write_text(_CONFIG, text)
    if _listens(host):
        _stop_server(host)
        _start_server(host)


# ---- the faults ----


class _Ulimit(NamedTuple):
    """What ulimit(1) of bash calls a limit of the kernel, and the unit of its numbers."""

    flag: str
    unit: str


# Source: bash(1).
_LIMITS = {
    "nofile": _Ulimit("-n", "open files"),
    "nproc": _Ulimit("-u", "processes"),
    "as": _Ulimit("-v", "KiB of address space"),
    "fsize": _Ulimit("-f", "KiB in a file"),
    "memlock": _Ulimit("-l", "KiB of locked memory"),
    "stack": _Ulimit("-s", "KiB of stack"),
}
_SHELL = Parsed(
    "[SHELL]",
    parse=matching(r"/[^:\n]*"),
    problem="is not the path of a program",
    default="/usr/sbin/nologin",
)
_SECONDS = Whole("SECONDS", least=1, most=600)
_VARIABLE = Parsed(
    "NAME=VALUE",
    parse=variable,
    tells_apart=True,
    problem="is not NAME=VALUE",
    example="write it as in OMP_NUM_THREADS=1",
)
_LIMIT = Parsed(
    "NAME",
    parse=_LIMITS.__getitem__,
    problem=f"is not a limit: {', '.join(_LIMITS)}",
    tells_apart=True,
)
_LIMIT_COUNT = Whole("COUNT", least=0, most=2**40)


def _with_shell(fault: Fault, _lab: Lab, text: str) -> str:
    """Another last field of the account's line in /etc/passwd."""
    name = pwd.getpwuid(os.getuid()).pw_name
    lines = text.splitlines()
    for place, line in enumerate(lines):
        if line.startswith(f"{name}:"):
            lines[place] = f"{line.rpartition(':')[0]}:{fault[_SHELL]}"
    return text_of(lines)


LOGIN = (
    # Not running, or never installed.
    Kind(
        "no-ssh",
        (HOST,),
        "the ssh server is stopped: connections to port 22 are refused",
        "{host} has no ssh server",
        (NoSshServer(),),
    ),
    # The host was installed anew, or another one has its address.
    Kind(
        "host-key",
        (HOST,),
        "the host shows another key than the one that is known: ssh refuses to go on",
        "{host} has another host key",
        (
            SshOptions(
                (("HostKey", _OTHER_KEY),),
                f"test -e {_OTHER_KEY} || ssh-keygen -q -t ed25519 -N '' -f {_OTHER_KEY}",
                f"rm -f {_OTHER_KEY} {_OTHER_KEY}.pub",
            ),
        ),
    ),
    # StrictModes is sshd's own default, which the lab's server does not have.
    Kind(
        "loose-keys",
        (HOST,),
        "others may write to ~/.ssh/authorized_keys, so the ssh server ignores it",
        "on {host}, others may write to ~/.ssh/authorized_keys",
        (
            SshOptions(
                (("AuthorizedKeysFile", ".ssh/authorized_keys"), ("StrictModes", "yes")),
                "chmod 666 ~/.ssh/authorized_keys",
                "chmod 600 ~/.ssh/authorized_keys",
            ),
        ),
    ),
    Kind(
        "login-shell",
        (HOST, _SHELL),
        "the account has another login shell (default: /usr/sbin/nologin)",
        "the login shell on {host} is {shell}",
        (TextFile("/etc/passwd", _with_shell),),
    ),
    Kind(
        "noisy-shell",
        (HOST,),
        "the account's start file prints a greeting, which programs over ssh get as well",
        "the start file on {host} prints a greeting",
        (StartFile('echo "Welcome to {host}!"'),),
    ),
    # A start file that ends, or becomes another program, where there is no terminal.
    Kind(
        "exiting-shell",
        (HOST,),
        "the account's start file ends the shell: no program runs over ssh",
        "the start file on {host} ends the shell",
        (StartFile("exit 1"),),
    ),
    # A start file that waits: for a network folder, a version manager, a name server.
    Kind(
        "slow-shell",
        (HOST, _SECONDS),
        "the account's start file takes so many seconds",
        "the start file on {host} takes {seconds} s",
        (StartFile("sleep {seconds}"),),
    ),
    # A variable that somebody once exported for another job.
    Kind(
        "exported",
        (HOST, _VARIABLE),
        "the account's start file exports a variable, such as LD_PRELOAD=/gone.so",
        "the start file on {host} exports {name.name}={name.value}",
        (StartFile("export {name.name}={name.value}"),),
    ),
    # Soft and hard, too low for a training.
    Kind(
        "limit",
        (HOST, _LIMIT, _LIMIT_COUNT),
        f"the account's programs get a limit: {', '.join(_LIMITS)}",
        "programs of {host} have at most {count} {name.unit}",
        (StartFile("ulimit {name.flag} {count}"),),
    ),
)
