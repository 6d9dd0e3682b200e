from __future__ import annotations

from yoked.train.comm.communicator import Communicator
from yoked.train.comm.heartbeat import run_with_heartbeat


def test_one_rank_just_acts():
    assert run_with_heartbeat(Communicator(), True, lambda: 7, "preparing data") == 7
    assert run_with_heartbeat(Communicator(), False, lambda: 7, "preparing data") is None
