"""Which firewall this host has, whether it is on, and its rules as far as we may read them.

Only root may read a kernel's rules; others see which firewall is there and whether it is started.
Source: ufw(8), firewall-cmd(1), nft(8), iptables-save(8), socketfilterfw of macOS.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from yoked.agent import netlink
from yoked.agent.ask import first_lines, process_names, run_quiet, text

# A shell that ssh starts need not have them all.
TOOL_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_TOOLS = ("ufw", "firewall-cmd", "nft", "iptables")
_UNITS = ("ufw", "firewalld", "nftables", "iptables", "netfilter-persistent")
_KINDS = {"nftables": "nft", "netfilter-persistent": "iptables"}
_ADMINISTRATORS = ("sudo", "wheel", "admin")
# The elements of a set may be very many; nobody reads them.
_LONGEST_LINE = 2000
# What is read of the rules; and a chain with more of them than _LONG takes its time with a packet.
_MOST_LINES, _LONG = 20_000, 5000
# Those that have their own tables beside nft's; the last speak for whichever the system has chosen.
_SAVERS = ("iptables-legacy-save", "ip6tables-legacy-save")
_PLAIN_SAVERS = ("iptables-save", "ip6tables-save")
_APPLICATION_FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"


def probe_firewall(*, sudo: bool = False) -> dict[str, Any]:
    """kind, active, rules and tools: those of `_TOOLS` that are there.

    ruleset: all of the kernel's rules, where `rules` has the words of another tool; old: those of
    the old iptables, where they stand beside others; policies: of IPsec. long: {chain: rules} of
    those with very many, whose tables are not among the rules. readers: the queues from which a
    program takes packets. All of these for root alone, and None otherwise.
    """
    ruleset = policies = old = long = None
    if sys.platform == "darwin":
        kind, active, rules = _of_macos()
    else:
        root, started = _as_root(may_ask=sudo), _started()
        kind, active, rules = started, True if started else None, None
        if root is not None:
            sizes, old = _chain_sizes(), _old(root)
            long = {name: count for name, count in sizes.items() if count > _LONG}
            ruleset, policies = _ruleset(root, sizes, long), _policies(root)
            if started is None:
                kind, active, rules = _of_rules(ruleset, old)
            else:
                rules = ruleset if started == "nft" else _rules(started, root)
            if rules is ruleset:
                ruleset = None
            if rules is old:
                old = None
    return {
        "kind": kind,
        "active": active,
        "rules": rules,
        "tools": [name for name in _TOOLS if tool(name)],
        "ruleset": ruleset or None,
        "old": old or None,
        "long": long or None,
        "readers": queue_readers(),
        "policies": policies,
    }


def tool(name: str) -> str | None:
    """The path of a tool for administrators; None: it is not there."""
    return shutil.which(name, path=TOOL_PATH)


def decides(rules: str) -> bool:
    """Whether nft's rules decide about what comes in or goes out."""
    hooks = "input|prerouting|ingress|output|postrouting|egress"
    tables = re.sub(r"^table (arp|bridge) .*?^}", "", rules, flags=re.MULTILINE | re.DOTALL)
    return re.search(rf"\bhook ({hooks})\b", tables) is not None


def _started() -> str | None:
    """The firewall that is switched on, by what everybody may read."""
    if re.search(r"^ENABLED=yes", text(Path("/etc/ufw/ufw.conf")), re.MULTILINE):
        return "ufw"
    # Its own tool takes a quarter of a second to say so.
    if "firewalld" in process_names():
        return "firewalld"
    # Exits with 3 when one of them is off, and says what is on all the same.
    states = run_quiet(["sh", "-c", f"systemctl is-active {' '.join(_UNITS)} || true"]).split()
    for unit, state in zip(_UNITS, states):  # noqa: B905 - not before Python 3.10
        # ufw's unit is active on a machine where ufw is switched off.
        if state == "active" and unit != "ufw":
            return _KINDS.get(unit, unit)
    return None


