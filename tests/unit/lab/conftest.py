from __future__ import annotations

from collections.abc import Callable, Sequence
from ipaddress import IPv4Interface, IPv4Network, IPv6Interface, IPv6Network
from subprocess import CompletedProcess

import pytest

from yoked.lab.topology import Host, Interface, Network, Shape, Topology

GIGABIT = Shape(rate_bit_per_s=1e9)
WIFI = Shape(rate_bit_per_s=40e6, delay_s=0.004, jitter_s=0.003, loss=0.002)
MAC4, MAC6 = "02:79:6b:00:00:01", "02:79:6b:00:00:02"
DOCKER_MAC = "02:42:ac:11:00:01"
ADDRESS6 = IPv6Interface("fd7a:115c:a1e0::1/64")
DOCKER = IPv4Interface("172.17.0.1/16")


def _wire(port: str, address: str, shape: Shape) -> Interface:
    return Interface("eth0", "lan", port, MAC4, IPv4Interface(address), None, shape)


def _topology(shape: Shape) -> Topology:
    """One host with a wire, an IPv6 VPN and a docker0; one more with a wire."""
    lan = Network("lan", "br-lan", IPv4Network("192.168.77.0/24"), None)
    vpn = Network("vpn", "br-vpn", None, IPv6Network("fd7a:115c:a1e0::/64"))
    alpha = (
        _wire("p0-eth0", "192.168.77.1/24", shape),
        Interface("tailscale0", "vpn", "p0-tailscale0", MAC6, None, ADDRESS6, Shape()),
        Interface("docker0", None, "", DOCKER_MAC, DOCKER, None, Shape()),
    )
    beta = (_wire("p1-eth0", "192.168.77.2/24", GIGABIT),)
    hosts = (Host("alpha", 1, 1.0, None, alpha), Host("beta", 1, 1.0, None, beta))
    return Topology("test", "", (lan, vpn), hosts)


@pytest.fixture
def wired() -> Topology:
    """alpha has a wire of 1 Gbit/s."""
    return _topology(GIGABIT)


@pytest.fixture
def wireless() -> Topology:
    """alpha has a link of 40 Mbit/s with delay, jitter and loss."""
    return _topology(WIFI)


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
