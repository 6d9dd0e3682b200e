"""Stacks as `yoked diagnose --stacks` shows them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.diagnosis.stacks import Group, Place, RankStacks, grouped
from yoked.text import one_line
from yoked.units import format_duration, listed

_STATES = {
    "D": "waiting for a disk or a mount",
    "T": "stopped",
    "t": "in a debugger",
    "Z": "ended",
}
# It runs the program in each rank.
_STARTER = "yoked/launch/bootstrap/rank.py"
# A line that was reached a moment ago is no place where a rank stands.
_STANDS_S = 1.0


def stacks_payload(found: Mapping[str, Sequence[RankStacks]]) -> list[dict[str, Any]]:
    """As `--json` has them, by rank; the innermost frame last."""
    ranks = sorted(
        ((rank, host) for host, each in found.items() for rank in each),
        key=lambda pair: pair[0].rank,
    )
    return [
        {
            "rank": rank.rank,
            "host": host,
            "pid": rank.pid,
            "state": rank.state or None,
            "waits_in": rank.waits_in or None,
            "age_s": rank.age_s,
            "at_line_s": rank.at_line_s,
            "threads": [
                {
                    "name": thread.name,
                    "main": thread.main,
                    "frames": [
                        {"file": file, "line": line, "function": function}
                        for file, line, function in reversed(thread.frames)
                    ],
                }
                for thread in rank.threads
            ],
        }
        for rank, host in ranks
    ]


def stacks_lines(found: Mapping[str, Sequence[RankStacks]]) -> Iterator[str]:
    """For people: equal stacks once, the innermost line last, as Python prints them."""
    hosts = {rank.rank: host for host, each in found.items() for rank in each}
    for group in grouped(rank for each in found.values() for rank in each):
        yield f"{_who(group, hosts)}{_how(group)}:"
        for file, line, function in reversed(_of_program(group.frames)):
            yield f'  File "{one_line(file)}", line {line}, in {one_line(function)}'
        if not group.frames:
            yield "  it has recorded nothing: it has not begun, or its disk is full"


def _of_program(frames: Sequence[Place]) -> Sequence[Place]:
    """The stack without the part that starts the program, the innermost first."""
    starts = [place for place, frame in enumerate(frames) if frame[0].endswith(_STARTER)]
    return frames[: starts[0]] if starts and starts[0] > 0 else frames


def _who(group: Group, hosts: Mapping[int, str]) -> str:
    numbers = [rank.rank for rank in group.ranks]
    if len(numbers) == 1:
        ranks = f"rank {numbers[0]} on {hosts[numbers[0]]}"
    else:
        ranks = f"ranks {listed(map(str, numbers))}"
    if group.main:
        return ranks
    names = [one_line(name) for name in group.names]
    return f"{ranks}, thread{'s' * (len(names) > 1)} {listed(names)}"


def _how(group: Group) -> str:
    """What the kernel says of them, and for how long they stand there."""
    first = group.ranks[0]
    said = []
    if first.pid is None and first.age_s is not None:
        said.append("its process is gone")
    elif first.state in _STATES:
        waits_in = f", in {one_line(first.waits_in)}" if first.waits_in else ""
        said.append(f"{_STATES[first.state]} (state {first.state}{waits_in})")
    if first.frozen:
        if first.age_s is not None:
            if first.state not in _STATES:
                # The kernel's function is all that is known of now.
                kernel = f" (the kernel has it in {one_line(first.waits_in)})"
                said.append(f"its Python does not answer{kernel if first.waits_in else ''}")
            said.append(f"as it was {format_duration(first.age_s)} ago")
    elif group.main:
        stand_s = min(rank.at_line_s or 0.0 for rank in group.ranks)
        if stand_s >= _STANDS_S:
            said.append(f"at this line for {format_duration(stand_s)}")
    return "".join(f", {one}" for one in said)
