"""What keeps others from dialling a host that is inside of something: a container, or Windows.

A host's `virtual` is what yoked.agent.virtual tells. The codes are those of faults and of checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network
from typing import Any

# Containers of these get an address of a network on their own machine, unless asked otherwise. Each
# has networks of its own: a home or an office may have the other's.
# Source: default-address-pools of dockerd; podman-network(1).
_OWN_NETWORK = {"docker": ip_network("172.16.0.0/12"), "podman": ip_network("10.88.0.0/13")}
# What WSL says of its networking where nobody reaches it from outside.
_HIDDEN = ("nat", "virtioproxy")


def enclosed_by(
    virtual: Mapping[str, Any], interface: str, address: str, error: str | None
) -> str | None:
    """The code of what hides a host's address, or drops what is sent to it; None: nothing known.

    error: what a dial of another host ended with, such as ETIMEDOUT.
    """
    own_end = interface in (virtual.get("bridged") or ())
    given_out = _OWN_NETWORK.get(str(virtual.get("container")))
    if given_out and own_end and _is_in(given_out, address):
        return "container-bridge"
    if virtual.get("networking") in _HIDDEN:
        return "nat"
    before_linux = virtual.get("networking") == "mirrored" and virtual.get("inbound") != "Allow"
    return "wsl-firewall" if before_linux and error == "ETIMEDOUT" else None


def _is_in(network: IPv4Network | IPv6Network, address: str) -> bool:
    try:
        return ip_address(address.partition("%")[0]) in network
    except ValueError:
        # An examination that was saved may say anything.
        return False
