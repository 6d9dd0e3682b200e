"""Whether hosts have the cores and the memory for the ranks that are asked of them.

Before anything starts: too many would not fail, but take turns for minutes, or swap.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from yoked.costmodel.memory import rank_memory
from yoked.errors import UsageError
from yoked.fleet.model import HERE
from yoked.launch.start import NodePlan
from yoked.train.config import TrainConfig
from yoked.train.resolve import resolve
from yoked.units import format_bytes, plural

# So many ranks are let through on any host: slow, but of use to whoever tries out what ranks do.
TRIED_OUT = 4
# Of what the model of memory says: a text may give a smaller vocabulary, and what is hardly used
# may be swapped out.
AT_LEAST = 0.9


def require_room(
    config: TrainConfig, nodes: Sequence[NodePlan], note: Callable[[str], None]
) -> None:
    """Raise UsageError for a host with too few cores or, where a model is to train on its CPU, too
    little memory. note: told of a host whose ranks outnumber its cores, and are let through.
    """
    for node in nodes:
        where = "this machine" if node.host.name == HERE else node.host.name
        kind = node.device_type if config.device_type == "auto" else config.device_type
        # Of a run that goes on, the model is not known yet.
        counts = kind == "cpu" and not config.goes_on
        need = functools.partial(_memory_bytes, config) if counts else None
        less = functools.partial(_less_memory, config, node.facts)
        if told := check_room(where, node.ranks, node.facts, need, less):
            note(told)


def check_room(
    where: str,
    ranks: int,
    facts: Mapping[str, Any],
    need_bytes: Callable[[int], float] | None = None,
    less: Callable[[], Sequence[str]] = tuple,
) -> str | None:
    """Whether a host has room for so many ranks; a note, or None. Raises UsageError.

    facts: the agent's. need_bytes: of so many ranks together; None: not known. less: says what
    takes less memory.
    """
    cores, available = int(facts["usable_cores"]), facts["memory_available_bytes"]
    most = cores
    if need_bytes is not None and available is not None:
        most = next((n for n in range(min(ranks, cores), 0, -1) if need_bytes(n) <= available), 0)
        if most == 0 or (ranks <= cores and most < ranks):
            raise UsageError(
                f"{plural(ranks, 'rank')} of this model would take at least "
                f"{format_bytes(need_bytes(ranks))} of memory; {where} has "
                f"{format_bytes(available)} free",
                fix=(*((f"--ranks {most}",) if most else ()), *less()),
            )
    if ranks <= cores:
        return None
    limit = facts.get("cpu_quota")
    why = "" if limit is None else f" (its control group allows the time of {limit:g})"
    told = f"{ranks} ranks, but {where} has {plural(cores, 'core')} for them{why}"
    if ranks > max(cores, TRIED_OUT):
        raise UsageError(
            told, fix=(f"--ranks {most}", "on a CPU, one rank that uses all cores is mostly best")
        )
    return f"{told}: they take turns, and --ranks {cores} is faster"


def _less_memory(config: TrainConfig, facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Flags with which one rank has room, on a host with these facts."""
    smaller = "--device-batch-size 1 or --checkpoint-activations take less"
    depth, available = resolve(config, "cpu").depth, facts["memory_available_bytes"]
    for fewer in range(depth - 1, 0, -1) if available is not None else ():
        with contextlib.suppress(UsageError):  # too narrow with so few layers
            if _memory_bytes(dataclasses.replace(config, depth=fewer), 1) <= available:
                return f"--depth {fewer}", smaller
    return (smaller,)


def _memory_bytes(config: TrainConfig, ranks: int) -> float:
    """What so many ranks need at least, on a CPU: in the smaller dtype, if both are possible."""
    resolved = resolve(config, "cpu")
    shape, many = resolved.model_shape(config.vocab_size), ranks > 1
    one = rank_memory(
        shape,
        dtype="float32" if config.dtype == "float32" else "bfloat16",
        rows=resolved.device_batch_size,
        owned_fraction=1 / ranks,
        payload_bytes=4.0 if many else 0.0,
        checkpointed=config.checkpoint_activations,
    )
    return AT_LEAST * ranks * one
