"""The system's ssh: its configuration, agent, jump hosts and known_hosts are the person's own.

Nothing is asked at a terminal and no password is kept: what needs a person says so. One
connection a host is shared by all commands for a while (ControlMaster).
Source: ssh(1), ssh_config(5).
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from yoked.core.packages import install_lines
from yoked.errors import HostError, NoPythonError, UsageError, YokedError
from yoked.paths import own_folder, private_folder
from yoked.records.examination import SshKind
from yoked.records.shell import Line, as_made, command_line, quoted

CONNECT_TIMEOUT_S = 10
# A cut cable is noticed after three of these.
ALIVE_EVERY_S = 5
# How long a connection without a command waits for the next one.
SHARED_FOR_S = 60
# ssh's own status for "there was no connection"; a command's statuses are others.
NO_CONNECTION = 255
_NOT_FOUND = 127

_PLAIN_PATH = re.compile(r"(~/)?[A-Za-z0-9._/+@-]+")


def ssh_argv(
    host: str, config: str | None, *, patience_s: int = CONNECT_TIMEOUT_S, shared: bool = True
) -> list[str]:
    """`ssh` up to the remote command. config: a file instead of ~/.ssh/config.

    shared: over the connection that other commands use; else over one of its own, which shows
    what ssh does now.
    """
    options = {
        "BatchMode": "yes",
        "ConnectTimeout": str(patience_s),
        "ServerAliveInterval": str(ALIVE_EVERY_S),
        "ServerAliveCountMax": "3",
        # Those of ~/.ssh/config are for the person's own sessions.
        "ClearAllForwardings": "yes",
        "PermitLocalCommand": "no",
        "Tunnel": "no",
        # With them, whoever is root on a host could use the person's keys, screen and tickets.
        "ForwardAgent": "no",
        "ForwardX11": "no",
        "ForwardX11Trusted": "no",
        "GSSAPIDelegateCredentials": "no",
        **({"RemoteCommand": "none"} if _knows_remote_command() else {}),
        **(_sharing(config) if shared else {"ControlMaster": "no", "ControlPath": "none"}),
    }
    words = ["ssh", "-T", *(("-F", config) if config else ())]
    for name, value in options.items():
        words += ["-o", f"{name}={value}"]
    return [*words, "--", host]


@functools.cache
def _knows_remote_command() -> bool:
    """Whether ssh has that option: before 7.6 it ends at one that it does not know."""
    words = ["ssh", "-V"]
    try:
        said = subprocess.run(words, capture_output=True, check=False, timeout=5).stderr
    except OSError:
        return False
    except subprocess.TimeoutExpired:
        # A busy machine; 7.6 is of 2017.
        return True
    found = re.search(rb"OpenSSH\D*(\d+)\.(\d+)", said)
    return found is not None and (int(found[1]), int(found[2])) >= (7, 6)


def _sharing(config: str | None) -> dict[str, str]:
    digest = ""
    if config is not None:
        # Parts the connections of one configuration from another's: `%C` does not know of it.
        digest = hashlib.sha256(os.fsencode(Path(config).absolute())).hexdigest()[:8]
    return {
        "ControlMaster": "auto",
        "ControlPath": str(control_folder() / f"{digest}%C"),
        "ControlPersist": str(SHARED_FOR_S),
    }


def control_folder() -> Path:
    """Where shared connections lie: short, because a socket's path has at most 104 bytes.

    Whoever puts a socket there is taken for the host. Raises YokedError when there is no place
    that is ours alone.
    """
    runtime, own = os.environ.get("XDG_RUNTIME_DIR"), f"yoked-{os.getuid()}"
    # macOS has temporary folders with long names; /tmp is there as well.
    folders = [Path(tempfile.gettempdir(), own), Path("/tmp", own)]  # noqa: S108 - own_folder
    if runtime:
        folders.insert(0, Path(runtime, "yoked"))
    # 48 for the name, 17 for what ssh appends while it makes the socket.
    short = [each for each in folders if len(str(each)) <= 35] or folders[-1:]
    problem: YokedError | None = None
    for folder in short:
        try:
            private_folder(folder.parent)
            return own_folder(folder)
        except (YokedError, OSError) as met:
            problem = problem or (met if isinstance(met, YokedError) else YokedError(str(met)))
    assert problem is not None
    raise problem


def python_word(python: str) -> str:
    """The interpreter as it may stand in any shell's command line; raises UsageError."""
    if not _PLAIN_PATH.fullmatch(python):
        raise UsageError(
            f"python = {python!r} in yoked.toml is not a plain path",
            fix="letters, digits and . _ / + @ - only, with ~/ in front if you like; "
            "make a link with such a path",
        )
    return python


class NoAgentError(HostError):
    """The way to a host led to no agent. kind: one of yoked.records.examination.SshKind.

    said: the words of ssh, or of the host's shell; empty where neither said anything in time.
    words: all that was said.
    """

    def __init__(
        self,
        what: str,
        *,
        fix: str | Sequence[str] = (),
        kind: SshKind = "other",
        said: str = "",
        words: str = "",
    ) -> None:
        super().__init__(what, fix=fix)
        self.kind: SshKind = kind
        self.said, self.words = said, words


