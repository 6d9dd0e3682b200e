"""What jobs left behind on this host: it is shown first, and removed only when that is wanted."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
from pathlib import Path
from typing import Any

from yoked.agent.jobfolder import half_removed
from yoked.agent.jobstatus import size_bytes
from yoked.agent.listeners import is_left_behind, ports_of
from yoked.agent.server import Call
from yoked.core.proc import LAUNCH_VARIABLE, ProcessId, all_processes

_SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 - it is only looked into
# torch names its blocks after the process that made them.
_TORCH_BLOCK = re.compile(r"torch_(\d+)_\d+(_\d+)?")


def answer_job_reap(call: Call) -> dict[str, list[dict[str, Any]]]:
    """What was left: processes whose job is over or gone, shared memory whose maker is dead.

    args: kill, to end and remove them; each is checked again before. Returns processes [{pid,
    run, command, ports, killed}] and shared_memory [{name, size_bytes, removed}].
    """
    kill = bool(call.args.get("kill"))
    return {
        "processes": [_reap(*found, kill=kill) for found in stale_processes()],
        "shared_memory": [_sweep(path, kill=kill) for path in stale_shared_memory()],
    }


def answer_job_sweep(call: Call) -> list[dict[str, Any]]:
    """What is left of jobs whose removal was cut short: [{folder, size_bytes}].

    args: remove, to remove it.
    """
    folders = half_removed()
    found = [{"folder": str(path), "size_bytes": size_bytes(path)} for path in folders]
    if call.args.get("remove"):
        for path in folders:
            shutil.rmtree(path, ignore_errors=True)
    return found


def stale_processes() -> list[tuple[ProcessId, dict[str, str]]]:
    """Processes of launches that have no job any more, with their environments."""
    told = ((process, process.environment()) for process in all_processes())
    return [each for each in told if is_left_behind(*each)]


def stale_shared_memory() -> list[Path]:
    """Blocks of torch's that are ours, whose maker is dead, and that nobody has mapped."""
    blocks = []
    with contextlib.suppress(OSError):
        for path in _SHARED_MEMORY.iterdir():
            found = _TORCH_BLOCK.fullmatch(path.name)
            with contextlib.suppress(OSError):
                if (
                    found
                    and path.stat().st_uid == os.getuid()
                    and not Path("/proc", found[1]).exists()
                ):
                    blocks.append(path)
    if not blocks:
        return []
    mapped = _mapped_shared_memory()
    return [path for path in blocks if str(path) not in mapped]


def _reap(process: ProcessId, environment: dict[str, str], *, kill: bool) -> dict[str, Any]:
    shown = {
        "pid": process.pid,
        "run": environment.get("YOKED_RUN", ""),
        "command": process.command(),
        "ports": ports_of(process),
    }
    killed = kill and process.signal(signal.SIGKILL, environment[LAUNCH_VARIABLE])
    return {**shown, "killed": killed}


def _sweep(path: Path, *, kill: bool) -> dict[str, Any]:
    removed, size_bytes = False, 0
    with contextlib.suppress(OSError):
        size_bytes = path.stat().st_size
        if kill:
            path.unlink()
            removed = True
    return {"name": path.name, "size_bytes": size_bytes, "removed": removed}


def _mapped_shared_memory() -> set[str]:
    mapped: set[str] = set()
    for process in all_processes():
        with contextlib.suppress(OSError):
            maps = Path(f"/proc/{process.pid}/maps").read_text(errors="replace")
            mapped.update(
                line.split(maxsplit=5)[5]
                for line in maps.splitlines()
                if "/dev/shm/" in line  # noqa: S108 - it is only looked for
            )
    return mapped
