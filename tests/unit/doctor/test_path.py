"""What is unusual on the way of what was measured is its cause, where one host alone has it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor.builders import (
    ATTIC,
    GARAGE,
    INPUT,
    PAIR,
    PORTS,
    broken,
    change,
    dial,
    firewall,
    home,
    lines,
    only,
    told,
)
from tests.unit.doctor.troubles import filtered, lease, looked_again, rested, windowed

from yoked.doctor.causes import findings_of
from yoked.records.examination import Examination, World

FAST, SLOW = "out: tbf rate 1Gbit burst 100Kb lat 10ms", "out: tbf rate 2Mbit burst 8Kb lat 200ms"
LOOP = {"pid": 77, "command": "guardd /run/guardd", "words": "ss -K dst 192.168.1.11"}


def queued(seen: Examination, **devices: list[str]) -> Examination:
    """The same, with lines of tc's at eth0 of some hosts."""
    for name, own in devices.items():
        seen = told(seen, name, "health/links/eth0/queues", own)
    return seen


def crawling(source: str = "attic", target: str = "garage", rate: float = 2e5) -> Examination:
    made = dial(source, target, PORTS[0], "burst", goodput_bytes_per_s=rate, bulk_bytes=200_000)
    seen = home(PAIR)
    return replace(seen, dials=(*seen.dials, made))


def large_lost(source: str, target: str, **more: Any) -> Examination:
    """Full-size packets of one host do not come to the other."""
    return broken(home(PAIR), source, target, ("bulk",), rtt_s=0.0003, bulk_bytes=0, **more)


def looped(seen: Examination, name: str, *changes: str) -> Examination:
    loops = [{**LOOP, "changes": list(changes)}]
    return told(seen, name, "health/writers", {"managers": [], "loops": loops})


def test_a_shaper_behind_a_redirect_is_named_and_one_that_all_hosts_have_is_not() -> None:
    redirect = "in: action order 1: mirred (Egress Redirect to device ifb1) stolen"
    seen = queued(crawling(), attic=[FAST], garage=[FAST, redirect])
    seen = told(seen, "garage", "health/links/ifb1", {"up": True, "queues": [SLOW]})

    found = only(seen)

    assert (found.check, found.hosts) == ("slow-link", ("garage", "attic"))
    assert "goes through ifb1" in found.saw
    assert "tc qdisc del dev eth0 ingress" in found.fix[0].command


@pytest.mark.parametrize("own", [["out: tbf rate 1Gbit burst 100Kb lat 10ms"], [], ["out: fq"]])
def test_a_queue_that_lets_far_more_pass_is_not_blamed(own: list[str]) -> None:
    found = only(queued(crawling(), attic=own))

    assert "qdisc del" not in found.fix[0].command
    assert " by " not in found.saw


def test_where_both_hosts_have_something_unusual_nobody_is_blamed() -> None:
    seen = queued(crawling(), attic=[SLOW])
    settings = {"net/ipv4/tcp_rmem": "2304 2304 2304"}
    seen = told(seen, "garage", "health/settings", settings)

    found = only(seen)

    assert "which of it does this is unknown" in found.saw
    assert "tcp_rmem = 2304 2304 2304` on garage" in found.saw
    assert [fix.by_hand for fix in found.fix] == [True]
    assert "qdisc del" not in found.fix[0].command


def test_buffers_count_at_the_end_at_which_they_hold_data_up() -> None:
    settings = {"net/ipv4/tcp_rmem": "2304 2304 2304"}
    gets = told(crawling(), "garage", "health/settings", settings)
    sends = told(crawling(), "attic", "health/settings", settings)

    assert lines(only(gets)) == [
        ("garage", "sysctl -w net/ipv4/tcp_rmem='4096 131072 6291456'"),
    ]
    assert "tcp_rmem" not in only(sends).saw


def test_a_route_with_a_window_is_made_plain_and_can_be_made_as_it_was() -> None:
    found = only(windowed())

    assert lines(found) == [("garage", f"ip route replace {ATTIC}/32 dev eth0 src {GARAGE}")]
    assert str(found.fix[0].undo).endswith("window 600 initcwnd 1")


def test_a_window_that_costs_no_speed_is_no_trouble() -> None:
    seen = windowed()
    fast = tuple(
        replace(each, goodput_bytes_per_s=110e6) if each.purpose == "burst" else each
        for each in seen.dials
    )

    assert findings_of(replace(seen, dials=fast)) == ()


