"""The result of a run: the contract of `yoked train --json`."""

from __future__ import annotations

import dataclasses
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal

from yoked.train.trainer import StepStats

State = Literal["finished", "interrupted", "planned"]

# Exact for runs of up to so many steps; a longer run reports its last ones.
WINDOW_STEPS = 4096
RANK_TIMES = ("compute_s", "comm_s", "wait_s")


class RunStats:
    """Figures of the steps that this start of the run took, in bounded memory.

    Medians are over the last WINDOW_STEPS steps. Those of times leave out the first step, which
    compiles and warms up, unless it is the only one.
    """

    def __init__(self) -> None:
        # A step is (dt_s, most bytes that one rank sent, the RANK_TIMES of each rank), in 8 bytes
        # a figure: 1,000 steps of 64 ranks take 1.6 MB.
        self._first: array[float] | None = None
        self._recent: deque[array[float]] = deque(maxlen=WINDOW_STEPS)
        self._last: tuple[StepStats, ...] = ()

    def add(self, dt_s: float, by_rank: Sequence[StepStats]) -> None:
        """Record a step that took dt_s on rank 0's clock."""
        figures = array("d", (dt_s, max(stats.bytes_sent for stats in by_rank)))
        for stats in by_rank:
            figures.extend(getattr(stats, name) for name in RANK_TIMES)
        if self._first is None:
            self._first = figures
        else:
            self._recent.append(figures)
        self._last = tuple(by_rank)

    @property
    def loss(self) -> float | None:
        """Mean loss of the last step in nats a token."""
        if not self._last:
            return None
        return sum(stats.nats for stats in self._last) / sum(stats.tokens for stats in self._last)

    @property
    def first_step_s(self) -> float | None:
        """Time of the first step, which includes compiling and warming up."""
        return None if self._first is None else self._first[0]

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the last step over the time of the median step."""
        dt_s = self._median_time(0)
        return None if dt_s is None else sum(stats.tokens for stats in self._last) / dt_s

    @property
    def bytes_sent_per_step(self) -> int:
        """Bytes that the busiest rank sends in the median step, the first step included."""
        if self._first is None:
            return 0
        return int(median(figures[1] for figures in (self._first, *self._recent)))

    def median_of(self, rank: int, name: str) -> float | None:
        """Median of one of a rank's RANK_TIMES."""
        return self._median_time(2 + rank * len(RANK_TIMES) + RANK_TIMES.index(name))

    def _median_time(self, place: int) -> float | None:
        if self._first is None:
            return None
        return median(figures[place] for figures in self._recent or (self._first,))


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """The result. steps and tokens are those of the whole run so far, as is best: step and val_bpb
    of its best checkpoint, known on rank 0. All else is of this start.
    """

    run: str
    dir: str
    state: State
    steps: int = 0
    tokens: int = 0
    loss: float | None = None
    val_bpb: float | None = None
    best: dict[str, Any] | None = None
    tokens_per_second: float | None = None
    first_step_s: float | None = None
    bytes_sent_per_step: int = 0
    params: dict[str, int]
    hosts: list[dict[str, Any]]
    choices: list[dict[str, Any]]
    model: dict[str, Any]
    data: dict[str, Any]
    horizon: dict[str, Any]
    outlook: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)


def host_table(
    described: Sequence[dict[str, Any]], shares: Sequence[float], stats: RunStats
) -> list[dict[str, Any]]:
    """One entry a host, which sums up its ranks; times are those of its slowest rank."""
    names = list(dict.fromkeys(entry["name"] for entry in described))
    table = []
    for name in names:
        ranks = [rank for rank, entry in enumerate(described) if entry["name"] == name]
        first = next(entry for entry in described if entry["name"] == name)
        seconds = {}
        for key in RANK_TIMES:
            values = [stats.median_of(rank, key) for rank in ranks]
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


def idle_table(described: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """The same of hosts that sat out."""
    table = host_table(described, [1.0] * len(described), RunStats())
    return [{**entry, "share": 0.0} for entry in table]