# What ssh says, what it means, and what to do; the first that fits counts.
_REASONS: tuple[tuple[str, SshKind, str, tuple[str, ...]], ...] = (
    (
        r"marked as revoked",
        "host-key",
        "its host key is revoked in known_hosts",
        ("yoked doctor    tells which line to look at",),
    ),
    (
        r"Offending \S+ key in|REMOTE HOST IDENTIFICATION HAS CHANGED",
        "host-key",
        "its host key is another than the one in known_hosts: a new system, or somebody between",
        ("if you know why, `{forget}`, then `ssh{flags} {host}` once to look at the new key",),
    ),
    (
        r"Host key verification failed|No .* host key is known",
        "host-key",
        "its host key is not known here yet",
        ("ssh{flags} {host}    once, to look at the key and accept it",),
    ),
    (
        r"connect to host .*: (?:Permission denied|Operation not permitted)",
        "unreachable",
        "this machine itself forbids the way to it",
        ("ip route; sudo nft list ruleset    here: a route or a rule is in the way",),
    ),
    (
        r"Permissions 0\d+ for .* are too open",
        "denied",
        "ssh passes over our key, because others may read it",
        ("ssh{flags} {host} true    names the key's file; `chmod 600` that file",),
    ),
    (
        r"Permission denied|Too many authentication failures",
        "denied",
        "it refused our keys",
        ("ssh-copy-id{flags} {host}", "or `ssh-add`, where a key has a passphrase"),
    ),
    (
        r"Could not resolve hostname",
        "unresolved",
        "nobody knows its name",
        ("put it into {config}: `Host {host}` with `HostName ADDRESS`",),
    ),
    (
        r"Connection refused",
        "refused",
        "it is up, but has no ssh server at that port",
        (f"there: {install_lines('sshd')}", "or start it there: `sudo systemctl start ssh`"),
    ),
    (
        r"timed out",
        "timeout",
        "it did not answer",
        ("is it on, awake and in this network? `ping {host}`",),
    ),
    (
        r"No route to host|Network is unreachable|Host is down",
        "unreachable",
        "it did not answer",
        ("is it on, awake and in this network? `ping {host}`",),
    ),
    (
        r"Connection closed by UNKNOWN port|kex_exchange_identification|banner exchange",
        "other",
        "the way to it ended before its ssh server said a word",
        (
            "is it on, awake and in this network?",
            "or a jump host, or a ProxyCommand of {config}, is what fails: ssh{flags} -v {host}",
        ),
    ),
)
# ssh knows which file has the key, and under which name. What it hands on of a server's words may
# look the same: no character here means anything to a shell. In a fix a backtick ends it.
_FORGET = re.compile(
    r"ssh-keygen -f (?:\"[\w./+@ -]+\"|'[\w./+@ -]+'|[\w./+@-]+)"
    r" -R (?:\"[\w.:%@\[\]-]+\"|'[\w.:%@\[\]-]+'|[\w.:%@-]+)(?=[\s`]|$)",
    re.ASCII,
)
_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
# That a connection was closed by the other side is no noise.
_NOISE = re.compile(r"^(Warning: Permanently added|Connection to \S+ closed\.$|mux_client|\s*$)")


def explain_end(
    host: str, status: int, said: str, *, ssh: bool, config: str | None = None
) -> HostError:
    """Why the way to a host ended. status: of the command; said: its stderr; config: ssh's."""
    lines = [line.strip() for line in said.splitlines() if not _NOISE.match(line)]
    own_words = lines[-1] if lines else f"it ended with status {status} and said nothing"
    if ssh and status == NO_CONNECTION:
        return _explain_ssh(host, config, said, lines, own_words)
    if status == _NOT_FOUND:
        return NoPythonError(
            f"{host}: no such Python: {own_words}",
            fix=(
                f"there: {install_lines('python3')}",
                f'or name one for {host} in yoked.toml: python = "~/venv/bin/python"',
            ),
        )
    return NoAgentError(
        f"{host}: the agent ended with status {status}: {own_words}",
        fix=f"ssh{config_flags(config)} {host}",
        kind="shell",
        said=own_words,
        words=said,
    )


def forget_key(host: str, said: str) -> Line:
    """The line by which ssh forgets a host's key, as it says itself. said: its stderr."""
    found = _FORGET.search(said)
    if found is None:
        return command_line("ssh-keygen", "-R", host)
    return as_made(found[0])


def config_flags(config: str | None) -> str:
    """What a person types after `ssh` so that it means the same host, with a blank before it."""
    return "" if config is None else f" {command_line('-F', config)}"


def _explain_ssh(
    host: str, config: str | None, said: str, lines: Sequence[str], own_words: str
) -> NoAgentError:
    """Why ssh has no connection."""
    flags = config_flags(config)
    for pattern, kind, meaning, fix in _REASONS:
        if found := re.search(pattern, said):
            line = next((each for each in lines if found[0] in each), own_words)
            line = line.removeprefix("ssh: ")
            words = {
                "host": quoted(host),
                "forget": forget_key(host, said),
                "flags": flags,
                "config": config or "~/.ssh/config",
            }
            # ssh frames what it finds alarming.
            told = line.strip("@ ")
            if kind == "host-key" and (shown := _FINGERPRINT.search(said)):
                told = f"{told} It shows {shown[0]}"
            return NoAgentError(
                f"{host}: {meaning}\nssh: {line}",
                fix=tuple(each.format(**words) for each in fix),
                kind=kind,
                said=told,
                words=said,
            )
    return NoAgentError(
        f"{host}: the ssh connection ended\nssh: {own_words}",
        fix=f"ssh{flags} {host}",
        said=own_words,
        words=said,
    )
