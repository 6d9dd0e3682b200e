"""Why a host lets no login in, as its own console tells: login_links.sh, which root runs there.

The host is reached by whatever is left: its keyboard, another account, `docker exec`. Sentences and
lines stand here, for the script and for findings alike: of a host's answer only codes, names of
files and a few words are taken.
"""

from __future__ import annotations

import contextlib
import re
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

from yoked.agent.settings import EACH, SETTINGS
from yoked.agent.tables import UNITS
from yoked.doctor.repairs.base import repair, template
from yoked.doctor.repairs.startfiles import leave_out_line
from yoked.doctor.sshinside import run_here
from yoked.records.examination import BrokenLink, Fix, SshFailure
from yoked.records.rules import CONTROL
from yoked.records.shell import Line, as_made, path_word, quoted

_SCRIPT = Path(__file__).with_name("login_links.sh")
_LIMIT_S, _LONGEST = 60.0, 200
# Of the kernel's settings those that matter to a login.
_HOLDS_BACK = frozenset({"silent", "large", "breaks"})
# The code of a login in which no link fails.
WORKS = "works"
_VALUES = ("user", "about", "file", "line")


class Link(NamedTuple):
    """A link of a login, where it fails: the cause, and the line that mends it for root's shell
    there. Both name {user}, {about}, {file} and {line}. by_hand: that line only looks, or is words.
    here: it is for the machine that logs in, and names {host} and {config}, ssh's settings, too.
    """

    cause: str
    fix: Callable[..., Line]
    by_hand: bool = False
    here: bool = False


# A line of a file becomes a comment; and the sshd that runs reads its settings anew.
_OUT = template("sed -i.yoked {line}'s/^/# /' {file}")
_OUT_OF_SSHD = template("sed -i.yoked {line}'s/^/# /' {file} && pkill -HUP -o -x sshd")

