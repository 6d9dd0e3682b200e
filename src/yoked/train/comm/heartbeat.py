"""Waiting for work of unknown length that some ranks do for all, such as preparing data.

A collective has a deadline, which hours of tokenising would pass. Here a rank that works beats
in the store of the process group; those that wait give up only when the beating stops.
"""

from __future__ import annotations

import functools
import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist

from yoked.ranks.exchange import read_flag
from yoked.ranks.heartbeat import heartbeat, wait_for_heartbeat
from yoked.train.comm.communicator import Communicator

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

T = TypeVar("T")
# By group: its ranks call in one order, so their numbers agree.
_turns: defaultdict[str, Iterator[int]] = defaultdict(itertools.count)


def run_with_heartbeat(
    comm: Communicator,
    works: bool,
    act: Callable[[], T],
    what: str,
    waits_for: Callable[[int], None] = lambda _: None,
) -> T | None:
    """Act on the ranks that work, for as long as it takes; those that do not return None. All
    return when all are done.

    waits_for: told, about once a second, the rank that this one waits for.
    Collective: every rank calls this, in the same order. Traffic: a few bytes to the store every
    BEAT_S. act must not raise. Raises PeerLostError on a rank that waits when one that works was
    not heard of for SILENCE_S.
    """
    if not comm.active:
        return act() if works else None
    store, turn = default_store(), f"yoked/{comm.name}/{next(_turns[comm.name])}"
    workers = [rank for rank, each in enumerate(comm.all_gather_json(works, read_flag)) if each]
    result = None
    if works:
        with heartbeat(store, f"{turn}/{comm.rank}"):
            result = act()
    # A rank that is done waits too: others may take longer than a collective may.
    for rank in workers:
        wait = functools.partial(waits_for, rank)
        wait_for_heartbeat(store, f"{turn}/{rank}", f"rank {rank}", what, wait)
    return result


def default_store() -> Store:
    """The store by which the ranks found each other."""
    store: Store = dist.distributed_c10d._get_default_store()  # noqa: SLF001 - no public way
    return store
