"""The doctor's last proof, with real ranks under real agents, on this machine's loopback."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.doctor.dials import Endpoint
from yoked.doctor.rank_probes import How, RankProbe, run_world
from yoked.fleet.model import HERE, Host
from yoked.remote.client import AgentClient
from yoked.remote.connect import connect_host

pytestmark = pytest.mark.distributed

DEADLINE_S = 90.0
LOOPBACK = "lo0" if sys.platform == "darwin" else "lo"
PLACES = [Endpoint(name, LOOPBACK, "127.0.0.1", chosen=True) for name in ("alpha", "beta")]


@pytest.fixture
def agents() -> Iterator[dict[str, AgentClient]]:
    with ExitStack() as stack:
        yield {each.host: stack.enter_context(connect_host(Host(HERE))) for each in PLACES}


def ready(agents: dict[str, AgentClient], how: How) -> dict[str, RankProbe]:
    trials = {name: RankProbe(agent, sys.executable, how) for name, agent in agents.items()}
    for trial in trials.values():
        told = trial.await_any("ready", "failed", until_s=time.monotonic() + DEADLINE_S)
        assert told is not None, trial.last_words
        assert "ready" in told, told
    return trials


def test_a_world_of_gloo_alone_comes_about(agents: dict[str, AgentClient]) -> None:
    trials = ready(agents, "connect")

    world = run_world(trials, PLACES, "gloo")

    assert world.ok, world
    assert trials["alpha"].has["gloo"] is True
    assert trials["alpha"].has["torch"]


@pytest.mark.slow
def test_a_world_of_all_of_torch_reduces_tensors(agents: dict[str, AgentClient]) -> None:
    trials = ready(agents, "train")

    world = run_world(trials, PLACES, "gloo")

    assert world.ok, world
    assert trials["beta"].has["imported"] is True
    assert trials["beta"].has["cuda_available"] in (True, False)


def test_an_interface_that_is_not_there_is_told_by_its_rank(
    agents: dict[str, AgentClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    trials = ready(agents, "connect")
    places = [PLACES[0], Endpoint("beta", "eth99", "127.0.0.1", chosen=True)]
    monkeypatch.setattr("yoked.doctor.rank_probes._PATIENCE_S", 0.5)
    monkeypatch.setattr("yoked.doctor.rank_probes._WORLD_S", 10.0)

    world = run_world(trials, places, "gloo")

    assert world.ok is False
    assert "eth99" in world.said["beta"]


def test_an_interpreter_that_ends_by_itself_is_told(
    agents: dict[str, AgentClient], snapshot: SnapshotAssertion
) -> None:
    trial = RankProbe(agents["alpha"], "/bin/false", "connect")

    told = trial.await_any("ready", "failed", until_s=time.monotonic() + DEADLINE_S)

    assert told == snapshot


def test_a_rank_that_nobody_waits_for_ends(agents: dict[str, AgentClient]) -> None:
    trial = ready({"alpha": agents["alpha"]}, "connect")["alpha"]

    trial.go(None)

    assert trial.await_any("ended", until_s=time.monotonic() + DEADLINE_S) == {"ended": True}
