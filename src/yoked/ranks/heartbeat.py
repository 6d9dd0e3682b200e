"""A rank that works for long beats in a store, so that those that wait know that it lives.

No deadline would do: one that is longer than any work notices a dead rank too late.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from yoked.errors import PeerLostError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT_S = 5.0
LONGEST_LOOK_S = 1.0
# A rank that was not heard of for so long is lost.
SILENCE_S = 600.0


@contextlib.contextmanager
def heartbeat(store: Store, key: str) -> Iterator[None]:
    """Beat while the body runs; its end is told at once."""
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(BEAT_S):
            # What is wrong with the store, the next collective says.
            with contextlib.suppress(RuntimeError):
                store.add(f"{key}/beats", 1)  # a count and no time: hosts' clocks differ

    thread = threading.Thread(target=beat, name="yoked-beat", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        with contextlib.suppress(RuntimeError):
            store.set(f"{key}/done", "1")


def wait_for_heartbeat(
    store: Store,
    key: str,
    who: str,
    what: str,
    meanwhile: Callable[[], object] = lambda: None,
) -> None:
    """Return when the body of `heartbeat` has ended. Raises PeerLostError.

    meanwhile: called at least every LONGEST_LOOK_S.
    """
    beats, heard, pause_s = 0, time.monotonic(), 0.01  # short work is seen at once
    while not _ask(lambda: store.check([f"{key}/done"]), what):
        now_beats = _ask(lambda: store.add(f"{key}/beats", 0), what)  # `get` would block
        now = time.monotonic()
        if now_beats != beats:
            beats, heard = now_beats, now
        elif now - heard > SILENCE_S:
            raise PeerLostError(
                f"{who} was not heard of for {SILENCE_S:.0f} s in {what}",
                fix="see whether it hangs or its host sleeps, then start again",
            )
        _ask(meanwhile, what)
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


def _ask(question: Callable[[], Any], what: str) -> Any:
    try:
        return question()
    except RuntimeError as error:
        raise PeerLostError(
            f"the store of the ranks was lost in {what}: {error}",
            fix="look at the logs of the other ranks for the first failure, then start again",
        ) from error