LINKS = {
    # names and accounts
    "name-source-hangs": Link(
        "{about}, which {file} has accounts looked up by, does not answer: each login waits",
        template("sed -i.yoked '/^passwd:/s/ '{about}// {file}"),
    ),
    "nscd-hangs": Link(
        "the name service cache takes questions at {about} and answers none: each login waits",
        template("systemctl restart nscd || {{ pkill nscd; rm -f {about}; }}"),
    ),
    "names-hang": Link(
        "looking up an account takes more than 4 s ({file} has: {about})",
        template(
            "time getent passwd {user}    only looks: leave out of {file} what does not answer"
        ),
        by_hand=True,
    ),
    "name-source": Link(
        "the account {user} is in /etc/passwd, and {file} has accounts looked up elsewhere: "
        "{about}",
        template("sed -i.yoked 's/^passwd:/passwd: files/' {file}"),
    ),
    "no-account": Link("there is no account {user}", template("useradd -m -s /bin/bash {user}")),
    "shell-gone": Link(
        "the login shell of {user}, {about}, is not there: sshd refuses the account",
        template("usermod -s /bin/sh {user}"),
    ),
    "shell-mode": Link(
        "the login shell of {user}, {about}, may not be executed", template("chmod a+x {about}")
    ),
    "shell-refuses": Link(
        "the login shell of {user}, {about}, lets nobody in", template("usermod -s /bin/sh {user}")
    ),
    "shell-broken": Link(
        "the login shell of {user}, {about}, runs no command", template("usermod -s /bin/sh {user}")
    ),
    "home-gone": Link(
        "the home of {user}, {about}, is not there, nor what sshd reads in it",
        template(
            "make or mount {about}, or name the right folder: usermod -d FOLDER {user}, which "
            "changes no file"
        ),
        by_hand=True,
    ),
    "expired": Link(
        "the account {user} has expired (day {about} since 1970)", template("chage -E -1 {user}")
    ),
    "locked": Link(
        "the account {user} is locked: its password begins with !",
        template("usermod -p '*' {user}"),
    ),
    "change-password": Link(
        "the password of {user} must be changed before any command runs",
        template('chage -d "$(date +%F)" {user}'),
    ),
    "password-old": Link(
        "the password of {user} is older than it may be, and no command runs",
        template("chage -M -1 {user}"),
    ),
    "nologin": Link("{about} keeps out all but root", template("rm {about}")),
    # sshd
    "no-sshd": Link(
        "no ssh server is installed",
        template("apt install openssh-server || dnf install -y openssh-server"),
    ),
    "privsep-folder": Link(
        "the folder {about}, into which sshd locks itself, is not there: it closes each connection",
        template("mkdir -m 755 {about}"),
    ),
    "no-host-keys": Link("sshd has no host key that it can read", template("ssh-keygen -A")),
    "host-key-mode": Link(
        "sshd refuses its own host keys, for others may read them: {about}",
        template("echo {about} | xargs chmod 600"),
    ),
    "no-sshd-account": Link(
        "there is no account sshd, which the ssh server needs",
        template("useradd -r -d /run/sshd -s /usr/sbin/nologin sshd"),
    ),
    "settings": Link(
        "sshd does not accept its settings: {about}",
        template("mend what it names in {file}; then `sshd -t -f {file}` says nothing"),
        by_hand=True,
    ),
    "sshd-broken": Link(
        "the program of the ssh server does not start: {about}. An upgrade was left unfinished, or "
        "a library is gone",
        template(
            "{{ dpkg --configure -a; apt-get -y --fix-broken install; "
            "apt-get -y --reinstall install openssh-server; }} || dnf -y reinstall openssh-server"
        ),
    ),
    "sshd-stopped": Link(
        "sshd is stopped (process {about}), and takes no connection", template("kill -CONT {about}")
    ),
    "startups": Link(
        "sshd turns new logins away: {about} are under way that have not logged in (MaxStartups)",
        template("pkill -f '^sshd[a-z-]*: .*\\[(accepted|net)\\]'"),
    ),
    "not-listening": Link(
        "nothing listens at {about}, although sshd's settings have it do so",
        template(
            "systemctl daemon-reload; systemctl try-restart ssh.socket; systemctl restart ssh || "
            "systemctl restart sshd"
        ),
    ),
    "new-address": Link(
        "it does not have the address {file}, which is dialled; in that network it has {about}",
        template("`HostName {about}` for {host} in {config}, and in /etc/hosts where it stands"),
        by_hand=True,
        here=True,
    ),
    "other-listener": Link(
        "at port {line}, which is dialled, listens `{about}`, not sshd, whose port is {file}",
        template("`Port {file}` for {host} in {config}"),
        by_hand=True,
        here=True,
    ),
    "port-taken": Link(
        "at port {line}, which sshd is to have, listens `{about}` (process {file})",
        template(
            "end that program (kill {file}), or give it another port; then: systemctl restart ssh "
            "|| systemctl restart sshd"
        ),
        by_hand=True,
    ),
    "not-running": Link(
        "no process of sshd takes connections, and nothing listens at its port",
        template("systemctl enable --now ssh || systemctl enable --now sshd"),
    ),
    "keys-off": Link("sshd takes no keys at all: {about} ({file}, line {line})", _OUT_OF_SSHD),
    "no-root": Link(
        "sshd lets no root in by this key: {about} ({file}, line {line})", _OUT_OF_SSHD
    ),
    "other-port": Link(
        "sshd listens at another port: {about}",
        template("`Port {about}` for {host} in {config}"),
        by_hand=True,
        here=True,
    ),
    "listens-here": Link(
        "sshd listens at no address but {about} ({file}, line {line})",
        template(
            "sed -i.yoked 's/^[[:space:]]*ListenAddress/# &/I' {file} && pkill -HUP -o -x sshd"
        ),
    ),
    "family": Link(
        "sshd does not listen for the kind of address that is dialled: {about} ({file}, line "
        "{line})",
        _OUT_OF_SSHD,
    ),
    "not-listed": Link(
        "sshd refuses the account {user}: {about} ({file}, line {line})",
        template("sed -i.yoked {line}'s/$/ '{user}/ {file} && pkill -HUP -o -x sshd"),
    ),
    "listed": Link("sshd refuses the account {user}: {about} ({file}, line {line})", _OUT_OF_SSHD),
    "revoked-keys": Link(
        "the list of revoked keys, {about}, is not there, so sshd takes no key (RevokedKeys)",
        template("touch {about}"),
    ),
    "sshd-says": Link(
        "sshd lets no key of {user} in: {about}",
        template("sshd -T -f {file}    only looks"),
        by_hand=True,
    ),
    "forced": Link(
        "sshd runs `{about}` in the place of any command (ForceCommand in {file}, line {line})",
        _OUT_OF_SSHD,
    ),
    "chroot": Link(
        "sshd changes the root to {about}, where no command runs (ChrootDirectory in {file}, line "
        "{line})",
        _OUT_OF_SSHD,
    ),
    # the key
    "keys-file": Link(
        "sshd reads {about} alone, and the key is in ~/.ssh/authorized_keys (AuthorizedKeysFile in "
        "{file}, line {line})",
        _OUT_OF_SSHD,
    ),
    "no-keys-file": Link(
        "sshd reads keys from no file: {about} ({file}, line {line})", _OUT_OF_SSHD
    ),
    "certificates": Link(
        "sshd takes no keys from files, only certificates of the authority in {about} "
        "(TrustedUserCAKeys)",
        template(
            "ssh-keygen -L -f KEY-cert.pub    says for whom and until when the certificate beside "
            "the key is good; where it is not: have the authority sign the key anew"
        ),
        by_hand=True,
        here=True,
    ),
    "sshd-asks": Link(
        "sshd asks `{about}` about each key, and waits for it: it does not end in 5 s ({file}, "
        "line {line})",
        _OUT_OF_SSHD,
    ),
    "key-kind": Link("sshd takes no key of this kind: {about} ({file}, line {line})", _OUT_OF_SSHD),
    "key-missing": Link(
        "the key is in nothing that sshd reads: {about}",
        template("put the line of the key, its .pub on the machine that logs in, into {about}"),
        by_hand=True,
    ),
    "key-command": Link(
        "the line of the key runs `{about}` in the place of any command ({file}, line {line})",
        template('sed -i.yoked {line}\'s/command="[^"]*",* *//\' {file}'),
    ),
    "key-expired": Link(
        "the line of the key was good until {about} alone ({file}, line {line})",
        template('sed -i.yoked {line}\'s/expiry-time="[^"]*",* *//\' {file}'),
    ),
    "key-from": Link(
        "the line of the key is good for who comes from {about} alone ({file}, line {line})",
        template('sed -i.yoked {line}\'s/from="[^"]*",* *//\' {file}'),
    ),
    "key-mode": Link(
        "others may write to {about}, so sshd does not trust it", template("chmod go-w {about}")
    ),
    "key-owner": Link(
        "{about} belongs neither to {user} nor to root, so sshd does not trust it",
        template("chown {user}: {about}"),
    ),
    # the session
    "pam-limit": Link(
        "PAM gives each login of {user} `{about}`, and little can run ({file}, line {line})", _OUT
    ),
    "log-stopped": Link(
        "each login waits for its word to {file}: {about}, which reads it, is stopped "
        "(process {line})",
        template("kill -CONT {line}"),
    ),
    "log-waits": Link(
        "each login waits for its word to {file}: {about} reads nothing (process {line})",
        template("kill {line}; systemctl restart rsyslog || systemctl restart systemd-journald"),
    ),
    "pam": Link(
        "PAM ends the login of {user}: {about}. Without PAM it works",
        template(
            "grep -v '^#' {file}; journalctl -n 30 --no-pager    only look: which module refuses"
        ),
        by_hand=True,
    ),
    "session-rc": Link(
        "{about}, which sshd runs at each login, waits", template("mv {about} {about}.yoked-moved")
    ),
    "start-file": Link("{file}, line {line}, ends or holds up each login: {about}", _OUT),
    "session": Link(
        "the key is let in, and then no command runs: {about}",
        template("journalctl -n 50 --no-pager    only looks"),
        by_hand=True,
    ),
    "no-thread": Link(
        "a login works, and no program can start a thread in it: {about}",
        template("ulimit -a; cat /proc/self/cgroup    only look, in such a login"),
        by_hand=True,
    ),
    "no-room": Link(
        "no file can be made in {about}",
        template("df -h {about}; df -i {about}    only look"),
        by_hand=True,
    ),
    "hosts-deny": Link(
        "sshd turns away who comes from afar: `{about}` ({file}, line {line})", _OUT
    ),
    # what packets from afar meet
    "no-main-rule": Link(
        "no rule of `ip rule` leads to the table main, so no route in it is ever asked for",
        template("ip rule add pref 32766 table main; ip rule add pref 32767 table default"),
    ),
    "kernel-setting": Link(
        "a setting of the kernel can keep packets back: {about}", template("sysctl -w {file}")
    ),
    "unit-denies": Link(
        "a unit in which logins may be does not speak to some addresses: {about} ({file}, line "
        "{line})",
        template(
            "sed -i.yoked {line}'s/^/# /' {file} && systemctl daemon-reload && "
            "{{ systemctl restart ssh || systemctl restart sshd; }}"
        ),
    ),
    "data-changed": Link(
        "a rule of nftables writes into what packets carry: `{about}` in {file}",
        template("nft delete rule {file} handle {line}"),
    ),
    WORKS: Link(
        "a login of {user} works on the host itself, and of what packets from afar meet there some "
        "was looked at, as far as `ip` and `nft` are installed, and is in order: the rule for the "
        "table main, settings of the kernel, IPAddressDeny of units, rules that write into data. "
        "Not judged: rules that drop, routes, what lies between",
        template("nft list ruleset; ip rule; ip route; cat /etc/hosts.deny    only look"),
        by_hand=True,
    ),
}