def test_a_setting_is_told_of_a_link_that_is_slow_and_does_not_crawl_yet() -> None:
    seen = crawling(rate=6e6)

    assert findings_of(seen) == ()
    assert findings_of(queued(seen, attic=["out: tbf rate 40Mbit burst 8Kb lat 9ms"])) == ()
    odd = told(seen, "attic", "health/settings", {"net/ipv4/tcp_wmem": "4608 4608 4608"})
    assert only(odd).hosts == ("attic", "garage")


def test_a_queue_that_takes_no_full_packet_is_why_they_do_not_come() -> None:
    seen = queued(large_lost("garage", "attic"), garage=["out: bfifo limit 1000b"])

    found = only(seen)

    assert (found.check, found.hosts) == ("mtu", ("garage", "attic"))
    assert "bfifo limit 1000b" in found.saw
    assert "tc qdisc del dev eth0 root" in found.fix[0].command


def test_a_queue_of_the_other_direction_is_not_blamed_for_large_packets() -> None:
    seen = queued(large_lost("attic", "garage"), garage=["out: bfifo limit 1000b"])

    assert "bfifo" not in only(seen).saw


def test_a_rule_about_the_length_of_packets_is_why_large_ones_do_not_come() -> None:
    table = ["table inet sane {", "chain c {", INPUT, "meta length > 1000 drop", "}", "}"]
    kind = {**firewall("nft", table), "tools": ["nft"]}
    seen = told(large_lost("attic", "garage"), "garage", "health/firewall", kind)

    found = only(seen)

    assert (found.check, found.hosts) == ("mtu", ("garage", "attic"))
    assert f"nft insert rule inet sane c ip saddr {ATTIC} accept" in found.fix[0].command


def test_who_did_not_send_it_is_the_cause_whatever_the_other_has() -> None:
    seen = large_lost("attic", "garage", unsent=True)
    seen = queued(seen, garage=["in: action order 1: gact action drop"])

    found = only(seen)

    assert found.hosts[0] == "attic"
    assert "the kernel of attic itself kept packets back" in found.saw


def test_a_queue_that_loses_packets_is_why_echoes_are_late() -> None:
    slow = (0.0004,) * 7 + (0.21, 0.22, 0.42)
    seen = home(PAIR)
    dials = tuple(
        replace(each, echo_s=slow) if each.purpose == "ephemeral" else each for each in seen.dials
    )

    found = only(queued(replace(seen, dials=dials), garage=["out: netem limit 1000 loss 20%"]))

    assert (found.check, found.hosts[0]) == ("loss", "garage")
    assert "netem limit 1000 loss 20%" in found.saw


def test_a_filter_of_tc_is_no_firewall_of_the_other_host() -> None:
    found = only(filtered())

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    assert "gact action drop" in found.saw
    assert "tc qdisc del dev eth0 ingress" in found.fix[0].command


def test_a_filter_for_what_goes_out_does_not_keep_anything_from_coming_in() -> None:
    seen = queued(filtered(), garage=["out: action order 1: gact action drop"])

    assert only(seen).check == "firewall-drop"


def test_who_was_told_to_end_connections_is_the_cause_and_the_program_is_named() -> None:
    seen = rested("attic", "garage", "ECONNRESET")

    found = only(looped(seen, "garage", "connections"))

    assert (found.check, found.hosts) == ("bulk-stalls", ("garage", "attic"))
    assert "ss -K dst" in found.saw
    assert found.fix[0].by_hand
    assert "kill 77" in found.fix[0].command


def test_without_such_a_program_the_kernel_that_ended_it_is_named() -> None:
    seen = rested("garage", "attic", "ECONNABORTED")

    found = only(seen)

    assert found.hosts[0] == "garage"
    assert "the kernel of garage was told" in found.saw


def test_a_connection_that_broke_is_neither_a_missing_way_nor_a_small_packet() -> None:
    seen = broken(home(PAIR), "attic", "garage", ("ephemeral", "bulk"), rtt_s=0.0003,
                  error="ECONNRESET", bulk_bytes=0)  # fmt: skip

    assert only(seen).check == "bulk-stalls"


def test_a_world_that_breaks_has_the_program_that_ends_its_connections() -> None:
    said = {"attic": "Connection closed by peer [192.168.1.12]:4711", "garage": "it was connecting"}
    seen = replace(home(PAIR), world=World(ok=False, took_s=1.0, said=said))

    found = only(looped(seen, "garage", "connections"))

    assert (found.check, found.hosts) == ("world-failed", ("garage",))
    assert "kill 77" in found.fix[0].command


def test_a_program_that_changes_the_network_is_no_trouble_by_itself() -> None:
    assert findings_of(looped(home(), "garage", "connections", "links", "rules")) == ()


