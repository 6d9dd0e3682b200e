"""The GPUs of this host, found without torch: by the vendors' tools and the kernel's files; and
whether they can be used now: driver, permission, and who uses them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from yoked.agent.ask import run_quiet, text

_NVIDIA = "0x10de"
# PCI's class of display controllers.
_DISPLAY = "0x03"
_QUICK_S = 1.5
_QUERY = "--query-gpu=name,memory.total,driver_version"


def find_gpus(
    proc: Path = Path("/proc"), kfd: Path = Path("/sys/class/kfd/kfd/topology/nodes")
) -> list[dict[str, Any]]:
    """Each: vendor, name, memory_bytes and driver, where they are told. Apple's are no list: they
    belong to its CPU.
    """
    return _nvidia(proc) + _amd(kfd)


def _nvidia(proc: Path) -> list[dict[str, Any]]:
    # The driver has this folder whether its tools are installed or not.
    cards = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    told = parse_nvidia_smi(run_quiet(["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"]))
    return told or [
        {"vendor": "nvidia", "name": _model(path), "memory_bytes": None, "driver": None}
        for path in cards
    ]


def parse_nvidia_smi(said: str) -> list[dict[str, Any]]:
    """What `nvidia-smi` tells: a line a GPU; its memory is in MiB."""
    found = []
    for line in said.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 3:
            continue
        name, memory, driver = fields
        memory_bytes = int(memory) << 20 if memory.isdigit() else None
        found.append(
            {"vendor": "nvidia", "name": name, "memory_bytes": memory_bytes, "driver": driver}
        )
    return found


def _model(path: Path) -> str:
    for line in text(path).splitlines():
        if line.startswith("Model:"):
            return line.partition(":")[2].strip()
    return "NVIDIA GPU"


def _amd(nodes: Path) -> list[dict[str, Any]]:
    """AMD's compute driver lists CPUs too: these have no SIMD units."""
    found = []
    for node in sorted(nodes.glob("*")):
        lines = text(node / "properties").splitlines()
        properties = dict(line.split(maxsplit=1) for line in lines if " " in line)
        if int(properties.get("simd_count", 0)) == 0:
            continue
        target = int(properties.get("gfx_target_version", 0))
        memory_bytes = sum(_bank_bytes(path) for path in (node / "mem_banks").glob("*/properties"))
        found.append(
            {
                "vendor": "amd",
                "name": f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}",
                "memory_bytes": memory_bytes or None,
                "driver": None,
            }
        )
    return found


def _bank_bytes(path: Path) -> int:
    """The size of one memory bank of a GPU."""
    for line in text(path).splitlines():
        if line.startswith("size_in_bytes "):
            return int(line.split()[1])
    return 0


def probe_gpu(args: Mapping[str, Any]) -> dict[str, Any]:
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
        "busy": busy_of(run_quiet(_apps())) if driver else [],
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
