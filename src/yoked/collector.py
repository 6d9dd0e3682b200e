"""The garbage collector switched off where it would only take time."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def without_collector() -> Iterator[None]:
    """Import torch here: of 200,000 new objects none is garbage; looking is a tenth of the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


@contextmanager
def frozen_objects() -> Iterator[None]:
    """Take steps here: they make no reference cycles worth a collection, of up to 0.5 s."""
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        gc.unfreeze()
