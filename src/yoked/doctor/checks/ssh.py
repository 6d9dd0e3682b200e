"""Whether ssh comes in, and what it meets there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from yoked.core.packages import install_lines
from yoked.doctor.check import Check, Match, check
from yoked.doctor.checks.query import at, mapping, part
from yoked.doctor.checks.ssh_causes import CAUSES
from yoked.doctor.checks.ssh_mends import (
    SHOW_KEY,
    Unreached,
    all_of,
    look_at_key,
    refused_everywhere,
)
from yoked.doctor.console import mend_link, sentence
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import move_aside
from yoked.doctor.repairs.startfiles import leave_out_line, quiet
from yoked.doctor.sshfailure import HERE, OF_HOP
from yoked.doctor.sshinside import SLOW_S
from yoked.fleet.model import HERE as THIS_MACHINE
from yoked.records.examination import Examination, SshKind
from yoked.records.shell import path_word
from yoked.units import listed

# A part of that time that is as large is the reason: on a busy host all takes longer.
_MUCH = 0.3
# How a cause is called that a host's console told; and one of all hosts at once, so of no host.
_ON_CONSOLE, _EVERYWHERE = "console", "everywhere"
_WHY = {
    _ON_CONSOLE: "that link of a login fails on the host itself; there may be others behind it",
    _EVERYWHERE: "every host refuses what this machine offers: the key here, or the user that ssh "
    "comes in as, is the likely cause",
}


def _unreached(seen: Examination, kind: SshKind) -> list[Unreached]:
    """The hosts that have no agent for this reason."""
    return [
        Unreached(seen, host, host.failure)
        for host in seen.hosts
        if host.failure is not None and host.failure.kind == kind
    ]


def _by_culprit(kind: SshKind, found: list[Unreached]) -> Iterator[tuple[str, list[Unreached]]]:
    """(cause, hosts): each host by itself; those that this machine, or one jump host, keeps away
    together.
    """
    here: dict[tuple[str, str], list[Unreached]] = {}
    for it in found:
        # What a saved report names may be of a later version.
        cause = it.failure.cause if it.failure.cause in CAUSES[kind] else ""
        if cause in HERE | OF_HOP:
            here.setdefault((cause, it.failure.about), []).append(it)
        else:
            yield cause, [it]
    for (cause, _), own in here.items():
        yield cause, own


def _guilty(seen: Examination, cause: str, it: Unreached) -> str | tuple[str, ...]:
    """The host to mend; (): it is this machine."""
    if cause in HERE or cause == _EVERYWHERE:
        return ()
    is_of_fleet = any(host.name == it.failure.about for host in seen.hosts)
    return it.failure.about if cause in OF_HOP and is_of_fleet else it.name


def _is_everywhere(seen: Examination, found: list[Unreached]) -> bool:
    """Whether every host refuses the key, for a reason that none tells."""
    far = [host for host in seen.hosts if host.name != THIS_MACHINE]
    unknown = all(it.failure.cause in ("", "refused-key") for it in found)
    return 1 < len(far) == len(found) and unknown


def _failure(kind: SshKind, **sentences: Any) -> Check:
    """The check of one kind of failure. sentences: as of `check`."""

    def look(seen: Examination) -> Iterator[Match]:
        found = _unreached(seen, kind)
        groups = list(_by_culprit(kind, found))
        if kind == "denied" and _is_everywhere(seen, found):
            groups = [(_EVERYWHERE, found)]
        for cause, own in groups:
            first = own[0]
            if first.failure.link is not None and cause not in HERE:
                for it in own:
                    said = f"as its console says, {sentence(it.failure)}"
                    text = f"{it.failure.text.rstrip('.')}; {said}"
                    mends = [mend_link(it.name, it.failure, it.config)]
                    if cause in OF_HOP:
                        mends = [*all_of(CAUSES[kind][cause].mend, it), *mends]
                    if it.failure.link and it.failure.link.code == "key-is-own":
                        mends = [*look_at_key(it)]
                    yield Match(
                        _guilty(seen, cause, it), *mends, how=_ON_CONSOLE, to=it.name, text=text
                    )
                continue
            yield Match(
                _guilty(seen, cause, first),
                *(
                    refused_everywhere(own)
                    if cause == _EVERYWHERE
                    else all_of(CAUSES[kind][cause].mend, first)
                ),
                how=cause,
                to=listed(it.name for it in own),
                text=first.failure.text,
            )

    same: dict[str, Any] = {"reads": ("ssh",), "severity": "error", "quick": True}
    why = {**{cause: each.why for cause, each in CAUSES[kind].items()}, **_WHY}
    return check(f"ssh-{kind}", saw="ssh {to}: {text}", why=why, **same, **sentences)(look)


@check(
    "ssh-slow",
    question="Does ssh come in soon?",
    reads=("ssh",),
    severity="warning",
    saw={
        "": "ssh and the agent took {connect_s:duration} to come up",
        "line": "ssh and the agent took {connect_s:duration} to come up; of that, {file} takes "
        "{took_s:duration}: `{words}`",
        "here": "ssh and the agent took {connect_s:duration} to come up; ssh on this machine takes "
        "{took_s:duration} or more to read its settings, before it dials",
    },
    why="each command that reaches this host for the first time waits as long",
    symptom="Each command pauses for some seconds before anything is said.",
    cause="sshd asks a DNS for the name of who comes (`UseDNS`), or the shell's start file "
    "works for long (conda, nvm, a network drive).",
    fix="Makes the line of a start file a comment that takes so long, found by running it again; "
    "else by hand.",
    quick=True,
)
def ssh_slow(seen: Examination) -> Iterator[Match]:
    slow = [host for host in seen.up if host.connect_s is not None and host.connect_s > SLOW_S]
    settings_s = at(seen.controller, "ssh_settings_s") or 0.0
    if slow and settings_s > _MUCH * (longest_s := max(each.connect_s or 0.0 for each in slow)):
        config = path_word(at(seen.controller, "ssh_config") or "~/.ssh/config")
        mend = by_hand(
            "",
            "grep -niE '^ *match .*exec' {config} ~/.ssh/config /etc/ssh/ssh_config    finds what "
            "it asks first: take it out, or have its program end at once",
            config=config,
        )
        yield Match((), mend, how="here", connect_s=longest_s, took_s=settings_s)
        return
    for host in slow:
        told = mapping(part(host, "shell", "takes_long"))
        if (took_s := told.get("took_s") or 0.0) > _MUCH * (host.connect_s or 0.0):
            place, line = str(told["file"]), int(told["line"])
            yield Match(
                host.name,
                leave_out_line(host.name, place, line),
                how="line",
                connect_s=host.connect_s,
                file=f"{place}, line {line},",
                took_s=took_s,
                words=told["words"],
            )
            continue
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
    saw={
        "": "something that ssh starts on {host} prints, although nobody sits there",
        "rc": "something that ssh starts on {host} prints, although nobody sits there; sshd runs "
        "{file} at each login",
        "line": "{file} on {host} prints, although nobody sits there: {words}",
        "here": "{file}, which is ssh on this machine, prints in front of what every host says: "
        "{words}",
    },
    why="yoked reads past it; scp, rsync and git over ssh do not",
    symptom="scp: `Received message too long`; rsync: `is your shell clean?`.",
    cause="A start file of the shell greets, for people and programs alike; or ~/.ssh/rc or "
    "/etc/ssh/sshrc does.",
    fix="Makes the line a comment that prints, found by running the start files again. Where that "
    "is not known: tries each start file of the shell, and has one that prints end at once where "
    "nobody sits at a terminal, which also leaves out what it exports; where none does, it says "
    "so.",
)
def shell_noise(seen: Examination) -> Iterator[Match]:
    if words := at(seen.controller, "ssh_prints"):
        file = str(at(seen.controller, "ssh_path") or "ssh")
        mend = by_hand(
            "", "have {file} print to stderr (`>&2`), or start /usr/bin/ssh and nothing else",
            file=file,
        )  # fmt: skip
        # Whether a host prints too is not to be heard then.
        yield Match((), mend, how="here", file=file, words=words)
        return
    for host in seen.up:
        if part(host, "shell", "sources_noise") is not True:
            continue
        if prints := mapping(part(host, "shell", "prints")):
            place, line = str(prints["file"]), int(prints["line"])
            yield Match(
                host.name,
                leave_out_line(host.name, place, line),
                how="line",
                file=f"{place}, line {line},",
                words=prints["words"],
            )
            continue
        rc = part(host, "shell", "rc")
        # No start file prints: it is what sshd runs itself. Else nobody knows, and each is tried.
        known = rc and part(host, "shell", "searched") is True
        mend = move_aside(host.name, str(rc)) if known else quiet(host.name)
        yield Match(host.name, mend, how="rc" if rc else "", file=rc)


CHECKS = (
    _failure(
        "unresolved",
        question="Does ssh know the address of every host?",
        symptom="`ssh: Could not resolve hostname beta: Name or service not known`.",
        cause="The name stands in yoked.toml, but neither in ~/.ssh/config nor in /etc/hosts "
        "nor in a DNS or mDNS that this machine asks.",
        fix="Gives the name an address in ssh's configuration, before all other entries.",
        on_cluster="Slurm: `sinfo` lists the node, yet `srun` says `Unable to resolve`; the "
        "node's NodeAddr is missing in slurm.conf.",
    ),
    _failure(
        "timeout",
        question="Does something answer at the address of every host?",
        symptom="`ssh: connect to host beta port 22: Connection timed out`.",
        cause="The host is off or asleep, in another network, or a firewall drops port 22. "
        "A timeout is silence: a host that is up and refuses says so at once. Where a ping, the "
        "ssh port or a part of the login answers, from here or from another host, the host is on: "
        "its sshd is mute or overloaded, or large packets are lost (MTU).",
        fix="By hand: power, the network, port 22, or the MTU.",
        on_cluster="Slurm shows the node as `down*`; Kubernetes as `NotReady`.",
    ),
    _failure(
        "refused",
        question="Does an ssh server listen on every host?",
        symptom="`ssh: connect to host beta port 22: Connection refused`.",
        cause="The machine answered that nobody listens: no ssh server is installed or "
        "started, or it listens at another port. Where another host finds the server there, this "
        "machine is turned away: fail2ban, or a firewall.",
        fix="Starts the server, now and at each start of the host. Run it at the host itself. "
        f"Where it is not installed: {install_lines('sshd')}; on macOS `sudo "
        "systemsetup -setremotelogin on`.",
    ),
    _failure(
        "unreachable",
        question="Is there a way from here to every host?",
        symptom="`ssh: connect to host beta port 22: No route to host`, or `Network is "
        "unreachable`.",
        cause="No machine has that address in this network, or the VPN or network that leads "
        "to it is not up here, or the host answers no ARP; a firewall may also answer so for a "
        "host that is on.",
        fix="By hand: bring up the network that leads to it, or the host.",
    ),
    _failure(
        "host-key",
        question="Is every host the machine that it was?",
        symptom="`REMOTE HOST IDENTIFICATION HAS CHANGED!` or `Host key verification failed.`",
        cause="The host was installed anew, another machine has its address now, or somebody "
        "stands between. Or nobody ever looked at its key from here, or known_hosts has an "
        "@revoked line with it. Where an authority signs the hosts' keys: the certificate expired, "
        "or is for another name, or known_hosts does not know that authority.",
        fix=f"By hand, for who stands between would be let in as well: compare the fingerprint "
        f"with that of `{SHOW_KEY}` at the host, then forget the old key and take the new one "
        "over.",
    ),
    _failure(
        "denied",
        question="Does every host let our key in?",
        symptom="`beta: Permission denied (publickey,password).`",
        cause="`ssh -v` of one more try tells how far the key comes. Here: no key, a key that "
        "others may read, one that wants its passphrase, too many keys, a certificate that expired "
        "or is for somebody else, an agent that does not sign. There: our public key is "
        "not among those that sshd reads (AuthorizedKeysFile); others may write to "
        "authorized_keys, ~/.ssh or the home folder (StrictModes); AllowUsers, a locked or expired "
        "account, RevokedKeys, PubkeyAcceptedAlgorithms, AuthenticationMethods. sshd tells nobody "
        "outside which, and its log does.",
        fix="Closes a key that is open, or names `ssh-add`. Where the host refuses: lines that "
        "read its log and settings; the modes that sshd wants, where others may write; a copy of "
        "the key, which asks for the password once.",
    ),
    _failure(
        "shell",
        question="Does the login shell of every host run what it is told, and nothing else?",
        symptom="scp and rsync fail too: `protocol version mismatch -- is your shell clean?`, "
        "or the connection ends at once.",
        cause="A start file of the shell (~/.bashrc, ~/.zshenv) prints, exits, waits or starts "
        "another program although nobody sits there; or the login shell is one like nologin; or "
        "sshd starts something else: ForceCommand, ChrootDirectory, command= in authorized_keys, "
        "~/.ssh/rc.",
        fix="Tries each start file, and has one that prints, exits or waits end at once where "
        "nobody sits at a terminal, which also leaves out what it exports; gives the account a "
        "shell, where it has none; reads sshd's settings.",
        on_cluster="The same start files break `srun` and `mpirun` over ssh.",
    ),
    _failure(
        "python",
        question="Does every host have a Python that can run the agent?",
        symptom="`bash: line 1: python3: command not found`, or `torchrun: command not found` "
        "although it is there: a shell without a terminal has another PATH.",
        cause="No Python of 3.9 or later is found by the shell that ssh starts there, and "
        "yoked.toml names none by its path; or the one that is named may not be executed, or "
        "ends at once.",
        fix="Installs the system's Python, or makes the one that is named executable. To train, "
        "the host needs 3.11 or later: `yoked install` says which it takes.",
    ),
    _failure(
        "other",
        question="Is there anything else between ssh and the agent?",
        symptom="The finding has ssh's own words, or the agent's.",
        cause="A jump host that lets nobody in or opens no connection; a ProxyCommand that does "
        "not start, ends, or waits for a person; an sshd that closes connections (MaxStartups, "
        "/etc/hosts.deny) or opens no session (MaxSessions); no algorithm in common; settings of "
        "ssh here that it cannot read; a connection that ended while hosts were examined.",
        fix="By hand: the finding names the side, and the line that tells more. `ssh -v HOST true` "
        "shows how far it comes.",
    ),
    shell_noise,
    ssh_slow,
)
