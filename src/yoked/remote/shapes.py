"""What the agents' answers look like: a host's word is taken only in the form that it must have.

A shape is a type (`float` takes whole numbers too), a predicate, None, a tuple of alternatives,
`[shape]` for a list, a `Row` for a list of fixed length, `Each` for a list with a place for each
item of an argument, `{str: shape}` for an object of any keys, or an object with the keys that must
be there; `"key?"` may be missing. What more a host says is passed over. A call that is not in the
tables has a result that its user checks: those of the doctor become records in `yoked.doctor`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, TypeGuard

from yoked.agent.jobfolder import check_run_name
from yoked.agent.protocol import is_int
from yoked.errors import JobError

Shape = Any
# The year 9999 ends later in every time zone; datetime knows none after it.
_LAST_S = 253_402_200_000.0


class Row(tuple[Shape, ...]):
    """A list of fixed length, with a shape for each place."""


@dataclass(frozen=True)
class Each:
    """A list with one `shape` for each item of the call's argument `of`."""

    shape: Shape
    of: str


def anything(value: object) -> bool:
    """What nobody reads, or its user checks."""
    del value
    return True


def moment(value: object) -> bool:
    """A time in seconds since 1970 that can be shown as a date."""
    return _is_number(value) and 0.0 <= value < _LAST_S


def amount(value: object) -> bool:
    """A number of things, bytes or places."""
    return is_int(value) and value >= 0


def quantity(value: object) -> bool:
    """A finite time, rate or size."""
    return _is_number(value) and math.isfinite(value) and value >= 0


def _is_number(value: object) -> TypeGuard[float]:
    return is_int(value) or isinstance(value, float)


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
    "cpu_model": _WORD,
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


def require(value: Any, shape: Shape) -> None:
    """Raise ValueError with what is wrong with a value that has not the shape."""
    if (why := misfit(value, shape)) is not None:
        raise ValueError(why)


def misfit(value: Any, shape: Shape, where: str = "it") -> str | None:
    """What is wrong with a value, in words; None: it has the shape."""
    if isinstance(shape, Row):
        if not isinstance(value, list) or len(value) != len(shape):
            return f"{where} is no list of {len(shape)}"
        return _first(misfit(*each, where) for each in zip(value, shape, strict=True))
    if isinstance(shape, tuple):
        problems = [misfit(value, each, where) for each in shape]
        return None if None in problems else problems[0]
    if isinstance(shape, list):
        if not isinstance(value, list):
            return f"{where} is no list"
        return _first(misfit(each, shape[0], f"{where}[{n}]") for n, each in enumerate(value))
    if isinstance(shape, Mapping):
        return _misfit_object(value, shape, where)
    return None if _is_plain(value, shape) else f"{where} is {value!r:.60}"


def _misfit_object(value: Any, shape: Mapping[Any, Shape], where: str) -> str | None:
    if not isinstance(value, dict):
        return f"{where} is no object"
    if str in shape:
        return _first(misfit(each, shape[str], f"{where}.{key}") for key, each in value.items())
    problems = []
    for key, inner in shape.items():
        name = key.removesuffix("?")
        if name in value:
            problems.append(misfit(value[name], inner, f"{where}.{name}"))
        elif name == key:
            problems.append(f"{where} has no {name}")
    return _first(problems)


def _is_plain(value: Any, shape: Shape) -> bool:
    if shape is None:
        return value is None
    if shape is int:
        return is_int(value)
    if shape is float:
        return _is_number(value)
    if isinstance(shape, type):
        return isinstance(value, shape)
    return bool(shape(value))


def _first(problems: Iterable[str | None]) -> str | None:
    return next((each for each in problems if each is not None), None)
