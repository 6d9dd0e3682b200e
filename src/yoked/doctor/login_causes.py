"""The links of a login that login_links.sh tries, each with its cause, where it fails, and the line
that mends it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from yoked.doctor.repairs.base import template
from yoked.records.shell import Line

# The code of a login in which no link fails.
WORKS = "works"


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
    "key-broken": Link(
        "the line of the key is broken: lines {line} to {about} of {file} are to be one",
        template("sed -i.yoked '{line}{{:a;{about}!{{N;ba;}};s/\\n//g;}}' {file}"),
    ),
    "key-broken-words": Link(
        "the line of the key is broken: lines {line} to {about} of {file} are to be one",
        template("sed -i.yoked '{line}{{:a;{about}!{{N;ba;}};s/\\n/ /g;}}' {file}"),
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
    "frames-taken": Link(
        "the interface {file} ({about}) gets all frames that come to the card below it: nothing "
        "else of the host hears them",
        template("ip link del {file}"),
    ),
    "frames-to-master": Link(
        "what comes to {file} goes to {about}, of which it is a port: an address of {file} gets "
        "nothing",
        template("ip link set dev {file} nomaster"),
    ),
    "no-arp": Link(
        "{about} answers nobody who asks for its network card (NOARP)",
        template("ip link set dev {about} arp on"),
    ),
    "xdp-program": Link(
        "a program of {file} ({about}) sees each packet before all else, and can drop it",
        template("ip link set dev {file} {about} off"),
    ),
    "tc-drops": Link(
        "a filter of {file} drops packets: {about}",
        template("tc qdisc del dev {file} clsact || tc qdisc del dev {file} ingress"),
    ),
    "redirected": Link(
        "what comes to sshd's port is handed on to something else, which is not this host's sshd: "
        "`{about}` in {file}",
        template("nft delete rule {file} handle {line}"),
    ),
    "key-is-own": Link(
        "the key that ssh was shown, {about}, is the host's own ({file}): it was made anew, and "
        "nobody stands between",
        template("ssh-keygen -lf {file}    only looks"),
        by_hand=True,
    ),
    "key-of-another": Link(
        "the key that ssh was shown, {about}, is none of the host's own: another machine, or "
        "something between, answers in its place",
        template(
            "ip neighbour    on the machine that logs in has the network card that answers: `ip "
            "link` on {host} has its own; do not take that key over"
        ),
        by_hand=True,
        here=True,
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
