"""Whether ssh comes in, and what it meets there."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from yoked.core.packages import install_lines
from yoked.doctor.check import Check, Match, check
from yoked.doctor.checks.query import at, part
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import close_ssh_folder, name_for_ssh
from yoked.doctor.repairs.startfiles import quiet, take_out_variable
from yoked.doctor.repairs.system import give_login_shell, install_python, start_ssh_server
from yoked.records.examination import Examination, Fix, HostSeen, SshFailure, SshKind
from yoked.records.shell import as_made, command_line, path_word, shell_line
from yoked.remote.ssh import forget_key

# ssh itself is there in a quarter of a second over a LAN.
_SLOW_S = 5.0
_NO_LOGIN = re.compile(r"not available|nologin|/bin/false")
# Of a Python that PYTHONHOME leads to a place without its library.
_WRONG_HOME = re.compile(r"encodings|Fatal Python error|init_fs_encoding|PYTHONHOME")
_SHOW_KEY = shell_line("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
_TRAINS = "a run wants all of its hosts"


@dataclass(frozen=True)
class _Unreached:
    """A host that has no agent, and why."""

    seen: Examination
    host: HostSeen
    failure: SshFailure


def _mend(it: _Unreached) -> tuple[Fix, ...]:
    """What the one who looked could tell about the very case."""
    return tuple(Fix("", as_made(line), by_hand=True) for line in it.failure.fix)


def _mend_shell(it: _Unreached) -> tuple[Fix, ...]:
    host, failure = it.host.name, it.failure
    if _WRONG_HOME.search(failure.text):
        return (take_out_variable(host, "PYTHONHOME"),)
    # A shell that lets nobody in often says nothing at all over ssh.
    let_in = (
        by_hand(
            host,
            "where the shell of the user that ssh comes in as is nologin or false: "
            "usermod -s /bin/bash USER",
        )
        if failure.user is None
        else give_login_shell(host, failure.user)
    )
    return (let_in,) if _NO_LOGIN.search(failure.text) else (quiet(host), let_in)


def _get_python(it: _Unreached) -> tuple[Fix, ...]:
    if _WRONG_HOME.search(it.failure.text):
        return (take_out_variable(it.host.name, "PYTHONHOME"),)
    return (install_python(it.host.name),)


def _ssh_words(seen: Examination) -> list[str]:
    config = at(seen.controller, "ssh_config")
    return ["ssh", *(["-F", str(config)] if config else [])]


def _say_its_address(it: _Unreached) -> tuple[Fix, ...]:
    address = it.host.wanted.get("address")
    config = at(it.seen.controller, "ssh_config") or "~/.ssh/config"
    if address:
        return (name_for_ssh(config, it.host.name, str(address)),)
    return (
        by_hand(
            "",
            "put it into {config}: `Host {host}` with `HostName ITS-ADDRESS`",
            config=path_word(config),
            host=it.host.name,
        ),
    )


def _wake(it: _Unreached) -> tuple[Fix, ...]:
    address = it.host.wanted.get("address")
    known = shell_line(" (the fleet's file has {address})", address=address)
    return (
        by_hand(
            it.host.name,
            "switch it on or wake it, and see that it is in this network{known}; a firewall there "
            "must let port 22 in",
            known=known if address else shell_line(""),
        ),
    )


def _start_server(it: _Unreached) -> tuple[Fix, ...]:
    return (start_ssh_server(it.host.name),)


def _look_at_key(it: _Unreached) -> tuple[Fix, ...]:
    host, said = it.host.name, "\n".join((it.failure.text, *it.failure.fix))
    accept = command_line(
        *_ssh_words(it.seen), "-o", "StrictHostKeyChecking=accept-new", host, "true"
    )
    forget = forget_key(host, said)
    changed = "Offending" in said or "CHANGED" in said or "ssh-keygen" in said
    # Whoever stands between would be let in: the key is for a person to compare.
    look = by_hand(host, "look at its key at the host itself: {show}", show=_SHOW_KEY)
    same = shell_line("if that is the one that ssh shows here")
    if not changed:
        return (look, by_hand("", "{same}: {accept}", same=same, accept=accept))
    return (
        look,
        by_hand("", "{same}: {forget}", same=same, forget=forget),
        by_hand("", "then: {accept}", accept=accept),
    )


def _copy_key(it: _Unreached) -> tuple[Fix, ...]:
    copy = command_line("ssh-copy-id", *_ssh_words(it.seen)[1:], it.host.name)
    return (close_ssh_folder(it.host.name), by_hand("", "{copy}", copy=copy))


def _failure(
    kind: SshKind, repair: Callable[[_Unreached], tuple[Fix, ...]], **sentences: Any
) -> Check:
    """The check of one kind of failure. sentences: as of `check`."""

    def look(seen: Examination) -> Iterator[Match]:
        for host in seen.hosts:
            if host.failure is not None and host.failure.kind == kind:
                fixes = repair(_Unreached(seen, host, host.failure))
                yield Match(host.name, *fixes, text=host.failure.text)

    same: dict[str, Any] = {"reads": ("ssh",), "severity": "error", "quick": True}
    return check(f"ssh-{kind}", saw="ssh {host}: {text}", **same, **sentences)(look)


@check(
    "ssh-slow",
    question="Does ssh come in soon?",
    reads=("ssh",),
    severity="warning",
    saw="ssh and the agent took {connect_s:duration} to come up",
    why="each command that reaches this host for the first time waits as long",
    symptom="Each command pauses for some seconds before anything is said.",
    cause="sshd asks a DNS for the name of who comes (`UseDNS`), or the shell's start file "
    "works for long (conda, nvm, a network drive).",
    fix="By hand, since only you know what the start file is for.",
    quick=True,
)
def ssh_slow(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        if host.connect_s is not None and host.connect_s > _SLOW_S:
            yield Match(
                host.name,
                by_hand(
                    host.name,
                    "time it with `ssh -v`: a start file of the shell, or `UseDNS yes` of sshd, "
                    "is what usually takes long",
                ),
                connect_s=host.connect_s,
            )


@check(
    "shell-noise",
    question="Is the login shell silent where nobody sits?",
    reads=("ssh", "health.shell"),
    severity="warning",
    saw="the shell's start file on {host} prints something, although nobody sits there",
    why="yoked reads past it; scp, rsync and git over ssh do not",
    symptom="scp: `Received message too long`; rsync: `is your shell clean?`.",
    cause="A start file greets, for people and programs alike.",
    fix="Has the start file end at once where nobody sits at a terminal, which also leaves "
    "out what it exports.",
)
def shell_noise(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        if part(host, "shell", "sources_noise") is True:
            yield Match(host.name, quiet(host.name))


CHECKS = (
    _failure(
        "unresolved",
        _say_its_address,
        question="Does ssh know the address of every host?",
        why=f"nobody knows where it is; {_TRAINS}",
        symptom="`ssh: Could not resolve hostname beta: Name or service not known`.",
        cause="The name stands in yoked.toml, but neither in ~/.ssh/config nor in /etc/hosts "
        "nor in a DNS or mDNS that this machine asks.",
        fix="Gives the name an address in ssh's configuration, before all other entries.",
        on_cluster="Slurm: `sinfo` lists the node, yet `srun` says `Unable to resolve`; the "
        "node's NodeAddr is missing in slurm.conf.",
    ),
    _failure(
        "timeout",
        _wake,
        question="Does something answer at the address of every host?",
        why=f"nothing at its address answers; {_TRAINS}",
        symptom="`ssh: connect to host beta port 22: Connection timed out`.",
        cause="The host is off or asleep, in another network, or a firewall drops port 22. "
        "A timeout is silence: a host that is up and refuses says so at once.",
        fix="By hand: power, the network, or port 22.",
        on_cluster="Slurm shows the node as `down*`; Kubernetes as `NotReady`.",
    ),
    _failure(
        "refused",
        _start_server,
        question="Does an ssh server listen on every host?",
        why="the host is up, but no ssh server listens there",
        symptom="`ssh: connect to host beta port 22: Connection refused`.",
        cause="The machine answered that nobody listens: no ssh server is installed or "
        "started, or it listens at another port.",
        fix="Starts the server, now and at each start of the host. Run it at the host itself. "
        f"Where it is not installed: {install_lines('sshd')}; on macOS `sudo "
        "systemsetup -setremotelogin on`.",
    ),
    _failure(
        "unreachable",
        _wake,
        question="Is there a way from here to every host?",
        why=f"there is no way to it from here; {_TRAINS}",
        symptom="`ssh: connect to host beta port 22: No route to host`, or `Network is "
        "unreachable`.",
        cause="No machine has that address in this network, or the VPN or network that leads "
        "to it is not up here.",
        fix="By hand: bring up the network that leads to it, or the host.",
    ),
    _failure(
        "host-key",
        _look_at_key,
        question="Is every host the machine that it was?",
        why="ssh refuses to speak with what may be another machine; go on only if you know why its "
        "key is another",
        symptom="`REMOTE HOST IDENTIFICATION HAS CHANGED!` or `Host key verification failed.`",
        cause="The host was installed anew, another machine has its address now, or somebody "
        "stands between. Or nobody ever looked at its key from here.",
        fix=f"By hand, for who stands between would be let in as well: compare the fingerprint "
        f"with that of `{_SHOW_KEY}` at the host, then forget the old key and take the new one "
        "over.",
    ),
    _failure(
        "denied",
        _copy_key,
        question="Does every host let our key in?",
        why="it asks for more than a key, and a run cannot type a password",
        symptom="`beta: Permission denied (publickey,password).`",
        cause="Our public key is not among those that the host accepts; or sshd passes over "
        "authorized_keys, because the file, ~/.ssh or the home folder can be written by "
        "others (StrictModes).",
        fix="At the host itself, the first line gives the files the modes that sshd wants; the "
        "second, here, copies the key there and asks for the password once.",
    ),
    _failure(
        "shell",
        _mend_shell,
        question="Does the login shell of every host run what it is told, and nothing else?",
        why="the agent speaks over that shell, and every byte of its own is in the way",
        symptom="scp and rsync fail too: `protocol version mismatch -- is your shell clean?`, "
        "or the connection ends at once.",
        cause="A start file of the shell (~/.bashrc, ~/.zshenv) prints, exits, waits or starts "
        "another program although nobody sits there; or the login shell is one like nologin.",
        fix="Has the start file end at once where nobody sits at a terminal, which also leaves "
        "out what it exports; gives the account a shell, where it has none.",
        on_cluster="The same start files break `srun` and `mpirun` over ssh.",
    ),
    _failure(
        "python",
        _get_python,
        question="Does every host have a Python that can run the agent?",
        why="the agent, and every rank, is a Python program",
        symptom="`bash: line 1: python3: command not found`, or `torchrun: command not found` "
        "although it is there: a shell without a terminal has another PATH.",
        cause="No Python of 3.9 or later is found by the shell that ssh starts there, and "
        "yoked.toml names none by its path.",
        fix="Installs the system's Python. To train, the host needs 3.11 or later: "
        "`yoked install` says which it takes.",
    ),
    _failure(
        "other",
        _mend,
        question="Is there anything else between ssh and the agent?",
        why=f"there is no agent on it; {_TRAINS}",
        symptom="The finding has ssh's own words, or the agent's.",
        cause="None of the known kinds: a jump host, a ProxyCommand, a quota, a broken disk.",
        fix="`ssh -v HOST true` shows how far it comes.",
    ),
    shell_noise,
    ssh_slow,
)
