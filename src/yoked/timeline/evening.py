"""Finer than whole rows: how much of its lm_head's work a rank hands over to a faster one.

Rows are few, and whole: one of 32 is 3% of a step, one of 4 a quarter. What rows leave uneven is
evened out by tokens of the lm_head, which need nothing but their hidden states: a rank that is
late (the source) sends those of some tokens of one micro-batch to a helper, and has their gradient
back before that micro-batch's backward pass.

    source  F H- B     F H B  F H B ..      H-: without k tokens, whose hidden states leave
            F  k ->
    helper  F H B  F  H+  B  ..             H+: with those k tokens, whose gradient goes back

With few micro-batches it is agreed before a step, by what the last ones took, and done early in it.
With more, ranks report in the middle of each step how far they have come, and it is done near its
end: a processor's speed a step ago says less of it than its speed a second ago.

Pure, and to the same bits on all hosts: sums are made one by one, in the order of ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from yoked.timeline.deferral import part_batches
from yoked.timeline.work import STEP_TIME_OVER_MATMULS

# Tokens are handed over in groups of so many.
GRAIN_TOKENS = 16
# Of a micro-batch's tokens a rank keeps at least a quarter.
MOST_OF_BATCH = 0.75
# A step is shorter by this part, or handovers stay as they are.
WORTH = 0.01
# The same where the source's only micro-batch waits for them, and so does the helper's.
WORTH_WAITING = 0.03
# In the time of a helper's micro-batch a source may have so many. With 14 against 3 both waited for
# longer than they computed less.
MOST_BATCHES_OF_SOURCE = 2
# With so many micro-batches, and at least two deferred ones, ranks report within a step.
FEWEST_TO_REPORT = 6
# Of how much one rank is later than another in the middle, the part that is evened out; and from
# which part of a step on.
TRUST, WORTH_IN_STEP = 0.75, 0.004
# Of more ranks, rows are best by themselves, and evened out as they are.
MOST_RANKS = 8


@dataclass(frozen=True)
class Handover:
    """In each step the rank `helper` computes the lm_head of so many tokens of rank `source`."""

    source: int
    helper: int
    tokens: int


@dataclass(frozen=True)
class Evening:
    """What of a step can be evened out.

    batch_rows: rows of a micro-batch; deferred: as `deferred_backwards` says; row_tokens: tokens a
    row; head_part: of a row's time, what the lm_head takes; divided: it is by its vocabulary
    (`yoked.timeline.division`), and parts as large as need be do without any exchange more.
    """

    batch_rows: int
    deferred: int
    row_tokens: int
    head_part: float
    divided: bool = False

    def work(self, tokens: int) -> float:
        """What the lm_head of so many tokens costs, in rows."""
        return tokens * self.head_part / self.row_tokens

    def most(self, rows: int) -> float:
        """The most that a rank with so many rows can hand over, in rows."""
        if self.divided:
            return self.work(rows * self.row_tokens)
        first = source_batch(self.batches(rows), self.deferred) * self.batch_rows
        in_batch = max(0, min(self.batch_rows, rows - first))
        return self.work(int(MOST_OF_BATCH * in_batch * self.row_tokens))

    def in_step(self, rows: Sequence[int]) -> bool:
        """Whether ranks with these rows report within a step."""
        fewest = min(self.batches(count) for count in rows)
        can = len(rows) > 1 and self.deferred > 1 and not self.divided
        return can and fewest >= FEWEST_TO_REPORT

    def report_batch(self, rows: int) -> int:
        """Before which of its micro-batches a rank with so many rows reports."""
        return self.batches(rows) // 2

    def source_batch(self, rank: int, rows: Sequence[int]) -> int:
        """Of which micro-batch a rank hands tokens over. rows: of each rank."""
        count = self.batches(rows[rank])
        return count - 2 if self.in_step(rows) else source_batch(count, self.deferred)

    def helper_batch(self, handover: Handover, rows: Sequence[int]) -> int:
        """In which of its micro-batches the helper does it. rows: of each rank."""
        counts = [self.batches(rows[rank]) for rank in (handover.source, handover.helper)]
        if self.in_step(rows):
            return counts[1] - 1
        return helper_batch(counts[0], counts[1], self.deferred)

    def from_reports(self, rows: Sequence[int], elapsed_s: Sequence[float]) -> tuple[Handover, ...]:
        """What evens out this step. elapsed_s: what each rank has computed when it reported."""
        row_s = [
            took_s / self._done(self.report_batch(count), count)
            for took_s, count in zip(elapsed_s, rows, strict=True)
        ]
        ends_s = [count * each for count, each in zip(rows, row_s, strict=True)]
        total_s = 0.0
        for each in ends_s:
            total_s += each
        mean_s = total_s / len(ends_s)
        trusted_s = [mean_s + TRUST * (each - mean_s) for each in ends_s]
        found = self.even(rows, trusted_s, row_s)
        extra = self.extra_work(found, len(rows))
        after_s = max(s + x * r for s, x, r in zip(trusted_s, extra, row_s, strict=True))
        return found if after_s < (1 - WORTH_IN_STEP) * max(trusted_s) else ()

    def _done(self, batches: int, rows: int) -> float:
        """So many micro-batches of a rank's, in rows: of the deferred ones all but backward."""
        early = part_batches(self.batches(rows), self.deferred).early
        backward_part = (1 - self.head_part) * 2 / 3
        deferred = max(0, batches - early) * (1 - backward_part)
        return self.batch_rows * (min(batches, early) + deferred)

    def even(
        self, rows: Sequence[int], took_s: Sequence[float], row_s: Sequence[float]
    ) -> tuple[Handover, ...]:
        """Handovers after which ranks are done together, as far as they can be.

        took_s: of a step with these rows; row_s: of a row more; both by rank.
        """
        most = [self.most(count) for count in rows]
        extra = even_out(took_s, row_s, most)
        grains = [int(abs(each) / self.work(GRAIN_TOKENS)) for each in extra]
        sources = [rank for rank, each in enumerate(extra) if each < 0]
        helpers = [
            rank
            for rank, each in enumerate(extra)
            if each > 0 and self._in_time(rank, sources, rows)
        ]
        return tuple(_pair(sources, helpers, grains))

    def _in_time(self, helper: int, sources: Sequence[int], rows: Sequence[int]) -> bool:
        """Whether a helper has done it before a source needs it: not within one micro-batch that
        takes as long as several of the source's.
        """
        if self.divided or self.in_step(rows):
            return True
        most = max((self.batches(rows[source]) for source in sources), default=0)
        return MOST_BATCHES_OF_SOURCE * self.batches(rows[helper]) >= most

    def worth(self, handovers: Sequence[Handover], rows: Sequence[int]) -> float:
        """The part by which a step must become shorter."""
        waiting = any(self.batches(rows[each.source]) == 1 for each in handovers)
        return WORTH_WAITING if waiting and not self.divided else WORTH

    def best_rows(
        self, rows: Sequence[int], took_s: Callable[[int, float], float]
    ) -> tuple[int, ...]:
        """Rows by rank such that a step is shortest when it is evened out.

        rows: the best whole ones. Tried is to move single ones, as long as that is worth it.
        took_s: of a rank with so many rows.
        """
        best = tuple(rows)
        if len(rows) > MOST_RANKS:
            return best
        best_s = self.step_s(best, took_s)
        while True:
            tried = [(self.step_s(each, took_s), each) for each in _moves(best, took_s)]
            if not tried or min(tried)[0] >= (1 - WORTH_WAITING) * best_s:
                return best
            best_s, best = min(tried)

    def step_s(self, rows: Sequence[int], took_s: Callable[[int, float], float]) -> float:
        """Seconds of a step with these rows, evened out."""
        extra = self.extra_work(self.evened(rows, took_s), len(rows))
        return max(took_s(rank, count + extra[rank]) for rank, count in enumerate(rows))

    def evened(
        self, rows: Sequence[int], took_s: Callable[[int, float], float]
    ) -> tuple[Handover, ...]:
        """What evens out these rows, if it is worth it."""
        before = [took_s(rank, count) for rank, count in enumerate(rows)]
        row_s = [took_s(rank, count + 1) - before[rank] for rank, count in enumerate(rows)]
        found = self.even(rows, before, row_s)
        extra = self.extra_work(found, len(rows))
        after_s = max(took_s(rank, count + extra[rank]) for rank, count in enumerate(rows))
        return found if after_s < (1 - self.worth(found, rows)) * max(before) else ()

    def extra_work(self, handovers: Sequence[Handover], ranks: int) -> tuple[float, ...]:
        """By rank, what it computes for others, in rows; below zero: what others do for it."""
        return tuple(self.work(count) for count in extra_tokens(handovers, ranks))

    def batches(self, rows: int) -> int:
        """Micro-batches of a rank with so many rows."""
        return -(-rows // self.batch_rows)


def _moves(
    rows: tuple[int, ...], took_s: Callable[[int, float], float]
) -> Iterator[tuple[int, ...]]:
    """With one row from the rank that is done last, or to the one that is done first."""
    ranks = range(len(rows))
    by_time = sorted(ranks, key=lambda rank: (took_s(rank, rows[rank]), rank))
    first, last = by_time[0], by_time[-1]
    for source, to in {(last, rank) for rank in ranks} | {(rank, first) for rank in ranks}:
        if source != to and rows[source]:
            moved = list(rows)
            moved[source] -= 1
            moved[to] += 1
            yield tuple(moved)


def extra_tokens(handovers: Sequence[Handover], ranks: int) -> list[int]:
    """By rank, tokens that it computes for others; below zero: that others do for it."""
    tokens = [0] * ranks
    for each in handovers:
        tokens[each.source] -= each.tokens
        tokens[each.helper] += each.tokens
    return tokens


def head_part(head_flops: float, flops: float) -> float:
    """Of a row's time, what the lm_head takes, by what both compute."""
    return head_flops / (STEP_TIME_OVER_MATMULS * flops)


def source_batch(count: int, deferred: int) -> int:
    """Of so many micro-batches, the one whose tokens are handed over.

    As early as can be: its backward pass waits until the early ones are done, or with the
    deferred ones.
    """
    return 1 if part_batches(count, deferred).early == 1 else 0


def helper_batch(source_count: int, helper_count: int, deferred: int) -> int:
    """Of the helper's micro-batches the first that comes to the lm_head after the source's hidden
    states are there, where both take as long for a step.
    """
    # A micro-batch's way through the layers, and the message's: a quarter of its time at most.
    quarters = 4 * source_batch(source_count, deferred) + 1
    return min(helper_count - 1, -(-quarters * helper_count // (4 * source_count)))


def even_out(
    took_s: Sequence[float], row_s: Sequence[float], most: Sequence[float]
) -> tuple[float, ...]:
    """Work by rank, in rows, to be added (above zero) or taken away such that all end together.

    most: that may be taken from a rank; of 0, it neither gives nor takes.
    """
    extra = [0.0] * len(took_s)
    free = [rank for rank, most_ in enumerate(most) if most_ > 0 and row_s[rank] > 0]
    given = 0.0
    while len(free) > 1 or (free and given):
        weight, total = 0.0, given
        for rank in free:
            weight += 1.0 / row_s[rank]
            total += took_s[rank] / row_s[rank]
        level_s = total / weight
        for rank in free:
            extra[rank] = (level_s - took_s[rank]) / row_s[rank]
        over = [rank for rank in free if extra[rank] < -most[rank]]
        if not over:
            return tuple(extra)
        # They are later than the others in any case.
        for rank in over:
            extra[rank] = -most[rank]
            given += most[rank]
            free.remove(rank)
    return tuple(extra)


def _pair(sources: list[int], helpers: list[int], grains: list[int]) -> list[Handover]:
    """Give each helper its grains from the sources, both in the order of ranks."""
    found: list[Handover] = []
    left = list(grains)
    for source in sources:
        for helper in helpers:
            both = min(left[source], left[helper])
            if both:
                left[source] -= both
                left[helper] -= both
                found.append(Handover(source, helper, both * GRAIN_TOKENS))
    return found
