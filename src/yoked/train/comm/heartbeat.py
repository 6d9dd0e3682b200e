"""Waiting for work of unknown length that some ranks do for all, such as preparing data.

A collective has a deadline, which hours of tokenising would pass. Here a rank that works beats
in the store of the process group; those that wait give up only when the beating stops.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

import torch.distributed as dist

from yoked.ranks.exchange import read_flag
from yoked.train.comm.communicator import COLLECTIVE_TIMEOUT_S, Communicator, PeerLostError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

BEAT_S = 5.0
LONGEST_LOOK_S = 1.0

T = TypeVar("T")
_turns = itertools.count()  # ranks call in one order, so their numbers agree


def run_with_heartbeat(
    comm: Communicator, works: bool, act: Callable[[], T], what: str
) -> T | None:
    """Act on the ranks that work, for as long as it takes; the others wait, and return None.

    Collective: every rank calls this, in the same order. Traffic: a few bytes to the store every
    BEAT_S. act must not raise. Raises PeerLostError on a rank that waits when one that works was
    not heard of for COLLECTIVE_TIMEOUT_S.
    """
    if not comm.active:
        return act() if works else None
    store: Store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    turn = f"yoked/{next(_turns)}"
    workers = [rank for rank, each in enumerate(comm.all_gather_json(works, read_flag)) if each]
    if works:
        with heartbeat(store, f"{turn}/{comm.rank}"):
            return act()
    for rank in workers:
        wait_for_heartbeat(store, f"{turn}/{rank}", f"rank {rank}", what)
    return None


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


def wait_for_heartbeat(store: Store, key: str, who: str, what: str) -> None:
    """Return when the body of `heartbeat` has ended. Raises PeerLostError."""
    beats, heard, pause_s = 0, time.monotonic(), 0.01  # short work is seen at once
    while not _ask(lambda: store.check([f"{key}/done"]), what):
        now_beats = _ask(lambda: store.add(f"{key}/beats", 0), what)  # `get` would block
        now = time.monotonic()
        if now_beats != beats:
            beats, heard = now_beats, now
        elif now - heard > COLLECTIVE_TIMEOUT_S:
            raise PeerLostError(
                f"{who} was not heard of for {COLLECTIVE_TIMEOUT_S:.0f} s in {what}",
                fix="see whether it hangs or its host sleeps, then start again",
            )
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, LONGEST_LOOK_S)


def _ask(question: Callable[[], Any], what: str) -> Any:
    try:
        return question()
    except RuntimeError as error:
        raise PeerLostError(
            f"the store of the process group was lost in {what}: {error}",
            fix="look at the logs of the other ranks for the first failure, then start again",
        ) from error
