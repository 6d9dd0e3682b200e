"""How ssh goes to a host, how far it comes, and what else is to be seen of that host."""

from __future__ import annotations

import getopt
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import PurePath
from typing import Literal

from yoked.records.rules import CONTROL

OFFER = re.compile(r"no matching ([\w ]+) found\. Their offer: (\S+)")
# As `ssh -G` calls what the two sides did not agree on.
_KEYWORDS = {
    "key exchange method": "kexalgorithms",
    "host key type": "hostkeyalgorithms",
    "cipher": "ciphers",
    "MAC": "macs",
}
_PORT_WORDS = {
    "speaks": "speaks",
    "closes": "takes connections, and closes them",
    "mute": "takes connections, and says nothing",
    "refuses": "refuses connections",
}


@dataclass(frozen=True)
class Way:
    """How ssh goes to a host, by its configuration.

    address, port: where to; user: who comes in there. proxy: "" where ssh dials itself, "socket"
    where another program dials for it, "command" where it speaks through one, or through a host.
    hops: the jump hosts, the first first; program: what the ProxyCommand starts, without what it is
    told, which may be secret. files: keys and configurations that it reads; loose: those of the
    keys that others may read; locked: those that want a passphrase; stale: those whose .pub is of
    another key; gone: those that are not there. certificates: of these keys, each with what is
    wrong with it, "" where nothing is. agent: the socket of its key agent, "" where it asks none;
    is_files_only: whether it offers no other keys of the agent than those of its files.
    """

    address: str = ""
    port: int = 22
    user: str | None = None
    proxy: Literal["", "socket", "command"] = ""
    files: tuple[str, ...] = ()
    loose: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()
    stale: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()
    certificates: tuple[tuple[str, str], ...] = ()
    agent: str = ""
    hops: tuple[str, ...] = ()
    program: str = ""
    is_files_only: bool = False


@dataclass(frozen=True)
class Try:
    """One more try. words: of `ssh -v`; printed: what the shell there said before the program that
    was asked for; started: that program did; took: it got all that was sent to it.

    turn: who has to go on where it stopped, this machine or the host; "": unknown. helpers: what
    ssh had started here and was still running. after_s: from the login until the program started,
    or until it was given up. is_dumb: whether the key agent here answers nothing. place:
    `FILE:LINE` of the settings here that have ssh run the program that it waits for.
    """

    words: str = ""
    printed: str = ""
    started: bool = False
    took: bool = False
    turn: Literal["", "here", "there"] = ""
    helpers: tuple[str, ...] = ()
    after_s: float = 0.0
    is_dumb: bool = False
    place: str = ""


@dataclass(frozen=True)
class Signs:
    """What is to be seen of a host beside ssh.

    by: the host that looked, "" this machine. pings: whether a ping is answered; large: whether one
    of a full packet is. port: what the ssh port does; None: unknown, or nothing came from it.
    """

    by: str = ""
    pings: bool = False
    large: bool | None = None
    port: Literal["speaks", "closes", "mute", "refuses"] | None = None

    @property
    def is_on(self) -> bool:
        """Whether anything came from there."""
        return self.pings or self.port is not None

    @property
    def text(self) -> str:
        """As a part of a sentence."""
        found = ["it answers ping"] if self.pings and self.large is not False else []
        if self.large is False:
            found.append("it answers a small ping, and none of 1500 bytes")
        if self.port is not None:
            found.append(f"its ssh port {_PORT_WORDS[self.port]}")
        return f"{' and '.join(found)} (seen from {self.by or 'here'})" if found else ""


# ssh's own words of what it has sent and got; the last of these tells who has to go on. The numbers
# of packets are in the words of `ssh -vvv` alone.
_THERE = re.compile(r"debug1: (?:Connecting to |Executing proxy |Local version)|send packet: type")
_OURS = re.compile(r"receive packet: type|debug1: Executing command")
_QUIETER = re.compile(r"^debug[23]: .*\n?", re.MULTILINE)

_SPOKEN = "debug1: Remote protocol version"
_SETS = re.compile(r"\w+=")
# Source: ssh(1).
_SSH_OPTIONS = "46AaCfGgKkMNnqsTtVvXxYyB:b:c:D:E:e:F:I:i:J:L:l:m:O:o:P:p:Q:R:S:W:w:"
# Lines of ssh's own, where it did not come to a host.
_OWN = re.compile(
    r"debug\d: |OpenSSH_|kex_exchange_identification: |Connection closed by UNKNOWN|banner exchange"
    r"|Connection timed out during banner|Connection to UNKNOWN|mm_receive_fd: |proxy dialer did "
    r"|Authenticated to |Transferred: |Bytes per second: |Pseudo-terminal will not"
    r"|Warning: Permanently added"
)
_LATER = re.compile(r"(?<=.)debug\d: .*")
# As `ssh-keygen -L` tells of a certificate, in local time.
_TIME = r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)"
_SINCE = re.compile(rf"^ *Valid: (?:from|after) {_TIME}", re.MULTILINE)
_UNTIL = re.compile(rf"^ *Valid: (?:from \S+ to|before) {_TIME}", re.MULTILINE)
_PRINCIPALS = re.compile(r"^ *Principals: *\n((?: {16,}\S+\n)+)", re.MULTILINE)


