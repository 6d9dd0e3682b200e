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

from yoked.agent.ask import process_names, run_quiet, text

# A shell that ssh starts need not have them all.
TOOL_PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/local/sbin", "/usr/sbin", "/sbin"])
_TOOLS = ("ufw", "firewall-cmd", "nft", "iptables")
_UNITS = ("ufw", "firewalld", "nftables", "iptables", "netfilter-persistent")
_KINDS = {"nftables": "nft", "netfilter-persistent": "iptables"}
_ADMINISTRATORS = ("sudo", "wheel", "admin")
# The elements of a set may be very many; nobody reads them.
_LONGEST_LINE = 2000
_APPLICATION_FIREWALL = "/usr/libexec/ApplicationFirewall/socketfilterfw"


def probe_firewall(*, sudo: bool = False) -> dict[str, Any]:
    """kind, active, rules, zone (firewalld's) and tools: those of `_TOOLS` that are there.

    ruleset: all of the kernel's rules, where `rules` has the words of another tool; policies: of
    IPsec. Both for root alone, and None otherwise.
    """
    ruleset = policies = None
    if sys.platform == "darwin":
        kind, active, rules = _of_macos()
    else:
        root, started = _as_root(may_ask=sudo), _started()
        if started is None and root is not None:
            kind, active, rules = _of_rules(root)
        else:
            kind, active = started, True if started else None
            rules = None if root is None else _rules(started, root)
            # Other tables stand beside those of the tool, and decide as well.
            if root is not None and started != "nft":
                ruleset = _ruleset(root)
        policies = None if root is None else _policies(root)
    return {
        "kind": kind,
        "active": active,
        "rules": rules,
        "zone": _zone() if kind == "firewalld" else None,
        "tools": [name for name in _TOOLS if tool(name)],
        "ruleset": ruleset,
        "policies": policies,
    }


def probe_sudo(*, sudo: bool = False) -> dict[str, bool | None]:
    """root: whether we are. without_password: whether sudo asks for none; None: not tried, because
    nobody asked for it (`sudo`), or it would be reported: the user is no administrator.
    """
    if os.getuid() == 0 or not sudo:
        return {"root": os.getuid() == 0, "without_password": None}
    if not _may_try_sudo():
        return {"root": False, "without_password": None if tool("sudo") else False}
    return {"root": False, "without_password": _sudo_asks_nothing()}


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


def _of_rules(root: list[str]) -> tuple[str | None, bool | None, list[str] | None]:
    """kind, active and rules of the firewall that the kernel's rules show."""
    nft = tool("nft")
    said = run_quiet([*root, nft, "list", "ruleset"]) if nft else ""
    iptables = tool("iptables-save")
    if decides(said):
        ours = "iptables" if "managed by iptables-nft" in said else "nft"
        return ours, True, _lines(said)
    old = run_quiet([*root, iptables]) if iptables else ""
    if re.search(r"^(-A |:\w+ (DROP|REJECT))", old, re.MULTILINE):
        return "iptables", True, _lines(old)
    if nft is None and iptables is None:
        return None, None, None
    return "none", False, []


def _ruleset(root: list[str]) -> list[str] | None:
    """All rules as nft has them, else as iptables does; None: neither tells."""
    nft, iptables = tool("nft"), tool("iptables-save")
    said = run_quiet([*root, nft, "list", "ruleset"]) if nft else ""
    if not said and iptables:
        said = run_quiet([*root, iptables])
    return _lines(said) or None


def _policies(root: list[str]) -> list[str] | None:
    ip = tool("ip")
    return _lines(run_quiet([*root, ip, "xfrm", "policy"])) if ip else None


def _rules(kind: str | None, root: list[str]) -> list[str] | None:
    """The rules in the words of the firewall that made them."""
    words = {
        "ufw": ["ufw", "status", "verbose"],
        "firewalld": ["firewall-cmd", "--list-all"],
        "nft": ["nft", "list", "ruleset"],
        "iptables": ["iptables-save"],
    }.get(kind or "")
    path = tool(words[0]) if words else None
    if words is None or path is None:
        return None
    return _lines(run_quiet([*root, path, *words[1:]])) or None


def _lines(said: str) -> list[str]:
    """Lines as they may be told, without control characters: nft indents with tabs."""
    return [line[:_LONGEST_LINE] for line in said.expandtabs(4).splitlines()]


def _zone() -> str | None:
    path = tool("firewall-cmd")
    return (run_quiet([path, "--get-default-zone"]) or None) if path else None


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
    return [sudo, "-n"] if sudo and _may_try_sudo() and _sudo_asks_nothing() else None


def _sudo_asks_nothing() -> bool:
    return run_quiet([tool("sudo") or "sudo", "-n", "echo", "yes"]) != ""


def _may_try_sudo() -> bool:
    """Whether the user is an administrator: sudo reports others to root."""
    import grp

    if not tool("sudo"):
        return False
    for number in os.getgroups():
        try:
            if grp.getgrgid(number).gr_name in _ADMINISTRATORS:
                return True
        except KeyError:
            continue
    return False
