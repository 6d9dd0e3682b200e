"""What `yoked train --dry-run` says, from its JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from yoked.units import format_bytes, format_count, format_duration


def plan_lines(plan: Mapping[str, Any]) -> list[str]:
    """The run in a few lines, then its parameters, then every choice with its reason."""
    named = list(_outlook(plan["data"], plan["horizon"], plan["outlook"]))
    named += [(name, f"{count:,} parameters") for name, count in plan["params"].items()]
    for choice in plan.get("choices", []):
        named.append((str(choice["name"]), f"{choice['value']}  ({choice['reason']})"))
    widest = max(len(name) for name, _ in named)
    return [f"{name:<{widest}}  {told}" for name, told in named]


def _outlook(
    data: Mapping[str, Any], horizon: Mapping[str, Any], outlook: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    asked, got = data["requested_vocab_size"], data["vocab_size"]
    less = "" if asked is None or asked <= got else _LESS.format(asked=asked)
    yield "vocabulary", f"{got:,} tokens{less}"
    yield "corpus", f"{data['train_tokens']:,} tokens of {data['name']} to train on"
    steps, batch = horizon["num_iterations"], horizon["total_batch_size"]
    told = f"{steps:,} steps of {batch:,} tokens: {format_count(steps * batch)} tokens"
    yield "training", f"{told}, {outlook['epochs']:.2g} epochs"
    if outlook["remark"]:
        yield "remark", outlook["remark"]
    if outlook["time_s"] is not None:
        each = format_duration(outlook["step_s"])
        yield "time", f"about {format_duration(outlook['time_s'])}, {each} a step"
    for rank in outlook["memory"]:
        told, most = (
            f"{format_bytes(rank['need_bytes'])} a rank on {rank['host']}",
            rank["may_use_bytes"],
        )
        if most is not None:
            told += f", of {format_bytes(most)}{_TOO_LITTLE * (rank['need_bytes'] > most)}"
        yield "memory", told
    need, free = outlook["disk_bytes"], outlook["free_bytes"]
    of_one = format_bytes(outlook["checkpoint_bytes"])
    told = f"{format_bytes(need)} for checkpoints of {of_one}, of {format_bytes(free)} free"
    yield "disk", told + _TOO_LITTLE * (need > free)


_LESS = ", of {asked:,} asked for: the text has no more pairs to merge"
_TOO_LITTLE = ": TOO LITTLE"
