"""A lab that is only a description: two hosts, a folder, and what the kernel can."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yoked.lab.shaping import Features
from yoked.lab.topology_load import load


@pytest.fixture
def paper_lab(tmp_path: Path) -> Any:
    topology = load("two-hosts-1gbe")
    hosts = {host.name: SimpleNamespace(spec=host, alive=True) for host in topology.hosts}
    return SimpleNamespace(
        name="paper",
        folder=tmp_path,
        topology=topology,
        hosts=hosts,
        host=hosts.__getitem__,
        features=Features(netem=False, nft=True),
    )
