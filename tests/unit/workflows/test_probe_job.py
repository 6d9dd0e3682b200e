"""The job of a probe: whatever ends it, nothing of it stays on the hosts."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yoked.fleet.model import Fleet, Host
from yoked.launch.start import NodePlan, Started
from yoked.workflows import probe_job


def test_a_probe_that_is_interrupted_as_it_starts_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    called: list[str] = []
    client: Any = SimpleNamespace(host="attic", call=lambda name, **_: called.append(name))
    node = NodePlan(Host("attic"), client, {}, 1, "/venv/bin/python", "lo", "127.0.0.1")

    def interrupted(*_: Any, approve: Callable[[Started], None]) -> None:
        approve(Started("probe-1", "0123456789ab", (node,), {}))
        # It runs, and its caller does not know it yet.
        raise KeyboardInterrupt

    monkeypatch.setattr(probe_job, "start_job", interrupted)
    monkeypatch.setattr(probe_job, "push_kernels", lambda _: None)

    fleet = Fleet("home", (node.host,), Path("yoked.toml"))
    with pytest.raises(KeyboardInterrupt):
        probe_job.run_worker(fleet, [node], {}, lambda _: None)

    assert called == ["job_stop", "job_remove"]
