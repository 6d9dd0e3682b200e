"""The networks in which things are broken."""

from __future__ import annotations

import sys
from typing import Any

from yoked.lab.topology import Topology
from yoked.lab.topology_file import read
from yoked.lab.topology_load import load

ALPHA_BETA = ("alpha", "beta")
FOUR = ("alpha", "beta", "gamma", "delta")

# ssh comes by a network of its own, so that what is broken is not the way to the host.
APART = """
[[network]]
name = "ssh"
subnet = "10.50.0.0/24"
rate = "200 Mbit/s"
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
rate = "1 Gbit/s"
"""
_HOST = """
[[host]]
name = "{name}"
[[host.interface]]
name = "eth0"
network = "ssh"
[[host.interface]]
name = "eth1"
network = "lan"
"""
# What the doctor itself does must not look like somebody else's program.
TWO_CORES = """
[[host]]
name = "alpha"
[[host]]
name = "beta"
cpus = 2
"""
SLOW_BESIDE_FAST = APART.replace("200 Mbit/s", "10 Mbit/s")


def _with_hosts(networks: str, names: tuple[str, ...]) -> str:
    return networks + "".join(_HOST.format(name=name) for name in names)


def topology(name: str) -> tuple[Topology, str]:
    """The network of that name, and the interface on which its hosts train."""
    if name == "one":
        return load("two-hosts-1gbe"), "eth0"
    if name == "vpn":
        return load("vpn-and-docker"), "eth0"
    if name == "four":
        return load("four-hosts"), "eth0"
    texts = {
        "apart": _with_hosts(APART, ALPHA_BETA),
        "four-apart": _with_hosts(APART, FOUR),
        "slow": _with_hosts(SLOW_BESIDE_FAST, ALPHA_BETA),
        "two-cores": TWO_CORES,
    }
    interface = "eth0" if name == "two-cores" else "eth1"
    return read(texts[name].encode(), name=name, source=name), interface


def entries(wanted: Topology, interface: str) -> dict[str, dict[str, Any]]:
    """yoked.toml as `yoked init` would write it for these hosts."""
    return {host.name: {"interface": interface, "python": sys.executable} for host in wanted.hosts}
