"""What a run leaves behind for its caller: the contract of `yoked train --json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Literal

from yoked.train.trainer import StepStats

State = Literal["finished", "interrupted", "planned"]


@dataclass
class Tally:
    """Figures of the steps that this start of the run took, gathered while it goes on."""

    steps: list[tuple[float, tuple[StepStats, ...]]] = field(default_factory=list)

    def add(self, dt_s: float, by_rank: Sequence[StepStats]) -> None:
        """Take in a step that took dt_s on rank 0's clock."""
        self.steps.append((dt_s, tuple(by_rank)))

    @property
    def loss(self) -> float | None:
        """Mean loss of the last step, nats a token."""
        if not self.steps:
            return None
        last = self.steps[-1][1]
        return sum(stats.nats for stats in last) / sum(stats.tokens for stats in last)

    @property
    def first_step_s(self) -> float | None:
        """What the first step took, with all that is set up in it."""
        return self.steps[0][0] if self.steps else None

    @property
    def tokens_per_second(self) -> float | None:
        """Of the median step after the first, which compiles and warms up."""
        if not self.steps:
            return None
        dt_s = median(dt for dt, _ in self.steps[1:] or self.steps)
        return sum(stats.tokens for stats in self.steps[-1][1]) / dt_s

    @property
    def bytes_sent_per_step(self) -> int:
        """Most that one rank sends in the median step."""
        if not self.steps:
            return 0
        return int(median(max(stats.bytes_sent for stats in ranks) for _, ranks in self.steps))

    def median_of(self, rank: int, name: str) -> float | None:
        """Median over steps of one rank's compute_s, comm_s or wait_s."""
        values = [getattr(ranks[rank], name) for _, ranks in self.steps[1:] or self.steps]
        return median(values) if values else None


@dataclass(frozen=True)
class RunResult:
    """steps and tokens: of the whole run so far; the rest: of this start."""

    run: str
    dir: str
    state: State
    steps: int
    tokens: int
    loss: float | None
    val_bpb: float | None
    tokens_per_second: float | None
    first_step_s: float | None
    bytes_sent_per_step: int
    params: dict[str, int]
    hosts: list[dict[str, Any]]
    choices: list[dict[str, Any]]
    model: dict[str, Any]
    data: dict[str, Any]
    horizon: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)


def host_table(
    described: Sequence[dict[str, Any]], shares: Sequence[float], tally: Tally
) -> list[dict[str, Any]]:
    """One entry a host, its ranks together; seconds are of its slowest rank."""
    names = list(dict.fromkeys(entry["name"] for entry in described))
    table = []
    for name in names:
        ranks = [entry["rank"] for entry in described if entry["name"] == name]
        first = next(entry for entry in described if entry["name"] == name)
        seconds = {}
        for key in ("compute_s", "comm_s", "wait_s"):
            values = [tally.median_of(rank, key) for rank in ranks]
            known = [value for value in values if value is not None]
            seconds[key] = max(known) if known else None
        table.append(
            {
                "name": name,
                "device": first["device"],
                "device_name": first["device_name"],
                "dtype": first["dtype"],
                "threads": first["threads"],
                "ranks": len(ranks),
                "share": sum(shares[rank] for rank in ranks) / sum(shares),
                **seconds,
            }
        )
    return table
