"""What tc says is told where a person chose what becomes of packets, and nothing of other hosts."""

from __future__ import annotations

import pytest

from yoked.agent import queues

QDISCS = """\
qdisc noqueue 0: dev lo root refcnt 2
qdisc fq_codel 0: dev eth0 root refcnt 2 limit 10240p flows 1024 quantum 1514
qdisc ingress ffff: dev eth0 parent ffff:fff1 ----------------
qdisc tbf 8001: dev ifb1 root refcnt 2 rate 2Mbit burst 8Kb lat 200ms
qdisc bfifo 8002: dev eth1 root refcnt 2 limit 1000b
qdisc netem 10: dev eth2 parent 1:10 limit 1000 delay 50ms loss 5%"""
FILTERS = """\
filter protocol ip pref 49152 u32 chain 0
filter protocol ip pref 49152 u32 chain 0 fh 800::800 order 2048 key ht 800 bkt 0 terminal
  match 00000000/00000000 at 0
\taction order 1: mirred (Egress Redirect to device ifb1) stolen
 \tindex 1 ref 1 bind 1
 police 0x1 rate 2Mbit burst 10Kb mtu 2Kb action drop overhead 0b"""


def test_queues_that_systems_choose_are_left_out() -> None:
    assert queues.queue_lines(QDISCS) == {
        "ifb1": ["out: tbf rate 2Mbit burst 8Kb lat 200ms"],
        "eth1": ["out: bfifo limit 1000b"],
        "eth2": ["out: netem limit 1000 delay 50ms loss 5%"],
    }


def test_of_filters_only_what_they_do_is_told() -> None:
    assert queues.filter_lines(FILTERS) == [
        "action order 1: mirred (Egress Redirect to device ifb1) stolen",
        "police 0x1 rate 2Mbit burst 10Kb mtu 2Kb action drop overhead 0b",
    ]


def told(monkeypatch: pytest.MonkeyPatch, kinds: dict[str, set[str]], tc: str | None) -> list[str]:
    """The programs that are run for these kinds of queues."""
    asked: list[str] = []

    def run(argv: list[str]) -> str:
        asked.append(" ".join(argv))
        return {"qdisc": QDISCS, "filter": FILTERS}.get(argv[1], "")

    monkeypatch.setattr(queues.netlink, "can_ask", lambda: True)
    monkeypatch.setattr(queues.netlink, "queues", lambda: kinds)
    monkeypatch.setattr(queues, "tool", lambda name: tc)
    monkeypatch.setattr(queues, "run_quiet", run)
    return asked


def test_a_host_with_the_kernels_own_queues_starts_no_program(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = told(monkeypatch, {"lo": {"noqueue"}, "eth0": {"mq", "fq_codel"}}, "/sbin/tc")

    assert queues.unusual_queues() == {}
    assert asked == []


def test_what_comes_in_and_goes_through_another_device_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    told(monkeypatch, {"eth0": {"fq_codel", "ingress"}, "ifb1": {"tbf"}}, "/sbin/tc")

    found = queues.unusual_queues()

    assert found["eth0"][0] == "in: action order 1: mirred (Egress Redirect to device ifb1) stolen"
    assert found["ifb1"] == ["out: tbf rate 2Mbit burst 8Kb lat 200ms"]


def test_without_tc_the_kind_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told(monkeypatch, {"eth0": {"tbf", "ingress"}}, None)

    assert queues.unusual_queues() == {"eth0": ["in: ingress", "out: tbf"]}
