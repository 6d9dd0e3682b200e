from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
import torch.distributed as dist
from syrupy.assertion import SnapshotAssertion

from yoked.errors import PeerLostError
from yoked.ranks import heartbeat as beats
from yoked.ranks.heartbeat import heartbeat, wait_for_heartbeat


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beats, "BEAT_S", 0.01)
    monkeypatch.setattr(beats, "SILENCE_S", 0.2)
    monkeypatch.setattr(beats, "LONGEST_LOOK_S", 0.02)


def in_background(act: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=act)
    thread.start()
    return thread


def test_work_may_take_far_longer_than_the_silence_that_is_allowed(quick):
    store, order = dist.HashStore(), []

    def work() -> None:
        with heartbeat(store, "data"):
            time.sleep(5 * beats.SILENCE_S)
            order.append("worked")

    worker = in_background(work)
    wait_for_heartbeat(store, "data", "rank 0", "preparing data")
    order.append("waited")
    worker.join()

    assert order == ["worked", "waited"]


def test_a_worker_that_falls_silent_is_named(quick, snapshot: SnapshotAssertion):
    store = dist.HashStore()
    store.add("data/beats", 3)

    with pytest.raises(PeerLostError) as caught:
        wait_for_heartbeat(store, "data", "rank 2", "preparing data")
    assert str(caught.value) == snapshot


def test_the_end_is_told_also_when_the_work_fails(quick):
    store = dist.HashStore()

    with pytest.raises(ZeroDivisionError), heartbeat(store, "data"):
        _ = 1 / 0

    wait_for_heartbeat(store, "data", "rank 0", "preparing data")
    assert store.check(["data/done"])


def test_a_lost_store_is_an_error_for_people(snapshot: SnapshotAssertion):
    class Gone:
        def check(self, keys: list[str]) -> bool:
            raise RuntimeError("Connection reset by peer")

    with pytest.raises(PeerLostError) as caught:
        wait_for_heartbeat(Gone(), "data", "rank 0", "preparing data")
    assert str(caught.value) == snapshot  # type: ignore[arg-type]
