"""Where a rank's step goes: phases of computing, and what the rank stands still for."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal

from yoked.ranks.spans import SPANS

# Slower ranks, or bytes that are on their way.
WaitsFor = Literal["ranks", "bytes"]
Phase = Literal["forward", "lm_head", "backward", "muon", "adamw"]


class StepClock:
    """Seconds of one step, by this host's clock. Only `Work.wait` measures what is waited for."""

    def __init__(self, synchronize: Callable[[], None] = lambda: None) -> None:
        """synchronize: called where a phase begins and ends, to count what a GPU computes."""
        self._synchronize = synchronize
        self.phase_s: dict[Phase, float] = defaultdict(float)
        self.blocked_s: dict[WaitsFor, float] = {"ranks": 0.0, "bytes": 0.0}
        self._started = time.perf_counter()

    def start(self) -> None:
        """A step begins."""
        self.phase_s.clear()
        self.blocked_s = {"ranks": 0.0, "bytes": 0.0}
        self._started = time.perf_counter()

    @property
    def computed_s(self) -> float:
        """Since the step began, without what was waited for."""
        return time.perf_counter() - self._started - sum(self.blocked_s.values())

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """Count what is computed meanwhile; on a GPU, unless synchronized, what is told to it."""
        self._synchronize()
        before_s = self.computed_s
        with SPANS.span(name):
            yield
            self._synchronize()
        self.phase_s[name] += self.computed_s - before_s

    @contextmanager
    def blocked(self, waits_for: WaitsFor) -> Iterator[None]:
        """Count what this rank stands still for."""
        before_s = time.perf_counter()
        try:
            yield
        finally:
            self.blocked_s[waits_for] += time.perf_counter() - before_s
