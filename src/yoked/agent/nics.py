"""The network cards of this host, those that are down too, and its radios.

Source: sysfs-class-net, packet(7), iw(8).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from yoked.agent.ask import number, run_quiet, text
from yoked.agent.firewall import tool
from yoked.agent.interfaces import NET, UP, given_addresses, speed_bit_per_s
from yoked.agent.queues import unusual_queues

# Those of loopback and of tunnels are none.
_MAC = re.compile(r"(?!00(:00)*$)[0-9a-f]{2}(:[0-9a-f]{2})+")
# How sysfs names the links to those that one lies over, as a VLAN, a bridge or a bond does.
_LOWER = "lower_"


def probe_links() -> dict[str, Any] | None:
    """{interface: up, carrier, speed_bit_per_s, duplex, mtu_bytes, mac, lower, queues, ends_s};
    lower: the interfaces that it lies over; queues: see `yoked.agent.queues`; ends_s: {address:
    seconds until the kernel takes it away}. None where there is no /sys.
    """
    if not NET.is_dir():
        return None
    queues, given = unusual_queues(), given_addresses()
    return {
        path.name: {
            **describe(path),
            "queues": queues.get(path.name, []),
            "ends_s": {
                each.address: each.valid_s
                for each in given
                if each.interface == path.name and each.valid_s is not None
            },
        }
        for path in sorted(NET.iterdir())
        # Bonding keeps a file here.
        if (path / "flags").exists()
    }


def describe(card: Path) -> dict[str, Any]:
    """One interface. card: its folder in /sys/class/net."""
    carrier = number(card / "carrier")
    return {
        "up": bool(int(text(card / "flags") or "0", 16) & UP),
        # One that is switched off cannot be asked for its carrier.
        "carrier": None if carrier is None else bool(carrier),
        "speed_bit_per_s": speed_bit_per_s(card / "speed"),
        "duplex": duplex if (duplex := text(card / "duplex")) in ("full", "half") else None,
        "mtu_bytes": number(card / "mtu"),
        "mac": mac if _MAC.fullmatch(mac := text(card / "address")) else None,
        "lower": sorted(path.name[len(_LOWER) :] for path in card.glob(f"{_LOWER}*")),
    }


def probe_wireless() -> dict[str, Any]:
    """{interface: power_save, signal_dbm} of the radios; power_save: None where iw is absent."""
    radios = [
        path.name
        for path in sorted(NET.glob("*"))
        if (path / "wireless").exists() or (path / "phy80211").exists()
    ]
    iw = tool("iw")
    signals = signals_of(text(Path("/proc/net/wireless")))
    found = {}
    for name in radios:
        saves = run_quiet([iw, "dev", name, "get", "power_save"]) if iw else ""
        found[name] = {"power_save": saves_power(saves), "signal_dbm": signals.get(name)}
    return found


def saves_power(said: str) -> bool | None:
    """Whether a radio saves power, by `iw dev NAME get power_save`; None: that says nothing."""
    state = re.search(r"Power save: (on|off)", said)
    return state[1] == "on" if state else None


def signals_of(wireless: str) -> dict[str, float]:
    """{interface: dBm} from /proc/net/wireless."""
    found = {}
    for line in wireless.splitlines()[2:]:
        name, _, rest = line.partition(":")
        fields = rest.split()
        if len(fields) > 2:
            found[name.strip()] = float(fields[2].rstrip("."))
    return found