def turn_of(words: str) -> Literal["", "here", "there"]:
    """Whose turn it is. words: of `ssh -vvv`, up to where it stopped.

    Before it has dialled, and after a packet came, whatever takes time is on this machine.
    """
    turn: Literal["", "here", "there"] = "here" if "debug1: " in words else ""
    for line in words.splitlines():
        if _THERE.search(line):
            turn = "there"
        elif _OURS.search(line):
            turn = "here"
    return turn


def louder_left_out(words: str) -> str:
    """What `ssh -v` would have said. words: of `ssh -vvv`."""
    return _QUIETER.sub("", words)


def way_of(said: str | None) -> Way:
    """The way to a host. said: by `ssh -G`."""
    told: dict[str, list[str]] = {}
    for line in (said or "").splitlines():
        name, _, value = line.partition(" ")
        told.setdefault(name, []).append(value)

    def first(name: str) -> str:
        value = told.get(name, [""])[0]
        return "" if value == "none" else value

    proxy: Literal["", "socket", "command"] = ""
    if first("proxycommand") or first("proxyjump"):
        proxy = "socket" if first("proxyusefdpass") == "yes" else "command"
    port = first("port")
    program, hops = _through(first("proxycommand"))
    if first("proxyjump"):
        hops = tuple(map(_name_of, first("proxyjump").split(",")))
    return Way(
        address=first("hostname"),
        port=int(port) if port.isdecimal() else 22,
        user=first("user") or None,
        proxy=proxy,
        files=tuple(each.strip('"') for each in told.get("identityfile", ())),
        certificates=tuple((each.strip('"'), "") for each in told.get("certificatefile", ())),
        agent=first("identityagent"),
        hops=hops,
        program=program,
        is_files_only=first("identitiesonly") == "yes",
    )


def _through(command: str) -> tuple[str, tuple[str, ...]]:
    """(program, jump hosts) of a ProxyCommand; a jump host where the program is another ssh."""
    try:
        words = shlex.split(command)
        while words and (words[0] == "exec" or _SETS.match(words[0])):
            del words[0]
        if not words:
            return "", ()
        if PurePath(words[0]).name != "ssh":
            return words[0], ()
        options, rest = getopt.gnu_getopt(words[1:], _SSH_OPTIONS)
    except (ValueError, getopt.GetoptError):
        # It is for the shell to read.
        return "", ()
    is_jump = rest and any(name == "-W" for name, _ in options)
    return words[0], (_name_of(rest[0]),) if is_jump else ()


def _name_of(hop: str) -> str:
    """A jump host as other settings call it: without the user and the port."""
    name = hop.removeprefix("ssh://").rpartition("@")[2]
    return name.partition(":")[0] if name.count(":") == 1 else name


def behind(words: str, way: Way) -> str | None:
    """The words of `ssh -v` from where it spoke with the host itself; None: it did not get there.

    Before that a jump host, or a program that leads there, says what it likes.
    """
    found = words.find(f"Authenticating to {way.address.lower()}:{way.port} as ")
    if found < 0:
        return None
    return words[max(0, words.rfind(_SPOKEN, 0, found)) :]


def told_on_the_way(words: str) -> list[str]:
    """The lines that a program on the way to a host printed. words: of ssh, with these lines."""
    # ssh writes between its words, too.
    lines = (CONTROL.sub("", _LATER.sub("", line)).strip() for line in words.splitlines())
    return [line for line in lines if line and not _OWN.match(line)]


def flaw_of(said: str, user: str | None, now: datetime) -> str:
    """What is wrong with a key's certificate; "": nothing that is to be seen here.

    said: by `ssh-keygen -L`; user: who comes in with it; now: by the clock of this machine.
    """
    if (found := _UNTIL.search(said)) and datetime.fromisoformat(found[1]) <= now:
        return f"expired at {found[1]}"
    if (found := _SINCE.search(said)) and now < datetime.fromisoformat(found[1]):
        return f"is not valid before {found[1]}"
    found = _PRINCIPALS.search(said)
    names = found[1].split() if found else []
    if names and user and user not in names:
        return f"is for {', '.join(names)} and not for {user}"
    return ""


def is_narrowed(text: str, own: Mapping[str, str], usual: Mapping[str, str]) -> bool:
    """Whether ssh's configuration leaves out what it would agree on with a host otherwise.

    text: ssh's words; own, usual: what `ssh -G` says with the configuration, and without one.
    """
    found = OFFER.search(text)
    keyword = _KEYWORDS.get(found[1]) if found else None
    if found is None or keyword is None or not own.get(keyword):
        return False
    offer = set(found[2].split(","))
    # That list may be written as a pattern, or as a change of the usual one.
    names = {each for each in own[keyword].split(",") if not re.search(r"[*?!]", each)}
    return bool(offer & set(usual.get(keyword, "").split(","))) and not offer & names
