"""Tell machines apart, and recognise one behind two names."""

from __future__ import annotations

import hashlib
import os
import socket
import sys
from pathlib import Path

from yoked.agent.ask import sysctl, text


def machine_identity(proc: Path = Path("/proc"), etc: Path = Path("/etc")) -> str:
    """16 hex digits: alike for every login to one machine, and another on every other.

    Containers and virtual hosts share their machine's ids, but neither its processes nor its
    network: so these count too. Nothing of a machine can be read back from it.
    """
    if sys.platform == "darwin":
        parts = [sysctl("kern.uuid"), sysctl("kern.bootsessionuuid")]
    else:
        parts = [
            text(etc / "machine-id"),
            text(proc / "sys/kernel/random/boot_id"),
            _namespace(proc / "self/ns/net"),
            _namespace(proc / "self/ns/pid"),
        ]
    if not any(parts):
        parts = [socket.gethostname()]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _namespace(path: Path) -> str:
    try:
        return os.readlink(path)  # noqa: PTH115 - it leads to nothing that a Path could be
    except OSError:
        return ""
