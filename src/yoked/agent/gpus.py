"""The GPUs of this host, found without torch: by the vendors' tools and the kernel's files; and
whether they can be used now: driver, permission, and who uses them.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.agent.ask import named_values, run_quiet, run_to_end, text

_NVIDIA = "0x10de"
# PCI's class of display controllers.
_DISPLAY = "0x03"
_QUICK_S = 1.5
_GPUS = "--query-gpu=name,memory.total,driver_version"
# AMD's targets that are a part of a processor. Source: LLVM, "User Guide for AMDGPU Backend".
_INTEGRATED = frozenset(
    f"gfx{each}"
    for each in (
        *("700", "703", "705", "801", "810", "902", "909", "90c", "1013", "1033", "1035", "1036"),
        *("1103", "1150", "1151", "1152", "1153"),
    )
)
_PROGRAMS = "--query-compute-apps=pid,process_name,used_memory"


def find_gpus(
    proc: Path = Path("/proc"), kfd: Path = Path("/sys/class/kfd/kfd/topology/nodes")
) -> list[dict[str, Any]]:
    """Each: vendor, name, memory_bytes, driver, capability (of CUDA, such as "8.9"), where they are
    told, and integrated, whether it is a part of the processor. Apple's are no list: they belong
    to its CPU.
    """
    return _nvidia(proc) + _amd(kfd)


def _nvidia(proc: Path) -> list[dict[str, Any]]:
    # Before 510 it knows nothing of compute_cap, and tells nothing at all then.
    if told := parse_nvidia_smi(_nvidia_smi(f"{_GPUS},compute_cap") or _nvidia_smi(_GPUS)):
        return told
    # The driver has these files whether its tools are installed or not.
    driver = driver_version(text(proc / "driver/nvidia/version"))
    cards = sorted((proc / "driver/nvidia/gpus").glob("*/information"))
    names = [named_values(text(path)).get("Model", "NVIDIA GPU") for path in cards]
    return [_gpu("nvidia", name, None, driver=driver) for name in names]


def _gpu(
    vendor: str,
    name: str,
    memory_bytes: int | None,
    *,
    driver: str | None = None,
    capability: str | None = None,
    integrated: bool = False,
) -> dict[str, Any]:
    return {"vendor": vendor, "name": name, "memory_bytes": memory_bytes, "driver": driver,
            "capability": capability, "integrated": integrated}  # fmt: skip


def _nvidia_smi(query: str) -> str:
    return run_quiet(["nvidia-smi", query, "--format=csv,noheader,nounits"])


def parse_nvidia_smi(said: str) -> list[dict[str, Any]]:
    """What `nvidia-smi` tells: a line a GPU; its memory is in MiB."""
    return [
        _gpu(
            "nvidia",
            name,
            _bytes(memory),
            driver=driver,
            capability=more[0] if more and more[0][:1].isdigit() else None,
        )
        for name, memory, driver, *more in _rows(said)
    ]


def _rows(said: str) -> Iterator[list[str]]:
    """The fields of each line of nvidia-smi's that has three of them or four, and so is no
    message.
    """
    for line in said.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) in (3, 4):
            yield fields


def _bytes(mib: str) -> int | None:
    return int(mib) << 20 if mib.isdigit() else None


def _amd(nodes: Path) -> list[dict[str, Any]]:
    """AMD's compute driver lists CPUs too: these have no SIMD units."""
    found = []
    for node in sorted(nodes.glob("*")):
        properties = named_values(text(node / "properties"), " ")
        if int(properties.get("simd_count", 0)) == 0:
            continue
        target = int(properties.get("gfx_target_version", 0))
        banks = [named_values(text(path), " ") for path in node.glob("mem_banks/*/properties")]
        memory_bytes = sum(int(bank.get("size_in_bytes", 0)) for bank in banks)
        name = f"gfx{target // 10000}{target // 100 % 100:x}{target % 100:x}"
        # Kernels have shown it as one node with its processor, or as a node of its own.
        integrated = int(properties.get("cpu_cores_count", 0)) > 0 or name in _INTEGRATED
        found.append(_gpu("amd", name, memory_bytes or None, integrated=integrated))
    return found


def probe_gpu() -> dict[str, Any]:
    """error (why GPUs cannot be used) and busy [{pid, command, memory_bytes}]."""
    driver = driver_version(text(Path("/proc/driver/nvidia/version")))
    cards = nvidia_cards(Path("/sys/bus/pci/devices"))
    return {
        "error": _error(driver, cards),
        "busy": busy_of(_nvidia_smi(_PROGRAMS)) if driver else [],
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
    return [
        {"pid": int(pid), "command": command, "memory_bytes": _bytes(memory)}
        for pid, command, memory, *_ in _rows(said)
        if pid.isdigit()
    ]


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
        done = run_to_end(["nvidia-smi", "-L"], _QUICK_S)
    except FileNotFoundError:
        return None
    except (OSError, subprocess.SubprocessError) as problem:
        return f"nvidia-smi: {problem}"
    return None if done.returncode == 0 else (done.stdout + done.stderr).strip() or "nvidia-smi"
