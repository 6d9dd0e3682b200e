"""A host is blamed for what there is proof of on that host: a rule, its kernel, or who got what."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor.builders import (
    ATTIC,
    GARAGE,
    INPUT,
    MAC,
    OFF,
    PAIR,
    PORTS,
    broken,
    change,
    dial,
    firewall,
    home,
    interface,
    lines,
    only,
    told,
)
from tests.unit.doctor.troubles import readdressed

from yoked.doctor.causes import findings_of
from yoked.doctor.checks.bursts import crawls
from yoked.records.examination import Examination, World


def rules(*body: str, base: str = INPUT, family: str = "inet", name: str = "mine") -> list[str]:
    """A table with one chain, as nft prints it."""
    return [f"table {family} {name} {{", "    chain c {", f"        {base}",
            *(f"        {each}" for each in body), "    }", "}"]  # fmt: skip


def as_root(seen: Examination, **more: list[str]) -> Examination:
    """The same, with the rules of both hosts read; more: those of hosts that have some."""
    for name in PAIR:
        own = more.get(name)
        kind = {**firewall("nft", own), "tools": ["nft"]} if own else OFF
        seen = told(seen, name, "health/firewall", kind)
        seen = told(seen, name, "health/gateway", None)
    return seen


def silent(source: str, target: str, seen: Examination | None = None, **more: Any) -> Examination:
    return broken(seen or home(PAIR), source, target, **more)


def both_silent() -> Examination:
    """Neither connects: what garage begins never comes, and its answers to attic come nowhere."""
    seen = silent("garage", "attic", arrived=False)
    return silent("attic", "garage", seen, arrived=True)


@pytest.mark.parametrize(
    ("table", "line"),
    [
        # A block list in prerouting, beside a table that is switched off.
        (
            [
                *rules(base=INPUT.replace("accept", "drop"), name="old")[:1],
                "flags dormant",
                *rules(base=INPUT.replace("accept", "drop"), name="old")[1:],
                *rules(
                    f"ip saddr {GARAGE} tcp dport 20000-65535 drop",
                    base="type filter hook prerouting priority raw; policy accept;",
                    name="blocklist",
                ),
            ],
            f"nft insert rule inet blocklist c ip saddr {GARAGE} accept comment yoked",
        ),
        # A filter by TTL.
        (
            rules("ip saddr 192.168.1.0/24 tcp dport != 22 ip ttl != 64 drop", name="tether"),
            f"nft insert rule inet tether c ip saddr {GARAGE} accept comment yoked",
        ),
        # A filter by MAC at the card.
        (
            rules(
                f"ether saddr {MAC['garage']} tcp dport 1024-65535 drop",
                base='type filter hook ingress device "eth0" priority filter; policy accept;',
                family="netdev",
                name="guard",
            ),
            f"nft insert rule netdev guard c ip saddr {GARAGE} accept comment yoked",
        ),
        # Connections that are not followed, below a firewall that follows them.
        (
            [
                *rules(
                    "tcp dport != 22 tcp sport != 22 notrack",
                    base="type filter hook prerouting priority raw; policy accept;",
                    name="fast",
                ),
                *rules(
                    'iif "lo" accept',
                    "ct state established,related accept",
                    "tcp dport 22 accept",
                    "ip saddr 192.168.1.0/24 ct state new accept",
                    base=INPUT.replace("accept", "drop"),
                    name="fw",
                ),
            ],
            f"nft insert rule inet fw c ip saddr {GARAGE} accept comment yoked",
        ),
    ],
    ids=["prerouting", "ttl", "netdev", "notrack"],
)
def test_who_drops_questions_and_answers_is_one_host_with_its_very_rule(
    table: list[str], line: str
) -> None:
    found = only(as_root(both_silent(), attic=table))

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert lines(found) == [("attic", line)]
    assert "nftables on attic" in found.saw
    assert "`" in found.saw


def test_without_root_who_got_what_tells_whose_answers_are_dropped() -> None:
    found = only(both_silent())

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert "perhaps" in found.saw
    assert "only root reads its rules" in found.saw


def test_whose_answers_alone_do_not_come_in_is_told_so() -> None:
    seen = silent("attic", "garage", arrived=True)

    found = only(as_root(seen, attic=rules("tcp dport 32768-60999 tcp sport != 22 drop")))

    assert found.hosts == ("attic",)
    assert "lets no answer of garage in" in found.saw
    assert f"ip saddr {GARAGE}" in found.fix[0].command


@pytest.mark.parametrize(
    ("table", "line"),
    [
        (
            rules(
                "tcp dport 10000-65535 dnat to 192.168.122.50",
                base="type nat hook prerouting priority dstnat; policy accept;",
                family="ip",
                name="vmforward",
            ),
            f"nft insert rule ip vmforward c ip saddr {GARAGE} accept comment yoked",
        ),
    ],
)
def test_what_is_sent_on_to_a_machine_that_is_gone_is_told_with_that_rule(
    table: list[str], line: str
) -> None:
    found = only(as_root(silent("garage", "attic", arrived=False), attic=table))

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert lines(found) == [("attic", line)]
    assert "dnat to 192.168.122.50" in found.saw
    assert "hook prerouting" in found.saw


def test_a_redirect_of_its_own_refuses_a_hosts_connections() -> None:
    table = rules(
        "ip daddr 127.0.0.0/8 accept",
        "tcp dport != 22 redirect to :12345",
        base="type nat hook output priority -100; policy accept;",
        family="ip",
        name="redsocks",
    )
    seen = silent("garage", "attic", error="ECONNREFUSED", took_s=0.0037)

    found = only(as_root(seen, garage=table))

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    line = f"nft insert rule ip redsocks c ip daddr {ATTIC} accept comment yoked"
    assert lines(found) == [("garage", line)]


def test_a_kill_switch_in_postrouting_is_found() -> None:
    table = rules(
        'oif "lo" accept',
        "tcp dport { 22, 53 } accept",
        "ct state established,related accept",
        "ip protocol tcp drop",
        base="type filter hook postrouting priority 50; policy accept;",
        name="killsw",
    )

    found = only(as_root(silent("garage", "attic", arrived=False), garage=table))

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert "chain c of table inet killsw" in found.saw


def test_a_kernel_that_did_not_send_is_its_own_hosts() -> None:
    found = only(silent("garage", "attic", arrived=False, unsent=True))

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert "the kernel of garage lets nothing out to attic" in found.saw


def test_a_kernel_that_did_send_is_not_blamed_for_what_does_not_come() -> None:
    seen = told(silent("garage", "attic", arrived=False, unsent=False), "attic",
                "health/firewall", firewall("ufw"))  # fmt: skip

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert found.saw.startswith("ufw on attic")


POLICY = [
    f"src {GARAGE}/32 dst {ATTIC}/32 ",
    "    dir out priority 0 ",
    f"    tmpl src {GARAGE} dst {ATTIC}",
    "        proto esp reqid 1 mode transport",
    "src 0.0.0.0/0 dst 0.0.0.0/0 ",
    "    socket in priority 0 ",
]


@pytest.mark.parametrize("root", [True, False])
def test_an_ipsec_policy_without_a_key_is_no_fault_of_a_switch(root: bool) -> None:
    seen = silent("garage", "attic", arrived=False)
    seen = silent("attic", "garage", seen, arrived=True)
    seen = told(seen, "garage", f"health/routes/{ATTIC}/unkeyed", True)
    if root:
        seen = told(as_root(seen), "garage", "health/firewall/policies", POLICY)

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert "IPsec policy of garage" in found.saw
    (fix,) = found.fix
    assert fix.by_hand is not root
    if root:
        selector = f"src {GARAGE}/32 dst {ATTIC}/32"
        assert fix.command == f"ip xfrm policy delete {selector} dir out"
        assert fix.undo == (
            f"ip xfrm policy add {selector} dir out tmpl src {GARAGE} dst {ATTIC} "
            "proto esp reqid 1 mode transport"
        )


@pytest.mark.parametrize(
    "more", [{"error": "ESRCH"}, {"error": "EPERM"}, {"error": "ECONNREFUSED"}]
)
def test_what_the_own_kernel_says_is_no_doing_of_the_other(more: dict[str, str]) -> None:
    seen = told(silent("garage", "attic", **more), "garage",
                f"health/routes/{ATTIC}/sending", "EPERM")  # fmt: skip

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))


def test_a_library_that_refuses_is_no_missing_route() -> None:
    seen = silent("garage", "attic", error="ECONNREFUSED", took_s=84e-6, source_address=None)
    seen = told(seen, "garage", f"health/routes/{ATTIC}/error", "ECONNREFUSED")

    unnamed = only(seen)
    named = only(told(seen, "garage", "health/preload", ["/usr/lib/libproxychains.so.4"]))

    assert (unnamed.check, unnamed.hosts) == ("firewall-out", ("garage",))
    assert "a library that programs of garage load" in unnamed.saw
    assert (named.check, named.hosts, named.severity) == ("preload", ("garage",), "error")
    assert [each.check for each in named.follows] == ["firewall-out"]


def test_a_question_for_a_port_that_the_kernel_has_not_is_no_missing_route() -> None:
    seen = silent("garage", "attic", error="EAGAIN", took_s=874e-6, source_address=None)
    seen = told(seen, "garage", f"health/routes/{ATTIC}/error", "EAGAIN")
    seen = told(seen, "garage", "health/ports/reserved", "1024-65535")

    found = only(seen)

    assert (found.check, found.hosts) == ("port-range", ("garage",))
    assert "28,232 are reserved" in found.saw
    assert lines(found) == [("garage", "sysctl -w net.ipv4.ip_local_reserved_ports=''")]


def test_ports_that_are_reserved_elsewhere_are_no_trouble() -> None:
    assert findings_of(told(home(), "garage", "health/ports/reserved", "8080,30000-32767")) == ()


def test_a_route_with_two_next_hops_is_told_where_it_stands() -> None:
    way = f"health/routes/{GARAGE}"
    seen = silent("attic", "garage", ports=PORTS[1:])
    hops = [{"interface": "eth0", "gateway": None, "weight": 1},
            {"interface": "lan1", "gateway": None, "weight": 1}]  # fmt: skip
    for name, value in (("hops", hops), ("network", GARAGE), ("prefix", 32)):
        seen = told(seen, "attic", f"{way}/{name}", value)

    found = only(seen)

    assert (found.check, found.hosts) == ("other-way", ("attic",))
    assert "several next hops" in found.saw
    assert "lan1" in found.saw
    assert lines(found) == [("attic", f"ip route replace {GARAGE}/32 dev eth0 src {ATTIC}")]
    assert found.fix[0].undo == (
        f"ip route replace {GARAGE}/32 src {ATTIC} nexthop dev eth0 weight 1 "
        "nexthop dev lan1 weight 1"
    )


def test_a_route_over_another_host_is_told_where_it_stands() -> None:
    seen = silent("attic", "garage")
    seen = told(seen, "attic", f"health/routes/{GARAGE}/gateway", "192.168.1.13")

    found = only(seen)

    assert (found.check, found.hosts) == ("other-way", ("attic",))
    assert "192.168.1.13" in found.saw


def test_a_routes_source_that_nobody_answers_is_told() -> None:
    seen = silent("garage", "attic", source_address="10.9.9.9")
    way = f"health/routes/{ATTIC}"
    for name, value in (("source", "10.9.9.9"), ("network", "192.168.1.0"), ("prefix", 24)):
        seen = told(seen, "garage", f"{way}/{name}", value)

    found = only(seen)

    assert (found.check, found.hosts) == ("wrong-source", ("garage",))
    assert "10.9.9.9" in found.saw
    assert lines(found) == [("garage", f"ip route replace 192.168.1.0/24 dev eth0 src {GARAGE}")]


def test_a_bridge_in_the_homes_network_is_no_cable() -> None:
    seen = silent("garage", "attic")
    seen = silent("attic", "garage", seen)
    own = interface("docker0", "192.168.1.99", 24, "docker")
    seen = change(seen, "garage", interfaces=(interface("eth0", GARAGE, 24), own))
    for name, value in (("interface", "docker0"), ("neighbour", "failed")):
        seen = told(seen, "garage", f"health/routes/{ATTIC}/{name}", value)

    found = only(seen)

    assert (found.check, found.hosts) == ("other-way", ("garage",))
    assert "docker0, where nobody answers" in found.saw


def test_an_address_that_is_there_already_is_not_added_again() -> None:
    seen = readdressed("garage", "10.44.0.5", 24)
    first = interface("eth0", "10.44.0.5", 24)
    second = interface("eth0", GARAGE, 24)["addresses"]
    own = {**first, "addresses": [*first["addresses"], *second]}
    seen = change(seen, "garage", interfaces=(own,))
    for name in ("attic", "study"):
        seen = told(seen, name, "health/routes/10.44.0.5", {"error": "ENETUNREACH"})
    seen = broken(seen, None, "garage", error="ENETUNREACH")

    found = only(seen)

    assert (found.check, found.hosts) == ("other-network", ("garage",))
    keep = "sysctl -qw net/ipv4/conf/eth0/promote_secondaries=1"
    moved = "ip address del 10.44.0.5/24 dev eth0 && ip address add 10.44.0.5/24 dev eth0 brd +"
    assert lines(found) == [("garage", f"{keep} && {moved}")]


@pytest.mark.parametrize("manager", [None, "docker", "podman"])
@pytest.mark.parametrize("error", ["ENETUNREACH", "ETIMEDOUT", "EHOSTUNREACH"])
def test_an_address_before_that_of_the_others_network_is_no_container(
    manager: str | None, error: str
) -> None:
    seen = readdressed("garage", "10.90.0.5", 24)
    first = interface("eth0", "10.90.0.5", 24)
    second = interface("eth0", GARAGE, 24)["addresses"]
    own = {**first, "addresses": [*first["addresses"], *second]}
    seen = change(seen, "garage", interfaces=(own,))
    inside = {"container": manager, "bridged": ["eth0"] if manager else []}
    seen = told(seen, "garage", "health/virtual", inside)

    found = only(broken(seen, None, "garage", error=error))

    assert (found.check, found.hosts) == ("other-network", ("garage",))
    assert f"eth0 of garage has 10.90.0.5 before {GARAGE}" in found.saw
    assert "container" not in found.saw


def test_a_second_address_that_nobody_needs_is_nothing() -> None:
    first = interface("eth0", GARAGE, 24)
    second = interface("eth0", "10.90.0.5", 24)["addresses"]
    own = {**first, "addresses": [*first["addresses"], *second]}

    assert findings_of(change(home(), "garage", interfaces=(own,))) == ()


@pytest.mark.parametrize(
    ("health", "line"),
    [
        ({"links/lo/up": False}, "ip link set dev lo up"),
        ({"loopback": {"127.0.0.1": "EADDRNOTAVAIL"}}, "ip address add 127.0.0.1/8 dev lo"),
        (
            {
                "loopback": {"127.0.0.1": "ETIMEDOUT"},
                "firewall": firewall("nft", rules('iif "lo" tcp dport 1024-65535 drop')),
            },
            "nft insert rule inet mine c iif lo accept comment yoked",
        ),
    ],
    ids=["down", "no address", "filtered"],
)
def test_a_host_that_does_not_reach_itself_explains_its_world(
    health: dict[str, Any], line: str
) -> None:
    said = {
        "attic": "DistStoreError: wait timeout after 5000ms, keys: /world/0/1",
        "garage": "DistNetworkError: The client socket has timed out after 5000ms while trying to "
        "connect to (127.0.0.1, 40417).",
    }
    seen = replace(home(PAIR), world=World(ok=False, took_s=5.2, said=said, reason="no world"))
    for path, value in health.items():
        seen = told(seen, "garage", f"health/{path}", value)

    found = only(seen)

    assert (found.check, found.hosts) == ("loopback", ("garage",))
    assert lines(found) == [("garage", line)]
    assert [each.check for each in found.follows] == ["world-failed"]


def test_a_host_that_reaches_itself_is_no_trouble() -> None:
    seen = told(home(), "garage", "health/loopback", {"127.0.0.1": None, GARAGE: None,
                                                      "172.17.0.1": "ETIMEDOUT"})  # fmt: skip

    assert findings_of(seen) == ()


def burst(seen: Examination, source: str, target: str, **more: Any) -> Examination:
    made = dial(source, target, PORTS[0], "burst", bulk_bytes=16_777_216)
    return replace(seen, dials=(*seen.dials, replace(made, **more)))


QUOTA = rules(
    f"ip daddr {ATTIC} tcp sport != 22 quota over 12 mbytes used 0 bytes drop",
    base=INPUT.replace("input", "output"),
    name="metered",
)
LIMIT = rules(
    "ip saddr 192.168.1.0/24 tcp dport != 22 limit rate over 400 kbytes/second burst 200 kbytes "
    "drop",
    name="fair",
)


def test_a_burst_that_stops_is_told_with_the_quota_that_ends_it() -> None:
    seen = burst(home(PAIR), "garage", "attic", ok=False, error="ETIMEDOUT", bulk_bytes=11_700_000)

    found = only(as_root(seen, garage=QUOTA))

    assert (found.check, found.hosts) == ("bulk-stalls", ("garage", "attic"))
    assert "quota over 12 mbytes" in found.saw
    line = f"nft insert rule inet metered c ip daddr {ATTIC} accept comment yoked"
    assert lines(found) == [("garage", line)]


def test_a_burst_that_is_not_even_let_in_meets_a_limit_of_connections() -> None:
    seen = burst(home(PAIR), "garage", "attic", ok=False, error="ETIMEDOUT", rtt_s=None)
    table = rules("ct state new limit rate over 5/minute burst 5 packets drop")

    found = only(as_root(seen, attic=table))

    assert (found.check, found.hosts) == ("connection-rate", ("attic",))
    assert "limit rate over 5/minute" in found.saw


def test_a_burst_that_crawls_is_told_with_the_limit_that_slows_it() -> None:
    seen = burst(home(PAIR), "garage", "attic", goodput_bytes_per_s=400e3, bulk_bytes=500_000)

    found = only(as_root(seen, attic=LIMIT))
    unread = only(seen)

    assert (found.check, found.hosts) == ("bulk-stalls", ("attic", "garage"))
    assert "limit rate over 400 kbytes/second" in found.saw
    assert f"ip saddr {GARAGE}" in found.fix[0].command
    assert [each.check for each in found.follows] == ["slow-link"]
    assert (unread.check, unread.severity) == ("slow-link", "warning")


def test_a_shaper_that_was_left_on_is_named() -> None:
    seen = burst(home(PAIR), "attic", "garage", goodput_bytes_per_s=370e3, bulk_bytes=300_000)
    line = "out: tbf rate 3Mbit burst 8Kb lat 200ms"
    seen = told(seen, "attic", "health/links/eth0/queues", [line])

    found = only(seen)

    assert (found.check, found.severity) == ("slow-link", "warning")
    assert [(fix.host, fix.by_hand) for fix in found.fix] == [("attic", True)]
    assert "tc qdisc del dev eth0 root" in found.fix[0].command


def test_a_burst_over_radio_or_at_speed_is_no_trouble() -> None:
    fast = burst(home(PAIR), "garage", "attic", goodput_bytes_per_s=110e6)
    slow = burst(home(PAIR), "garage", "attic", goodput_bytes_per_s=400e3)
    radio = change(slow, "garage", interfaces=(interface("eth0", GARAGE, 24, "wireless"),))

    assert findings_of(as_root(fast, attic=LIMIT)) == ()
    assert not crawls(radio, radio.dials[-1])
    assert findings_of(radio) == ()


def test_a_rule_for_the_port_of_who_dials_is_told_as_that_and_not_as_a_limit() -> None:
    seen = as_root(home(PAIR), attic=rules("tcp sport 1-49151 drop", name="clients"))
    # The second of the two comes from a high port.
    seen = silent("garage", "attic", seen, arrived=False, ports=PORTS[:1])

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-range", ("attic",))
    assert "lets garage in from some ports and not from others" in found.saw
    assert "; by `tcp sport 1-49151 drop`" in found.saw


def test_of_two_hosts_with_the_same_rule_that_one_is_guilty_which_fails_elsewhere() -> None:
    seen = home()
    for one, other in (("attic", "garage"), ("garage", "study")):
        seen = broken(broken(seen, one, other, arrived=False), other, one, arrived=False)
    rule = rules(
        "ip ttl set 65 # handle 4", name="tether",
        base="type filter hook postrouting priority mangle; policy accept;", family="ip",
    )  # fmt: skip
    for name in ("attic", "garage", "study"):
        own = rule if name != "study" else None
        kind = {**firewall("nft", own), "tools": ["nft"]} if own else OFF
        seen = told(told(seen, name, "health/firewall", kind), name, "health/gateway", None)

    assert [(each.check, each.hosts) for each in findings_of(seen)] == [
        ("dial-failed", ("garage",))
    ]


def test_what_both_ends_have_is_told_and_not_that_nothing_was_found() -> None:
    seen = both_silent()
    rule = rules("ip ttl set 65 # handle 4", base="type filter hook postrouting priority mangle; "
                 "policy accept;", family="ip")  # fmt: skip

    found = only(as_root(seen, attic=rule, garage=rule))

    assert found.check == "lost-between"
    assert "which of it does this is unknown" in found.saw
    assert "nothing does it" not in found.saw


def test_a_rule_that_drops_data_is_told_once_and_a_harmless_one_of_the_peer_is_not() -> None:
    seen = home(PAIR)
    for ends in (PAIR, PAIR[::-1]):
        seen = silent(*ends, seen, arrived=True, opened=True, took_s=0.0015)
    wrong, right = (f"tcp flags {value} / fin,psh,urg drop" for value in ("psh", "fin,psh,urg"))

    found = only(as_root(seen, attic=rules(wrong), garage=rules(right)))

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert "drops what is said on them" in found.saw
    assert "it connected after 1.5" in found.saw
    assert "and nothing came of what was said then" in found.saw
    assert "perhaps" not in found.saw


def test_what_drops_data_that_leaves_is_told_so() -> None:
    seen = silent(*PAIR, arrived=True, opened=True)
    drops = rules("tcp flags & psh == psh drop", base=INPUT.replace("input", "output"))

    found = only(as_root(seen, **{PAIR[0]: drops}))

    assert (found.check, found.hosts) == ("firewall-out", (PAIR[0],))
    assert "lets connections, and nothing that is said on them, out" in found.saw


@pytest.mark.parametrize("knows", [GARAGE, f"{{ {GARAGE}, 192.168.1.99 }}"])
def test_a_rule_that_knows_a_host_by_another_of_its_addresses_is_no_fault_of_the_rule(
    knows: str,
) -> None:
    random = "192.168.1.200"
    seen = silent("garage", "attic", arrived=False, source_address=random)
    first = interface("eth0", random, 24)
    both = [*first["addresses"], *interface("eth0", GARAGE, 24)["addresses"]]
    seen = change(seen, "garage", interfaces=({**first, "addresses": both},))
    closed = rules(f"ip saddr != {knows} tcp dport >= 1024 drop")

    found = only(as_root(seen, attic=closed))

    assert (found.check, found.hosts) == ("wrong-source", ("garage",))
    assert f"sends to attic from {random}" in found.saw
    assert f"lets it in from {GARAGE}" in found.saw
    assert lines(found)[0][1].endswith(f"src {GARAGE}")


def test_answers_from_an_address_that_came_first_are_of_the_same_cause() -> None:
    random = "192.168.1.200"
    seen = readdressed("garage", random, 24)
    first = interface("eth0", random, 24)
    both = [*first["addresses"], *interface("eth0", GARAGE, 24)["addresses"]]
    seen = change(seen, "garage", interfaces=({**first, "addresses": both},))
    for ends, more in ((("garage", "attic"), {"arrived": False, "source_address": random}),
                       (("attic", "garage"), {"arrived": True})):  # fmt: skip
        seen = broken(seen, *ends, error="ETIMEDOUT", **more)
    closed = rules(f"ip saddr {random} tcp sport >= 1024 drop")

    found = only(as_root(seen, attic=closed))

    assert (found.check, found.hosts) == ("wrong-source", ("garage",))
    moved = f"ip address del {random}/24 dev eth0 && ip address add {random}/24 dev eth0 brd +"
    assert lines(found)[0][1].endswith(moved)


def test_a_rule_that_lets_no_address_of_a_host_in_is_told_as_before() -> None:
    seen = silent("garage", "attic", arrived=False, source_address=GARAGE)
    first = interface("eth0", GARAGE, 24)
    both = [*first["addresses"], *interface("eth0", "192.168.1.200", 24)["addresses"]]
    seen = change(seen, "garage", interfaces=({**first, "addresses": both},))

    found = only(as_root(seen, attic=rules("ip saddr 192.168.1.0/24 tcp dport >= 1024 drop")))

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
