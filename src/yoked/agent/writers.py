"""Programs that change this host while it runs: managers of addresses, and loops.

A loop is a script that goes on and, by its own text, sets links, addresses, routes, rules, or
limits of others, or ends connections. Others make packets by themselves. What of others nobody may
read is not told.
Source: proc(5), packet(7), raw(7).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yoked.agent.ask import text
from yoked.agent.listeners import socket_inodes

_PROC = Path("/proc")
# By the kernel's names, which have 15 letters.
_MANAGERS = frozenset(
    {
        "NetworkManager", "systemd-network", "dhcpcd", "dhclient", "udhcpc", "connmand", "iwd",
        "netifd", "wickedd-dhcp4", "pump", "dhcpcanon",
    }
)  # fmt: skip
# They have such sockets for what everybody wants, or only listen.
_USUAL_RAW = _MANAGERS | {
    "wpa_supplicant", "hostapd", "lldpd", "tcpdump", "dumpcap", "suricata", "snort", "zeek",
    "arpwatch", "avahi-daemon", "dnsmasq", "systemd-resolve", "radvd", "keepalived", "pppd",
    "charon", "bird", "zebra", "ospfd", "tailscaled", "ovs-vswitchd", "dhcpd", "kea-dhcp4",
    "cilium-agent", "calico-node", "lldpad", "ntopng", "iftop", "nethogs", "ping",
    "traceroute", "mtr-packet", "chronyd", "ladvd",
}  # fmt: skip
_RAW_TABLES = ("packet", "raw", "raw6")
_INTERPRETER = re.compile(r"(?:ba|da|z|k|mk|a|)sh|python[\d.]*|perl|ruby|watch")
_IN_WORDS = {"perl": "e", "ruby": "e"}
_GOES_ON = re.compile(r"\b(while|until|watch|loop)\b|\bfor\s*\(\(")
_WORDS = r"(?:\s+-\S+)*\s+"
# What each kind of change looks like, when quotes and commas of a list of words are blanks.
_CHANGES = {
    "connections": r"\bss\b.*\s(-\w*K|--kill)\b|\btcpkill\b|"
    r"\bconntrack\b.*\s(-D|-F|--delete|--flush)\b",
    "links": rf"\bip{_WORDS}l(i(nk?)?)?\s+set\b.*\s(up|down|master|nomaster|mtu|address|name)\b|"
    r"\bifconfig\s+\S+\s+(up|down)\b|\bif(up|down)\s|\bnmcli\b.*\s(up|down|connect|disconnect)\b",
    "addresses": rf"\bip{_WORDS}a(d(dr(ess)?)?)?\s+(add|del|delete|change|replace|flush)\b|"
    r"\bifconfig\s+\S+\s+\d+\.|\bdhclient\b|\bdhcpcd\b",
    "routes": rf"\bip{_WORDS}(r(o(ute?)?)?|ru(le?)?|n(ei(gh(bou?r)?)?)?)\s+"
    r"(add|del|delete|change|replace|flush|append)\b|\broute\s+(add|del)\b|\barp\s+-[sd]\b",
    "rules": r"\bnft\b(?!(\s+-\S+)*\s+list\b)|\bip6?tables(-legacy|-nft)?\b.*\s-[ADIRFXPN]\b|"
    r"\bip6?tables(-legacy|-nft)?-restore\b|\bufw\b.*\s(enable|reload|deny|reject|reset|default)\b|"
    r"\bfirewall-cmd\b.*\s--(reload|add|remove|complete)",
    "queues": rf"\btc{_WORDS}(qdisc|class|filter)\s+(add|del|delete|replace|change)\b",
    "limits": r"\bprlimit\b|\bsetrlimit\b",
    "settings": r"\bsysctl\b.*\s(-\w*w\w*|-p|--system)\b|\bsysctl\b.*\bnet\S+=|>\s*/proc/sys/net",
}
_QUOTES = re.compile(r"[\"'`,()\[\]]+")
_MOST_BYTES, _LONGEST = 65_536, 200


def probe_writers(proc: Path = _PROC) -> dict[str, Any] | None:
    """managers: names of programs that renew addresses; None: others' are hidden. loops [{pid,
    command, changes, words}]: changes: the kinds of `_CHANGES`; words: the line of the first. raw
    [{pid, command}]: programs that make packets by themselves, or take those of others. None where
    there is no /proc.
    """
    if not (proc / "self/stat").exists():
        return None
    names = {path.parent: text(path) for path in proc.glob("[0-9]*/comm")}
    # Who hides processes of others hides the first one too.
    managers = sorted(_MANAGERS & {*names.values()}) if proc / "1" in names else None
    here = _network(proc / "self")
    # In a container it changes the network of that.
    found = [each for each in scripts(proc) if _network(each.process) in (here, "")]
    return {
        "managers": managers,
        "loops": list(filter(None, map(_loop, found))),
        "raw": _raw(proc, names),
    }


def _raw(proc: Path, names: Mapping[Path, str]) -> list[dict[str, Any]]:
    """The programs that have a socket past the kernel's own protocols."""
    inodes = {inode for name in _RAW_TABLES for inode in _inodes(text(proc / "net" / name))}
    found = []
    for process in sorted(names) if inodes else ():
        if names[process] in _USUAL_RAW or process.name == str(os.getpid()):
            continue
        if inodes & set(map(str, socket_inodes(int(process.name), proc))):
            words = " ".join(text(process / "cmdline").split("\0")).strip()
            found.append({"pid": int(process.name), "command": words[:_LONGEST]})
    return found


