"""Agents on many hosts at once, and why there is none where there is none."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from yoked.at_once import at_once
from yoked.errors import HostError, NoPythonError, YokedError
from yoked.remote.client import AgentClient
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


def connect_host(host: HostLike, ssh_config: Path | None = None) -> AgentClient:
    """An agent on one host. Raises HostError with ssh's own reason.

    Any Python will do for the agent; the configured one is asked where python3 is missing or old.
    """
    if host.name == HERE:
        return Here(host.name, sys.executable).connect()
    if shutil.which("ssh") is None:
        raise HostError(
            f"{host.name}: there is no ssh on this machine", fix="sudo apt install openssh-client"
        )
    config = None if ssh_config is None else str(ssh_config)
    try:
        return OpenSsh(host.name, config, _ANY_PYTHON).connect()
    except NoPythonError:
        if host.python is None:
            raise
        return OpenSsh(host.name, config, host.python).connect()


def connect_all(
    hosts: Iterable[HostLike], ssh_config: Path | None = None
) -> tuple[dict[str, AgentClient], dict[str, YokedError]]:
    """Agents on all hosts at once, by name; and the failures, by name."""
    wanted = list(hosts)
    clients: dict[str, AgentClient] = {}
    failures: dict[str, YokedError] = {}

    def connect(host: HostLike) -> None:
        try:
            clients[host.name] = connect_host(host, ssh_config)
        except YokedError as problem:
            failures[host.name] = problem

    at_once(connect, wanted)
    order = [host.name for host in wanted]
    return (
        {name: clients[name] for name in order if name in clients},
        {name: failures[name] for name in order if name in failures},
    )
