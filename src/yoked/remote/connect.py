"""Agents on many hosts at once, and why there is none where there is none."""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Protocol

from yoked.core.packages import install_line, this_distribution
from yoked.errors import HostError, NoPythonError, YokedError
from yoked.remote.client import AgentClient
from yoked.remote.ssh import CONNECT_TIMEOUT_S
from yoked.remote.transport import Here, OpenSsh

# This machine, as yoked.toml names it.
HERE = "."
_ANY_PYTHON = "python3"


class HostLike(Protocol):
    """What is needed to reach a host: its name, and the interpreter of its file, if any."""

    @property
    def name(self) -> str:
        """What ssh understands, or `.`."""
        ...

    @property
    def python(self) -> str | None:
        """The interpreter that trains there, or None."""
        ...


def connect_host(
    host: HostLike,
    ssh_config: Path | None = None,
    *,
    patience_s: int = CONNECT_TIMEOUT_S,
    shared: bool = True,
) -> AgentClient:
    """An agent on one host. Raises HostError with ssh's own reason.

    The host's own interpreter runs the agent, and where it has none that can, any python3 does:
    a name that the shell must look for may lead to a slow script (pyenv), a path does not.
    patience_s: how long the host may take to answer ssh; shared: over the connection that other
    commands use.
    """
    if host.name == HERE:
        return Here(host.name, sys.executable).connect()
    if shutil.which("ssh") is None:
        raise HostError(
            f"{host.name}: there is no ssh on this machine",
            fix=install_line("ssh", this_distribution()),
        )
    config = None if ssh_config is None else str(ssh_config)
    if host.python is not None:
        with contextlib.suppress(NoPythonError):
            return OpenSsh(host.name, config, host.python, patience_s, shared).connect()
    return OpenSsh(host.name, config, _ANY_PYTHON, patience_s, shared).connect()


class Arrivals:
    """Agents on several hosts, each to be used as soon as it is there.

    All are connected to at once, from now on. on_failure: called with what went wrong with a
    host, from another thread. Close it to close the agents, those too that are not there yet.
    """

    def __init__(
        self,
        hosts: Iterable[HostLike],
        ssh_config: Path | None = None,
        *,
        on_failure: Callable[[YokedError], None] | None = None,
    ) -> None:
        self._hosts = list(hosts)
        self._on_failure = on_failure
        self._ends: list[tuple[str, AgentClient | Exception]] = []
        self._changed = threading.Condition()
        self._closed = False
        for host in self._hosts:
            threading.Thread(
                target=self._connect, args=(host, ssh_config), name=f"to-{host.name}", daemon=True
            ).start()

    @property
    def clients(self) -> dict[str, AgentClient]:
        """The agents that are there by now, in the order of the hosts."""
        ends = self._in_order()
        return {name: end for name, end in ends.items() if not isinstance(end, Exception)}

    @property
    def failures(self) -> dict[str, YokedError]:
        """Why there is no agent, as far as is known, in the order of the hosts."""
        ends = self._in_order()
        return {name: end for name, end in ends.items() if isinstance(end, YokedError)}

    def each(self) -> Iterator[tuple[str, AgentClient]]:
        """The agents in the order in which they come, until each host has one or failed."""
        for number in range(len(self._hosts)):
            with self._changed:
                while len(self._ends) <= number:
                    self._changed.wait()
                name, end = self._ends[number]
            if not isinstance(end, Exception):
                yield name, end
            elif not isinstance(end, YokedError):
                raise end

    def agent(self, name: str) -> AgentClient:
        """The agent of one host, once it is there. Raises why it does not come."""
        with self._changed:
            while (end := dict(self._ends).get(name)) is None:
                self._changed.wait()
        if isinstance(end, Exception):
            raise end
        return end

    def wait(self) -> None:
        """Return when each host has an agent or failed."""
        for _ in self.each():
            pass

    def close(self) -> None:
        """Close all agents; one that comes later is closed then."""
        with self._changed:
            self._closed = True
        for client in self.clients.values():
            client.close()

    def _connect(self, host: HostLike, ssh_config: Path | None) -> None:
        end: AgentClient | Exception
        try:
            end = connect_host(host, ssh_config)
        except Exception as problem:  # noqa: BLE001 - raised where it is waited for
            end = problem
        if isinstance(end, YokedError) and self._on_failure is not None and not self._closed:
            self._on_failure(end)
        with self._changed:
            self._ends.append((host.name, end))
            self._changed.notify_all()
            late = self._closed
        if late and not isinstance(end, Exception):
            end.close()

    def _in_order(self) -> dict[str, AgentClient | Exception]:
        with self._changed:
            ends = dict(self._ends)
        return {host.name: ends[host.name] for host in self._hosts if host.name in ends}


def connect_all(
    hosts: Iterable[HostLike], ssh_config: Path | None = None
) -> tuple[dict[str, AgentClient], dict[str, YokedError]]:
    """Agents on all hosts at once, by name; and the failures, by name."""
    arrivals = Arrivals(hosts, ssh_config)
    try:
        arrivals.wait()
    except BaseException:
        arrivals.close()
        raise
    return arrivals.clients, arrivals.failures
