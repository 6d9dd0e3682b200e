"""Topologies of these tests, as a person writes them."""

from __future__ import annotations

from yoked.lab.topology import Topology
from yoked.lab.topology_file import read


def made(text: str) -> Topology:
    """The topology of a TOML text."""
    return read(text.encode(), name="test", source="home.toml")
