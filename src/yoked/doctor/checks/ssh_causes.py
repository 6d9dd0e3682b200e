"""What follows from each cause of a failure of ssh, and the lines that mend it, or tell more: the
causes of yoked.doctor.sshfailure, by kind.

"" is a cause that is not known. What lies on this machine says so: no host is to blame for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from yoked.doctor.checks.ssh_mends import (
    ASK_PROXY,
    AT_CONSOLE,
    COPY_KEY,
    FREE_WAY,
    LET_LARGE_IN,
    OPEN_PORT,
    REFUSED,
    RUN_COMMANDS,
    SEE_ARP,
    SEE_HOLDERS,
    SEE_LOG,
    SEE_WHAT_WAITS,
    Cause,
    as_told,
    ask_nobody,
    give_shell,
    here,
    leave_line_out,
    let_pass,
    look_at_key,
    made,
    say_its_address,
    there,
    unless_home,
    wake,
)
from yoked.doctor.repairs.files import (
    close_key,
    make_executable,
    name_home,
    renew_pub,
)
from yoked.doctor.repairs.system import install_python, start_ssh_server
from yoked.records.examination import SshKind

_TRAINS = "a run wants all of its hosts"
_HERE = "the fault is here, not on the hosts"

CAUSES: Mapping[SshKind, Mapping[str, Cause]] = {
    "unresolved": {
        "": Cause(f"nobody knows where it is; {_TRAINS}", say_its_address),
    },
    "timeout": {
        "": Cause(
            "nothing at its address answers: it is off, asleep or elsewhere, a firewall drops "
            f"port 22, or its interface answers no ARP; cannot tell which; {_TRAINS}",
            wake,
            SEE_ARP,
        ),
        "mute": Cause(
            "it is on, and its port takes connections, but its ssh server says nothing or closes "
            "them: /etc/hosts.deny, a name server that does not answer, all places for logins "
            "taken, no memory left; cannot tell which",
            AT_CONSOLE,
            SEE_HOLDERS,
        ),
        "large": Cause(
            "it is on; larger packets are lost on the way (the MTU of an interface, a tunnel, a "
            "rule that drops by length), or it is too busy to go on; cannot tell which",
            *LET_LARGE_IN,
        ),
        "filtered": Cause(
            "it is on, and this machine gets no answer from its ssh server: a firewall there or "
            "between, a ban of this address, or routes there that do not lead back; cannot tell "
            "which",
            OPEN_PORT,
        ),
        "slow": Cause(
            "ssh comes in and programs start there, but an agent takes too long: the host is "
            "busy, or its Python is slow to start",
            there("uptime; free -h; time python3 -S -c pass    tell what it is busy with"),
        ),
        "silent": Cause(
            "it was reached, and then stopped answering: it was suspended, lost its network, or "
            "is overloaded; cannot tell which",
            SEE_LOG,
        ),
        "jump": Cause(
            "the host, or what stands between (a jump host, a ProxyCommand), does not answer; "
            "cannot tell which",
            ASK_PROXY,
        ),
        "asks": Cause(
            f"the settings of ssh have it ask a program before each connection: {_HERE}",
            ask_nobody,
        ),
        "agent": Cause(
            f"each login by a key asks the agent first: {_HERE}",
            here(
                "unset SSH_AUTH_SOCK    has ssh use the keys in its files; or start the agent "
                'anew: `eval "$(ssh-agent)"`, then `ssh-add`. An agent that {config} names '
                "(`IdentityAgent`) stands in: {ssh_g} | grep -i identityagent"
            ),
        ),
        "helper": Cause(
            f"each login waits for that program of this machine: {_HERE}",
            SEE_WHAT_WAITS,
        ),
        "waits": Cause(
            f"{_HERE}: a name server or a drive that does not answer, an agent or a token that "
            "wants a person, or this machine is too busy; cannot tell which",
            SEE_WHAT_WAITS,
        ),
    },
    "refused": {
        "": Cause(
            "the host is up, but no ssh server listens there",
            made(start_ssh_server, "host"),
        ),
        "filtered": Cause(
            "its ssh server runs, and this machine is turned away: a ban (fail2ban), or a "
            "firewall that answers so; cannot tell which",
            OPEN_PORT,
        ),
    },
    "unreachable": {
        "": Cause(
            "there is no way to it from here: it is off, elsewhere, or answers no ARP; cannot "
            f"tell which; {_TRAINS}",
            wake,
            SEE_ARP,
        ),
        "filtered": Cause(
            "it is on, and this machine gets no way to its ssh server: a firewall there or "
            "between rejects it, or a route here is wrong; cannot tell which",
            OPEN_PORT,
        ),
        "large": Cause(
            "it is on and small packets pass; larger ones are lost on the way",
            *LET_LARGE_IN,
        ),
        "forbidden": Cause(
            f"a route or a firewall of this machine forbids the way: {_HERE}",
            FREE_WAY,
        ),
        "no-route": Cause(
            f"no network of this machine leads there; a VPN or an interface may be down: {_HERE}",
            FREE_WAY,
        ),
    },
    "host-key": {
        "": Cause(
            "ssh refuses to speak with what may be another machine; go on only if you know why "
            "its key is another",
            look_at_key,
        ),
        "revoked": Cause(
            "known_hosts here has an @revoked line with this key: ssh refuses it, whatever is "
            "known of it otherwise",
            here(
                "{ssh_g} | grep -i knownhosts    names the files; `grep -n '^@revoked' FILE` the "
                "line: somebody declared this key stolen or lost",
                "if you know that it is not: take that line out; else {host} needs a new key: "
                "sudo ssh-keygen -A, after the old one is removed",
            ),
        ),
    },
    "denied": {
        "": Cause(
            "it does not let our key in, and a run cannot type a password; its sshd knows why",
            *REFUSED,
        ),
        "refused-key": Cause(
            "its sshd refuses the key, and tells nobody outside why: the key is not in the file "
            "that it reads, others may write to that file, the account is locked or not allowed, "
            "or the key is revoked or of a kind that it does not take; cannot tell which",
            *REFUSED,
        ),
        "after-key": Cause(
            "its sshd takes the key, and then refuses the account: it is expired, or kept out by "
            "PAM; its sshd knows which",
            AT_CONSOLE,
        ),
        "expired": Cause(
            "account or password of that user have expired there: no program may start",
            AT_CONSOLE,
        ),
        "second-factor": Cause(
            "its sshd takes the key and asks for more, which a run cannot type "
            "(AuthenticationMethods)",
            there(
                "put at the end of /etc/ssh/sshd_config: `Match User {user} Address "
                "ADDRESS-OF-THIS-MACHINE` with `AuthenticationMethods publickey` below it; then "
                "{reload}"
            ),
        ),
        "keys-off": Cause(
            "its sshd takes no keys at all, and a run cannot type a password",
            there("`PubkeyAuthentication yes` in /etc/ssh/sshd_config; then {reload}"),
            COPY_KEY,
        ),
        "algorithm": Cause(
            "its sshd takes no key of our kind (PubkeyAcceptedAlgorithms)",
            there(
                "sudo sshd -T | grep -i '^pubkeyaccepted'    has the kinds that it takes, in "
                "/etc/ssh/sshd_config; then {reload}"
            ),
            here(
                "or make a key of a kind that it takes (`ssh-keygen -t ed25519`; `ssh-keygen -t "
                "rsa -b 3072` for smart cards and old systems), and then {copy}"
            ),
        ),
        "key-mode": Cause(
            f"ssh does not use a key that others may read: {_HERE}",
            made(close_key, "about"),
        ),
        "passphrase": Cause(
            f"the key here wants its passphrase, which nobody types for a run: {_HERE}",
            here(
                "ssh-add {about}    asks for the passphrase once; where no agent runs, first: "
                'eval "$(ssh-agent)"'
            ),
        ),
        "stale-pub": Cause(
            f"ssh offers what the .pub beside the key says, which no host knows: {_HERE}",
            made(renew_pub, "about"),
        ),
        "no-key": Cause(
            f"ssh has no key here to offer: {_HERE}",
            here(
                "ssh-keygen -t ed25519    makes a key; where there is one of another name, "
                "`IdentityFile` in {config} has to name it"
            ),
            COPY_KEY,
        ),
        "unused-key": Cause(
            f"the host takes the key, but ssh cannot sign with it: {_HERE}",
            here(
                "{ssh_v} true    has why; an agent that refuses is helped by `ssh-add -D` and "
                "then `ssh-add`"
            ),
        ),
        "too-many": Cause(
            f"ssh offers so many keys that sshd hangs up before the right one: {_HERE}",
            here(
                "put into {config}, for `Host {host}`: `IdentitiesOnly yes`, and `IdentityFile` "
                "with the one key that it takes; `ssh-add -l` lists what is offered now"
            ),
        ),
    },
    "shell": {
        "": Cause(
            "something else than the agent starts there: a start file of the shell that prints or "
            "exits, a shell like nologin, ForceCommand, command= of the key, or ~/.ssh/rc; cannot "
            "tell which",
            *RUN_COMMANDS,
        ),
        "hangs": Cause(
            "the login is through, and what starts there waits: a start file of the shell, "
            "ForceCommand, ~/.ssh/rc or /etc/ssh/sshrc; cannot tell which",
            *RUN_COMMANDS,
        ),
        "start-file": Cause(
            "the shell runs that line for each program that comes in by ssh, the agent and the "
            "ranks among them",
            leave_line_out,
        ),
        "nologin": Cause("the login shell of that user lets nobody in", give_shell),
        "key-command": Cause(
            "authorized_keys there has a command= for our key, which runs instead of any other",
            there(
                "take `command=...` out of line {line} of {file}, or give {host} a key of its own "
                "there"
            ),
        ),
        "sftp-only": Cause(
            "its sshd gives this user or key nothing but sftp: ForceCommand, or command= of the "
            "key",
            there(
                "`ForceCommand internal-sftp` of /etc/ssh/sshd_config, or `command=` of "
                "~/.ssh/authorized_keys, must not be for this user and key; after a change: "
                "{reload}"
            ),
        ),
        "chroot": Cause(
            "sshd finds no login shell: it changes the root to a folder that has none "
            "(ChrootDirectory), or the shell was removed",
            there(
                "`ChrootDirectory` of /etc/ssh/sshd_config must not be for this user; after a "
                "change: {reload}. Where there is none, {about} is gone: sudo usermod -s /bin/sh "
                "{user}"
            ),
        ),
        "wrong-user": Cause(
            "that account is not for logins",
            here("put into {config}, for `Host {host}`: `User {about}`"),
        ),
        "restricted": Cause(
            "the login shell is a restricted one, which starts no program by its path",
            there("sudo usermod -s /bin/bash {user}"),
        ),
        "full": Cause(
            "no program can write there: a disk or a quota is full",
            there("df -h ~ /tmp; df -i ~ /tmp; quota    tell what is full"),
        ),
    },
    "python": {
        "": Cause(
            "the agent, and every rank, is a Python program",
            unless_home(made(install_python, "host")),
        ),
        "not-executable": Cause(
            "the system there may not execute that Python: its mode, or that of what it links to, "
            "or a file system that is mounted noexec",
            made(make_executable, "host", "about"),
        ),
        "barred": Cause(
            "that Python is there, and a folder on the way to it, or to what it links to, is "
            "closed to the user as whom ssh comes in",
            let_pass,
        ),
        "other-home": Cause(
            "that Python takes the library of another one, whose parts do not fit it",
            made(name_home, "host", "about"),
        ),
        "no-place": Cause(
            "the agent is unpacked into the cache, or else into /dev/shm: a disk that is full, a "
            "folder of somebody else's, or a program that empties the cache",
            there(
                "ls -ld ~/.cache/yoked; df -h ~ /dev/shm    show whether it is full, or somebody "
                "else's; where it is removed, `ps aux` has the cleaner, or the loop, that does it"
            ),
        ),
        "died": Cause(
            "the shell there runs what it is told, and Python ends before it runs the agent",
            unless_home(
                there(
                    "{python} -E -s -S -c 'print(1)'    shows it; `sudo dmesg | tail` tells "
                    "whether the kernel ended it"
                )
            ),
        ),
    },
    "other": {
        "": Cause(f"there is no agent on it; {_TRAINS}", as_told),
        "ended": Cause(
            "something ended the connection: a timeout of sshd, a script that ends logins, a "
            "restart, or the network; what was seen until then counts for nothing",
            SEE_LOG,
        ),
        "closed": Cause(
            "it is on, and its sshd closes connections before a word is said: all places for "
            "logins taken (MaxStartups), /etc/hosts.deny, a ban of this address, or it is just "
            "starting; cannot tell which",
            AT_CONSOLE,
            SEE_HOLDERS,
        ),
        "cut": Cause(
            "the connection broke while the two sides agreed on keys: its sshd ended, or "
            "something on the way damages or cuts packets; cannot tell which",
            AT_CONSOLE,
            SEE_HOLDERS,
        ),
        "altered": Cause(
            "what comes is not what was sent: a rule of a firewall that writes into data, there "
            "or here, or a card or switch that damages it; cannot tell which",
            AT_CONSOLE,
            there(
                "sudo nft -a list ruleset | grep -E '@|set'    there, and here, shows a rule that "
                "writes into data: nft delete rule TABLE CHAIN handle NUMBER. Where there is "
                "none: another cable, another port of the switch"
            ),
        ),
        "jump": Cause(
            "what stands between (a jump host, or a ProxyCommand) does not lead to it",
            ASK_PROXY,
        ),
        "starting": Cause(
            "the host is starting or going down, and lets nobody in meanwhile",
            there("wait a minute; where it stays so, /run/nologin is left over: ls /run/nologin"),
        ),
        "bind": Cause(
            "ssh is told to come from an address that this machine does not have (BindAddress): "
            f"{_HERE}",
            here(
                "grep -niE '^ *Bind' {config} /etc/ssh/ssh_config    finds the line: take it out, "
                "or limit it to the host that it is meant for"
            ),
        ),
        "no-session": Cause(
            "the login is through, and its sshd opens no session (MaxSessions)",
            there(
                "sudo sshd -T | grep -i maxsessions    has how many; `MaxSessions 10` is usual; "
                "then {reload}"
            ),
        ),
        "no-match": Cause(
            "its sshd allows nothing that ssh here does",
            there(
                "take the line that names so few out of /etc/ssh/sshd_config (KexAlgorithms, "
                "HostKeyAlgorithms, Ciphers, MACs: `sudo grep -rnE '^(Kex|HostKeyA|Ciph|MACs)' "
                "/etc/ssh/`), then {reload}; an sshd that knows no other is too old"
            ),
        ),
        "narrowed": Cause(
            f"the settings of ssh leave out what it would agree on with the host: {_HERE}",
            here(
                "grep -niE '^ *(HostKeyAlgorithms|KexAlgorithms|Ciphers|MACs)' {config} "
                "/etc/ssh/ssh_config    finds the line: limit it to the host that it is meant "
                "for, or begin its list with +"
            ),
        ),
        "config": Cause(
            f"ssh does not read its own settings: {_HERE}",
            here("mend that line; {ssh_g} says whether ssh reads all of it"),
        ),
        "config-mode": Cause(
            f"others may write to the settings of ssh, so it does not trust them: {_HERE}",
            here("ls -l {about}; chmod go-w {about}; it must be yours or root's"),
        ),
        "no-ssh": Cause(f"no other host can be reached: {_HERE}", as_told),
    },
}