def script(
    user: str,
    key: str = "",
    port: int | None = None,
    mark: str = "",
    addresses: Sequence[str] = (),
) -> str:
    """login_links.sh for an account. key: the fingerprint of the key that is to let in, "" where
    that is not known; port, addresses: where ssh goes to. mark: begins the line for programs, if
    any is wanted.
    """
    bounds = ",".join(
        f"{each.name} {_bound(each.least)} {_bound(each.most)} {each.usual}"
        for each in SETTINGS
        if _HOLDS_BACK.intersection(each.harms) and EACH not in each.name and " " not in each.usual
    )
    known = {
        "user": user,
        "key": key,
        "port": port or "",
        "dialled": " ".join(addresses),
        "mark": mark,
        "bounds": bounds,
        "units": " ".join(UNITS),
    }
    head = "\n".join(f"{name}={quoted(value)}" for name, value in known.items())
    return f"{head}\n{_say()}\n{_SCRIPT.read_text(encoding='utf-8')}"


def _bound(number: int | None) -> str:
    return "-" if number is None else str(number)


def _say() -> str:
    """The function by which the script has a cause and its fix in words."""
    named = {name: as_made(f"@{name}@") for name in _VALUES}
    places = {"host": as_made("this host"), "config": as_made("ssh's settings, where one logs in")}
    cases = [
        f"        {code}) cause={_word(link.cause.format(**named))} "
        f"fix={_word(link.fix(**named, **places))} ;;"
        for code, link in LINKS.items()
    ]
    return "\n".join(["say() {", '    case "$1" in', *cases, "    esac", "}"])


