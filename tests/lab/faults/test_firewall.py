"""A firewall, seen by who connects and by who is behind it."""

from __future__ import annotations

import errno
from typing import Any

RENDEZVOUS, HIGH, OTHER = 29500, 40213, 8000
SOON_S = 0.7


def test_a_firewall_drops_high_ports_and_passes_the_rendezvous(acts: Any) -> None:
    acts.fault("firewall", "alpha")

    high = acts.call("beta", "alpha", HIGH, patience_s=SOON_S)
    rendezvous = acts.call("beta", "alpha", RENDEZVOUS)
    outgoing = acts.call("alpha", "beta", HIGH)
    itself = acts.call("alpha", "alpha", HIGH)
    acts.heal("alpha")

    assert high == "timeout"
    assert (rendezvous, outgoing) == ("passed", "passed")
    # To the own address packets take the loopback.
    assert itself == "passed"
    assert acts.call("beta", "alpha", HIGH) == "passed"


def test_a_named_port_is_open_and_the_rendezvous_can_be_closed(acts: Any) -> None:
    acts.fault("firewall", "alpha", OTHER, "--close-rendezvous")

    assert acts.call("beta", "alpha", OTHER) == "passed"
    assert acts.call("beta", "alpha", RENDEZVOUS, patience_s=SOON_S) == "timeout"


def test_a_rejecting_firewall_gives_no_route_to_host_at_once(acts: Any) -> None:
    acts.fault("firewall", "alpha", "--reject")

    assert acts.call("beta", "alpha", HIGH) == f"errno {errno.EHOSTUNREACH}"


def test_what_a_person_adds_to_the_firewall_opens_it(acts: Any) -> None:
    acts.fault("firewall", "alpha")
    rule = f"add rule inet yoked_firewall input ip saddr {acts.address('beta')} accept"

    before = acts.call("beta", "alpha", HIGH, patience_s=SOON_S)
    acts.lab.host("alpha").tool(["nft", *rule.split()])

    assert before == "timeout"
    assert acts.call("beta", "alpha", HIGH) == "passed"
    assert acts.call("gamma", "alpha", HIGH, patience_s=SOON_S) == "timeout"
