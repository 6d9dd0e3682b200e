"""The progress line of a training run: loss, tokens per second, time left."""

from __future__ import annotations

import re
import time

from rich.console import Console

from yoked.console import LiveLine
from yoked.units import format_duration

LINE_EVERY_S = 10.0
REDRAW_EVERY_S = 0.2
SMOOTHING = 0.9


class TrainProgress:
    """On a terminal, one line that is redrawn; in a file, a new line every LINE_EVERY_S."""

    def __init__(
        self,
        console: Console,
        steps: int,
        first_step: int,
        full_speed_token_s: float | None = None,
    ) -> None:
        """full_speed_token_s: of all ranks, for MFU; None: it is not shown."""
        self._full_speed_token_s = full_speed_token_s
        self._console, self._steps, self._first = console, steps, first_step
        self._live = LiveLine(console)
        self._shown_s = self._printed_s = float("-inf")
        self._smooth_loss = self._smooth_dt = 0.0
        self._weight = 0.0
        self._dt_count = 0

    def step(self, step: int, loss: float, tokens: int, dt_s: float) -> None:
        """Report a step. step: counted from 0. tokens: of all ranks."""
        self._smooth_loss = SMOOTHING * self._smooth_loss + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        # The first step compiles and warms up, so it is no estimate of the others.
        if step > self._first or self._dt_count == 0:
            weight = 0.0 if self._dt_count <= 1 else SMOOTHING
            self._smooth_dt = weight * self._smooth_dt + (1 - weight) * dt_s
            self._dt_count += 1
        now_s, last = time.monotonic(), step + 1 == self._steps
        draws = self._live.is_seen and (last or now_s - self._shown_s >= REDRAW_EVERY_S)
        prints = not self._console.is_terminal and (last or now_s - self._printed_s >= LINE_EVERY_S)
        if not draws and not prints:
            return
        left_s = (self._steps - step - 1) * self._smooth_dt
        line = (
            f"step {step + 1:,}/{self._steps:,}  loss {self._smooth_loss / self._weight:.4f}  "
            f"{tokens / self._smooth_dt:,.0f} tokens/s  {self._mfu(tokens)}"
            f"{format_duration(left_s)} left"
        )
        if draws:
            self._shown_s = now_s
            self._live.draw(line)
        if prints:
            self._printed_s = now_s
            self._console.print(line, markup=False)

    def _mfu(self, tokens: int) -> str:
        if self._full_speed_token_s is None:
            return ""
        return f"MFU {tokens * self._full_speed_token_s / self._smooth_dt:.0%}  "

    def say(self, text: str) -> None:
        """End the progress line and print a text."""
        self.close()
        self._console.print(text, markup=False)

    def close(self) -> None:
        """End the progress line."""
        self._live.close()


# Matches the lines that `TrainProgress` prints into a log, so that a live display of the log can
# leave them out. The last one, step N/N, does not match: it stays.
PROGRESS_LINE = re.compile(r"step ([\d,]+)/(?!\1 )[\d,]+  loss ")
