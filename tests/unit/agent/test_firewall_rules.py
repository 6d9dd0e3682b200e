"""A firewall's rules arrive as the doctor reads them, whatever the tool indents them with."""

from __future__ import annotations

import pytest

from yoked.agent import firewall
from yoked.records.answers import understood

RULESET = (
    "table inet filter {\n\tchain input {\n"
    "\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n"
)


def test_rules_that_nft_indents_with_tabs_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(firewall, "tool", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(firewall, "run_quiet", lambda argv: RULESET if "ruleset" in argv else "")
    monkeypatch.setattr(firewall, "_as_root", lambda *, may_ask: [])
    monkeypatch.setattr(firewall, "_started", lambda: None)
    odd: list[str] = []

    health = understood("health", {"firewall": firewall.probe_firewall()}, odd)

    assert odd == []
    assert len(health["firewall"]["rules"]) == len(RULESET.splitlines())