def _of_rules(
    ruleset: list[str] | None, old: list[str]
) -> tuple[str | None, bool | None, list[str] | None]:
    """kind, active and rules of the firewall that the kernel's rules show."""
    said = "\n".join(ruleset or ())
    if decides(said):
        ours = "iptables" if "managed by iptables-nft" in said else "nft"
        return ours, True, ruleset
    if re.search(r"^(-A |:\w+ (DROP|REJECT))", "\n".join(old), re.MULTILINE):
        return "iptables", True, old
    if tool("nft") is None and tool("iptables-save") is None:
        return None, None, None
    return ("none", False, []) if ruleset is not None else (None, None, None)


def _ruleset(root: list[str], sizes: dict[str, int], long: dict[str, int]) -> list[str] | None:
    """All rules as nft has them, but those of tables with a long chain; None: it does not tell."""
    nft = tool("nft")
    if nft is None:
        return []
    asked = [["ruleset"]]
    if long:
        tables = dict.fromkeys(tuple(chain.split()[:2]) for chain in sizes)
        unwanted = {tuple(chain.split()[:2]) for chain in long}
        asked = [["table", *each] for each in tables if each not in unwanted]
    found: list[str] = []
    for words in asked:
        # Each rule with its number, by which it can be deleted.
        lines, is_all = first_lines([*root, nft, "-a", "list", *words], _MOST_LINES)
        if not is_all:
            return None
        found += lines
    return _lines(found)


def _chain_sizes() -> dict[str, int]:
    """{chain, as nft names it: its rules}. None are known to who may not ask."""
    try:
        return dict(netlink.chains()) if netlink.can_ask() else {}
    except OSError:
        return {}


def _old(root: list[str]) -> list[str]:
    """The rules of the old iptables, those of each program under a line with its name."""
    savers = [name for name in _SAVERS if tool(name)]
    known = {os.path.realpath(tool(name) or "") for name in savers}
    if tool("nft") is None:
        plain = ((name, tool(name)) for name in _PLAIN_SAVERS)
        savers += [name for name, path in plain if path and os.path.realpath(path) not in known]
    found: list[str] = []
    for name in savers:
        lines, is_all = first_lines([*root, tool(name) or name], _MOST_LINES)
        if is_all and any(line.startswith(("-A ", ":")) for line in lines):
            found += [f"# {name}", *lines]
    return _lines(found)


def queue_readers(proc: Path = Path("/proc")) -> list[int] | None:
    """The numbers of the queues from which a program takes packets; None: it is not told."""
    path = proc / "net/netfilter/nfnetlink_queue"
    if not os.access(path, os.R_OK):
        return None
    return [int(line.split()[0]) for line in text(path).splitlines() if line.split()[0].isdigit()]


def _policies(root: list[str]) -> list[str] | None:
    ip = tool("ip")
    return _lines(run_quiet([*root, ip, "xfrm", "policy"]).splitlines()) if ip else None


def _rules(kind: str | None, root: list[str]) -> list[str] | None:
    """The rules in the words of the firewall that made them."""
    words = {
        "ufw": ["ufw", "status", "verbose"],
        "firewalld": ["firewall-cmd", "--list-all"],
        "iptables": ["iptables-save"],
    }.get(kind or "")
    path = tool(words[0]) if words else None
    if words is None or path is None:
        return None
    return _lines(run_quiet([*root, path, *words[1:]]).splitlines()) or None


def _lines(said: list[str]) -> list[str]:
    """Lines as they may be told, without control characters: nft indents with tabs."""
    return [line.expandtabs(4)[:_LONGEST_LINE] for line in said]


def _of_macos() -> tuple[str | None, bool | None, None]:
    """kind, active and rules, which it does not tell."""
    said = run_quiet([_APPLICATION_FIREWALL, "--getglobalstate"])
    return ("macos", "enabled" in said, None) if said else (None, None, None)


def _as_root(*, may_ask: bool) -> list[str] | None:
    """What makes a command root's; None: nothing does, or sudo may not be asked for it."""
    if os.getuid() == 0:
        return []
    if not may_ask:
        return None
    sudo = tool("sudo")
    if sudo is None or not _may_try_sudo() or not run_quiet([sudo, "-n", "echo", "yes"]):
        return None
    return [sudo, "-n"]


def _may_try_sudo() -> bool:
    """Whether the user is an administrator: sudo reports others to root."""
    import grp

    for number in os.getgroups():
        try:
            if grp.getgrgid(number).gr_name in _ADMINISTRATORS:
                return True
        except KeyError:
            continue
    return False
