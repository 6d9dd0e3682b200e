"""What the agents' answers look like: a host's word is taken only in the form that it must have.

A call that is not in the tables has a result that its user checks: those of the doctor become
records in `yoked.doctor`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any

from yoked.agent.jobfolder import check_run_name
from yoked.errors import JobError
from yoked.shape import Row, Shape, amount, anything, is_int, misfit, quantity

# The year 9999 ends later in every time zone; datetime knows none after it.
_LAST_S = 253_402_200_000.0


@dataclass(frozen=True)
class Each:
    """A list with one `shape` for each item of the call's argument `of`."""

    shape: Shape
    of: str


def moment(value: object) -> bool:
    """A time in seconds since 1970 that can be shown as a date."""
    return quantity(value) and value < _LAST_S  # type: ignore[operator]


def port(value: object) -> bool:
    """A TCP port."""
    return is_int(value) and 0 < value < 65_536


def address(value: object) -> bool:
    """An IP address without a scope, which may be any text."""
    try:
        return isinstance(value, str) and "%" not in value and bool(ip_address(value))
    except ValueError:
        return False


def run_name(value: object) -> bool:
    """A name that may stand in a command line to paste."""
    try:
        return isinstance(value, str) and bool(check_run_name(value))
    except JobError:
        return False


def _one_of(*words: str) -> Shape:
    return lambda value: value in words


_WORD = (str, None)
_STATE = _one_of("prepared", "running", "finished", "failed", "stopped", "interrupted", "lost")
_FAILURE = {"host": str, "what": str, "rank?": (amount, None), "fix?": [str], "last_lines?": [str]}
_JOB = {
    "run": run_name,
    "launch_id": str,
    "state": _STATE,
    "folder": str,
    "node_rank": amount,
    "nodes": [{"host": str, "ranks": amount}],
    "trains": (run_name, None),
    "started_s": (moment, None),
    "ended_s": (moment, None),
    "now_s": moment,
    "attempt": amount,
    "host_program": anything,
    "end": anything,
    "failure": (_FAILURE, None),
    "progress": ({"step": (amount, None), "loss": (float, None)}, None),
    "size_bytes": (amount, None),
}
_INTERFACE = {
    "name": str,
    "kind": str,
    "mtu_bytes": (amount, None),
    "speed_bit_per_s": (amount, None),
    "addresses": [{"address": address, "prefix": (amount, None), "family": amount}],
    "gloo_address": (address, None),
}
_FACTS = {
    "hostname": str,
    "machine": str,
    "os": str,
    "cpu_model": str,
    "cores": amount,
    "fast_cores": amount,
    "usable_cores": amount,
    "memory_bytes": (amount, None),
    "gpus": [{"name": str}],
    "free_bytes": {"state": amount},
    "state": str,
    "cache": str,
    "uid": amount,
}
_DIALLED = {
    # It is what the other end said: whoever listens there may say anything.
    "answered_by": anything,
    "error": _WORD,
    "error_text": _WORD,
    "rtt_s": (quantity, None),
    "goodput_bytes_per_s": (quantity, None),
}
_OUTCOME = {
    "exit_status": (int, None),
    "signal": (int, None),
    "stdout": str,
    "stderr": str,
    "late": bool,
}
_LEFT_PROCESS = {"pid": amount, "run": str, "command": str, "ports": [port]}

# What a call returns.
RESULTS: Mapping[str, Shape] = {
    "facts": _FACTS,
    "interfaces": [_INTERFACE],
    "dial": Each(_DIALLED, "targets"),
    "file_list": [Row((str, amount, int))],
    "file_read": bool,
    "blobs_missing": {str: amount},
    "blob_append": amount,
    "folder_here": _WORD,
    "folder_put": str,
    "tree_checkout": str,
    "kernels_here": {"cpu": str, "keys": [str]},
    "run": _OUTCOME,
    "environment": {
        "made": _WORD,
        "configured": _WORD,
        "system": _WORD,
        "marker": ({"build": str}, None),
    },
    "environment_base": {
        "python": str,
        "version": str,
        "system": str,
        "machine": str,
        "libc": str,
        "libc_version": str,
        "mac_version": str,
        "gpu": bool,
    },
    "job_start": {"folder": str, "supervisor": amount, "control_port": (amount, None)},
    "job_go": {"host_program": amount},
    "job_list": [_JOB],
    "job_status": _JOB,
    "job_stop": {"state": _STATE, "signalled": [amount]},
    "job_remove": bool,
    "job_reap": {
        "processes": [_LEFT_PROCESS],
        "shared_memory": [{"name": str, "size_bytes": amount}],
    },
    "job_sweep": [{"folder": str, "size_bytes": amount}],
    "health": {str: anything},
}

# The parts of an answer that comes in parts; a call that is not here has none.
PARTS: Mapping[str, Shape] = {
    "listen": {"port": port, "more": [(port, None)]},
    "file_read": None,
    "environment_make": ({"line": str}, {"made": str}, {"unreachable": str}),
    "job_logs": (
        {"begin": {str: amount}},
        {
            "rank": amount,
            "attempt": amount,
            "stream": _one_of("out", "err"),
            "time_s": moment,
            "offset": amount,
        },
    ),
    "trial": {str: anything},
}


def result_misfit(call: str, args: Mapping[str, Any], result: Any) -> str | None:
    """What is wrong with a call's result, in words; None: it has the shape that it must have."""
    shape = RESULTS.get(call, anything)
    if isinstance(shape, Each):
        wanted = len(args[shape.of])
        if isinstance(result, list) and len(result) != wanted:
            return f"it has {len(result)} items, not {wanted}"
        shape = [shape.shape]
    return misfit(result, shape)


def part_misfit(call: str, content: Any) -> str | None:
    """What is wrong with a part of an answer, in words; None: it has its shape."""
    if call not in PARTS:
        return "it comes in parts"
    return misfit(content, PARTS[call])