def test_a_program_that_makes_a_rule_anew_is_to_be_ended_first() -> None:
    table = ["table inet corp {", "chain c {", INPUT, "tcp dport 1024-65535 drop", "}", "}"]
    kind = {**firewall("nft", table), "tools": ["nft"]}
    seen = told(
        broken(home(PAIR), None, "garage", arrived=False), "garage", "health/firewall", kind
    )

    found = only(looped(seen, "garage", "rules"))

    assert found.check in ("firewall-drop", "firewall-ephemeral")
    assert [fix.by_hand for fix in found.fix] == [True, False]
    assert "kill 77" in found.fix[0].command
    assert "again and again by the program" in found.saw


def test_a_signal_that_comes_and_goes_has_the_program_that_does_it() -> None:
    by_itself, by_program = looked_again(changes=5), looked_again(changes=5)

    assert "another cable" in only(by_itself).fix[0].command
    found = only(looped(by_program, "garage", "links"))
    assert "2 times" in found.saw
    assert "kill 77" in found.fix[0].command


def test_whose_cable_another_host_switches_is_not_blamed_for_its_signal() -> None:
    seen = looked_again(changes=5)

    assert findings_of(looped(seen, "attic", "links")) == ()


def test_an_interface_that_is_gone_at_the_end_of_the_look_is_told_without_a_reason() -> None:
    seen = looked_again()
    later = tuple(each for each in seen.host("garage").interfaces if each["name"] == "lo")

    found = only(change(seen, "garage", interfaces_later=later))

    assert (found.check, found.hosts) == ("no-address", ("garage",))
    assert "went while the doctor looked" in found.saw


def test_what_is_as_it_was_at_the_end_of_the_look_is_no_trouble() -> None:
    assert findings_of(looked_again(changes=3)) == ()


@pytest.mark.parametrize(
    ("left_s", "managers", "grave"),
    [
        (40, [], "error"),
        (40_000, [], "warning"),
        (40, ["NetworkManager"], None),
        (600_000, [], None),
    ],
)
def test_an_address_that_ends_is_kept_unless_a_program_renews_it(
    left_s: int, managers: list[str], grave: str | None
) -> None:
    found = findings_of(lease(left_s, managers))

    line = f"ip address change {GARAGE}/24 dev eth0 valid_lft forever preferred_lft forever"
    assert [lines(each) for each in found] == ([[("garage", line)]] if grave else [])
    assert all(each.severity == grave for each in found)


@pytest.mark.parametrize(("left_s", "told_of"), [(40, True), (40_000, False)])
def test_in_a_container_only_an_address_that_ends_at_once_is_told(
    left_s: int, told_of: bool
) -> None:
    seen = told(lease(left_s), "garage", "health/virtual/container", "docker")

    assert [each.check for each in findings_of(seen)] == (["no-address"] if told_of else [])


def test_echoes_that_wait_behind_a_shaper_have_it_as_their_cause() -> None:
    slow = (0.0204,) * 7 + (0.23, 0.22, 0.42)
    seen = queued(crawling(), attic=[SLOW])
    dials = tuple(
        replace(each, echo_s=slow)
        if (each.purpose, each.source) == ("ephemeral", "garage")
        else each
        for each in seen.dials
    )

    found = only(replace(seen, dials=dials))

    assert (found.check, found.hosts[0]) == ("loss", "attic")
    assert "tc qdisc del dev eth0 root" in found.fix[0].command


def test_buffers_are_told_where_one_direction_is_much_slower_than_the_other() -> None:
    seen = crawling(rate=18e6)
    back = dial("garage", "attic", PORTS[0], "burst", goodput_bytes_per_s=88e6)
    seen = replace(seen, dials=(*seen.dials, back))

    assert findings_of(seen) == ()
    odd = told(seen, "garage", "health/settings", {"net/ipv4/tcp_rmem": "2304 2304 2304"})
    assert only(odd).hosts == ("garage", "attic")


def test_connections_are_forgotten_only_where_a_rule_asks_for_them() -> None:
    settings = {"net/netfilter/nf_conntrack_tcp_timeout_established": "4"}
    seen = told(home(), "garage", "health/settings", settings)
    table = ["table inet t {", "chain c {", INPUT, "tcp dport 25 drop", "}", "}"]
    kind = {**firewall("nft", table), "tools": ["nft"]}

    assert findings_of(told(seen, "garage", "health/firewall", kind)) == ()
    assert lines(only(seen)) == [
        ("garage", "sysctl -w net/netfilter/nf_conntrack_tcp_timeout_established=432000"),
    ]
