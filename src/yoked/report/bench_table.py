"""The benchmark's table: training speed of one process, of one host, and of all hosts.

Figures come from the journals of runs that took the same steps on the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from statistics import median
from typing import Any

from yoked.units import format_bytes, format_duration

COLUMNS = (
    "",
    "ranks",
    "tokens/s",
    "x alone",
    "all-reduce",
    "predicted",
    "exposed",
    "alpha",
    "loss",
)


@dataclass(frozen=True)
class BenchRow:
    """One run. hosts: those that took part. ranks: on all of them together.

    tokens_per_second: of the median step. step_s: of the steps that count.
    allreduce_s: measured time of an all-reduce of as many bytes, without computation beside it.
    predicted_allreduce_s: those bytes over the slowest link's rate, from the fleet's probe.
    exposed_comm_s: time in a step that the rank that waits longest for communication waits.
    compute_s: time in a step for which the rank that computes longest does so.
    bytes_sent_per_step: of the rank that sends most.
    loss: nats a token in the last step; None for a run that was ended early.
    """

    name: str
    hosts: tuple[str, ...]
    ranks: int
    device: str
    dtype: str
    sync: str | None
    tokens_per_second: float
    step_s: tuple[float, ...]
    allreduce_s: float | None = None
    predicted_allreduce_s: float | None = None
    exposed_comm_s: float | None = None
    compute_s: float | None = None
    bytes_sent_per_step: int = 0
    loss: float | None = None

    @property
    def alpha(self) -> float | None:
        """Communication over computation, as if one waited for the other.

        N equal ranks that do not overlap the two train N / (1 + alpha) times as fast as one.
        """
        if self.allreduce_s is None or not self.compute_s:
            return None
        return self.allreduce_s / self.compute_s

    def alpha_note(self) -> str | None:
        """Alpha with its two figures and its formula, for people; None where it is not known."""
        if self.allreduce_s is None or self.exposed_comm_s is None or not self.compute_s:
            return None
        alpha, exposed = self.allreduce_s / self.compute_s, self.exposed_comm_s / self.compute_s
        return (
            f"{self.name}: alpha = communication / computation = "
            f"{format_duration(self.allreduce_s)} / {format_duration(self.compute_s)} = "
            f"{alpha:.2f}; one after the other, {self.ranks} equal ranks would train "
            f"{self.ranks} / (1 + {alpha:.2f}) = {self.ranks / (1 + alpha):.2f}x as fast as one; "
            f"overlapped, alpha is {exposed:.2f} and they reach {self.ranks / (1 + exposed):.2f}x"
        )


@dataclass(frozen=True)
class BenchTable:
    """All rows. single_host: tokens/s of each host by itself, all measured at the same time.

    speedup: the fastest run on all hosts over the fastest host alone. efficiency: the same run over
    the sum of all hosts alone. Both are None for one host.
    """

    rows: tuple[BenchRow, ...]
    single_host: Mapping[str, float]

    @property
    def best(self) -> BenchRow | None:
        """The fastest run on all hosts."""
        together = [row for row in self.rows if set(row.hosts) == set(self.single_host)]
        if len(self.single_host) < 2 or not together:
            return None
        return max(together, key=lambda row: row.tokens_per_second)

    @property
    def speedup(self) -> float | None:
        """Speed of the best run over the fastest host alone."""
        return None if self.best is None else self.relative_speed(self.best)

    @property
    def efficiency(self) -> float | None:
        """Speed of the best run over the sum of all hosts alone."""
        if self.best is None:
            return None
        return self.best.tokens_per_second / sum(self.single_host.values())

    @property
    def processes(self) -> list[BenchRow]:
        """The first host's CPU rows, from one process on: how its cores scale."""
        first = (next(iter(self.single_host)),)
        rows = [row for row in self.rows if row.hosts == first and row.device == "cpu"]
        return sorted(rows, key=lambda row: row.ranks)

    def relative_speed(self, row: BenchRow) -> float:
        """A row's speed over that of the fastest host alone."""
        return row.tokens_per_second / max(self.single_host.values())

    def to_dict(self) -> dict[str, Any]:
        """The object that `--json` prints. Its keys are promised."""
        rows = [
            {**asdict(row), "speedup": self.relative_speed(row), "alpha": row.alpha}
            for row in self.rows
        ]
        return {
            "rows": rows,
            "alone": dict(self.single_host),
            "speedup": self.speedup,
            "efficiency": self.efficiency,
        }

    def verdict(self) -> str:
        """One line: the speed of all hosts together; for one host, of its fastest row."""
        if self.best is None:
            fastest = max(self.rows, key=lambda row: row.tokens_per_second)
            return f"{fastest.name}: {fastest.tokens_per_second:,.0f} tokens/s"
        return (
            f"{len(self.single_host)} hosts: {self.best.tokens_per_second:,.0f} tokens/s, "
            f"{self.speedup:.2f}x the fastest alone, "
            f"{self.efficiency:.0%} of the sum of all alone"
        )

    def cells(self) -> list[list[str]]:
        """The rows as text, one cell for each of COLUMNS."""

        def seconds(value_s: float | None) -> str:
            return "" if value_s is None else format_duration(value_s)

        return [
            [
                row.name,
                str(row.ranks),
                f"{row.tokens_per_second:,.0f}",
                f"{self.relative_speed(row):.2f}x",
                seconds(row.allreduce_s),
                seconds(row.predicted_allreduce_s),
                seconds(row.exposed_comm_s),
                "" if row.alpha is None else f"{row.alpha:.2f}",
                "" if row.loss is None else f"{row.loss:.4f}",
            ]
            for row in self.rows
        ]

    def notes(self) -> list[str]:
        """Explanations of the columns that are not empty."""
        rows = [row for row in self.rows if row.bytes_sent_per_step]
        notes = [
            f"{row.name}: a rank sends {format_bytes(row.bytes_sent_per_step)} a step"
            for row in rows
        ]
        if any(row.allreduce_s is not None for row in rows):
            notes.append("all-reduce: of that many bytes, while nothing computes")
        if any(row.predicted_allreduce_s is not None for row in rows):
            notes.append("predicted: those bytes over the slowest wire, by the last probe")
        if rows:
            notes.append("exposed: what a step waits for the wire; the rest hides behind computing")
        notes += [note for row in rows if (note := row.alpha_note())]
        notes += self._process_notes()
        if any(row.loss is None for row in self.rows):
            notes.append("no loss: the run was ended when the fastest had done its steps")
        return notes

    def _process_notes(self) -> list[str]:
        if len(self.processes) < 2:
            return []
        one = self.processes[0]
        counts = ", ".join(str(row.ranks) for row in self.processes)
        gains = ", ".join(
            f"{row.tokens_per_second / one.tokens_per_second:.2f}x" for row in self.processes
        )
        said = f"{counts} processes on {one.hosts[0]}: {gains}"
        return [f"{said}; below their number, they share memory bandwidth or cores"]


