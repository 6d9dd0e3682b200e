"""An agent of this machine, with state and cache of its own, and no job that outlives its test."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.job_acts import no_job_left

from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The state folder of this machine as a host."""
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with no_job_left():
        yield tmp_path / "state"


@pytest.fixture
def agent(root: Path) -> Iterator[AgentClient]:
    with connect_here("attic") as client:
        yield client
