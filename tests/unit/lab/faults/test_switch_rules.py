"""What a fault leaves in the switch, which goes on while a host is off."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from yoked.lab import shaping
from yoked.lab.faults import kind_named
from yoked.lab.faults.base import FaultContext


def test_a_lossy_link_is_healed_in_the_switch_while_its_host_is_off(
    paper_lab: Any, tools_with: Callable[..., Any]
) -> None:
    paper_lab.switch = tools_with()
    for host in paper_lab.hosts.values():
        host.alive = False

    kind_named("lossy").parse(paper_lab, ["alpha", "50"]).undo(FaultContext(paper_lab, "f1"))

    (port,) = [each.port for each in paper_lab.topology.host("alpha").joined]
    given = "".join(text for _, text in paper_lab.switch.calls)
    assert given.splitlines() == shaping.no_loss_rules(port)
