"""Ctrl-C, and what a launch sends to stop a run: a wish that is granted after a step."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SAID = "asked to stop: the step ends, then the checkpoint is saved; once more ends it unsaved\n"


class StopWish:
    """asked: whether this rank was asked to stop."""

    def __init__(self) -> None:
        self.asked = False

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Ctrl-C asks for an orderly stop; a second one stops at once."""

        def handle(number: int, frame: FrameType | None) -> None:
            del number, frame
            if self.asked:
                raise KeyboardInterrupt
            self.asked = True
            _acknowledge()

        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {
            number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)
        }
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _acknowledge() -> None:
    """Say that the wish was heard: a step, and saving, may take long.

    Where a launch of ours started the rank, whoever sent the signal has said so.
    """
    if os.environ.get("RANK", "0") != "0" or "YOKED_LAUNCH_DIR" in os.environ:
        return
    # A line of progress may be drawn there.
    erase = "\r\x1b[K" if os.isatty(2) else ""
    # In a signal handler: what it interrupted may be in the middle of a write to sys.stderr.
    with contextlib.suppress(OSError):
        os.write(2, (erase + _SAID).encode())
