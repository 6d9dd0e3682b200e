"""Signals that end a command as Ctrl-C does."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator


@contextlib.contextmanager
def ends_as_interrupt(*signals: signal.Signals) -> Iterator[None]:
    """While it lasts, these signals end the program as Ctrl-C does, with everything undone."""
    # What is ignored (by nohup, say) stays so.
    before = {
        number: handler
        for number in signals
        if (handler := signal.getsignal(number)) != signal.SIG_IGN
    }
    for number in before:
        signal.signal(number, signal.default_int_handler)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
