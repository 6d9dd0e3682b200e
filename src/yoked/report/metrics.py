"""What a run measured: the lines of metrics.jsonl that count, and sums of them in bounded memory.

A run of a million steps has hundreds of megabytes of lines. They are read one by one, and what is
drawn of them is averaged over neighbouring steps.
"""

from __future__ import annotations

import contextlib
import math
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from operator import add
from pathlib import Path
from statistics import median
from typing import Any

from pydantic_core import from_json

from yoked.errors import YokedError
from yoked.journal import read
from yoked.shape import amount

# Of a rank in a step, in seconds; what is left of the step's time is none of these.
RANK_TIMES = ("compute_s", "comm_s", "wait_s")
_RANK_FIGURES = (*RANK_TIMES, "head_s", "tokens", "bytes_sent")
_NUMBERS = {int, float}
# Points that a chart has at most; between half of it and it, once a run is as long.
MOST_POINTS = 1_000


@dataclass(frozen=True, slots=True)
class StepLine:
    """A step. step: its index. loss: nats a token; None: it was no number. dt_s: its duration, 0 of
    a line that has none. by_rank: what each rank did, by the names of `_RANK_FIGURES`; empty where
    the line does not tell.
    """

    attempt: int
    step: int
    loss: float | None
    dt_s: float
    tokens: float
    by_rank: Mapping[str, Sequence[float]]


@dataclass(frozen=True, slots=True)
class EvaluationLine:
    """step: how many steps it came after. val_bpb: bits per byte; None: it was no number."""

    attempt: int
    step: int
    val_bpb: float | None


@dataclass(frozen=True, slots=True)
class ResumedLine:
    """Earlier attempts' lines from step on do not count."""

    attempt: int
    step: int


Line = StepLine | EvaluationLine | ResumedLine


def lines_that_count(metrics: Path) -> Iterator[Line]:
    """The lines that no later attempt superseded, in their order: each step comes once.

    Raises YokedError for a line that no run writes.
    """
    with metrics.open("rb") as file:
        ends = deque(_ends(file))
    # Ten times as fast as json, of which a million steps would take half a minute.
    for number, told in enumerate(read(metrics, from_json), start=1):
        # A run that was brought here may have been written by anybody.
        try:
            line = _line_of(told)
        except ValueError as problem:
            raise YokedError(
                f"{metrics}:{number} is no line of a run: {problem}", fix=f"remove line {number}"
            ) from problem
        if line is not None and _counts(line, number, ends):
            yield line


def some_that_count(raw: Sequence[bytes]) -> list[tuple[int, Line]]:
    """The same of lines that are at hand, each with its place in `raw`; some may lie between them.

    What no run writes is passed over.
    """
    ends, found = deque(_ends(raw)), []
    for number, each in enumerate(raw, start=1):
        with contextlib.suppress(ValueError):
            line = _line_of(from_json(each))
            if line is not None and _counts(line, number, ends):
                found.append((number - 1, line))
    return found


def _counts(line: Line, number: int, ends: deque[_End]) -> bool:
    """Whether a line counts; takes the ends that it has come to from `ends`."""
    while ends and ends[0].number < number:
        ends.popleft()
    is_end = bool(ends) and ends[0].number == number
    if is_end:
        ends.popleft()
    if isinstance(line, ResumedLine):
        return is_end
    # An evaluation has the number of the steps before it, a step has its index.
    index = line.step - isinstance(line, EvaluationLine)
    return not ends or index < ends[0].step


@dataclass(frozen=True, slots=True)
class _End:
    """Lines before the one with this number do not count from this step on."""

    number: int
    step: int


def _ends(lines: Iterable[bytes]) -> list[_End]:
    """Where an attempt went on, or began anew. The first that is ahead has the lowest step: one
    with a lower step makes those before it superfluous.
    """
    ends: list[_End] = []
    attempt, same = -1, b""
    for number, raw in enumerate(lines, start=1):
        # Lines begin with their attempt: nearly all are known by that, without being parsed.
        if same and raw.startswith(same) and b'"resumed_at"' not in raw:
            continue
        # Whoever reads them all tells of one that is damaged.
        with contextlib.suppress(ValueError):
            line = _line_of(from_json(raw))
            if isinstance(line, ResumedLine) or (
                isinstance(line, StepLine) and line.attempt > attempt >= 0
            ):
                while ends and ends[-1].step >= line.step:
                    ends.pop()
                ends.append(_End(number, line.step))
            if isinstance(line, (ResumedLine, StepLine)):
                attempt = max(attempt, line.attempt)
                same = raw[: raw.find(b",") + 1] if raw.startswith(b'{"attempt":') else b""
    return ends


