"""Ranks that sit out a run: they hold no weights, and come back when its steps would be shorter.

They are not in the collectives of the ranks that train. Both sides speak through the store by which
all ranks found each other: a rank that sits out tells there how fast it is, once a minute, and
that it was asked to stop. Rank 0 reads it. Where the cost model says that a rank is worth having
now, the run stops at a checkpoint and goes on from it with that rank, as `--resume` would.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING

from yoked.costmodel.compute_cost import RankSpeed
from yoked.ranks.exchange import decode, encode
from yoked.ranks.heartbeat import wait_for_heartbeat
from yoked.train.comm.heartbeat import default_store
from yoked.train.speeds import read_speed
from yoked.train.stop_wish import StopWish

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

# A third of a second of products in so many seconds costs a laptop half a percent of its time.
MEASURE_EVERY_S = 60.0
LOOK_EVERY_S = 1.0

# By rank: how fast those that sit out are now. What to say if the run is better off with some.
Judge = Callable[[Mapping[int, RankSpeed]], str | None]


class IdleRanks:
    """What rank 0 hears of the ranks that sit out, which wait while its `heartbeat` lasts.

    name: of the heartbeat, and of this part of the run: the same on all ranks and of no other.
    """

    def __init__(self, store: Store, name: str, ranks: Sequence[int], judge: Judge) -> None:
        self._store, self._name, self._ranks, self._judge = store, name, ranks, judge
        self._looked_s = 0.0
        self._speeds: dict[int, RankSpeed] = {}

    def look(self, wish: StopWish) -> str | None:
        """What to say where the run should go on with more ranks. At most every LOOK_EVERY_S.

        wish: has what a rank that sits out was asked.
        """
        if time.monotonic() - self._looked_s < LOOK_EVERY_S:
            return None
        self._looked_s = time.monotonic()
        told = [rank for rank in self._ranks if self._hears(f"{self._name}/speed/{rank}")]
        for rank in told:
            text = self._store.get(f"{self._name}/speed/{rank}")
            self._speeds[rank] = decode(text, rank, read_speed)
            self._store.delete_key(f"{self._name}/speed/{rank}")
        if any(self._hears(f"{self._name}/stop/{rank}") for rank in self._ranks):
            wish.asked = True
        return self._judge(self._speeds) if told else None

    def _hears(self, key: str) -> bool:
        return bool(self._store.check([key]))


def sit_out(name: str, rank: int, measure: Callable[[], RankSpeed]) -> None:
    """Wait until the ranks that train are done, or have a place for this one. Raises PeerLostError.

    name: as `IdleRanks` has it.
    """
    store, wish, measured_s = default_store(), StopWish(), time.monotonic()

    def look() -> None:
        nonlocal measured_s
        if wish.asked:
            store.set(f"{name}/stop/{rank}", "1")
        if time.monotonic() - measured_s > MEASURE_EVERY_S:
            store.set(f"{name}/speed/{rank}", encode(asdict(measure())).decode())
            measured_s = time.monotonic()

    with wish.listening():
        wait_for_heartbeat(store, name, "rank 0", "training without this rank", look)
