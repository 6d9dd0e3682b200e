"""Which way leads to a host, and what becomes of hosts that cannot be reached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from yoked.errors import HostError, NoPythonError
from yoked.fleet.model import Host
from yoked.remote import connect
from yoked.remote.connect import connect_all, connect_host


@dataclass(frozen=True)
class FakeSsh:
    """Hosts of words: `bare` has no python3, `gone` does not answer."""

    host: str
    config: str | None
    python: str

    def connect(self) -> Any:
        if self.host == "gone":
            raise HostError("gone: it did not answer")
        if self.host == "bare" and self.python == "python3":
            raise NoPythonError("bare: no such Python")
        return self


@pytest.fixture(autouse=True)
def fake_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect, "OpenSsh", FakeSsh)
    monkeypatch.setattr(connect.shutil, "which", lambda name: f"/usr/bin/{name}")


def test_any_python_will_do_for_the_agent() -> None:
    way: Any = connect_host(Host("tower", python="~/venv/bin/python"))

    assert way.python == "python3"


def test_the_python_of_the_file_is_asked_where_there_is_no_python3() -> None:
    way: Any = connect_host(Host("bare", python="~/venv/bin/python"))

    assert way.python == "~/venv/bin/python"


def test_a_host_without_any_python_is_a_failure() -> None:
    with pytest.raises(NoPythonError):
        connect_host(Host("bare"))


def test_this_machine_needs_no_ssh() -> None:
    with connect_host(Host(".")) as agent:
        assert agent.call("facts")["uid"] >= 0


def test_a_machine_without_ssh_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connect.shutil, "which", lambda name: None)

    with pytest.raises(HostError, match="there is no ssh on this machine"):
        connect_host(Host("tower"))


def test_all_failures_are_kept_beside_what_answered_in_the_order_of_the_file() -> None:
    hosts = [Host("gone"), Host("tower"), Host("bare"), Host("laptop")]

    clients, failures = connect_all(hosts)

    assert list(clients) == ["tower", "laptop"]
    assert list(failures) == ["gone", "bare"]
