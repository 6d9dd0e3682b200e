"""Looking on begins with the host of rank 0; hosts that come later have their say all the same."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yoked.cli.live import LiveView
from yoked.cli.output import Output
from yoked.errors import JobError
from yoked.fleet.model import Fleet
from yoked.launch.hosts import Hosts
from yoked.remote.client import Part

FLEET = Fleet("home", (), Path("yoked.toml"))
NODES = [{"host": "i9", "ranks": 1}, {"host": "pi", "ranks": 1}]


def told(node: int, state: str, launch_id: str = "new", **more: Any) -> dict[str, Any]:
    return {
        "run": "try",
        "launch_id": launch_id,
        "state": state,
        "node_rank": node,
        "nodes": NODES,
        "started_s": 100.0 + node,
        "ended_s": None if state == "running" else 200.0,
        "end": None if state == "running" else {"time_s": 200.0},
        "attempt": 0,
        "failure": None,
        "progress": None,
        **more,
    }


class FakeAgent:
    """Tells the states of its job one after the other, and what rank 0 wrote."""

    host = "attic"

    def __init__(self, *states: dict[str, Any]) -> None:
        self._states = list(states)
        self.asked = 0

    def call(self, name: str, **args: Any) -> dict[str, Any]:
        assert name == "job_status"
        self.asked += 1
        if not self._states:
            raise JobError("there is no run 'try' here")
        return self._states.pop(0) if len(self._states) > 1 else self._states[0]

    def stream(self, name: str, **args: Any) -> Iterator[Part]:
        content = {"rank": 0, "attempt": 0, "stream": "out", "offset": 0, "time_s": 1.0}
        yield Part(content, b"hello\n")

    def close(self) -> None: ...


class Coming:
    """Hosts of which some are there only when they are waited for."""

    def __init__(self, here: dict[str, Any], later: dict[str, Any]) -> None:
        self.clients = dict(here)
        self.failures: dict[str, Any] = {}
        self._later = later

    def each(self) -> Iterator[tuple[str, Any]]:
        yield from list(self.clients.items())
        self.wait()
        yield from self._later.items()

    def wait(self) -> None:
        self.clients.update(self._later)


def look_on(connections: Any) -> tuple[Any, str]:
    hosts = Hosts(FLEET, connections)
    run = hosts.active_run("try")
    assert run is not None
    shown = io.StringIO()
    end = run.follow(LiveView(Output(json_mode=False, stdout=shown)))
    return end, shown.getvalue()


def test_the_end_is_that_of_all_hosts_and_not_of_those_that_were_there_first() -> None:
    failure = {"host": "pi", "rank": 1, "what": "killed", "last_lines": []}
    first = FakeAgent(told(0, "running"), told(0, "stopped"))
    later = FakeAgent(told(1, "failed", failure=failure))

    end, shown = look_on(Coming({"i9": first}, {"pi": later}))

    assert shown == "hello\n"
    assert (end.state, end.evidence) == ("failed", ["rank 1 on pi: killed"])


def test_an_older_run_of_that_name_on_another_host_is_another_run() -> None:
    first = FakeAgent(told(0, "running"), told(0, "finished"))
    older = FakeAgent(told(0, "failed", launch_id="old", started_s=900.0))

    end, _ = look_on(Coming({"i9": first}, {"pi": older}))

    assert older.asked == 1
    assert end.state == "finished"


def test_a_run_is_not_looked_at_before_the_host_of_its_rank_0_is_there() -> None:
    later = FakeAgent(told(0, "running"))
    connections: Any = Coming({"pi": FakeAgent(told(1, "running"))}, {"i9": later})

    run = Hosts(FLEET, connections).active_run("try")

    assert run is not None
    assert list(run.record.hosts) == ["i9"]


def test_of_a_run_that_is_over_all_hosts_are_asked() -> None:
    over: Any = Coming({"i9": FakeAgent(told(0, "finished"))}, {"pi": FakeAgent()})

    assert Hosts(FLEET, over).active_run("try") is None
