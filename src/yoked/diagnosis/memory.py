"""How a rank's memory went until it ended for want of it: it grew, or was needed all along.

A leak and a batch that is too large end alike, and want different things done. Pure; standard
library alone.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from yoked.units import format_bytes, format_duration, plural

# Every look of the last minute, at two a second; of before so many as show how it went.
_FINE, _COARSE = 120, 64
# After its second step a rank has all the memory that it needs: an optimizer makes its state in the
# first.
_STEPS_NEEDED = 2
# Allocators keep pages and give them back: less is no growth.
_GROWTH = 1.25
# The process may be half gone at the last look.
_END_S = 3.0
# Of what grows evenly the last tenth takes as long as the tenth before: it has not come to rest.
_STILL = 0.25
# A jump lies between two looks. What grows from step to step does not.
_GRADUAL_LOOKS, _GRADUAL_STEPS = 4, 3
_KEEPS = (
    "something is kept from step to step: a list of losses that are tensors (loss.item() is none), "
    "or a cache without a limit"
)


class Sample(NamedTuple):
    """A look. used_bytes: what the kernel cannot read again from a file, swapped or not."""

    at_s: float
    steps: int
    used_bytes: int


@dataclass(frozen=True)
class MemoryTrend:
    """What it came to. from_bytes, took_s: from how much it grew, and in which time; None: what a
    rank needs was there from its first steps on. lasted_s: from then to its end. gradual: from step
    to step.
    """

    used_bytes: int
    from_bytes: int | None = None
    took_s: float = 0.0
    steps: int = 0
    lasted_s: float = 0.0
    gradual: bool = False

    @property
    def words(self) -> str:
        """What there is to say of it."""
        used = format_bytes(self.used_bytes)
        if self.from_bytes is None:
            return f"it needed {used} from its first steps on"
        grew = f"its memory grew from {format_bytes(self.from_bytes)} to {used}"
        steps = f", over {plural(self.steps, 'step')}" if self.gradual else ""
        if self.lasted_s > _END_S:
            took, lasted = format_duration(self.took_s), format_duration(self.lasted_s)
            return f"{grew} in {took}{steps}, {lasted} before its end"
        return f"{grew} in its last {format_duration(self.took_s + self.lasted_s)}{steps}"

    @property
    def fix(self) -> tuple[str, ...]:
        """What to do; nothing, where it is what helps against any want of memory."""
        return (_KEEPS,) if self.gradual and self.lasted_s <= _END_S else ()


class MemoryTrace:
    """The memory of a rank from its start on."""

    def __init__(self) -> None:
        self._fine: deque[Sample] = deque(maxlen=_FINE)
        self._coarse: list[Sample] = []
        self._every_s = 0.0
        # Once it has all that a step needs.
        self._settled: Sample | None = None

    def take(self, sample: Sample) -> None:
        """A newer look came."""
        if not sample.used_bytes:
            return  # not known, or it is a zombie
        if self._settled is None and sample.steps >= _STEPS_NEEDED:
            self._settled = sample
        if len(self._fine) == _FINE:
            self._keep(self._fine[0])
        self._fine.append(sample)

    def _keep(self, sample: Sample) -> None:
        if self._coarse and sample.at_s - self._coarse[-1].at_s < self._every_s:
            return
        self._coarse.append(sample)
        if len(self._coarse) > _COARSE:
            del self._coarse[1::2]
            gaps = [later.at_s - sooner.at_s for sooner, later in pairwise(self._coarse)]
            self._every_s = max(gaps)

    @property
    def trend(self) -> MemoryTrend | None:
        """How it went; None: nothing is known of it."""
        samples = [*self._coarse, *self._fine]
        first = self._settled or (samples[0] if samples else None)
        if first is None:
            return None
        samples = [first, *(each for each in samples if each.at_s > first.at_s)]
        last_s = samples[-1].at_s
        ends = [n for n, each in enumerate(samples) if last_s - each.at_s <= _END_S]
        peak = max(ends, key=lambda number: samples[number].used_bytes)
        used_bytes = samples[peak].used_bytes
        if used_bytes < _GROWTH * first.used_bytes:
            # Of one that has taken no step nobody knows whether this was all.
            return MemoryTrend(used_bytes) if self._settled is not None else None
        return self._growth(samples[: peak + 1], last_s)

    def _growth(self, samples: Sequence[Sample], last_s: float) -> MemoryTrend:
        """samples: up to the most."""
        first, most = samples[0], samples[-1]
        grown = most.used_bytes - first.used_bytes
        low, high = first.used_bytes + 0.1 * grown, first.used_bytes + 0.9 * grown
        begun = max(number for number, each in enumerate(samples) if each.used_bytes <= low)
        over = next(n for n, each in enumerate(samples) if n > begun and each.used_bytes >= high)
        start, end = samples[begun], samples[over]
        if last_s - end.at_s <= (end.at_s - start.at_s) * _STILL:
            end = most
        steps = end.steps - start.steps
        return MemoryTrend(
            most.used_bytes,
            from_bytes=start.used_bytes,
            took_s=end.at_s - start.at_s,
            steps=steps,
            lasted_s=last_s - end.at_s,
            gradual=self._settled is not None
            and over - begun >= _GRADUAL_LOOKS
            and steps >= _GRADUAL_STEPS,
        )
