"""Agents on many hosts at once, and why there is none where there is none."""

from __future__ import annotations

import contextlib
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future, as_completed
from functools import partial
from pathlib import Path
from typing import Protocol

from yoked.core.packages import install_line, this_distribution
from yoked.errors import HostError, NoPythonError, YokedError
from yoked.remote.client import AgentClient
from yoked.remote.ssh import CONNECT_TIMEOUT_S
from yoked.remote.transport import connect_here, connect_ssh

# This machine, as yoked.toml names it.
HERE = "."


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
        return connect_here(host.name)
    if shutil.which("ssh") is None:
        raise HostError(
            f"{host.name}: there is no ssh on this machine",
            fix=install_line("ssh", this_distribution()),
        )
    config = None if ssh_config is None else str(ssh_config)
    connect = partial(connect_ssh, host.name, config, patience_s=patience_s, shared=shared)
    if host.python is not None:
        with contextlib.suppress(NoPythonError):
            return connect(python=host.python)
    return connect()


class Connections:
    """Agents on several hosts, each to be used as soon as it is there.

    All are connected to at once, from now on. on_failure: called with what went wrong with a
    host, from another thread. Close it to close the agents, those too that are not there yet.
    """

    def __init__(
        self,
        hosts: Collection[HostLike],
        ssh_config: Path | None = None,
        *,
        on_failure: Callable[[YokedError], None] | None = None,
    ) -> None:
        self._on_failure = on_failure
        self._closed = False
        self._ends: dict[str, Future[AgentClient]] = {host.name: Future() for host in hosts}
        for host in hosts:
            threading.Thread(
                target=self._connect, args=(host, ssh_config), name=f"to-{host.name}", daemon=True
            ).start()

    @property
    def clients(self) -> dict[str, AgentClient]:
        """The agents that are there by now, in the order of the hosts."""
        return {
            name: end.result()
            for name, end in self._ends.items()
            if end.done() and end.exception() is None
        }

    @property
    def failures(self) -> dict[str, YokedError]:
        """Why there is no agent, as far as is known, in the order of the hosts."""
        found = {name: end.exception() for name, end in self._ends.items() if end.done()}
        return {name: end for name, end in found.items() if isinstance(end, YokedError)}

    @property
    def pending(self) -> list[str]:
        """The hosts of which nothing is known yet."""
        return [name for name, end in self._ends.items() if not end.done()]

    def each(self) -> Iterator[tuple[str, AgentClient]]:
        """The agents in the order in which they come, until each host has one or failed."""
        names = {end: name for name, end in self._ends.items()}
        for end in as_completed(names):
            with contextlib.suppress(YokedError):
                yield names[end], end.result()

    def agent(self, name: str) -> AgentClient:
        """The agent of one host, once it is there. Raises why it does not come."""
        return self._ends[name].result()

    def wait(self) -> None:
        """Return when each host has an agent or failed."""
        for _ in self.each():
            pass

    def close(self) -> None:
        """Close all agents; one that comes later is closed then."""
        self._closed = True
        for end in self._ends.values():
            end.add_done_callback(_close)

    def _connect(self, host: HostLike, ssh_config: Path | None) -> None:
        try:
            client = connect_host(host, ssh_config)
        except Exception as problem:  # noqa: BLE001 - raised where it is waited for
            try:
                if isinstance(problem, YokedError) and self._on_failure and not self._closed:
                    self._on_failure(problem)
            finally:
                # Whoever waits must not wait for a word that could not be said: stderr was closed.
                self._ends[host.name].set_exception(problem)
        else:
            self._ends[host.name].set_result(client)


def _close(end: Future[AgentClient]) -> None:
    if end.exception() is None:
        end.result().close()


def connect_all(
    hosts: Collection[HostLike], ssh_config: Path | None = None
) -> tuple[dict[str, AgentClient], dict[str, YokedError]]:
    """Agents on all hosts at once, by name; and the failures, by name."""
    connections = Connections(hosts, ssh_config)
    try:
        connections.wait()
    except BaseException:
        connections.close()
        raise
    return connections.clients, connections.failures
