"""What follows from each cause of a failure of ssh: the causes of yoked.doctor.sshfailure, by kind.

"" is a cause that is not known. What lies on this machine says so: no host is to blame for it.
"""

from __future__ import annotations

from collections.abc import Mapping

from yoked.records.examination import SshKind

_TRAINS = "a run wants all of its hosts"
_HERE = "the fault is here, not on the hosts"
# Of all hosts at once, so no cause of one.
EVERYWHERE = "everywhere"

_TIMEOUT = {
    "": "nothing at its address answers: it is off, asleep or elsewhere, a firewall drops port 22, "
    f"or its interface answers no ARP; cannot tell which; {_TRAINS}",
    "mute": "it is on, and its port takes connections, but its ssh server says nothing or closes "
    "them: /etc/hosts.deny, a name server that does not answer, all places for logins taken, no "
    "memory left; cannot tell which",
    "large": "it is on; larger packets are lost on the way (the MTU of an interface, a tunnel, a "
    "rule that drops by length), or it is too busy to go on; cannot tell which",
    "filtered": "it is on, and this machine gets no answer from its ssh server: a firewall there "
    "or between, a ban of this address, or routes there that do not lead back; cannot tell which",
    "slow": "ssh comes in and programs start there, but an agent takes too long: the host is busy, "
    "or its Python is slow to start",
    "silent": "it was reached, and then stopped answering: it was suspended, lost its network, or "
    "is overloaded; cannot tell which",
    "jump": "the host, or what stands between (a jump host, a ProxyCommand), does not answer; "
    "cannot tell which",
    "asks": f"the settings of ssh have it ask a program before each connection: {_HERE}",
    "agent": f"each login by a key asks the agent first: {_HERE}",
    "helper": f"each login waits for that program of this machine: {_HERE}",
    "waits": f"{_HERE}: a name server or a drive that does not answer, an agent or a token that "
    "wants a person, or this machine is too busy; cannot tell which",
}
_UNREACHABLE = {
    "": "there is no way to it from here: it is off, elsewhere, or answers no ARP; cannot tell "
    f"which; {_TRAINS}",
    "filtered": "it is on, and this machine gets no way to its ssh server: a firewall there or "
    "between rejects it, or a route here is wrong; cannot tell which",
    "large": "it is on and small packets pass; larger ones are lost on the way",
    "forbidden": f"a route or a firewall of this machine forbids the way: {_HERE}",
    "no-route": "no network of this machine leads there; a VPN or an interface may be down: "
    f"{_HERE}",
}
_HOST_KEY = {
    "": "ssh refuses to speak with what may be another machine; go on only if you know why its "
    "key is another",
    "revoked": "known_hosts here has an @revoked line with this key: ssh refuses it, whatever is "
    "known of it otherwise",
}
_DENIED = {
    "": "it does not let our key in, and a run cannot type a password; its sshd knows why",
    "refused-key": "its sshd refuses the key, and tells nobody outside why: the key is not in the "
    "file that it reads, others may write to that file, the account is locked or not allowed, or "
    "the key is revoked or of a kind that it does not take; cannot tell which",
    EVERYWHERE: "every host refuses what this machine offers: the key here, or the user that ssh "
    "comes in as, is the likely cause",
    "after-key": "its sshd takes the key, and then refuses the account: it is expired, or kept out "
    "by PAM; its sshd knows which",
    "expired": "account or password of that user have expired there: no program may start",
    "second-factor": "its sshd takes the key and asks for more, which a run cannot type "
    "(AuthenticationMethods)",
    "keys-off": "its sshd takes no keys at all, and a run cannot type a password",
    "algorithm": "its sshd takes no key of our kind (PubkeyAcceptedAlgorithms)",
    "key-mode": f"ssh does not use a key that others may read: {_HERE}",
    "passphrase": f"the key here wants its passphrase, which nobody types for a run: {_HERE}",
    "stale-pub": f"ssh offers what the .pub beside the key says, which no host knows: {_HERE}",
    "no-key": f"ssh has no key here to offer: {_HERE}",
    "unused-key": f"the host takes the key, but ssh cannot sign with it: {_HERE}",
    "too-many": f"ssh offers so many keys that sshd hangs up before the right one: {_HERE}",
}
_SHELL = {
    "": "something else than the agent starts there: a start file of the shell that prints or "
    "exits, a shell like nologin, ForceCommand, command= of the key, or ~/.ssh/rc; cannot tell "
    "which",
    "hangs": "the login is through, and what starts there waits: a start file of the shell, "
    "ForceCommand, ~/.ssh/rc or /etc/ssh/sshrc; cannot tell which",
    "start-file": "the shell runs that line for each program that comes in by ssh, the agent and "
    "the ranks among them",
    "nologin": "the login shell of that user lets nobody in",
    "key-command": "authorized_keys there has a command= for our key, which runs instead of any "
    "other",
    "sftp-only": "its sshd gives this user or key nothing but sftp: ForceCommand, or command= of "
    "the key",
    "chroot": "sshd finds no login shell: it changes the root to a folder that has none "
    "(ChrootDirectory), or the shell was removed",
    "wrong-user": "that account is not for logins",
    "restricted": "the login shell is a restricted one, which starts no program by its path",
    "full": "no program can write there: a disk or a quota is full",
}
_PYTHON = {
    "": "the agent, and every rank, is a Python program",
    "not-executable": "the system there may not execute that Python: its mode, or that of what it "
    "links to, or a file system that is mounted noexec",
    "barred": "that Python is there, and a folder on the way to it, or to what it links to, is "
    "closed to the user as whom ssh comes in",
    "other-home": "that Python takes the library of another one, whose parts do not fit it",
    "no-place": "the agent is unpacked into the cache, or else into /dev/shm: a disk that is full, "
    "a folder of somebody else's, or a program that empties the cache",
    "died": "the shell there runs what it is told, and Python ends before it runs the agent",
}
_OTHER = {
    "": f"there is no agent on it; {_TRAINS}",
    "ended": "something ended the connection: a timeout of sshd, a script that ends logins, a "
    "restart, or the network; what was seen until then counts for nothing",
    "closed": "it is on, and its sshd closes connections before a word is said: all places for "
    "logins taken (MaxStartups), /etc/hosts.deny, a ban of this address, or it is just starting; "
    "cannot tell which",
    "cut": "the connection broke while the two sides agreed on keys: its sshd ended, or something "
    "on the way damages or cuts packets; cannot tell which",
    "altered": "what comes is not what was sent: a rule of a firewall that writes into data, there "
    "or here, or a card or switch that damages it; cannot tell which",
    "jump": "what stands between (a jump host, or a ProxyCommand) does not lead to it",
    "starting": "the host is starting or going down, and lets nobody in meanwhile",
    "bind": "ssh is told to come from an address that this machine does not have (BindAddress): "
    f"{_HERE}",
    "no-session": "the login is through, and its sshd opens no session (MaxSessions)",
    "no-match": "its sshd allows nothing that ssh here does",
    "narrowed": f"the settings of ssh leave out what it would agree on with the host: {_HERE}",
    "config": f"ssh does not read its own settings: {_HERE}",
    "config-mode": f"others may write to the settings of ssh, so it does not trust them: {_HERE}",
    "no-ssh": f"no other host can be reached: {_HERE}",
}

WHY: Mapping[SshKind, Mapping[str, str]] = {
    "unresolved": {"": f"nobody knows where it is; {_TRAINS}"},
    "timeout": _TIMEOUT,
    "refused": {
        "": "the host is up, but no ssh server listens there",
        "filtered": "its ssh server runs, and this machine is turned away: a ban (fail2ban), or a "
        "firewall that answers so; cannot tell which",
    },
    "unreachable": _UNREACHABLE,
    "host-key": _HOST_KEY,
    "denied": _DENIED,
    "shell": _SHELL,
    "python": _PYTHON,
    "other": _OTHER,
}