def _word(text: str) -> str:
    """A text as one word of a shell, in which @name@ stands for the value of a variable."""
    parts = re.split(r"@(user|about|file|line)@", text)
    return "".join(
        f'"${part}"' if number % 2 else quoted(part) for number, part in enumerate(parts) if part
    )


def sentence(failure: SshFailure) -> str:
    """The cause, in words, where a console told it."""
    return "" if failure.link is None else LINKS[failure.link.code].cause.format(**_of(failure))


@repair
def mend_link(host: str, failure: SshFailure, config: str = "~/.ssh/config") -> Fix:
    """The line for root's shell there, by another way than ssh; or for this machine, whose ssh has
    its hosts in the file config.
    """
    assert failure.link is not None
    link = LINKS[failure.link.code]
    if failure.link.code == "start-file":
        # It may be a part of a longer command.
        return replace(leave_out_line(host, failure.link.file, failure.link.line), root=True)
    # All values stand outside of quotes: none ends a program of sed's that is in them.
    words = link.fix(**_of(failure), host=host, config=path_word(config))
    return Fix("" if link.here else host, words, root=not link.here, by_hand=link.by_hand)


def _of(failure: SshFailure) -> dict[str, str]:
    link = failure.link
    assert link is not None
    about, file, line = link.about, link.file, str(link.line)
    return {"user": failure.user or "USER", "about": about, "file": file, "line": line}


def told_by(
    console: Sequence[str],
    told: SshFailure,
    key: str = "",
    port: int | None = None,
    address: str = "",
) -> SshFailure:
    """The same failure, with what a host's console says. console: starts a root's shell there; key
    and port: as of `script`; address: what ssh dials, or a name.
    """
    mark = f"yoked-{secrets.token_hex(8)}"
    told_script = script(told.user or "root", key, port, mark, addresses_of(address))
    done = run_here(*console, limit_s=_LIMIT_S, given=told_script)
    link = read(done.stdout, mark) if done else None
    if link is None:
        return told
    found = replace(told, link=link)
    if link.code != WORKS:
        return found
    text = f"{told.text.rstrip('.')}; as its console says, {sentence(found)}"
    is_kept_out = told.kind in ("timeout", "refused") and not told.cause
    return replace(told, text=text, cause="filtered" if is_kept_out else told.cause)


def addresses_of(name: str) -> tuple[str, ...]:
    """The addresses of a name, by this machine's resolver; empty where no program tells."""
    done = run_here("getent", "ahosts", name) if name else None
    lines = done.stdout.splitlines() if done else []
    found = []
    for each in (name, *(line.partition(" ")[0] for line in lines)):
        with contextlib.suppress(ValueError):
            found.append(str(ip_address(each.partition("%")[0])))
    return tuple(dict.fromkeys(found))


def read(printed: str, mark: str) -> BrokenLink | None:
    """What the script found. printed: foreign words."""
    for each in printed.splitlines():
        begin, *parts = each.split("\t")
        if begin == mark and len(parts) == 4 and parts[0] in LINKS:
            code, about, file, number = (CONTROL.sub("", part)[:_LONGEST] for part in parts)
            return BrokenLink(code, about, file, int(number) if number.isdecimal() else 0)
    return None
