"""Whether the GPUs of this host can be used now: driver, permission, and who uses them."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yoked.agent.ask import said_by, text
from yoked.agent.gpus import find_gpus

_NVIDIA = "0x10de"
# PCI's class of display controllers.
_DISPLAY = "0x03"
_QUICK_S = 1.5


def part_gpu(args: Mapping[str, Any]) -> dict[str, Any]:
    """driver, devices (as in facts), error (why they cannot be used) and busy [{pid, command,
    memory_bytes}].
    """
    del args
    driver = driver_version(text(Path("/proc/driver/nvidia/version")))
    cards = nvidia_cards(Path("/sys/bus/pci/devices"))
    return {
        "driver": driver,
        "devices": find_gpus(),
        "error": _error(driver, cards),
        "busy": busy_of(said_by(_apps())) if driver else [],
    }


def driver_version(said: str) -> str | None:
    """The version in /proc/driver/nvidia/version."""
    found = re.search(r"Kernel Module\s+(?:for \S+\s+)?(\d[\d.]+)", said)
    return found[1] if found else None


def nvidia_cards(devices: Path) -> int:
    """How many display controllers of NVIDIA are plugged in, with a driver or without."""
    return sum(
        text(path / "vendor") == _NVIDIA and text(path / "class").startswith(_DISPLAY)
        for path in devices.glob("*")
    )


def busy_of(said: str) -> list[dict[str, Any]]:
    """What `nvidia-smi` says of programs that compute: pid, name, MiB."""
    found = []
    for line in said.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) == 3 and fields[0].isdigit():
            memory = int(fields[2]) << 20 if fields[2].isdigit() else None
            found.append({"pid": int(fields[0]), "command": fields[1], "memory_bytes": memory})
    return found


def _apps() -> list[str]:
    fields = "--query-compute-apps=pid,process_name,used_memory"
    return ["nvidia-smi", fields, "--format=csv,noheader,nounits"]


def _error(driver: str | None, cards: int) -> str | None:
    if driver is None:
        return f"{cards} NVIDIA GPU(s) without a driver" if cards else None
    closed = [
        str(path)
        for path in sorted(Path("/dev").glob("nvidia[0-9]*"))
        if not os.access(path, os.R_OK | os.W_OK)
    ]
    if closed:
        return f"no permission for {', '.join(closed)}"
    return _said_against()


def _said_against() -> str | None:
    """What nvidia-smi says when it fails: a driver that does not fit its libraries, mostly."""
    try:
        done = subprocess.run(
            ["nvidia-smi", "-L"],  # noqa: S607 - wherever it is installed
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_QUICK_S,
            check=False,
        )
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as problem:
        return f"nvidia-smi: {problem}"
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or "nvidia-smi"
