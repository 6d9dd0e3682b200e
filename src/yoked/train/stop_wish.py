"""Ctrl-C, and what a launch sends to stop a run: a wish that is granted after a step."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


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
