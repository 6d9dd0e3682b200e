"""Which way leads to a host, and what becomes of hosts that cannot be reached."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import HostError, NoPythonError, YokedError
from yoked.fleet.model import Host
from yoked.remote import connect
from yoked.remote.connect import Connections, connect_all, connect_host


def fake_ssh_way(host: str, config: object, python: str = "python3", **more: object) -> Any:
    """Hosts of words: `bare` has no python3, `gone` does not answer."""
    if host == "gone":
        raise HostError("gone: it did not answer")
    if (host, python) == ("bare", "python3") or python.startswith("/gone"):
        raise NoPythonError(f"{host}: no such Python")
    return SimpleNamespace(host=host, python=python)


@pytest.fixture(autouse=True)
def fake_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "connect_ssh", fake_ssh_way)
    monkeypatch.setattr(connect.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_the_python_of_the_file_runs_the_agent() -> None:
    way: Any = connect_host(Host("tower", python="~/venv/bin/python"))

    assert way.python == "~/venv/bin/python"


def test_any_python_will_do_where_the_file_names_none_that_can() -> None:
    unnamed: Any = connect_host(Host("tower"))
    missing: Any = connect_host(Host("tower", python="/gone/python"))

    assert unnamed.python == missing.python == "python3"


def test_a_host_without_any_python_is_a_failure() -> None:
    with pytest.raises(NoPythonError):
        connect_host(Host("bare"))


def test_this_machine_needs_no_ssh() -> None:
    with connect_host(Host(".")) as agent:
        assert agent.call("facts")["uid"] >= 0


def test_a_machine_without_ssh_is_told(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(connect.shutil, "which", lambda name: None)

    with pytest.raises(HostError) as caught:
        connect_host(Host("tower"))
    assert str(caught.value) == snapshot


def test_all_failures_are_kept_beside_what_answered_in_the_order_of_the_file() -> None:
    hosts = [Host("gone"), Host("tower"), Host("bare"), Host("laptop")]

    clients, failures = connect_all(hosts)

    assert list(clients) == ["tower", "laptop"]
    assert list(failures) == ["gone", "bare"]


class Gate:
    """Hosts that answer when they are let in."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self._open = {name: threading.Event() for name in names}
        monkeypatch.setattr(connect, "connect_host", self._connect)

    def let_in(self, name: str) -> None:
        self._open[name].set()

    def _connect(self, host: Host, config: object) -> Any:
        assert self._open[host.name].wait(10)
        if host.name == "gone":
            raise HostError("gone: it did not answer")
        return Answering()


class Answering:
    def __init__(self) -> None:
        self.closed = threading.Event()

    def close(self) -> None:
        self.closed.set()


def test_an_agent_can_be_used_while_another_host_has_not_answered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch, "slow", "tower")
    connections = Connections([Host("slow"), Host("tower")])
    each = connections.each()

    gate.let_in("tower")
    first, _ = next(each)
    so_far = list(connections.clients)
    gate.let_in("slow")
    connections.wait()

    assert (first, so_far) == ("tower", ["tower"])
    assert list(connections.clients) == ["slow", "tower"]


def test_one_hosts_agent_is_waited_for_or_why_it_does_not_come() -> None:
    connections = Connections([Host("tower"), Host("gone")])

    assert connections.agent("tower") is connections.agent("tower")
    with pytest.raises(HostError):
        connections.agent("gone")


def test_what_comes_after_the_end_is_closed_and_what_fails_then_is_nobodys_business(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch, "slow", "gone")
    said: list[str] = []
    connections = Connections(
        [Host("slow"), Host("gone")], on_failure=lambda problem: said.append(problem.what)
    )

    connections.close()
    for name in ("slow", "gone"):
        gate.let_in(name)
    connections.wait()

    late: Any = connections.clients["slow"]
    assert late.closed.wait(10)
    assert said == []


def test_a_failure_that_cannot_be_said_keeps_nobody_waiting(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gate = Gate(monkeypatch, "gone")
    ended = threading.Event()
    monkeypatch.setattr(threading, "excepthook", lambda _: ended.set())

    def closed(problem: YokedError) -> None:
        # As rich has it where stderr was closed.
        raise SystemExit(1)

    connections = Connections([Host("gone")], on_failure=closed)
    waiting = threading.Thread(target=connections.wait, daemon=True)
    waiting.start()
    gate.let_in("gone")
    waiting.join(10)

    assert ended.wait(10)
    assert list(connections.failures) == ["gone"]


def test_a_bug_on_the_way_to_a_host_is_not_taken_for_a_host_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    def broken(host: Host, config: object) -> Any:
        raise ZeroDivisionError(host.name)

    monkeypatch.setattr(connect, "connect_host", broken)

    with pytest.raises(ZeroDivisionError) as caught:
        connect_all([Host("tower")])
    assert str(caught.value) == snapshot
