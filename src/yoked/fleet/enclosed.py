"""What keeps others from dialling a host that is inside of something: a container, or Windows.

A host's `virtual` is what yoked.agent.virtual tells. The codes are those of faults and of checks.
"""

from __future__ import annotations

from collections.abc import Mapping
from ipaddress import ip_address, ip_network
from typing import Any

# Containers of these get an address of a network on their own machine, unless asked otherwise.
_OWN_NETWORK = ("docker", "podman")
# Source: default-address-pools of dockerd; podman-network(1).
_CONTAINER_NETWORKS = (ip_network("172.16.0.0/12"), ip_network("10.88.0.0/13"))
# What WSL says of its networking where nobody reaches it from outside.
_HIDDEN = ("nat", "virtioproxy")


def enclosed_by(
    virtual: Mapping[str, Any], interface: str, address: str, error: str | None
) -> str | None:
    """The code of what hides a host's address, or drops what is sent to it; None: nothing known.

    error: what a dial of another host ended with, such as ETIMEDOUT.
    """
    own_end = interface in (virtual.get("bridged") or ())
    if virtual.get("container") in _OWN_NETWORK and own_end and _is_given_out(address):
        return "container-bridge"
    if virtual.get("networking") in _HIDDEN:
        return "nat"
    before_linux = virtual.get("networking") == "mirrored" and virtual.get("inbound") != "Allow"
    return "wsl-firewall" if before_linux and error == "ETIMEDOUT" else None


def _is_given_out(address: str) -> bool:
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        # An examination that was saved may say anything.
        return False
    return any(found in net for net in _CONTAINER_NETWORKS)
