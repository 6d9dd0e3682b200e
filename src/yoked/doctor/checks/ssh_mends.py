"""Lines that mend, or tell more, for each cause of a failure of ssh, by its kind."""

from __future__ import annotations

import re
from collections.abc import Mapping

from yoked.doctor.checks.query import at
from yoked.doctor.checks.ssh_login import (
    DENIED,
    HOST_KEY,
    RELOAD,
    Mend,
    Unreached,
    at_console,
)
from yoked.doctor.repairs.base import by_hand
from yoked.doctor.repairs.files import (
    let_use,
    make_executable,
    name_for_ssh,
    name_home,
    pass_over_block,
)
from yoked.doctor.repairs.startfiles import leave_out_line, quiet, take_out_variable
from yoked.doctor.repairs.system import give_login_shell, install_python, start_ssh_server
from yoked.records.examination import Fix, SshKind
from yoked.records.shell import as_made, command_line, path_word, shell_line

# Of a Python that PYTHONHOME leads to a place without its library.
_WRONG_HOME = re.compile(r"encodings|Fatal Python error|init_fs_encoding|PYTHONHOME")


def _run_commands(it: Unreached) -> tuple[Fix, ...]:
    """What starts instead of the command: a start file is only one that does so."""
    fixes = [quiet(it.name)]
    if it.failure.user is None:
        # A shell that lets nobody in often says nothing at all over ssh.
        fixes.append(
            by_hand(
                it.name,
                "where the shell of the user that ssh comes in as is nologin or false: "
                "usermod -s /bin/bash USER",
            )
        )
    else:
        fixes.append(give_login_shell(it.name, it.failure.user))
    return (*fixes, at_console(it))


def _leave_line_out(it: Unreached) -> tuple[Fix, ...]:
    file, _, number = it.failure.about.rpartition(":")
    if not number.isdecimal():
        return _run_commands(it)
    return (leave_out_line(it.name, file, int(number)),)


def _let_in(it: Unreached) -> tuple[Fix, ...]:
    return _run_commands(it)[1:2]


def _free_key(it: Unreached) -> tuple[Fix, ...]:
    file, _, number = it.failure.about.rpartition(":")
    return (
        by_hand(
            it.name,
            "take `command=...` out of line {number} of {file}, or give {host} a key of its own "
            "there",
            number=number,
            file=file,
        ),
    )


def _no_forced(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "`ForceCommand internal-sftp` of /etc/ssh/sshd_config, or `command=` of "
            "~/.ssh/authorized_keys, must not be for this user and key; after a change: {reload}",
            reload=RELOAD,
        ),
    )


def _no_chroot(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "`ChrootDirectory` of /etc/ssh/sshd_config must not be for this user; after a change: "
            "{reload}. Where there is none, {shell} is gone: sudo usermod -s /bin/sh {user}",
            reload=RELOAD,
            shell=it.failure.about,
            user=it.failure.user or "USER",
        ),
    )


def _other_user(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "put into {config}, for `Host {host}`: `User {user}`",
            config=it.config,
            host=it.name,
            user=it.failure.about,
        ),
    )


def _free_shell(it: Unreached) -> tuple[Fix, ...]:
    return (by_hand(it.name, "sudo usermod -s /bin/bash {user}", user=it.failure.user or "USER"),)


def _make_room(it: Unreached) -> tuple[Fix, ...]:
    return (by_hand(it.name, "df -h ~ /tmp; df -i ~ /tmp; quota    tell what is full"),)


def _get_python(it: Unreached) -> tuple[Fix, ...]:
    if _WRONG_HOME.search(it.failure.text):
        return (take_out_variable(it.name, "PYTHONHOME"),)
    return (install_python(it.name),)


def _look_at_python(it: Unreached) -> tuple[Fix, ...]:
    if _WRONG_HOME.search(it.failure.text):
        return (take_out_variable(it.name, "PYTHONHOME"),)
    python = path_word(str(it.host.wanted.get("python") or "python3"))
    return (
        by_hand(
            it.name,
            "{python} -E -s -S -c 'print(1)'    shows it; `sudo dmesg | tail` tells whether the "
            "kernel ended it",
            python=python,
        ),
    )


def _let_pass(it: Unreached) -> tuple[Fix, ...]:
    user = it.failure.user or "USER"
    return (let_use(it.name, {"place": it.failure.about, "lacks": "x", "user": user}),)


