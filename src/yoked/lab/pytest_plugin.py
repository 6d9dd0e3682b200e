"""A lab for tests: `pytest_plugins = ["yoked.lab.pytest_plugin"]` in the top conftest.py.

    @pytest.mark.lab("two-hosts-1gbe")
    def test_hosts_answer(lab):
        assert lab.host("alpha").run(["hostname"]).stdout == "alpha\n"

`lab` is one lab for one test, `lab_up(topology)` brings up as many as a test wants, also in a
fixture of a wider scope through `new_lab`. They are tethered: when the test's process dies, so
do they. Names are new each time, so that test processes beside each other do not collide.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from yoked.lab.lab import Lab
    from yoked.lab.topology import Topology

DEFAULT_TOPOLOGY = "two-hosts-1gbe"
LabUp = Callable[..., "Lab"]


def pytest_configure(config: pytest.Config) -> None:
    """Make the markers known."""
    config.addinivalue_line(
        "markers", f"lab(topology): which lab the `lab` fixture is; default {DEFAULT_TOPOLOGY}"
    )
    config.addinivalue_line(
        "markers", "lab_needs(*names): skip where `yoked lab list` says that these are missing"
    )


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test whose lab_needs this machine does not meet."""
    names = [name for marker in item.iter_markers("lab_needs") for name in marker.args]
    if names and (reason := why_not(*names)) is not None:
        pytest.skip(reason)


def why_not(*names: str) -> str | None:
    """Why this machine cannot have a lab, or not all that is named; None: it can."""
    from yoked.lab import needs

    found = {need.name: need for need in needs.check()}
    for name in names:
        if name not in found:
            raise pytest.UsageError(f"lab_needs({name!r}): known are {', '.join(found)}")
    lacks = [
        f"{need.name}: {need.detail} (fix: {need.fix})"
        for need in found.values()
        if not need.ok and (need.required or need.name in names)
    ]
    return "; ".join(lacks) if lacks else None


def new_lab(topology: str | Topology = DEFAULT_TOPOLOGY) -> Lab:
    """A tethered lab with a name of its own, for a `with` statement; skips where none can be."""
    if (reason := why_not()) is not None:
        pytest.skip(f"no lab on this machine: {reason}")
    from yoked.lab.lab import Lab
    from yoked.lab.topology_load import load

    wanted = load(topology) if isinstance(topology, str) else topology
    name = f"test-{os.getpid()}-{secrets.token_hex(3)}"
    return Lab.up(wanted, name=name, tethered=True)


@pytest.fixture
def lab_up() -> Iterator[LabUp]:
    """Brings labs up: `lab_up("unequal")`, or with a Topology; all go down with the test."""
    labs: list[Lab] = []

    def up(topology: str | Topology = DEFAULT_TOPOLOGY) -> Lab:
        labs.append(new_lab(topology))
        return labs[-1]

    try:
        yield up
    finally:
        for lab in reversed(labs):
            lab.down()


@pytest.fixture
def lab(request: pytest.FixtureRequest, lab_up: LabUp) -> Lab:
    """A lab of the topology that `@pytest.mark.lab(...)` names."""
    marker = request.node.get_closest_marker("lab")
    return lab_up(*(marker.args if marker is not None else ()))