def to_markdown(table: BenchTable) -> str:
    """The table as Markdown, with the verdict above and the notes below."""
    lines = [table.verdict(), "", _markdown_row(COLUMNS), _markdown_row(["---"] * len(COLUMNS))]
    lines += [_markdown_row(cells) for cells in table.cells()]
    lines += ["", *(f"- {note}" for note in table.notes())] if table.notes() else []
    return "\n".join(lines) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    # A bar would begin another cell.
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def read_steps(
    row: BenchRow, steps: Sequence[Mapping[str, Any]], counted: range, *, complete: bool
) -> BenchRow:
    """Fill a row with figures from a run's training lines of metrics.jsonl, in order.

    counted: the steps whose time counts. complete: the run was not ended early, so its last loss
    can be compared: it is after the same tokens as the others'.
    """
    chosen = steps[counted.start : counted.stop]
    assert chosen, (row.name, counted, len(steps))
    step_s = tuple(float(step["dt_s"]) for step in chosen)
    several = row.ranks > 1
    return replace(
        row,
        # Tokens are by rank; every step has as many.
        tokens_per_second=sum(chosen[0]["tokens"]) / median(step_s),
        step_s=step_s,
        exposed_comm_s=median(max(s["comm_s"]) for s in chosen) if several else None,
        compute_s=median(max(s["compute_s"]) for s in chosen),
        bytes_sent_per_step=int(median(max(step["bytes_sent"]) for step in chosen)),
        loss=float(steps[-1]["loss"]) if complete else None,
    )


def concurrent_steps(
    step_counts: Sequence[Mapping[str, int]], totals: Mapping[str, int]
) -> dict[str, range]:
    """The steps that each run took while all others also trained, without the first.

    step_counts: steps finished by each run, in order of time. totals: all steps of each run.
    A run counts as training from the end of its first step to the end of its last.
    """
    training = [done for done in step_counts if all(done[name] >= 1 for name in totals)]
    if not training:
        return {name: range(0) for name in totals}
    first = training[0]
    ended = (done for done in training if any(done[name] >= totals[name] for name in totals))
    last = next(ended, training[-1])
    # The number of finished steps is the index of the next one.
    return {name: range(first[name], last[name]) for name in totals}


def interpolate_time_s(timed: Sequence[tuple[float, float]], payload_bytes: float) -> float | None:
    """Interpolate the time of a collective from measured (bytes, seconds) pairs.

    Linear between two payloads and beyond the largest, because time is latency plus bytes over
    rate. Below the smallest payload it is that one's time. None: fewer than two pairs.
    """
    points = sorted(timed)
    if len(points) < 2:
        return None
    if payload_bytes <= points[0][0]:
        return points[0][1]
    below, above = next(
        (pair for pair in pairwise(points) if payload_bytes <= pair[1][0]), (points[-2], points[-1])
    )
    rate_s = (above[1] - below[1]) / (above[0] - below[0])  # per byte
    # Noise can make the larger payload the faster one.
    return max(below[1] + rate_s * (payload_bytes - below[0]), 0.0)
