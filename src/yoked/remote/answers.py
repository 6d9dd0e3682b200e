"""What the agents' answers look like: a host's word is taken only in the form that it must have.

A result that becomes a record, in which what does not fit is left out, has its rules in
`yoked.records.answers` instead; here stand all others.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from yoked.shape import Row, Shape, amount, anything, is_int, misfit, quantity

# The year 9999 ends later in every time zone; datetime knows none after it.
_LAST_S = 253_402_200_000.0


def moment(value: object) -> bool:
    """A time in seconds since 1970 that can be shown as a date."""
    return quantity(value) and value < _LAST_S  # type: ignore[operator]


def port(value: object) -> bool:
    """A TCP port."""
    return is_int(value) and 0 < value < 65_536


def _one_of(*words: str) -> Shape:
    return lambda value: value in words


_WORD = (str, None)
_STATE = _one_of("prepared", "running", "finished", "failed", "stopped", "interrupted", "lost")
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
    "file_list": [Row((str, amount, int))],
    "file_read": bool,
    "blobs_missing": {str: amount},
    "blob_append": amount,
    "folder_contents": ({str: str}, None),
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
    "job_start": {"folder": str, "supervisor": amount, "control_port": (amount, None)},
    "job_go": {"host_program": amount},
    "job_stop": {"state": _STATE, "signalled": [amount]},
    "job_remove": bool,
    "job_reap": {
        "processes": [_LEFT_PROCESS],
        "shared_memory": [{"name": str, "size_bytes": amount}],
    },
    "job_sweep": [{"folder": str, "size_bytes": amount}],
}

# The parts of an answer that comes in parts; a call that is not here has none.
PARTS: Mapping[str, Shape] = {
    "listen": anything,
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
    "trial": anything,
}


def result_misfit(call: str, result: Any) -> str | None:
    """What is wrong with a call's result, in words; None: it has the shape that it must have."""
    return misfit(result, RESULTS.get(call, anything))


def part_misfit(call: str, content: Any) -> str | None:
    """What is wrong with a part of an answer, in words; None: it has its shape."""
    if call not in PARTS:
        return "it comes in parts"
    return misfit(content, PARTS[call])
