"""What follows from each cause of a failure of ssh, and the lines that mend it, or tell more: the
causes of yoked.doctor.sshfailure, by kind.

"" is a cause that is not known. What lies on this machine says so: no host is to blame for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from yoked.doctor.checks.shell_causes import AFTER_LOGIN
from yoked.doctor.checks.ssh_mends import (
    ASK_PROXY,
    AT_CONSOLE,
    COPY_KEY,
    FREE_WAY,
    LET_LARGE_IN,
    LOG_IN_TO_PROXY,
    OPEN_PORT,
    REFUSED,
    SEE_ARP,
    SEE_HOLDERS,
    SEE_LOG,
    SEE_WHAT_WAITS,
    Cause,
    as_told,
    ask_nobody,
    at_hop,
    here,
    leave_option_out,
    look_at_key,
    made,
    say_its_address,
    there,
    wake,
)
from yoked.doctor.repairs.files import close_key, renew_pub
from yoked.doctor.repairs.system import start_ssh_server
from yoked.records.examination import SshKind

_TRAINS = "a run wants all of its hosts"
_HERE = "the fault is here, not on the hosts"

CAUSES: Mapping[SshKind, Mapping[str, Cause]] = {
    "unresolved": {"": Cause(f"nobody knows where it is; {_TRAINS}", say_its_address)},
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
        "proxy-asks": Cause(
            f"it wants a person, and a run has none at a terminal: {_HERE}", *LOG_IN_TO_PROXY
        ),
        "asks": Cause(
            f"the settings of ssh have it ask a program before each connection: {_HERE}", ask_nobody
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
            f"each login waits for that program of this machine: {_HERE}", SEE_WHAT_WAITS
        ),
        "waits": Cause(
            f"{_HERE}: a name server or a drive that does not answer, an agent or a token that "
            "wants a person, or this machine is too busy; cannot tell which",
            SEE_WHAT_WAITS,
        ),
    },
    "refused": {
        "": Cause(
            "the host is up, but no ssh server listens there", made(start_ssh_server, "host")
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
            "it is on and small packets pass; larger ones are lost on the way", *LET_LARGE_IN
        ),
        "forbidden": Cause(
            f"a route or a firewall of this machine forbids the way: {_HERE}", FREE_WAY
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
        "host-certificate": Cause(
            "known_hosts here knows the host by the authority alone that signs hosts' keys, and "
            "its certificate does not count now; its key may well be the one that it always had",
            there(
                "have its host key signed anew where the authority is: ssh-keygen -s CA -h -I "
                "{host} -n {host} -V +1w ssh_host_ed25519_key.pub; `sudo sshd -T | grep -i "
                "hostcertificate` names the file that it goes to; then {reload}"
            ),
            here("date    must be right here and there: a certificate counts by the clock here"),
        ),
        "authority": Cause(
            "known_hosts here knows neither the key of the host nor the authority that signed its "
            "certificate",
            here(
                "ask who keeps the authority for its public key; where `ssh-keygen -lf` of that "
                "shows {about}, put it into known_hosts: `@cert-authority * KEY`"
            ),
            look_at_key,
        ),
        "revoked-list": Cause(
            "the settings of ssh name a list of revoked host keys (RevokedHostKeys), and it cannot "
            f"be read: so ssh takes no host's key: {_HERE}",
            here(
                "ls -l {about}    mount what it lies on, or take the line away that names it: "
                "grep -rni revokedhostkeys {config} /etc/ssh/ssh_config /etc/ssh/ssh_config.d"
            ),
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
        "refused-cert": Cause(
            "the certificate is valid as far as is to be seen here: its sshd does not trust who "
            "signed it (TrustedUserCAKeys), wants another name in it (AuthorizedPrincipalsFile), "
            "or refuses the account; cannot tell which",
            AT_CONSOLE,
            there(
                "sudo sshd -T | grep -iE '^(trustedu|authorizedp|revoked)'    names the files; "
                "`ssh-keygen -lf` of the first has to show the `Signing CA` that `ssh-keygen -L -f "
                "KEY-cert.pub` shows here"
            ),
        ),
        "certificate": Cause(
            f"a host that knows the key by its certificate alone does not take it: {_HERE}",
            here(
                "ssh-keygen -L -f {about}    shows it; have the key signed anew where the "
                "authority is: ssh-keygen -s CA -I NAME -n {user} -V +1w KEY.pub; where `date` is "
                "wrong here or there, set the clock"
            ),
        ),
        "after-key": Cause(
            "its sshd takes the key, and then refuses the account: it is expired, or kept out by "
            "PAM; its sshd knows which",
            AT_CONSOLE,
        ),
        "expired": Cause(
            "account or password of that user have expired there: no program may start", AT_CONSOLE
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
            f"ssh does not use a key that others may read: {_HERE}", made(close_key, "about")
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
        "key-gone": Cause(
            f"ssh has no other key to offer: {_HERE}",
            here(
                "put the key there, or name the one to use in {config}: {ssh_g} | grep -i "
                "identityfile; `ls ~/.ssh` has those that are here"
            ),
        ),
        "kept-keys": Cause(
            "`IdentitiesOnly yes` keeps ssh from the keys of its agent, and the files that it "
            f"names are not there: {_HERE}",
            here(
                "`ssh-add -L` has the keys of the agent: put the line of the right one into a "
                "file, and name it in {config} (`IdentityFile`), or take IdentitiesOnly out"
            ),
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
        "agent-refuses": Cause(
            "the host takes the key, and the agent does not sign: it asks a person first (a key "
            "added with `ssh-add -c`), and has no ssh-askpass or no display to ask on; or it is "
            f"locked, or a token waits to be touched: {_HERE}",
            here(
                "`ssh-add -d KEY`, then `ssh-add KEY` without -c    has it sign without a "
                "question; for an agent that {config} names, put SSH_AUTH_SOCK=ITS-SOCKET in "
                "front: {ssh_g} | grep -i identityagent"
            ),
        ),
        "agent-lacks": Cause(
            f"that is the public half alone, and no agent has the other one: {_HERE}",
            here(
                "{ssh_g} | grep -i identityfile    have {config} name the private half there, "
                "without .pub"
            ),
            here(
                "or, where an agent is to have it: ssh-add -l    lists what that has: start it, "
                "and `ssh-add KEY`; one that {config} names stands in: {ssh_g} | grep -i "
                "identityagent"
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
    **AFTER_LOGIN,
    "other": {
        "": Cause(f"there is no agent on it; {_TRAINS}", as_told),
        "ended": Cause(
            "something ended the connection: a timeout of sshd, a script that ends logins, a "
            "restart, or the network; what was seen until then counts for nothing",
            SEE_LOG,
        ),
        "ended-by": Cause(
            "it may well have ended the agent of this look, and would end a run's launcher and "
            "ranks; what was seen until then counts for nothing",
            there("end it, or have it spare what a run starts: ps -ef | grep -F {about}"),
        ),
        "timed-out": Cause(
            "what works in silence over ssh for as long is cut off, this look among it",
            there(
                "give {file}, line {line}, a longer time (ChannelTimeout session:*=1h), or take "
                "it out; then {reload}"
            ),
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
            "what stands between (a jump host, or a ProxyCommand) does not lead to it", ASK_PROXY
        ),
        "jump-forbids": Cause(
            "its sshd opens no connections for others (DisableForwarding, AllowTcpForwarding, "
            "PermitOpen), or our key may not (`restrict`, `no-port-forwarding` or `permitopen` in "
            "authorized_keys); who is reached through it is well, as far as is known",
            at_hop(
                "sudo sshd -T | grep -iE '^(disablef|allowt|permito)'    has what counts; "
                "DisableForwarding must be no, AllowTcpForwarding yes or local, and PermitOpen "
                "any: `sudo grep -rniE '^ *(disablef|allowt|permito)' /etc/ssh/` finds the line; "
                "then {reload}"
            ),
        ),
        "jump-in": Cause(
            "who is reached through it cannot be reached either",
            here(
                "{ssh_v} true    shows how far ssh comes into {about}, the jump host that {config} "
                "names for {host}"
            ),
        ),
        "jump-on": Cause(
            "the jump host does its part as far as it can: the host behind it is off, has another "
            "address there, or has no ssh server at that port",
            wake,
            at_hop("ping -c 1 {target}; ip route get {target}    tell whether a way leads there"),
        ),
        "jump-name": Cause(
            "the name that ssh's settings here have for the host (HostName) is looked up by the "
            "jump host; nothing is known against who is reached through it",
            at_hop(
                "grep -n {target} /etc/hosts; getent hosts {target}    have it name the host's own "
                "address, or ask the name server that it asks"
            ),
            here("or put that address into {config}: `HostName ADDRESS` for `Host {host}`"),
        ),
        "proxy-gone": Cause(
            f"nothing else leads to the host: {_HERE}",
            here(
                "install {about}, or write its path in {config} (`ProxyCommand`) as it is; "
                "`command -v {about}` finds it; `chmod +x` where it may not be executed"
            ),
        ),
        "proxy-asks": Cause(
            f"it wants a person, and a run has none at a terminal: {_HERE}", *LOG_IN_TO_PROXY
        ),
        "proxy-ends": Cause(
            f"what it says is why: {_HERE}",
            here("{ssh_g} | grep -i proxycommand    has the line to try by hand"),
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
        "option": Cause(
            f"with a copy of the settings that lacks it a command runs there: {_HERE}",
            leave_option_out,
        ),
        "program": Cause(
            f"whatever sends its work over ssh (rsync, git, tar) fails with it, too: {_HERE}",
            here(
                "type -a ssh    has both: take {about} out of PATH, rename it, or have it hand "
                'on what it is given as it is, and its input: exec /usr/bin/ssh "$@"'
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