def _inodes(table: str) -> set[str]:
    """Those of a table of sockets, whose columns bear their names."""
    heading, *rows = [line.split() for line in table.splitlines()] or [[]]
    if "Inode" in heading:
        return {row[-1] for row in rows}
    # Those of the kernel's other tables have two columns for one name in front.
    return {row[9] for row in rows if len(row) > 9}


def _network(process: Path) -> str:
    """Which network a process is in; empty: it is not ours to ask."""
    return _link(process / "ns/net")


def _link(path: Path) -> str:
    try:
        return str(path.readlink())
    except OSError:
        return ""


class Script(NamedTuple):
    """A script that runs. command: its words; file: where it lies, empty: in these words."""

    process: Path
    command: str
    file: str
    text: str

    @property
    def goes_on(self) -> bool:
        """Whether it does by its own text."""
        return _GOES_ON.search(self.text) is not None


def scripts(proc: Path = _PROC) -> Iterator[Script]:
    """What interpreters run on this host, as far as it can be read."""
    own = str(os.getpid())
    for process in sorted(proc.glob("[0-9]*")):
        try:
            words = (process / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
        except OSError:
            continue
        argv = [os.fsdecode(word) for word in words]
        # The kernel calls a script that is started by its own name as its file is called.
        names = (text(process / "comm"), os.path.basename(argv[0]).lstrip("-"))  # noqa: PTH119 - no path, but a word
        interpreter = next(filter(_INTERPRETER.fullmatch, names), None)
        if interpreter is None or process.name == own:
            continue
        file, program = _program(process, interpreter, argv)
        if file and not file.startswith("/"):
            file = os.path.join(_link(process / "cwd"), file)  # noqa: PTH118 - of another process
        if program:
            yield Script(process, " ".join(argv)[:_LONGEST], file, program)


def _loop(script: Script) -> dict[str, Any] | None:
    """A script that goes on changing the network; None: it is none."""
    found = dict(_changes(script.text)) if script.goes_on else {}
    if not found:
        return None
    return {
        "pid": int(script.process.name),
        "command": script.command,
        "changes": list(found),
        "words": next(iter(found.values()))[:_LONGEST],
    }


def _program(process: Path, interpreter: str, argv: list[str]) -> tuple[str, str]:
    """(file, text) of what an interpreter runs; empty where it cannot be read."""
    if interpreter == "watch":
        return "", f"watch {' '.join(argv[1:])}"
    in_words = f"-[a-z]*{_IN_WORDS.get(interpreter, 'c')}"
    for place, word in enumerate(argv[1:], start=1):
        if word == "-m":
            break
        if re.fullmatch(in_words, word):
            return "", " ".join(argv[place + 1 : place + 2])
        if not word.startswith("-"):
            return word, read_script(process / "cwd" / word)
    return "", ""


def read_script(path: Path) -> str:
    """What a file says; empty where it cannot be read, or is no script."""
    try:
        # Programs in an archive are no scripts.
        if not path.is_file() or path.stat().st_size > _MOST_BYTES:
            return ""
        return path.read_text(errors="replace")
    except (OSError, ValueError):
        return ""


def _changes(program: str) -> Iterator[tuple[str, str]]:
    """(kind, the line) of what a program changes, each kind once, in the order of the lines."""
    told: set[str] = set()
    for line in program.splitlines():
        plain = " ".join(_QUOTES.sub(" ", line.partition("#")[0]).split())
        for kind, pattern in _CHANGES.items():
            # Compiled here: most hosts have no such program.
            if kind not in told and re.search(pattern, plain):
                told.add(kind)
                yield kind, plain
