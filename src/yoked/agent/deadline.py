"""Several questions at once, each with the time that all have: one that hangs costs no other."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any


def told_within(
    limit_s: float, acts: Mapping[str, Callable[[], Any]]
) -> tuple[dict[str, Any], dict[str, str]]:
    """(what was told, why the rest was not), both by name.

    Each act has a thread of its own. One that takes longer than limit_s is left behind: a lookup
    of a name, or a file of a server that is gone, cannot be interrupted.
    """
    told: dict[str, Any] = {}
    untold: dict[str, str] = {}

    def run(name: str, act: Callable[[], Any]) -> None:
        try:
            told[name] = act()
        except Exception as problem:  # noqa: BLE001 - what cannot be told is no failure of the rest
            untold[name] = repr(problem)

    threads = {
        name: threading.Thread(target=run, args=(name, act), name=name, daemon=True)
        for name, act in acts.items()
    }
    for thread in threads.values():
        thread.start()
    until_s = time.monotonic() + limit_s
    for thread in threads.values():
        thread.join(max(0.0, until_s - time.monotonic()))
    # Copies: whoever is late must not write into an answer.
    answered, failed = dict(told), dict(untold)
    late = dict.fromkeys(acts.keys() - answered.keys(), f"no answer in {limit_s:g} s")
    return answered, {**late, **failed}
