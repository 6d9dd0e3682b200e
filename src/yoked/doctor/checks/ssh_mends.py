"""Lines that mend, or tell more, where ssh led to no agent: the parts of what ssh_causes.py has."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from yoked.doctor.checks.query import at
from yoked.doctor.repairs.base import by_hand, by_hand_later
from yoked.doctor.repairs.files import (
    close_ssh_folder,
    leave_lines_out,
    let_use,
    name_for_ssh,
    pass_over_block,
)
from yoked.doctor.repairs.fleet import fleet_flag
from yoked.doctor.repairs.startfiles import leave_out_line, quiet, take_out_variable
from yoked.doctor.repairs.system import give_login_shell
from yoked.records.examination import Examination, Fix, HostSeen, SshFailure
from yoked.records.shell import as_made, command_line, path_word, shell_line
from yoked.remote.ssh import forget_key

SHOW_KEY = shell_line("ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub")
_LOG = shell_line("sudo journalctl -u ssh -u sshd -n 30 --no-pager")
_RELOAD = shell_line("sudo systemctl reload ssh || sudo systemctl reload sshd")
# Of a Python that PYTHONHOME leads to a place without its library.
_WRONG_HOME = re.compile(r"encodings|Fatal Python error|init_fs_encoding|PYTHONHOME")
# As yoked.doctor.sshnames tells what a jump host looks up.
_LOOKED_UP = re.compile(r"the jump host \S+ (?:takes|does not know the name) ([^\s,]+)")


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
    def config(self) -> str:
        """The file in which ssh's hosts stand."""
        return str(at(self.seen.controller, "ssh_config") or "~/.ssh/config")

    @property
    def values(self) -> dict[str, Any]:
        """The values that its lines may name. about is `FILE:LINE` where it is file and line."""
        file, _, line = self.failure.about.rpartition(":")
        fleet = fleet_flag(self.seen)
        address = self.host.wanted.get("address") or self.name.rpartition("@")[2]
        looked_up = _LOOKED_UP.match(self.failure.text)
        return {
            "host": self.name,
            # For a line to type.
            "address": address,
            "target": looked_up[1] if looked_up else address,
            "user": self.failure.user or "USER",
            "about": self.failure.about,
            "file": file,
            "line": line,
            "config": path_word(self.config),
            "python": path_word(str(self.host.wanted.get("python") or "python3")),
            "ssh_g": command_line(*self.ssh, "-G", self.name),
            "ssh": command_line(*self.ssh, self.name),
            "ssh_v": command_line(*self.ssh, "-v", self.name),
            "ssh_vvv": command_line(*self.ssh, "-vvv", self.name),
            "copy": command_line("ssh-copy-id", *self.ssh[1:], self.name),
            "console": command_line("yoked", "doctor", "--console", self.name, *fleet),
            "log": _LOG,
            "reload": _RELOAD,
        }


Step = Callable[[Unreached], tuple[Fix, ...]]


class Cause:
    """why: what follows from it; mend: what can be done, by hand or by a line."""

    def __init__(self, why: str, *mend: Step) -> None:
        self.why, self.mend = why, mend


def there(*words: str) -> Step:
    """Lines by hand for a person on the host, with `Unreached.values`."""
    return lambda it: tuple(by_hand_later(each)(it.name, **it.values) for each in words)


def here(*words: str) -> Step:
    """The same on this machine."""
    return lambda it: tuple(by_hand_later(each)("", **it.values) for each in words)


def at_hop(*words: str) -> Step:
    """The same on the jump host that the cause names."""
    return lambda it: tuple(by_hand_later(each)(it.failure.about, **it.values) for each in words)


def made(make: Callable[..., Fix], *names: str) -> Step:
    """A repair of some of `Unreached.values`."""
    return lambda it: (make(*(it.values[name] for name in names)),)


def all_of(steps: Iterable[Step], it: Unreached) -> tuple[Fix, ...]:
    return tuple(fix for step in steps for fix in step(it))


# Only the host knows which link of a login fails.
AT_CONSOLE = there(
    "at its console, as root: the script that {console} prints (here) tries each link of a login, "
    "and says which fails and what mends it. Its log: {log} (or /var/log/auth.log)"
)
COPY_KEY = here("{copy}")
# What several causes are mended by.
SEE_ARP = there(
    "where it is on: `ip -br address` has its address, and `ip link` says NOARP where its "
    "interface answers no ARP: sudo ip link set INTERFACE arp on; where `ip rule` lacks `lookup "
    "main`: sudo ip rule add pref 32766 table main"
)
SEE_HOLDERS = there(
    "where a login works there: `cat /etc/hosts.deny`; who holds connections: sudo ss -tnp state "
    "established '( sport = :22 )'"
)
LET_LARGE_IN = (
    here(
        "ping -c 1 -s 1472 {address}    has no answer where large packets are lost, and `ping -c "
        "1 {address}` has"
    ),
    there(
        "`ip link` says the MTU of its interface: sudo ip link set INTERFACE mtu 1500; `sudo nft "
        "list ruleset` says whether a rule drops by length; `sysctl net.ipv4.tcp_min_snd_mss` is "
        "48, at most 536: sudo sysctl -w net.ipv4.tcp_min_snd_mss=48"
    ),
)
OPEN_PORT = there(
    "see whether a firewall there, or between, lets this machine in at sshd's port: `sudo nft "
    "list ruleset`, `sudo ufw status`, `sudo fail2ban-client status sshd`; and whether routes "
    "lead back: `ip rule` has `lookup main`, `ip route` the network"
)
FREE_WAY = here(
    "ip route get {address}    says what leads there, or what forbids it; `sudo nft list ruleset` "
    "has what a firewall here lets out"
)
SEE_LOG = there("sudo journalctl -n 50 --no-pager    tells what happened there")
ASK_PROXY = here(
    "{ssh_v} true    shows whether the jump host, the ProxyCommand or {host} fails; they stand in "
    "{config}"
)
LOG_IN_TO_PROXY = (
    here(
        "{ssh_g} | grep -i proxycommand    has its line: run that here, do what it asks (open its "
        "address, type what it wants), then: {ssh} true"
    ),
)
SEE_WHAT_WAITS = here("{ssh_vvv} true    shows, only to look, what ssh here did last")
# Only the host knows: it says so to nobody who is not in.
REFUSED = (AT_CONSOLE, made(close_ssh_folder, "host"), COPY_KEY)


