"""A firewall's rules arrive as the doctor reads them, whatever the tool indents them with."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from yoked.agent import firewall
from yoked.records.answers import understood

RULESET = (
    "table inet filter {\n\tchain input {\n"
    "\t\ttype filter hook input priority filter; policy drop;\n\t}\n}\n"
)
OLD = "*mangle\n:OUTPUT ACCEPT [0:0]\n-A OUTPUT -p tcp -j NFQUEUE --queue-num 0\nCOMMIT\n"


def probed(
    monkeypatch: pytest.MonkeyPatch, said: dict[str, str], sizes: dict[str, int] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """(what a host tells where its programs print this, the programs that were run). said: by the
    last word of a command; a program that is not named there prints nothing.
    """
    asked: list[str] = []

    def lines(argv: list[str], most: int, limit_s: float = 1.0) -> tuple[list[str], bool]:
        asked.append(" ".join(argv))
        return said.get(argv[-1].rpartition("/")[2], "").splitlines(), True

    monkeypatch.setattr(firewall, "tool", lambda name: f"/usr/sbin/{name}")
    monkeypatch.setattr(firewall, "first_lines", lines)
    monkeypatch.setattr(firewall, "run_quiet", lambda argv: "")
    monkeypatch.setattr(firewall, "_as_root", lambda *, may_ask: [])
    monkeypatch.setattr(firewall, "_started", lambda: None)
    monkeypatch.setattr(firewall.netlink, "can_ask", lambda: sizes is not None)
    monkeypatch.setattr(firewall.netlink, "chains", lambda: iter((sizes or {}).items()))
    odd: list[str] = []
    health = understood("health", {"firewall": firewall.probe_firewall()}, odd)
    assert odd == []
    return health["firewall"], asked


def test_rules_that_nft_indents_with_tabs_are_understood(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = probed(monkeypatch, {"ruleset": RULESET})

    assert (found["kind"], len(found["rules"])) == ("nft", len(RULESET.splitlines()))


def test_rules_of_the_old_iptables_are_told_beside_those_of_nft(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = probed(monkeypatch, {"ruleset": RULESET, "iptables-legacy-save": OLD})

    assert found["old"] == ["# iptables-legacy-save", *OLD.splitlines()]
    assert found["kind"] == "nft"


def test_where_nft_has_none_the_rules_of_the_old_iptables_are_the_firewall(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, _ = probed(monkeypatch, {"iptables-legacy-save": OLD})

    assert (found["kind"], found["rules"][0], found["old"]) == (
        "iptables",
        "# iptables-legacy-save",
        None,
    )


def test_a_table_with_very_many_rules_is_counted_and_not_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    sizes = {"inet filter input": 3, "inet blocklist bad": 100_000}
    found, asked = probed(monkeypatch, {"filter": RULESET}, sizes)

    assert found["long"] == {"inet blocklist bad": 100_000}
    assert found["rules"][0] == "table inet filter {"
    assert [each for each in asked if "nft" in each] == ["/usr/sbin/nft -a list table inet filter"]


def test_queues_from_which_a_program_takes_packets_are_told_by_their_numbers(
    tmp_path: Path,
) -> None:
    assert firewall.queue_readers(tmp_path) is None
    folder = tmp_path / "net/netfilter"
    folder.mkdir(parents=True)
    (folder / "nfnetlink_queue").write_text("    3  12345     0 2 65531     0     0        7  1\n")

    assert firewall.queue_readers(tmp_path) == [3]
