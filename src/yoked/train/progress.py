"""The line that follows a training run: loss, tokens per second, time left."""

from __future__ import annotations

import time

from rich.console import Console

from yoked.units import format_duration

LINE_EVERY_S = 10.0
REDRAW_EVERY_S = 0.2
SMOOTHING = 0.9


class TrainProgress:
    """One line, redrawn on a terminal; elsewhere a new line now and then."""

    def __init__(self, console: Console, steps: int, first_step: int) -> None:
        self._console, self._steps, self._first = console, steps, first_step
        self._shown_s = float("-inf")
        self._smooth_loss = self._smooth_dt = 0.0
        self._weight = 0.0
        self._dt_count = 0
        self._open_line = False

    def step(self, step: int, loss: float, tokens: int, dt_s: float, note: str = "") -> None:
        """Take in step `step` (counted from 0)."""
        self._smooth_loss = SMOOTHING * self._smooth_loss + (1 - SMOOTHING) * loss
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        # The first step compiles and warms up: it says nothing of the others.
        if step > self._first or self._dt_count == 0:
            weight = 0.0 if self._dt_count <= 1 else SMOOTHING
            self._smooth_dt = weight * self._smooth_dt + (1 - weight) * dt_s
            self._dt_count += 1
        now_s, last = time.monotonic(), step + 1 == self._steps
        every_s = REDRAW_EVERY_S if self._console.is_terminal else LINE_EVERY_S
        if now_s - self._shown_s < every_s and not last:
            return
        self._shown_s = now_s
        left_s = (self._steps - step - 1) * self._smooth_dt
        line = (
            f"step {step + 1:,}/{self._steps:,}  loss {self._smooth_loss / self._weight:.4f}  "
            f"{tokens / self._smooth_dt:,.0f} tokens/s  {format_duration(left_s)} left{note}"
        )
        if self._console.is_terminal:
            self._console.file.write(f"\r{line[: self._console.width - 1]}\x1b[K")
            self._console.file.flush()
            self._open_line = True
        else:
            self._console.print(line, markup=False)

    def say(self, text: str) -> None:
        """Print a line of its own."""
        self.close()
        self._console.print(text, markup=False)

    def close(self) -> None:
        """End an open line."""
        if self._open_line:
            self._console.file.write("\n")
            self._console.file.flush()
            self._open_line = False
