"""What a person sees while work goes on: stderr, with live progress only on a terminal."""

from __future__ import annotations

import os
import time

from rich.console import Console
from rich.text import Text

from yoked.text import one_line
from yoked.units import format_bytes, format_count, format_duration

# Set by the launcher for its ranks, whose stderr is a pipe to the terminal.
TERMINAL_VARIABLE = "YOKED_TERMINAL"
_REDRAW_S = 0.1


def stderr_console() -> Console:
    """A console on stderr; `is_terminal` says whether live progress is welcome."""
    forced = True if os.environ.get(TERMINAL_VARIABLE) == "1" else None
    return Console(stderr=True, force_terminal=forced, highlight=False, soft_wrap=True, emoji=False)


class StageProgress:
    """One line that follows long work: stage, amount, rate and time left.

    Quiet when the console is not a terminal. `update` may be called as often as one likes.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._stage = ""
        self._started_s = self._drawn_s = 0.0
        self._first = 0

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Say that `done` of `total` (None: unknown) units of a stage are finished."""
        if not self._console.is_terminal:
            return
        now_s = time.monotonic()
        if stage != self._stage:
            self.close()
            self._stage, self._started_s, self._first = stage, now_s, done
            self._drawn_s = 0.0
        if now_s - self._drawn_s >= _REDRAW_S or done == total:
            self._drawn_s = now_s
            self._draw(self._line(done, total, unit, now_s - self._started_s))

    def close(self) -> None:
        """End the line, so that what is printed next starts a new one."""
        if self._drawn_s:
            self._console.file.write("\n")
            self._console.file.flush()
        self._stage, self._drawn_s = "", 0.0

    def _line(self, done: int, total: int | None, unit: str, elapsed_s: float) -> str:
        parts = [f"{self._stage}:", _amount(done, unit)]
        rate = (done - self._first) / elapsed_s if elapsed_s > 0 else 0.0
        if total:
            parts[1] = (
                f"{_amount(done, unit)} of {_amount(total, unit)}, {100 * done / total:.0f}%,"
            )
        if rate > 0:
            parts.append(f"{_amount(rate, unit)}/s")
            if total and done < total:
                parts.append(f", {format_duration((total - done) / rate)} left")
        return " ".join(parts).replace(" ,", ",")

    def _draw(self, line: str) -> None:
        text = Text(one_line(line))
        text.truncate(max(self._console.width - 1, 10), overflow="ellipsis")
        # \x1b[K clears what a longer line before this one left.
        self._console.file.write(f"\r{text.plain}\x1b[K")
        self._console.file.flush()


def _amount(value: float, unit: str) -> str:
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return f"{format_count(round(value) if value >= 100 else round(value, 2))} {unit}"
