"""Lines that mend, or tell more, where ssh is not let in, or does not trust whom it meets."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from yoked.doctor.checks.query import at
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import close_key, close_ssh_folder, renew_pub
from yoked.records.examination import Examination, Fix, HostSeen, SshFailure
from yoked.records.shell import Line, command_line, path_word, shell_line
from yoked.remote.ssh import forget_key

SHOW_KEY = shell_line("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
LOG = shell_line("sudo journalctl -u ssh -u sshd -n 30 --no-pager")
RELOAD = shell_line("sudo systemctl reload ssh || sudo systemctl reload sshd")


@dataclass(frozen=True)
class Unreached:
    """A host that has no agent, and why."""

    seen: Examination
    host: HostSeen
    failure: SshFailure

    @property
    def name(self) -> str:
        """The host's."""
        return self.host.name

    @property
    def ssh(self) -> list[str]:
        """`ssh`, as this fleet uses it."""
        config = at(self.seen.controller, "ssh_config")
        return ["ssh", *(["-F", str(config)] if config else [])]

    @property
    def config(self) -> Line:
        """The file in which ssh's hosts stand, as a word of the controller's shell."""
        return path_word(at(self.seen.controller, "ssh_config") or "~/.ssh/config")

    @property
    def address(self) -> str:
        """Where it is, for a line to type."""
        return str(self.host.wanted.get("address") or self.name.rpartition("@")[2])


Mend = Callable[[Unreached], tuple[Fix, ...]]


def at_console(it: Unreached) -> Fix:
    """Have the host tell the link of a login that fails: only it knows."""
    fleet = at(it.seen.controller, "fleet")
    show = command_line(
        "yoked", "doctor", "--console", it.name, *(["--fleet", str(fleet)] if fleet else [])
    )
    return by_hand(
        it.name,
        "at its console, as root: the script that {show} prints (here) tries each link of a login, "
        "and says which fails and what mends it. Its log: {log} (or /var/log/auth.log)",
        show=show,
        log=LOG,
    )


def _copy(it: Unreached) -> Fix:
    return by_hand("", "{copy}", copy=command_line("ssh-copy-id", *it.ssh[1:], it.name))


def _refused(it: Unreached) -> tuple[Fix, ...]:
    """Only the host knows: it says so to nobody who is not in."""
    return (at_console(it), close_ssh_folder(it.name), _copy(it))


def refused_everywhere(its: Sequence[Unreached]) -> tuple[Fix, ...]:
    """All hosts refuse: what they have in common is this machine."""
    return (
        by_hand(
            "",
            "{try_it} true    says which keys it offers, and as whom; "
            "`ssh-add -l` lists those of the agent",
            try_it=command_line(*its[0].ssh, "-v", its[0].name),
        ),
        *(_copy(it) for it in its),
    )


def _unlock(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "ssh-add {key}    asks for the passphrase once; where no agent runs, first: "
            'eval "$(ssh-agent)"',
            key=it.failure.about,
        ),
    )


def _renew_pub(it: Unreached) -> tuple[Fix, ...]:
    return (renew_pub(it.failure.about),)


def _close_key(it: Unreached) -> tuple[Fix, ...]:
    return (close_key(it.failure.about),)


def _make_key(it: Unreached) -> tuple[Fix, ...]:
    make = by_hand(
        "",
        "ssh-keygen -t ed25519    makes a key; where there is one of another name, `IdentityFile` "
        "in {config} has to name it",
        config=it.config,
    )
    return (make, _copy(it))


def _offer_one(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "put into {config}, for `Host {host}`: `IdentitiesOnly yes`, and `IdentityFile` with "
            "the one key that it takes; `ssh-add -l` lists what is offered now",
            config=it.config,
            host=it.name,
        ),
    )


def _use_key(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "{try_it} true    has why; an agent that refuses is helped by `ssh-add -D` and then "
            "`ssh-add`",
            try_it=command_line(*it.ssh, "-v", it.name),
        ),
    )


def _other_key(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "sudo sshd -T | grep -i '^pubkeyaccepted'    has the kinds that it takes, in "
            "/etc/ssh/sshd_config; then {reload}",
            reload=RELOAD,
        ),
        by_hand(
            "",
            "or make a key of a kind that it takes (`ssh-keygen -t ed25519`; `ssh-keygen -t rsa "
            "-b 3072` for smart cards and old systems), and then {copy}",
            copy=_copy(it).command,
        ),
    )


def _no_second_factor(it: Unreached) -> tuple[Fix, ...]:
    block = shell_line(
        "`Match User {user} Address ADDRESS-OF-THIS-MACHINE` with `AuthenticationMethods "
        "publickey` below it",
        user=it.failure.user or "USER",
    )
    return (
        by_hand(
            it.name,
            "put at the end of /etc/ssh/sshd_config: {block}; then {reload}",
            block=block,
            reload=RELOAD,
        ),
    )


def _take_keys(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "`PubkeyAuthentication yes` in /etc/ssh/sshd_config; then {reload}",
            reload=RELOAD,
        ),
        _copy(it),
    )


def _look_at_account(it: Unreached) -> tuple[Fix, ...]:
    return (at_console(it),)


def _look_at_key(it: Unreached) -> tuple[Fix, ...]:
    host, said = it.name, "\n".join((it.failure.text, *it.failure.fix))
    accept = command_line(*it.ssh, "-o", "StrictHostKeyChecking=accept-new", host, "true")
    forget = forget_key(host, said)
    changed = "Offending" in said or "CHANGED" in said or "ssh-keygen" in said
    # Whoever stands between would be let in: the key is for a person to compare.
    look = by_hand(host, "look at its key at the host itself: {show}", show=SHOW_KEY)
    same = shell_line("if that is the one that ssh shows here")
    if not changed:
        return (look, by_hand("", "{same}: {accept}", same=same, accept=accept))
    return (
        look,
        by_hand("", "{same}: {forget}", same=same, forget=forget),
        by_hand("", "then: {accept}", accept=accept),
    )


def _not_revoked(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "{ask} | grep -i knownhosts    names the files; `grep -n '^@revoked' FILE` the line: "
            "somebody declared this key stolen or lost",
            ask=command_line(*it.ssh, "-G", it.name),
        ),
        by_hand(
            "",
            "if you know that it is not: take that line out; else {host} needs a new key: "
            "sudo ssh-keygen -A, after the old one is removed",
            host=it.name,
        ),
    )


DENIED: Mapping[str, Mend] = {
    "": _refused,
    "refused-key": _refused,
    "after-key": _look_at_account,
    "expired": _look_at_account,
    "second-factor": _no_second_factor,
    "keys-off": _take_keys,
    "algorithm": _other_key,
    "key-mode": _close_key,
    "passphrase": _unlock,
    "stale-pub": _renew_pub,
    "no-key": _make_key,
    "unused-key": _use_key,
    "too-many": _offer_one,
}
HOST_KEY: Mapping[str, Mend] = {"": _look_at_key, "revoked": _not_revoked}