def _line_of(line: Any) -> Line | None:
    """None: a line of another kind. Raises ValueError."""
    if not isinstance(line, dict):
        raise ValueError("it is no object")
    attempt = _amount(line, "attempt", 0)
    if "resumed_at" in line:
        return ResumedLine(attempt, _amount(line, "resumed_at"))
    step = _amount(line, "step")
    if "val_bpb" in line:
        return EvaluationLine(attempt, step, _figure(line, "val_bpb"))
    if "loss" not in line:
        return None
    tokens = line.get("tokens", 0)
    by_rank = {}
    if isinstance(tokens, list):
        by_rank = {
            name: _figures(line, name, len(tokens)) for name in _RANK_FIGURES if name in line
        }
        total = sum(by_rank["tokens"])
    else:
        total = _figure(line, "tokens") or 0.0
    return StepLine(
        attempt, step, _figure(line, "loss"), _figure(line, "dt_s") or 0.0, total, by_rank
    )


def _amount(line: Mapping[str, Any], name: str, default: int | None = None) -> int:
    value = line.get(name, default)
    if not amount(value):
        raise ValueError(f"{name} is {value!r:.60}")
    found: int = value
    return found


def _figure(line: Mapping[str, Any], name: str) -> float | None:
    value = line.get(name)
    if value is None:
        return None
    if type(value) not in _NUMBERS or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {value!r:.60}")
    return float(value)


def _figures(line: Mapping[str, Any], name: str, ranks: int) -> Sequence[float]:
    values = line[name]
    if isinstance(values, list) and len(values) == ranks and set(map(type, values)) <= _NUMBERS:
        found: list[float] = values
        # A sum with a NaN is none that is less than anything.
        if min(found, default=0) >= 0 and sum(found) < math.inf:
            return found
    raise ValueError(f"{name} is no list of {ranks} figures")


@dataclass(slots=True)
class Bucket:
    """Neighbouring steps. last_step: the last one's index. tokens, dt_s: sums; losses: how many
    have a loss, loss: their sum, low and high: the least and the greatest. by_rank: sums of each of
    RANK_TIMES, rank after rank.
    """

    last_step: int
    steps: int = 0
    tokens: float = 0.0
    dt_s: float = 0.0
    losses: int = 0
    loss: float = 0.0
    low: float = math.inf
    high: float = -math.inf
    by_rank: list[float] = field(default_factory=list)

    def add(self, other: Bucket) -> None:
        """Take in the steps that come next."""
        self.last_step = other.last_step
        self.steps += other.steps
        self.tokens += other.tokens
        self.dt_s += other.dt_s
        self.losses += other.losses
        self.loss += other.loss
        self.low, self.high = min(self.low, other.low), max(self.high, other.high)
        self.by_rank = _added(self.by_rank, other.by_rank)


def _added(one: list[float], other: Sequence[float]) -> list[float]:
    """The sums of two lists. A start on more hosts has more ranks: what one lacks counts as 0."""
    if len(one) != len(other):
        return [a + b for a, b in zip_longest(one, other, fillvalue=0.0)]
    return list(map(add, one, other))


def _bucket_of(line: StepLine, steps: int) -> Bucket:
    """Of a line that stands for so many steps, itself the last of them."""
    times = [line.by_rank.get(name, ()) for name in RANK_TIMES]
    by_rank = [value for rank in zip(*times, strict=True) for value in rank] if all(times) else []
    if steps > 1:
        by_rank = [value * steps for value in by_rank]
    bucket = Bucket(line.step, steps, line.tokens * steps, line.dt_s * steps, by_rank=by_rank)
    if line.loss is not None:
        bucket.losses, bucket.loss = steps, line.loss * steps
        bucket.low = bucket.high = line.loss
    return bucket


class Buckets:
    """Steps in their order, in at most so many buckets. All but the last are equally wide.

    most: an even number, as two neighbours become one where there are more.
    """

    def __init__(self, most: int = MOST_POINTS) -> None:
        assert most % 2 == 0, most
        self._most = most
        self.width = 1
        self.buckets: list[Bucket] = []

    def add(self, line: StepLine, steps: int = 1) -> None:
        """Take in the next step. steps: so many end with it, which are taken to be like it."""
        new = _bucket_of(line, steps)
        if self.buckets and self.buckets[-1].steps < self.width:
            self.buckets[-1].add(new)
            return
        if len(self.buckets) == self._most:
            for one, next_one in zip(self.buckets[::2], self.buckets[1::2], strict=True):
                one.add(next_one)
            self.buckets = self.buckets[::2]
            self.width *= 2
        self.buckets.append(new)


