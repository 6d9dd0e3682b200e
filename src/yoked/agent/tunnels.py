"""Tunnels whose packets a program of this host carries, or WireGuard in the kernel, and what each
of them takes from its peers. No key is told.

Source: tun_chr_show_fdinfo of Linux's drivers/net/tun.c, wg(8).
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import first_lines, text
from yoked.agent.firewall import tool
from yoked.agent.interfaces import NET

_PROC = Path("/proc")
# Programs of VPNs with a tun device, by the kernel's names.
_VPNS = frozenset({
    "openvpn", "tailscaled", "wireguard-go", "boringtun", "boringtun-cli", "nebula", "netbird",
    "zerotier-one", "openconnect", "vpnc", "tincd",
})  # fmt: skip
_TUN = re.compile(r"^iff:\t(\S+)$", re.MULTILINE)
_CONFIG = re.compile(r".*\.(conf|ovpn|ya?ml|toml|json|cfg|ini)")
# Where a file that is named after the interface may lie.
_FOLDERS = ("etc/wireguard", "etc", "run", "usr/local/etc/wireguard", "usr/local/etc")
_ALLOWS = re.compile(r"\s*AllowedIPs\s*=\s*(\S.*?)\s*", re.IGNORECASE)
_MOST_BYTES, _LONGEST, _MOST_LINES = 65_536, 200, 500


def probe_tunnels(
    proc: Path = _PROC, net: Path = NET, root: Path = Path("/")
) -> dict[str, Any] | None:
    """owners [{pid, command, interface, stopped, config}]: programs to which a tun or tap device
    belongs. stopped: in state T; config: the file that it was started with, or that bears the name
    of its interface, None: none is known; interface None: a stopped program of a VPN that is not
    ours to look at. allows: `INTERFACE PLACE AllowedIPs = NETWORKS` of peers, by such a file
    (`FILE:LINE`) or by wg(8) (`peer:KEY`). None where there is no /proc.
    """
    if not (proc / "self/stat").exists():
        return None
    owners = list(_owners(proc, root)) if any(net.glob("*/tun_flags")) else []
    kernels = any("DEVTYPE=wireguard" in text(each) for each in net.glob("*/uevent"))
    wg = tool("wg") if kernels else None
    allows = list(_by_wg(wg)) if wg else []
    for each in owners:
        if each["interface"] and each["config"]:
            allows += _by_file(each["interface"], Path(each["config"]))
    return {"owners": owners, "allows": list(dict.fromkeys(allows))[:_MOST_LINES]}


def _owners(proc: Path, root: Path) -> Iterator[dict[str, Any]]:
    here = _network(proc / "self")
    for process in sorted(path.parent for path in proc.glob("[0-9]*/comm")):
        if _network(process) not in (here, ""):
            continue
        files = _listed(process / "fdinfo")
        devices: set[str] = set()
        # Few programs have /dev/net/tun open: the others' descriptors need not be read.
        for each in files or ():
            if _target(process / "fd" / each.name) in (None, "/dev/net/tun"):
                devices.update(_TUN.findall(text(each)))
        is_vpn = files is None and text(process / "comm").strip() in _VPNS
        if not devices and not is_vpn:
            continue
        # Its name may have blanks and brackets.
        stopped = text(process / "stat").rpartition(")")[2].split()[:1] == ["T"]
        argv = [word for word in text(process / "cmdline").split("\0") if word]
        # Of what is not ours to look at, only that it stands is known to matter.
        belong: list[str | None] = [*sorted(devices)]
        for device in belong or [None] * stopped:
            yield {
                "pid": int(process.name),
                "command": " ".join(argv).strip()[:_LONGEST],
                "interface": device,
                "stopped": stopped,
                "config": _config(process, argv, device, root),
            }


def _config(process: Path, argv: list[str], device: str | None, root: Path) -> str | None:
    """The file that a program was started with, or that is named after its interface."""
    named = [process / "cwd" / word for word in argv[1:] if _CONFIG.fullmatch(word)]
    own = [root / folder / f"{device}.conf" for folder in _FOLDERS] if device else []
    for path in (*named, *own):
        try:
            if path.is_file():
                return str(path.resolve())
        except OSError:
            continue
    return None


def _by_file(interface: str, path: Path) -> Iterator[str]:
    try:
        if path.stat().st_size > _MOST_BYTES:
            return
    except OSError:
        return
    for number, line in enumerate(text(path).splitlines(), start=1):
        if found := _ALLOWS.fullmatch(line):
            yield f"{interface} {path}:{number} AllowedIPs = {found[1]}"


def _by_wg(wg: str) -> Iterator[str]:
    """As the kernel has them; root alone may ask."""
    lines, is_all = first_lines([wg, "show", "all", "allowed-ips"], _MOST_LINES)
    for words in map(str.split, lines if is_all else ()):
        if len(words) > 2:
            yield f"{words[0]} peer:{words[1]} AllowedIPs = {', '.join(words[2:])}"


def _listed(folder: Path) -> list[Path] | None:
    try:
        return list(folder.iterdir())
    except OSError:
        # It has ended, or is not ours to look at.
        return None


def _target(path: Path) -> str | None:
    try:
        return os.readlink(path)  # noqa: PTH115 - no path, but a label
    except OSError:
        return None


def _network(process: Path) -> str:
    """Which network a process is in; empty: it is not ours to ask."""
    try:
        return str((process / "ns/net").readlink())
    except OSError:
        return ""