def _own_home(it: Unreached) -> tuple[Fix, ...]:
    return (name_home(it.name, it.failure.about),)


def _give_place(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "ls -ld ~/.cache/yoked; df -h ~ /dev/shm    show whether it is full, or somebody "
            "else's; where it is removed, `ps aux` has the cleaner, or the loop, that does it",
        ),
    )


def _let_run(it: Unreached) -> tuple[Fix, ...]:
    return (make_executable(it.name, it.failure.about),)


def _wake(it: Unreached) -> tuple[Fix, ...]:
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


def _wake_or_arp(it: Unreached) -> tuple[Fix, ...]:
    return (
        *_wake(it),
        by_hand(
            it.name,
            "where it is on: `ip -br address` has its address, and `ip link` says NOARP where its "
            "interface answers no ARP: sudo ip link set INTERFACE arp on; where `ip rule` lacks "
            "`lookup main`: sudo ip rule add pref 32766 table main",
        ),
    )


def _ask_sshd(it: Unreached) -> tuple[Fix, ...]:
    return (
        at_console(it),
        by_hand(
            it.name,
            "where a login works there: `cat /etc/hosts.deny`; who holds connections: "
            "sudo ss -tnp state established '( sport = :22 )'",
        ),
    )


def _let_large_in(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "ping -c 1 -s 1472 {address}    has no answer where large packets are lost, and "
            "`ping -c 1 {address}` has",
            address=it.address,
        ),
        by_hand(
            it.name,
            "`ip link` says the MTU of its interface: sudo ip link set INTERFACE mtu 1500; "
            "`sudo nft list ruleset` says whether a rule drops by length; "
            "`sysctl net.ipv4.tcp_min_snd_mss` is 48, at most 536: sudo sysctl -w "
            "net.ipv4.tcp_min_snd_mss=48",
        ),
    )


def _find_writer(it: Unreached) -> tuple[Fix, ...]:
    return (
        at_console(it),
        by_hand(
            it.name,
            "sudo nft -a list ruleset | grep -E '@|set'    there, and here, shows a rule that "
            "writes into data: nft delete rule TABLE CHAIN handle NUMBER. Where there is none: "
            "another cable, another port of the switch",
        ),
    )


def _open_port(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "see whether a firewall there, or between, lets this machine in at sshd's port: "
            "`sudo nft list ruleset`, `sudo ufw status`, `sudo fail2ban-client status sshd`; and "
            "whether routes lead back: `ip rule` has `lookup main`, `ip route` the network",
        ),
    )


def _free_way(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "ip route get {address}    says what leads there, or what forbids it; "
            "`sudo nft list ruleset` has what a firewall here lets out",
            address=it.address,
        ),
    )


def _wait(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name, "wait a minute; where it stays so, /run/nologin is left over: ls /run/nologin"
        ),
    )


def _own_address(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "grep -niE '^ *Bind' {config} /etc/ssh/ssh_config    finds the line: take it out, or "
            "limit it to the host that it is meant for",
            config=it.config,
        ),
    )


def _see_load(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(it.name, "uptime; free -h; time python3 -S -c pass    tell what it is busy with"),
    )


def _see_log(it: Unreached) -> tuple[Fix, ...]:
    return (by_hand(it.name, "sudo journalctl -n 50 --no-pager    tells what happened there"),)


def _ask_proxy(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "{try_it} true    shows whether the jump host, the ProxyCommand or {host} fails; "
            "they stand in {config}",
            try_it=command_line(*it.ssh, "-v", it.name),
            host=it.name,
            config=it.config,
        ),
    )


def _ask_nobody(it: Unreached) -> tuple[Fix, ...]:
    """The block of ssh's settings by which it asks."""
    file, _, number = it.failure.about.rpartition(":")
    if not number.isdecimal():
        return (
            by_hand(
                "",
                "grep -niE '^ *match .*exec' {config} ~/.ssh/config /etc/ssh/ssh_config    finds "
                "the line: take it out, or have its program end at once",
                config=it.config,
            ),
        )
    path = file or str(at(it.seen.controller, "ssh_config") or "~/.ssh/config")
    return (pass_over_block(path, int(number), root=path.startswith("/etc/")),)


