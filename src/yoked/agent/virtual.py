"""What this host runs inside of: a container, or Linux in Windows (WSL).

There an address may be one that no other machine can dial, and a firewall stand that Linux does not
see. Windows tells by its own programs, where WSL lets Linux start them.

Source: Microsoft's pages on WSL networking and the Hyper-V firewall; podman-run(1).
"""

from __future__ import annotations

import os
import re
import shutil
from pathlib import Path
from typing import Any

from yoked.agent.ask import number, run_quiet, text
from yoked.agent.interfaces import NET
from yoked.agent.routes import default_gateway

# Windows gives this name to all Linux machines of WSL in its firewall for virtual machines.
WSL_CREATOR = "{40E0AC32-46A5-438A-A0B2-2B479E8F2E90}"
_SYSTEM32 = Path("/mnt/c/Windows/System32")
_POWERSHELL = _SYSTEM32 / "WindowsPowerShell/v1.0/powershell.exe"
_INBOUND = (
    "(Get-NetFirewallHyperVVMSetting -PolicyStore ActiveStore "
    f"-Name '{WSL_CREATOR}').DefaultInboundAction"
)
# `listen address, port, connect address, port`, in whatever language the heading is.
_PASSED_ON = re.compile(r"^\S+\s+(\d{1,5})\s+\S+\s+\d{1,5}\s*$", re.MULTILINE)
# A WSL in mirrored mode has an interface of this name beside those of Windows.
_MIRRORED = "loopback0"


def probe_virtual() -> dict[str, Any]:
    """container (docker, podman, kubernetes, lxc, ...; None: in none), bridged (interfaces whose
    other end is outside of the container), networking (nat, mirrored, ...), portproxy (ports that
    Windows passes on to others) and inbound (what Windows' firewall does with connections to WSL:
    Allow or Block); None: not told.
    """
    inside = container()
    return {
        "container": inside,
        "bridged": bridged() if inside else [],
        **windows(text(Path("/proc/sys/kernel/osrelease"))),
    }


def container(root: Path = Path("/")) -> str | None:
    """Which kind of container this host is; None: it is none that says so."""
    if (root / "var/run/secrets/kubernetes.io").exists():
        return "kubernetes"
    # systemd's own note, which most managers write: systemd(1), "container interface".
    noted = text(root / "run/systemd/container") or text(root / "run/host/container-manager")
    # WSL writes it too, and is a whole machine.
    if noted and noted != "wsl" and re.fullmatch(r"[\w.-]+", noted):
        return noted
    if (root / ".dockerenv").exists():
        return "docker"
    return "podman" if (root / "run/.containerenv").exists() else None


def bridged(net: Path = NET) -> list[str]:
    """Interfaces that are one end of a pair: the other end is in another network namespace."""
    return [
        path.name
        for path in sorted(net.glob("*"))
        if (path / "iflink").exists() and number(path / "iflink") != number(path / "ifindex")
    ]


def windows(kernel: str) -> dict[str, Any]:
    """What of it is told where this is Linux in Windows. kernel: its release."""
    if "microsoft" not in kernel.lower():
        return dict.fromkeys(("networking", "portproxy", "inbound"))
    mode = networking()
    return {
        "networking": mode,
        "portproxy": portproxy(),
        # The older modes have no firewall of their own: nothing comes in at all.
        "inbound": inbound() if mode == "mirrored" else None,
    }


def networking(net: Path = NET) -> str | None:
    """How WSL is connected: as it says itself, else as its interfaces look."""
    said = run_quiet(["wslinfo", "--networking-mode"]) if shutil.which("wslinfo") else ""
    if re.fullmatch(r"[a-z]{1,20}", said):
        return said
    if (net / _MIRRORED).exists():
        return "mirrored"
    gateway = default_gateway()
    return "nat" if gateway is not None and _is_private(gateway[0]) else None


def _is_private(address: str) -> bool:
    """Whether an address is of 172.16.0.0/12, from which Windows takes its NAT's network."""
    first, second = (int(part) for part in address.split(".")[:2])
    return first == 172 and 16 <= second < 32


def portproxy() -> list[int] | None:
    """The ports that Windows passes on; None: it cannot be asked."""
    netsh = _SYSTEM32 / "netsh.exe"
    if not os.access(netsh, os.X_OK):
        return None
    said = run_quiet([str(netsh), "interface", "portproxy", "show", "v4tov4"])
    return sorted({int(port) for port in _PASSED_ON.findall(said)})


def inbound() -> str | None:
    """What Windows does with a connection to WSL that no rule names; None: it cannot be asked."""
    if not os.access(_POWERSHELL, os.X_OK):
        return None
    said = run_quiet([str(_POWERSHELL), "-NoProfile", "-NonInteractive", "-Command", _INBOUND])
    return said if said in ("Allow", "Block") else None