@dataclass(frozen=True)
class RankSums:
    """A rank over all steps: seconds, tokens and bytes. kept_waiting_s: by rank, how long others
    waited in steps in which this one was the last to be done.
    """

    tokens: float = 0.0
    compute_s: float = 0.0
    comm_s: float = 0.0
    wait_s: float = 0.0
    head_s: float = 0.0
    bytes_sent: float = 0.0
    kept_waiting_s: dict[int, float] = field(default_factory=dict)


class RunMetrics:
    """The sums of a run's metrics.jsonl.

    step_s: of the steps after each start's first one, which compiles and warms up. evaluations:
    bits per byte, by how many steps they came after. resumed: steps at which a later attempt went
    on.
    """

    def __init__(self, most_points: int = MOST_POINTS) -> None:
        self.curve = Buckets(most_points)
        self._sums: dict[str, list[float]] = {name: [] for name in _RANK_FIGURES}
        self._kept_waiting_s: dict[int, dict[int, float]] = {}
        self.step_s = array("d")
        self.steps = 0
        self.tokens = 0.0
        self.elapsed_s = 0.0
        self.first_step_s: float | None = None
        self.last: StepLine | None = None
        self.evaluations: dict[int, float] = {}
        self.resumed: list[int] = []
        self._attempts: set[int] = set()

    def add(self, line: Line, steps: int = 1) -> None:
        """Take in the next line that counts. steps: so many end with it, and are taken to be like
        it, where only some of the lines were read.
        """
        if isinstance(line, ResumedLine):
            self.resumed.append(line.step)
            return
        if isinstance(line, EvaluationLine):
            if line.val_bpb is not None:
                self.evaluations[line.step] = line.val_bpb
            return
        self.curve.add(line, steps)
        self.steps += steps
        self.tokens += line.tokens * steps
        self.elapsed_s += line.dt_s * steps
        if line.attempt in self._attempts:
            self.step_s.append(line.dt_s)
        elif self.first_step_s is None:
            self.first_step_s = line.dt_s
        self._attempts.add(line.attempt)
        self.last = line
        self._add_ranks(line.by_rank, steps)

    def _add_ranks(self, by_rank: Mapping[str, Sequence[float]], steps: int) -> None:
        for name, values in by_rank.items():
            whole = values if steps == 1 else [value * steps for value in values]
            self._sums[name] = _added(self._sums[name], whole)
        waits = by_rank.get("wait_s", ())
        if len(waits) > 1:
            # Whoever waits least is the one for whom the others wait.
            slowest = min(range(len(waits)), key=waits.__getitem__)
            kept = self._kept_waiting_s.setdefault(slowest, {})
            for rank, wait_s in enumerate(waits):
                if rank != slowest:
                    kept[rank] = kept.get(rank, 0.0) + wait_s * steps

    @property
    def ranks(self) -> list[RankSums]:
        """All ranks that took part, the first one first."""
        names = [name for name, sums in self._sums.items() if sums]
        return [
            RankSums(**dict(zip(names, values, strict=True)), kept_waiting_s=kept)
            for rank, values in enumerate(
                zip_longest(*(self._sums[name] for name in names), fillvalue=0.0)
            )
            for kept in [self._kept_waiting_s.get(rank, {})]
        ]

    @property
    def steps_done(self) -> int:
        """How many steps the run has come to."""
        return 0 if self.last is None else self.last.step + 1

    @property
    def last_val_bpb(self) -> float | None:
        """After the most steps; None: it was not evaluated."""
        return self.evaluations[max(self.evaluations)] if self.evaluations else None

    @property
    def median_step_s(self) -> float | None:
        """Of the steps after each start's first one; of a run of one step, that one."""
        return median(self.step_s) if self.step_s else self.first_step_s

    @property
    def tokens_per_second(self) -> float | None:
        """Tokens of the last step over the median step's time."""
        step_s = self.median_step_s
        return self.last.tokens / step_s if self.last is not None and step_s else None


def read_metrics(metrics: Path, most_points: int = MOST_POINTS) -> RunMetrics:
    """Sum up a run's lines. Raises YokedError for a line that no run writes."""
    found = RunMetrics(most_points)
    if metrics.is_file():
        for line in lines_that_count(metrics):
            found.add(line)
    return found