def refused_everywhere(its: Sequence[Unreached]) -> tuple[Fix, ...]:
    """All hosts refuse: what they have in common is this machine."""
    look = here(
        "{ssh_v} true    says which keys it offers, and as whom; `ssh-add -l` lists those of the "
        "agent"
    )
    return (*look(its[0]), *(fix for it in its for fix in COPY_KEY(it)))


def give_shell(it: Unreached) -> tuple[Fix, ...]:
    if it.failure.user is not None:
        return (give_login_shell(it.name, it.failure.user),)
    # A shell that lets nobody in often says nothing at all over ssh.
    return (
        by_hand(
            it.name,
            "where the shell of the user that ssh comes in as is nologin or false: "
            "usermod -s /bin/bash USER",
        ),
    )


# What starts instead of the command: a start file is only one that does so.
RUN_COMMANDS = (made(quiet, "host"), give_shell, AT_CONSOLE)


def leave_line_out(it: Unreached) -> tuple[Fix, ...]:
    file, line = it.values["file"], it.values["line"]
    if not line.isdecimal():
        return all_of(RUN_COMMANDS, it)
    return (leave_out_line(it.name, file, int(line)),)


def unless_home(step: Step) -> Step:
    """A step, where it is not PYTHONHOME that keeps Python from starting."""

    def mend(it: Unreached) -> tuple[Fix, ...]:
        is_home = _WRONG_HOME.search(it.failure.text)
        return (take_out_variable(it.name, "PYTHONHOME"),) if is_home else step(it)

    return mend


def let_pass(it: Unreached) -> tuple[Fix, ...]:
    place, user = it.failure.about, it.values["user"]
    return (let_use(it.name, {"place": place, "lacks": "x", "user": user}),)


def wake(it: Unreached) -> tuple[Fix, ...]:
    address = it.host.wanted.get("address")
    known = shell_line(" (the fleet's file has {address})", address=address)
    return (
        by_hand(
            it.name,
            "switch it on or wake it, and see that it is in this network{known}; a firewall there "
            "must let port 22 in",
            known=known if address else shell_line(""),
        ),
    )


def ask_nobody(it: Unreached) -> tuple[Fix, ...]:
    """Pass over the block of ssh's settings by which it asks."""
    file, line = it.values["file"], it.values["line"]
    if not line.isdecimal():
        look = here(
            "grep -niE '^ *match .*exec' {config} ~/.ssh/config /etc/ssh/ssh_config    finds "
            "the line: take it out, or have its program end at once"
        )
        return look(it)
    path = file or it.config
    return (pass_over_block(path, int(line), root=path.startswith("/etc/")),)


def leave_option_out(it: Unreached) -> tuple[Fix, ...]:
    """Take lines out of ssh's settings here."""
    path = it.values["file"] or it.config
    numbers = [int(each) for each in it.values["line"].split(",") if each.isdecimal()]
    if not numbers:
        # A saved report may be of another version.
        return here("{ssh_g}    has all settings: take out the line that the finding names")(it)
    return (leave_lines_out(path, numbers, root=path.startswith("/etc/")),)


def as_told(it: Unreached) -> tuple[Fix, ...]:
    """What the one who looked could tell about the very case."""
    return tuple(Fix("", as_made(line), by_hand=True) for line in it.failure.fix)


def say_its_address(it: Unreached) -> tuple[Fix, ...]:
    if address := it.host.wanted.get("address"):
        return (name_for_ssh(it.config, it.name, str(address)),)
    return here("put it into {config}: `Host {host}` with `HostName ITS-ADDRESS`")(it)


def look_at_key(it: Unreached) -> tuple[Fix, ...]:
    said = "\n".join((it.failure.text, *it.failure.fix))
    accept = command_line(*it.ssh, "-o", "StrictHostKeyChecking=accept-new", it.name, "true")
    # Whoever stands between would be let in: the key is for a person to compare.
    look = by_hand(it.name, "look at its key at the host itself: {show}", show=SHOW_KEY)
    if it.failure.link is not None and it.failure.link.code == "key-is-own":
        # Its own console has told that.
        forget = by_hand("", "{line}", line=forget_key(it.name, said))
        return forget, by_hand("", "then: {accept}", accept=accept)
    is_changed = any(word in said for word in ("Offending", "CHANGED", "ssh-keygen"))
    first = forget_key(it.name, said) if is_changed else accept
    then = (by_hand("", "then: {accept}", accept=accept),) if is_changed else ()
    return (look, by_hand("", "if that is the one that ssh shows here: {line}", line=first), *then)
