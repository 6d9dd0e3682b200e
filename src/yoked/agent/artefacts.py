"""What was compiled for this type of CPU, and may go to others of the same type."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import Any

from yoked.agent.ask import sysctl
from yoked.agent.server import Call
from yoked.paths import cache_root


def answer_kernels_here(call: Call) -> dict[str, Any]:
    """The CPU's type, and the keys of the kernels that are compiled for it."""
    del call
    return {"cpu": cpu_type(), "keys": kernel_keys()}


def cpu_type() -> str:
    """Architecture, features and C library: what decides whether machine code runs elsewhere."""
    features = sysctl("machdep.cpu.brand_string")  # "" elsewhere than on a Mac
    if platform.system() == "Linux":
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                features = line.partition(":")[2].strip()
                break
    return " ".join([platform.system(), platform.machine(), *platform.libc_ver(), features])


def kernel_keys() -> list[str]:
    """Names of the folders that hold a compiled library."""
    found = (cache_root() / "kernels").glob("*/elementwise.so")
    return sorted(path.parent.name for path in found)
