from __future__ import annotations

from collections.abc import Callable, Sequence
from subprocess import CompletedProcess

import pytest
from tests.unit.lab.made import made

from yoked.lab.topology import Topology

# One host with a link, an IPv6 VPN and a docker0; one more with a wire.
TOPOLOGY = """
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
[[network]]
name = "vpn"
subnet6 = "fd7a:115c:a1e0::/64"
[[host]]
name = "alpha"
{link}
[[host.interface]]
name = "tailscale0"
network = "vpn"
[[host.interface]]
name = "docker0"
kind = "bridge"
address = "172.17.0.1/16"
[[host]]
name = "beta"
rate = "1 Gbit/s"
"""
WIFI = 'rate = "40 Mbit/s"\ndelay = "4 ms"\njitter = "3 ms"\nloss = "0.2%"'


@pytest.fixture
def wired() -> Topology:
    """alpha has a wire of 1 Gbit/s."""
    return made(TOPOLOGY.format(link='rate = "1 Gbit/s"'))


@pytest.fixture
def wireless() -> Topology:
    """alpha has a link of 40 Mbit/s with delay, jitter and loss."""
    return made(TOPOLOGY.format(link=WIFI))


class Tools:
    """A namespace in which every tool answers alike, and which keeps what it was given."""

    def __init__(self, status: int = 0, stderr: str = "", stdout: str = "") -> None:
        self.answer = (status, stdout, stderr)
        self.calls: list[tuple[list[str], str]] = []

    def tool(
        self,
        argv: Sequence[str],
        *,
        input: str = "",  # noqa: A002
        check: bool = True,
    ) -> CompletedProcess[str]:
        self.calls.append((list(argv), input))
        return CompletedProcess(list(argv), *self.answer)


@pytest.fixture
def tools_with() -> Callable[..., Tools]:
    """Makes a namespace of the status, stderr and stdout that each tool is to answer."""
    return Tools
