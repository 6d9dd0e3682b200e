"""What a person sees while work goes on: stderr, with live progress only on a terminal."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path

from rich.console import Console

from yoked.core.fs import write_bytes
from yoked.liveline import LiveText
from yoked.paths import LIVE_NAME
from yoked.units import format_bytes, format_count, format_duration

_REDRAW_S = 0.1
# In a log or a pipe, in which each line stays.
_LINE_EVERY_S = 15.0


def stderr_console() -> Console:
    """A console on stderr; `is_terminal` says whether live progress is welcome."""
    # rich takes FORCE_COLOR and TTY_COMPATIBLE for a terminal. A rank has them from its person,
    # and its log would be one line that is drawn over itself.
    on_terminal = sys.stderr.isatty()
    return Console(
        stderr=True, force_terminal=on_terminal, highlight=False, soft_wrap=True, emoji=False
    )


class LiveLine:
    """One line that is drawn over itself: on a terminal, or for those who look on at a run.

    A rank of a run writes into a log, in which a line that is drawn over itself cannot be read. So
    it leaves the line as it is now in a file, and whoever follows the run draws it.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._open = False
        folder = os.environ.get("YOKED_LAUNCH_DIR")
        is_watched = folder and not console.is_terminal and os.environ.get("RANK", "0") == "0"
        self._file = Path(folder, LIVE_NAME) if folder and is_watched else None

    @property
    def is_seen(self) -> bool:
        """Whether somebody may see it."""
        return self._console.is_terminal or self._file is not None

    def draw(self, line: LiveText) -> None:
        """Show this in place of what was drawn before."""
        self._open = True
        if self._file is not None:
            # No picture is worth a run: the disk may be full.
            with contextlib.suppress(OSError):
                write_bytes(self._file, line.encode(), durable=False)
        elif self._console.is_terminal:
            cells = max(self._console.width - 1, 10)
            # \x1b[K clears what a longer line before this one left.
            self._write(f"\r{line.fit(cells, encoding=self._console.encoding)}\x1b[K")

    def pause(self) -> None:
        """Have what is printed next start a new line. Whoever looks on from elsewhere goes on."""
        if self._open and self._file is None:
            self.close()

    def close(self, *, erase: bool = False) -> None:
        """End the line: what is printed next starts a new one. erase: nothing of it stays."""
        if not self._open:
            return
        self._open = False
        if self._file is not None:
            with contextlib.suppress(OSError):
                self._file.unlink(missing_ok=True)
        elif self._console.is_terminal:
            self._write("\r\x1b[K" if erase else "\n")

    def _write(self, text: str) -> None:
        self._console.file.write(text)
        self._console.file.flush()


class StageProgress:
    """One line that follows long work: stage, amount, rate and time left.

    Where nobody sees a `LiveLine`, a line of its own every 15 s. `update` may be called as often
    as one likes.
    """

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = LiveLine(console)
        self._stage = ""
        self._started_s = self._drawn_s = 0.0
        self._first = 0
        self._is_amount = True
        self._said_s = time.monotonic()

    def comes(self, host: str, done: int, total: int) -> None:
        """Say that so many of the bytes have come that a host sends."""
        self.update(f"from {host}", done, total, "bytes")

    def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
        """Say that `done` of `total` (None: unknown) units of a stage are finished."""
        now_s, is_seen = time.monotonic(), self._live.is_seen
        if stage != self._stage:
            self.close()
            self._stage, self._started_s, self._first = stage, now_s, done
            self._drawn_s = 0.0
        if is_seen and (now_s - self._drawn_s >= _REDRAW_S or done == total):
            self._drawn_s = now_s
            self._live.draw(LiveText.of(self._line(done, total, unit, now_s - self._started_s)))
        elif not is_seen and now_s - self._said_s >= _LINE_EVERY_S:
            self._said_s = now_s
            line = self._line(done, total, unit, now_s - self._started_s)
            self._console.print(line, markup=False)

    def doing(self, what: str) -> None:
        """Say what goes on now, of which no amount is known. Nothing of it stays."""
        self.close()
        self._is_amount = False
        if self._live.is_seen:
            self._live.draw(LiveText.of(what))

    def close(self) -> None:
        """End the line, so that what is printed next starts a new one."""
        self._live.close(erase=not self._is_amount)
        self._stage, self._drawn_s, self._is_amount = "", 0.0, True

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


class HostsProgress:
    """One line that follows what several hosts do at once: the sum of those at one stage.

    A stage's first word says what it is (`sending to alpha`). Where hosts are at several, that of
    the last word is shown: hosts at another may be waiting.
    """

    def __init__(self, console: Console) -> None:
        self._progress = StageProgress(console)
        self._lock = threading.Lock()
        # By stage, by host: done, total.
        self._amounts: dict[str, dict[str, tuple[int, int | None]]] = {}
        self._shown = ""

    def update(self, host: str, stage: str, done: int, total: int | None, unit: str) -> None:
        """Say that a host has finished `done` of `total` (None: unknown) units of a stage."""
        word = stage.partition(" ")[0]
        with self._lock:
            self._amounts.setdefault(word, {})[host] = (done, total)
            stages = list(self._amounts)
            if done == total and stages.index(word) < stages.index(self._shown or word):
                # Who is through says so once more, while others are further.
                return
            self._shown = word
            hosts = self._amounts[word]
            totals = [most for _, most in hosts.values() if most is not None]
            self._progress.update(
                f"{word}, {', '.join(hosts)}",
                sum(now for now, _ in hosts.values()),
                sum(totals) if len(totals) == len(hosts) else None,
                unit,
            )

    def close(self) -> None:
        """End the line."""
        self._progress.close()


def _amount(value: float, unit: str) -> str:
    if unit in ("B", "bytes"):
        return format_bytes(value)
    return f"{format_count(round(value) if value >= 100 else round(value, 2))} {unit}"
