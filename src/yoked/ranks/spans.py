"""What this rank does and when, of a few steps: for `yoked trace`, and only once it asks.

A span is a name, a begin and an end by this host's monotonic clock. The recorder, the trainer and
`yoked.ranks.instruments` add them; outside of a trace each place costs one look at `recording`.
The recorder's thread writes them into a file beside its record, as gzip of JSON lines: a head, then
a span each. Standard library alone.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from yoked.core.fs import write_bytes

# Of a rank: some 40 bytes each in the file. Later ones are counted, and lost.
MOST_SPANS = 20_000
# Ranks hear the word at unlike moments, at most 0.5 s apart: of short steps more are recorded, so
# that there is a time of which all ranks have something.
LEAST_S = 2.0
_MOST_CHARACTERS = 120
MAIN, STEPS, COLLECTIVES = "main", "steps", "collectives"


class Spans:
    """Of this process.

    recording: looked at wherever a span could be added. purpose: what a collective is for that is
    about to start, in the trainer's words.
    """

    def __init__(self) -> None:
        self.recording = False
        self.purpose: str | None = None
        self.asked = False
        self._rows: list[list[Any]] = []
        self._lost = self._steps = self._wanted = 0
        self._began_ns = self._ended_ns = self._until_ns = 0
        self._step_began_ns: int | None = None

    def ask(self, steps: int, limit_s: float) -> None:
        """Record from now on, until so many whole steps were taken, and for no longer than that."""
        # Ranks begin in the middle of a step, and not all of them of the same.
        self._rows, self._lost, self._steps, self._wanted = [], 0, 0, steps + 1
        self._began_ns, self._step_began_ns = time.monotonic_ns(), None
        self._until_ns = self._began_ns + int(limit_s * 1e9)
        self.asked = self.recording = True

    @property
    def is_over(self) -> bool:
        """Whether there is something to write: enough steps were taken, or it took too long."""
        return self.asked and (not self.recording or time.monotonic_ns() > self._until_ns)

    def covers(self, at_ns: int) -> bool:
        """Whether a moment is in what is recorded."""
        return self.recording and at_ns >= self._began_ns

    def add(
        self, track: str, name: str, began_ns: int, ended_ns: int, detail: dict[str, Any] | None
    ) -> list[Any] | None:
        """Add a span; returns it as a list whose end may be set later. None: it was not added."""
        if not self.recording:
            return None
        if len(self._rows) >= MOST_SPANS:
            self._lost += 1
            return None
        row = [track, name[:_MOST_CHARACTERS], began_ns, ended_ns, detail]
        self._rows.append(row)
        return row

    def since(self, began_ns: int, name: str, detail: dict[str, Any] | None = None) -> None:
        """Add what this thread did from then until now."""
        if self.covers(began_ns):
            thread = threading.current_thread()
            track = MAIN if thread is threading.main_thread() else f"thread {thread.name}"
            self.add(track[:_MOST_CHARACTERS], name, began_ns, time.monotonic_ns(), detail)

    @contextlib.contextmanager
    def span(self, name: str, ranks: Sequence[int] | None = None) -> Iterator[None]:
        """This thread is about this meanwhile. ranks: for which it waits; empty: for all."""
        began_ns = time.monotonic_ns() if self.recording else 0
        try:
            yield
        finally:
            if self.recording:
                self.since(began_ns, name, None if ranks is None else {"peers": list(ranks)})

    def step_done(self, number: int) -> None:
        """The program took its step of that number; the next one begins."""
        if not self.recording:
            return
        now_ns = time.monotonic_ns()
        if self._step_began_ns is not None:
            self.add(STEPS, f"step {number}", self._step_began_ns, now_ns, None)
            self._steps += 1
        self._step_began_ns = now_ns
        if self._steps >= self._wanted and now_ns >= self._began_ns + LEAST_S * 1e9:
            self._ended_ns = now_ns
            self.recording = False

    def write(self, path: Path, rank: int) -> None:
        """Write what was recorded, such that a reader sees all of it or nothing."""
        if self.recording:
            self._ended_ns = time.monotonic_ns()
        self.asked = self.recording = False
        rows, self._rows = self._rows, []
        head = {
            "rank": rank,
            "pid": os.getpid(),
            "began_ns": self._began_ns,
            "ended_ns": self._ended_ns,
            # To be added for this host's time since 1970.
            "epoch_ns": time.time_ns() - time.monotonic_ns(),
            "steps": self._steps,
            "lost": self._lost,
        }
        # In pieces: a program that trains wants Python's lock meanwhile.
        lines = (json.dumps(each, separators=(",", ":")).encode() for each in (head, *rows))
        packed = gzip.compress(b"\n".join(lines), compresslevel=1)
        # A full disk: the run goes on.
        with contextlib.suppress(OSError):
            write_bytes(path, packed, durable=False)


SPANS = Spans()