def _other_agent(it: Unreached) -> tuple[Fix, ...]:
    ask = command_line(*it.ssh, "-G", it.name)
    return (
        by_hand(
            "",
            "unset SSH_AUTH_SOCK    has ssh use the keys in its files; or start the agent anew: "
            '`eval "$(ssh-agent)"`, then `ssh-add`. An agent that {config} names (`IdentityAgent`) '
            "stands in: {ask} | grep -i identityagent",
            config=it.config,
            ask=ask,
        ),
    )


def _see_what_waits(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "{try_it} true    shows, only to look, what ssh here did last",
            try_it=command_line(*it.ssh, "-vvv", it.name),
        ),
    )


def _as_told(it: Unreached) -> tuple[Fix, ...]:
    """What the one who looked could tell about the very case."""
    return tuple(Fix("", as_made(line), by_hand=True) for line in it.failure.fix)


def _mend_config(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "mend that line; {try_it} says whether ssh reads all of it",
            try_it=command_line(*it.ssh, "-G", it.name),
        ),
    )


def _own_config(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "", "ls -l {file}; chmod go-w {file}; it must be yours or root's", file=it.failure.about
        ),
    )


def _agree(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "take the line that names so few out of /etc/ssh/sshd_config (KexAlgorithms, "
            "HostKeyAlgorithms, Ciphers, MACs: `sudo grep -rnE '^(Kex|HostKeyA|Ciph|MACs)' "
            "/etc/ssh/`), then {reload}; an sshd that knows no other is too old",
            reload=RELOAD,
        ),
    )


def _widen(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            "",
            "grep -niE '^ *(HostKeyAlgorithms|KexAlgorithms|Ciphers|MACs)' {config} "
            "/etc/ssh/ssh_config    finds the line: limit it to the host that it is meant for, or "
            "begin its list with +",
            config=it.config,
        ),
    )


def _more_sessions(it: Unreached) -> tuple[Fix, ...]:
    return (
        by_hand(
            it.name,
            "sudo sshd -T | grep -i maxsessions    has how many; `MaxSessions 10` is usual; "
            "then {reload}",
            reload=RELOAD,
        ),
    )


def _say_its_address(it: Unreached) -> tuple[Fix, ...]:
    address = it.host.wanted.get("address")
    if address:
        config = at(it.seen.controller, "ssh_config") or "~/.ssh/config"
        return (name_for_ssh(config, it.name, str(address)),)
    return (
        by_hand(
            "",
            "put it into {config}: `Host {host}` with `HostName ITS-ADDRESS`",
            config=it.config,
            host=it.name,
        ),
    )


def _start_server(it: Unreached) -> tuple[Fix, ...]:
    return (start_ssh_server(it.name),)


MENDS: Mapping[SshKind, Mapping[str, Mend]] = {
    "unresolved": {"": _say_its_address},
    "timeout": {
        "": _wake_or_arp,
        "mute": _ask_sshd,
        "large": _let_large_in,
        "filtered": _open_port,
        "slow": _see_load,
        "silent": _see_log,
        "jump": _ask_proxy,
        "asks": _ask_nobody,
        "agent": _other_agent,
        "helper": _see_what_waits,
        "waits": _see_what_waits,
    },
    "refused": {"": _start_server, "filtered": _open_port},
    "unreachable": {
        "": _wake_or_arp,
        "filtered": _open_port,
        "large": _let_large_in,
        "forbidden": _free_way,
        "no-route": _free_way,
    },
    "host-key": HOST_KEY,
    "denied": DENIED,
    "shell": {
        "": _run_commands,
        "hangs": _run_commands,
        "start-file": _leave_line_out,
        "nologin": _let_in,
        "key-command": _free_key,
        "sftp-only": _no_forced,
        "chroot": _no_chroot,
        "wrong-user": _other_user,
        "restricted": _free_shell,
        "full": _make_room,
    },
    "python": {
        "": _get_python,
        "not-executable": _let_run,
        "barred": _let_pass,
        "other-home": _own_home,
        "no-place": _give_place,
        "died": _look_at_python,
    },
    "other": {
        "": _as_told,
        "ended": _see_log,
        "closed": _ask_sshd,
        "cut": _ask_sshd,
        "altered": _find_writer,
        "jump": _ask_proxy,
        "starting": _wait,
        "bind": _own_address,
        "no-session": _more_sessions,
        "no-match": _agree,
        "narrowed": _widen,
        "config": _mend_config,
        "config-mode": _own_config,
        "no-ssh": _as_told,
    },
}
