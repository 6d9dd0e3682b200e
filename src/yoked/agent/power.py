"""Whether this host stays awake, at its speed, and keeps what was started when its user leaves.

Source: logind.conf(5), systemd.unit(5), the kernel's cpufreq documentation; of a planned shutdown
systemd's logind-dbus.c.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from yoked.agent.ask import lingers, number, run_quiet, text
from yoked.agent.awake import Awake, inhibitor_argv
from yoked.agent.facts import on_battery
from yoked.agent.processors import CPUS, affinity

# logind's own defaults.
_DEFAULTS = {"HandleLidSwitch": "suspend", "IdleAction": "ignore", "KillUserProcesses": "no"}
_PLACES = ("/usr/lib/systemd", "/usr/local/lib/systemd", "/run/systemd", "/etc/systemd")
# Firmware and drivers leave a few percent out; a host that is held down loses far more.
_HELD_DOWN = 0.85


def probe_power() -> dict[str, Any]:
    """on_battery, lid, lid_action, idle_action, can_inhibit, kill_user_processes, linger,
    governor, throttled, sleep_targets, shutdown_s.

    lid: open or closed; throttled: whether something holds the CPU below its highest frequency;
    sleep_targets: masked or allowed; shutdown_s: until a planned one. None: this host has none of
    it, or does not tell.
    """
    if sys.platform == "darwin":
        return {"on_battery": on_battery(), "can_inhibit": _can_inhibit()}
    logind = logind_settings()
    kills = logind.get("KillUserProcesses")
    return {
        "on_battery": on_battery(),
        "lid": _lid(),
        "lid_action": logind.get("HandleLidSwitch"),
        "idle_action": logind.get("IdleAction"),
        "can_inhibit": _can_inhibit(),
        "kill_user_processes": None if kills is None else kills in ("yes", "true", "on", "1"),
        "linger": lingers() if logind else None,
        "governor": text(CPUS / "cpu0/cpufreq/scaling_governor") or None,
        "throttled": throttled(CPUS, affinity()),
        "sleep_targets": _sleep_targets() if logind else None,
        "shutdown_s": planned_shutdown_s(),
    }


def planned_shutdown_s(root: Path = Path("/")) -> float | None:
    """Seconds until a shutdown that somebody planned."""
    said = text(root / "run/systemd/shutdown/scheduled")
    when = re.search(r"^USEC=(\d+)$", said, re.MULTILINE)
    left_s = int(when[1]) / 1e6 - time.time() if when else 0.0
    # `shutdown -k` sends messages alone.
    return None if left_s <= 0 or "MODE=dry-" in said else round(left_s, 1)


def logind_settings(root: Path = Path("/")) -> dict[str, str]:
    """What logind goes by; nothing where no systemd runs and nobody has set anything."""
    found = dict(_DEFAULTS) if (root / "run/systemd/system").is_dir() else {}
    for path in _settings_files(root):
        for line in text(path).splitlines():
            setting = re.fullmatch(r"\s*(\w+)\s*=\s*(\S*)\s*", line)
            if setting and setting[1] in _DEFAULTS:
                found[setting[1]] = setting[2] or _DEFAULTS[setting[1]]
    return found


def _settings_files(root: Path) -> list[Path]:
    """In the order in which they are read: later ones win."""
    folders = [root / place.lstrip("/") for place in _PLACES]
    main = [folder / "logind.conf" for folder in folders if (folder / "logind.conf").exists()]
    pieces: dict[str, Path] = {}
    for folder in folders:
        # A file hides another of the same name.
        pieces.update({path.name: path for path in (folder / "logind.conf.d").glob("*.conf")})
    return [*main[-1:], *(pieces[name] for name in sorted(pieces))]


def throttled(cpus: Path, numbers: tuple[int, ...]) -> bool | None:
    """Whether a CPU of ours is held below its highest frequency; None: it does not tell."""
    told = False
    for each in numbers:
        folder = cpus / f"cpu{each}/cpufreq"
        allowed, able = number(folder / "scaling_max_freq"), number(folder / "cpuinfo_max_freq")
        if allowed and able:
            told = True
            if allowed < _HELD_DOWN * able:
                return True
    return False if told else None


def _can_inhibit() -> bool | None:
    """Whether a run could keep this host awake: the lock is taken, and let go."""
    argv = inhibitor_argv("of the doctor")
    if argv is None:
        return None
    awake = Awake(argv)
    awake.release()
    return not awake.reason


def _lid() -> str | None:
    for path in sorted(Path("/proc/acpi/button/lid").glob("*/state")):
        return text(path).rpartition(":")[2].strip() or None
    return None


def _sleep_targets() -> str | None:
    target = Path("/etc/systemd/system/sleep.target")
    if target.is_symlink() and str(target.readlink()) == "/dev/null":
        return "masked"
    state = run_quiet(["systemctl", "show", "-p", "LoadState", "--value", "sleep.target"])
    if not state:
        return None
    return "masked" if state == "masked" else "allowed"
