"""The GPUs of this host, found without torch: by the vendors' tools and the kernel's files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from yoked.agent.ask import said_by, text

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
    told = parse_nvidia_smi(said_by(["nvidia-smi", _QUERY, "--format=csv,noheader,nounits"]))
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
