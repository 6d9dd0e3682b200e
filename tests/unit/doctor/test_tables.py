"""What one host alone has in its tables is named where a link fails, and what undoes it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.unit.doctor.builders import (
    ADDRESS,
    ATTIC,
    GARAGE,
    INPUT,
    MAC,
    OFF,
    PAIR,
    broken,
    change,
    dial,
    firewall,
    home,
    interface,
    lines,
    only,
    told,
    unreached,
)

from yoked.doctor.causes import findings_of
from yoked.doctor.checks.query import chosen_address
from yoked.records.examination import Examination, Fix

# As `ip -d route show table all` has them.
BROADCAST = f"broadcast {ATTIC} dev eth0 table local proto kernel scope link src {GARAGE}"
LOCAL = f"local {ATTIC} dev lo table local proto boot scope host"
OUTPUT = INPUT.replace("input", "output")


def with_macs(seen: Examination) -> Examination:
    for each in seen.hosts:
        seen = told(seen, each.name, "health/links/eth0/mac", MAC[each.name])
    return seen


def silent(seen: Examination, *pairs: tuple[str, str], **more: Any) -> Examination:
    """The same, with links on which nothing comes, and firewalls that have no rule."""
    for host in seen.hosts:
        seen = told(seen, host.name, "health/firewall", {**OFF, "readers": []})
        # Else the access point may keep them apart.
        seen = told(seen, host.name, "health/gateway/neighbour", "failed")
    for source, target in pairs or (("garage", "attic"),):
        seen = broken(seen, source, target, arrived=False, **more)
    return with_macs(seen)


def in_table(seen: Examination, name: str, **tables: list[str]) -> Examination:
    for table, own in tables.items():
        before = seen.host(name).health["tables"][table]
        seen = told(seen, name, f"health/tables/{table}", [*before, *own])
    return seen


def undone(fix: Fix) -> str:
    assert fix.undo is not None
    return fix.undo


@pytest.mark.parametrize(
    ("line", "way", "check"),
    [
        (BROADCAST, {"error": "EACCES", "interface": None, "kind": "broadcast"}, "forbidden-route"),
        (LOCAL, {"error": None, "interface": "lo", "kind": "local"}, "other-way"),
    ],
    ids=["broadcast", "local"],
)
def test_a_route_of_the_table_local_is_deleted_for_no_rule_is_asked_before_it(
    line: str, way: dict[str, Any], check: str
) -> None:
    seen = in_table(silent(home(), ("garage", "attic")), "garage", routes=[line])
    way = {**way, "table": 255, "network": ATTIC, "prefix": 32, "source": GARAGE}
    seen = told(seen, "garage", f"health/routes/{ATTIC}", way)

    found = only(seen)

    assert (found.check, found.hosts) == (check, ("garage",))
    assert f"`{line}`" in found.saw
    assert lines(found)[0] == ("garage", f"ip route del {line}")
    assert undone(found.fix[0]) == f"ip route add {line}"


def test_a_rule_that_is_asked_as_early_as_ours_is_deleted_first() -> None:
    seen = silent(home(), ("garage", "attic"))
    seen = told(seen, "garage", f"health/routes/{ATTIC}", {"error": "EACCES"})
    seen = in_table(seen, "garage", rules=[f"0: from all to {ATTIC} prohibit"])

    first, second = only(seen).fix

    assert first.command == f"ip rule del pref 0 from all to {ATTIC} prohibit"
    assert second.command.startswith(f"ip route replace {ATTIC} dev eth0")


def test_an_entry_of_a_bridge_for_the_card_of_a_peer_is_named_where_nothing_comes() -> None:
    entry = f"{MAC['attic']} dev vnet1 master br0 sticky static"
    seen = broken(silent(home()), "attic", "garage", arrived=True)
    seen = in_table(seen, "garage", entries=[entry])

    found = only(seen)

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    assert entry in found.saw
    assert "(and 1 other link)" in found.saw
    (fix,) = found.fix
    assert fix.command == f"bridge fdb del {MAC['attic']} dev vnet1 master static sticky"
    assert undone(fix) == f"bridge fdb replace {MAC['attic']} dev vnet1 master static sticky"


def test_an_entry_of_another_card_or_of_all_hosts_is_no_cause() -> None:
    other = "02:00:00:00:00:99 dev vnet1 master br0 static"
    shared = f"{MAC['attic']} dev vnet1 master br0 static"
    seen = in_table(silent(home()), "garage", entries=[other, shared])
    seen = in_table(seen, "study", entries=[shared])

    assert only(seen).check == "lost-between"


def test_a_port_or_a_card_that_answers_no_question_is_named() -> None:
    seen = silent(home())
    port = "vnet0 at eth0 mtu 1500 master br0 bridge_slave isolated on"
    own = ["lo mtu 65536", "eth0 at vnet0 NOARP mtu 1500", port, "br0 mtu 1500 bridge"]
    seen = told(seen, "garage", "health/tables/links", own)

    found = only(seen)

    assert [line for _, line in lines(found)] == [
        "ip link set dev eth0 arp on",
        "ip link set dev vnet0 type bridge_slave isolated off",
    ]


def tunnel(port: int, local: str, remote: str) -> str:
    return (
        f"vx0 mtu 1450 vxlan id 42 remote {remote} local {local} dev eth0 dstport {port} ttl auto "
        "udpcsum gso_max_size 65536"
    )


def tunnelled(*links: str, error: str = "EHOSTUNREACH") -> Examination:
    """A pair whose run goes through a tunnel, by what each tells of its end, and nothing passes."""
    seen = home(PAIR)
    for number, name in enumerate(PAIR, start=1):
        own = {"address": f"10.50.0.{number}", "prefix": 24, "family": 4, "link_local": False}
        seen = told(seen, name, "health/tables/links", [links[number - 1]])
        interface = {"name": "vx0", "kind": "physical", "mtu_bytes": 1450, "addresses": [own],
                     "gloo_address": own["address"]}  # fmt: skip
        hosts = tuple(
            replace(each, wanted={**each.wanted, "interface": "vx0"},
                    interfaces=(*each.interfaces, interface))
            if each.name == name else each
            for each in seen.hosts
        )  # fmt: skip
        seen = replace(seen, hosts=hosts)
    dials = tuple(
        replace(each, interface="vx0", address=f"10.50.0.{1 + PAIR.index(each.target)}",
                source_address=f"10.50.0.{1 + PAIR.index(each.source)}")
        for each in seen.dials
    )  # fmt: skip
    return broken(replace(seen, dials=dials), arrived=False, error=error)


def test_ends_of_a_tunnel_that_are_not_alike_are_named_and_the_forgotten_value_is_mended() -> None:
    seen = tunnelled(
        tunnel(8472, ATTIC, "192.168.1.99"),
        tunnel(4789, GARAGE, "192.168.1.99"),
    )

    found = only(seen)

    assert found.hosts == ("attic",)
    assert "`dstport 8472` of its vxlan vx0, where garage has `dstport 4789`" in found.saw
    (fix,) = found.fix
    assert fix.command == (
        f"ip link del vx0 && ip link add vx0 mtu 1450 type vxlan id 42 remote 192.168.1.99 "
        f"local {ATTIC} dev eth0 dstport 4789 ttl auto udpcsum && "
        "ip address add 10.50.0.1/24 dev vx0 && ip link set dev vx0 up"
    )
    assert "dstport 8472" in undone(fix)


def test_a_tunnel_whose_own_packets_are_routed_into_it_is_named_with_the_route() -> None:
    seen = tunnelled(tunnel(4789, ATTIC, GARAGE), tunnel(4789, GARAGE, ATTIC))
    into_itself = f"unicast {ATTIC} dev vx0 proto boot scope link"
    routes = ["unicast 192.168.1.0/24 dev eth0 proto kernel scope link", into_itself]
    learned = f"{MAC['attic']} dev vx0 dst {ATTIC} self"
    seen = in_table(seen, "garage", routes=routes, entries=[learned])

    found = findings_of(seen)[0]

    assert found.hosts[0] == "garage"
    assert f"the route `{into_itself}`, by which what vx0 itself sends to {ATTIC} goes" in found.saw
    assert [line for _, line in lines(found)] == [
        f"ip route del unicast {ATTIC} dev vx0 proto boot scope link"
    ]


@pytest.mark.parametrize(
    ("far", "mended"),
    [
        ("192.168.1.99", [f"ip link set dev vx0 type vxlan remote {GARAGE}"]),
        # An address of one of them, and the same at both ends, which nobody can tell from here.
        (GARAGE, []),
    ],
)
def test_a_tunnel_to_an_address_that_its_other_end_no_longer_has_is_named(
    far: str, mended: list[str]
) -> None:
    seen = tunnelled(tunnel(4789, ATTIC, far), tunnel(4789, GARAGE, ATTIC), error="ETIMEDOUT")

    found = findings_of(seen)

    assert [line for each in found for _, line in lines(each) if " remote " in line] == mended
    if mended:
        assert [each.hosts for each in found] == [("attic",)]
        assert f"`remote {far}` of its vxlan vx0" in found[0].saw


def test_a_far_end_behind_a_router_that_translates_is_not_blamed() -> None:
    other = f"vx0 mtu 1450 vxlan id 42 remote {ATTIC} local 10.9.0.2 dstport 4789"
    seen = tunnelled(tunnel(4789, ATTIC, "203.0.113.9"), other)
    card = interface("eth0", "10.9.0.2", 24)
    vx0 = next(each for each in seen.host("garage").interfaces if each["name"] == "vx0")
    seen = change(seen, "garage", interfaces=(card, vx0))

    assert not any("remote" in each.saw for each in findings_of(seen))


@pytest.mark.parametrize(
    ("device", "kind", "is_told"),
    [("vx0", "physical", True), ("tun7", "vpn", False), (None, "vpn", True),
     (None, "physical", False)],
)  # fmt: skip
def test_a_stopped_program_to_which_the_device_of_a_link_belongs_is_named(
    device: str | None, kind: str, is_told: bool
) -> None:
    seen = tunnelled("vx0 mtu 1400 tun type tun", "vx0 mtu 1400 tun type tun", error="ETIMEDOUT")
    cards = tuple({**each, "kind": kind} if each["name"] == "vx0" else each
                  for each in seen.host("garage").interfaces)  # fmt: skip
    seen = change(seen, "garage", interfaces=cards)
    stopped = {"pid": 812, "command": "openvpn home.conf", "interface": device, "stopped": True,
               "config": None}  # fmt: skip
    seen = told(seen, "garage", "health/tunnels", {"owners": [stopped], "allows": []})

    found = findings_of(seen)

    named = [each for each in found if "`openvpn home.conf` (process 812)" in each.saw]
    assert bool(named) == is_told
    if is_told:
        assert found[0].hosts == ("garage",)
        assert lines(found[0]) == [("garage", "kill -CONT 812")]
        assert undone(found[0].fix[0]) == "kill -STOP 812"


def carried(config: str | None = None, **allows: list[str]) -> Examination:
    """Nothing comes through a tunnel that a program carries on both hosts."""
    seen = tunnelled("vx0 mtu 1400 tun type tun", "vx0 mtu 1400 tun type tun", error="ETIMEDOUT")
    for name in PAIR:
        owner = {"pid": 9, "command": "wireguard-go vx0", "interface": "vx0", "stopped": False,
                 "config": config}  # fmt: skip
        own = {"owners": [owner], "allows": allows.get(name, [])}
        seen = told(seen, name, "health/tunnels", own)
        seen = told(seen, name, "health/firewall", OFF)
    return seen


@pytest.mark.parametrize(
    ("place", "mend"),
    [
        ("/run/vx0.conf:6", "in /run/vx0.conf name"),
        ("peer:KEY=", "wg set vx0 peer KEY allowed-ips"),
    ],
)
def test_a_tunnel_whose_list_lacks_the_other_end_is_named(place: str, mend: str) -> None:
    peers = [str(chosen_address(carried(), carried().host(name))) for name in PAIR]
    seen = carried(
        attic=[f"vx0 {place} AllowedIPs = {peers[1]}/32, 10.8.0.99/32"],
        garage=[f"vx0 {place} AllowedIPs = 10.8.0.98/32"],
    )

    found = findings_of(seen)[0]

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    assert f"a list without {peers[0]} of attic" in found.saw
    assert mend in found.fix[0].command


def test_who_carries_a_tunnel_is_told_where_nothing_that_was_read_does_it() -> None:
    found = findings_of(carried("/etc/nebula/config.yml"))[0]

    assert found.check == "lost-between"
    assert (
        "vx0 of garage is carried by `wireguard-go vx0` (process 9), set by /etc/neb" in found.saw
    )
    assert "on which host it is cannot be told" in found.saw


def test_a_virtual_machine_that_gets_all_frames_of_a_card_is_named() -> None:
    seen = silent(home(), ("attic", "garage"), ("garage", "attic"))
    mode = "macvtap0 at eth0 DOWN mtu 1500 macvtap mode {}"
    passing = in_table(seen, "garage", links=["eth0 mtu 1500", mode.format("passthru")])
    bridging = in_table(seen, "garage", links=["eth0 mtu 1500", mode.format("bridge")])

    found = findings_of(passing)[0]

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    assert "`macvtap mode passthru` of its macvtap0, which gets all frames for eth0" in found.saw
    assert not any("macvtap0" in each.saw for each in findings_of(bridging))


def test_a_frame_that_a_third_host_sends_back_is_told_once_for_all_links() -> None:
    links = ("garage", "attic"), ("attic", "garage")
    seen = silent(home(), *links)
    queues = ["in: action order 1: mirred (Egress Mirror to device eth0) pipe"]
    seen = told(seen, "study", "health/links/eth0/queues", queues)

    found = only(seen)

    assert (found.check, found.hosts) == ("dial-failed", ("study",))
    assert "tc qdisc del dev eth0 ingress" in found.fix[0].command


def test_a_mirror_to_another_card_disturbs_nobody() -> None:
    queues = ["in: action order 1: mirred (Egress Mirror to device eth1) pipe"]
    seen = told(silent(home()), "study", "health/links/eth0/queues", queues)

    assert only(seen).check == "lost-between"


def test_who_answers_for_the_address_of_another_is_named() -> None:
    entry = f"{ATTIC} dev eth0 proxy"
    seen = in_table(silent(home()), "study", neighbours=[entry])

    found = only(seen)

    assert found.hosts == ("study",)
    assert lines(found) == [("study", f"ip neighbour del proxy {ATTIC} dev eth0")]


def test_a_rule_of_the_kernels_for_some_packets_alone_is_named_if_its_table_leads_away() -> None:
    rule = "100: from all fwmark 0x77 lookup 300"
    away = "unicast default dev wg9 table 300 proto boot scope link"
    seen = in_table(silent(home()), "garage", rules=[rule])

    assert only(seen).check == "lost-between"
    found = only(in_table(seen, "garage", routes=[away]))
    assert lines(found) == [("garage", "ip rule del pref 100 from all fwmark 0x77 lookup 300")]
    assert undone(found.fix[0]) == "ip rule add pref 100 from all fwmark 0x77 lookup 300"


def test_a_rule_that_changes_answers_is_why_large_packets_do_not_come() -> None:
    rule = "tcp sport != 22 tcp flags & (syn | ack) == syn | ack reset tcp option window"
    table = ["table inet scrub { # handle 3", "chain out { # handle 1", OUTPUT,
             f"{rule} # handle 4", "}", "}"]  # fmt: skip
    seen = broken(home(PAIR), "garage", "attic", ("bulk",), rtt_s=0.0003, bulk_bytes=575)
    seen = told(seen, "attic", "health/firewall", {**OFF, "kind": "nft", "rules": table})
    seen = told(seen, "garage", "health/firewall", OFF)

    found = only(seen)

    assert found.hosts == ("attic", "garage")
    assert rule in found.saw
    assert lines(found) == [("attic", "nft delete rule inet scrub out handle 4")]
    assert undone(found.fix[0]) == f"nft add rule inet scrub out '{rule}'"


@pytest.mark.parametrize(
    "rule", ["counter", "ip dscp set cs1", "meta mark set 0x1", "tcp option maxseg size set rt mtu"]
)
def test_a_rule_that_counts_or_marks_is_no_cause(rule: str) -> None:
    table = ["table inet stats {", "chain out {", OUTPUT, rule, "}", "}"]
    seen = broken(home(PAIR), "garage", "attic", ("bulk",), rtt_s=0.0003, bulk_bytes=575)
    seen = told(seen, "attic", "health/firewall", {**OFF, "kind": "nft", "rules": table})

    assert rule not in only(seen).saw


def queued_to_nobody(readers: list[int] | None) -> Examination:
    rule = (
        "-A OUTPUT ! -o lo -p tcp -m tcp ! --sport 22 ! --dport 22 -m conntrack --ctstate NEW "
        "-j NFQUEUE --queue-num 0"
    )
    old = ["# iptables-legacy-save", "*mangle", ":OUTPUT ACCEPT [0:0]", rule, "COMMIT"]
    kind = {**OFF, "kind": "iptables", "rules": old, "readers": readers}
    return told(silent(home()), "garage", "health/firewall", kind)


def test_packets_for_a_program_that_is_gone_are_refused_by_the_rule_of_the_old_iptables() -> None:
    found = only(queued_to_nobody([]))

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert "chain OUTPUT of table ip mangle of the old iptables" in found.saw
    assert lines(found) == [("garage", f"iptables-legacy -t mangle -I OUTPUT -d {ATTIC} -j ACCEPT")]


@pytest.mark.parametrize("readers", [[0], None])
def test_a_queue_that_somebody_reads_or_may_is_only_suspected(readers: list[int] | None) -> None:
    found = only(queued_to_nobody(readers))

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    (fix,) = found.fix
    assert fix.command.startswith("iptables-legacy -t mangle -D OUTPUT '!' -o lo -p tcp")


def test_that_no_rule_does_it_is_said_only_where_all_tables_were_read() -> None:
    seen = silent(home())
    assert "nothing does it" in only(seen).saw

    unread = told(seen, "attic", "health/tables/entries", None)
    assert "not read: entries of attic" in only(unread).saw
    long = told(seen, "attic", "health/firewall/long", {"inet block bad": 100_000})
    assert "nothing does it" not in only(long).saw


def late(seen: Examination, time_s: float = 0.006) -> Examination:
    slow = tuple(replace(each, rtt_s=time_s, echo_s=(time_s,) * 10) for each in seen.dials)
    return replace(seen, dials=slow)


def test_a_firewall_through_which_a_packet_takes_long_is_told_where_answers_are_late() -> None:
    chain = {"inet blocklist bad": 100_000}
    seen = told(home(PAIR), "attic", "health/firewall/long", chain)
    assert findings_of(seen) == ()

    found = only(late(seen))

    assert (found.check, found.hosts) == ("slow-link", ("attic", "garage"))
    assert "each answer takes 6.00 ms" in found.saw
    assert "100,000 rules in chain inet blocklist bad" in found.saw
    assert findings_of(late(home(PAIR))) == ()


def test_packets_that_carry_little_are_told_with_the_rule_that_makes_them_so() -> None:
    rule = "tcp flags syn tcp option maxseg size set 88"
    table = ["table inet mss {", "chain out {", OUTPUT, f"{rule} # handle 9", "}", "}"]
    seen = told(home(PAIR), "garage", "health/firewall", {**OFF, "kind": "nft", "rules": table})
    dials = tuple(
        replace(each, mss_bytes=76 if each.target == "garage" else 1448) for each in seen.dials
    )

    found = only(replace(seen, dials=dials))

    assert (found.check, found.hosts) == ("slow-link", ("garage", "attic"))
    assert "a packet carries 76 bytes of data" in found.saw
    assert lines(found) == [("garage", "nft delete rule inet mss out handle 9")]


def test_a_queue_of_loopback_is_named_where_data_does_not_come_there() -> None:
    seen = told(home(), "attic", "health/loopback", {"127.0.0.1": "ETIME"})
    queues = ["out: tbf rate 8Kbit burst 1540b lat 2s"]
    seen = told(seen, "attic", "health/links/lo/queues", queues)

    found = only(seen)

    assert (found.check, found.hosts) == ("loopback", ("attic",))
    assert "tbf rate 8Kbit" in found.saw
    assert "tc qdisc del dev lo root" in found.fix[0].command


def six(name: str) -> dict[str, Any]:
    own = {"address": f"fd00::{name}", "prefix": 64, "family": 6, "link_local": False}
    return {"name": "tailscale0", "kind": "vpn", "mtu_bytes": 1280, "addresses": [own],
            "gloo_address": own["address"]}  # fmt: skip


def without_six(**more: Any) -> Examination:
    seen = home(PAIR)
    hosts = []
    for number, host in enumerate(seen.hosts):
        kept = tuple(each for each in host.interfaces if each["name"] != "tailscale0")
        wanted = {**host.wanted, "interface": "tailscale0", "address": None}
        hosts.append(replace(host, wanted=wanted, interfaces=(*kept, six("1")) if number else kept))
    seen = replace(seen, hosts=tuple(hosts), dials=(), world=None)
    return told(seen, "attic", "health/links/tailscale0/mtu_bytes", more.get("mtu", 1280))


def test_an_mtu_with_which_there_is_no_ipv6_is_mended_before_the_address() -> None:
    found = only(without_six(mtu=1200))

    assert "its MTU is 1200, and below 1280 Linux takes IPv6 off" in found.saw
    first, second = found.fix
    assert first.command == "ip link set dev tailscale0 mtu 1280"
    assert undone(first) == "ip link set dev tailscale0 mtu 1200"
    assert "start the program of the VPN again" in second.command


def test_a_setting_that_keeps_ipv6_off_is_taken_back_first() -> None:
    settings = {"net/ipv6/conf/tailscale0/disable_ipv6": "1"}
    seen = told(without_six(), "attic", "health/settings", settings)

    assert only(seen).fix[0].command == "sysctl -w net/ipv6/conf/tailscale0/disable_ipv6=0"


def test_a_setting_that_has_a_third_host_answer_for_others_is_named() -> None:
    settings = {"net/ipv4/conf/eth0/proxy_arp": "1"}
    seen = told(silent(home()), "study", "health/settings", settings)

    assert lines(only(seen)) == [("study", "sysctl -w net/ipv4/conf/eth0/proxy_arp=0")]


def busy(**programs: Any) -> Examination:
    seen = home()
    cards = {"eth0": {"tx_bit_per_s": 9e8, "rx_bit_per_s": 1e6}}
    own = {"pid": 77, "command": "backup-push", "address": ADDRESS["study"], "port": 8730,
           "connections": 24, "tx_bit_per_s": 9e8, "rx_bit_per_s": 0.0, **programs}  # fmt: skip
    seen = told(seen, "garage", "health/traffic", {"cards": cards, "programs": [own]})
    there = {"eth0": {"rx_bit_per_s": 9e8, "tx_bit_per_s": 1e6}}
    other = {**own, "address": GARAGE, "rx_bit_per_s": 9e8, "tx_bit_per_s": 0.0, "pid": 88}
    return told(seen, "study", "health/traffic", {"cards": there, "programs": [other]})


def test_a_program_that_fills_a_link_before_anything_is_sent_is_told_once_with_its_number() -> None:
    found = only(busy())

    assert (found.check, found.hosts, found.severity) == ("busy-link", ("garage",), "warning")
    assert (
        "eth0 of garage sent 900 Mbit/s; `backup-push` (process 77) to study port 8730 over 24 "
        in (found.saw)
    )
    assert found.fix[0].command.endswith("`kill 77`")


def test_a_little_of_a_fast_link_is_nobodys_trouble() -> None:
    seen = told(busy(), "garage", "health/traffic/cards/eth0/tx_bit_per_s", 1e8)
    assert findings_of(told(seen, "study", "health/traffic", None)) == ()


def test_on_a_card_without_a_speed_of_its_own_counts_what_was_left() -> None:
    seen = told(busy(), "garage", "health/links/eth0/speed_bit_per_s", 10**10)
    seen = told(seen, "study", "health/traffic", None)
    assert findings_of(seen) == ()

    bursts = tuple(
        dial("garage", each, 40_001, "burst", goodput_bytes_per_s=5e6, bulk_bytes=10**6)
        for each in ("attic", "study")
    )
    assert "busy-link" in {
        each.check for each in findings_of(replace(seen, dials=(*seen.dials, *bursts)))
    }


# A host whose cable is a port of a bridge, as one with virtual machines has it.
BRIDGED = [
    "eth0 at vnet0 mtu 1500 veth",
    "vnet0 at eth0 mtu 1500 master br0 veth bridge_slave",
    "lan0 mtu 1500 master br0 bridge_slave",
    "br0 mtu 1500 bridge",
]


def bridged(seen: Examination) -> Examination:
    return told(seen, "garage", "health/tables/links", BRIDGED)


def test_a_queue_of_the_cable_below_a_bridge_is_on_the_way() -> None:
    burst = dial("garage", "attic", 40_001, "burst", goodput_bytes_per_s=2e5, bulk_bytes=200_000)
    seen = home(PAIR)
    seen = bridged(replace(seen, dials=(*seen.dials, burst)))
    shaper = {"up": True, "queues": ["out: tbf rate 2Mbit burst 8Kb lat 200ms"]}

    assert "tc qdisc del dev lan0 root" in (
        only(told(seen, "garage", "health/links/lan0", shaper)).fix[0].command
    )
    # What the other end of a pair sends comes in at eth0.
    assert "tbf" not in only(told(seen, "garage", "health/links/vnet0", shaper)).saw


def test_a_rule_of_the_bridge_is_found_and_opened_in_its_own_chain() -> None:
    rules = ["table bridge f {", "chain f {", INPUT.replace("input", "forward"),
             'iifname "vnet0" ip protocol tcp drop', "}", "}"]  # fmt: skip
    seen = told(bridged(silent(home())), "garage", "health/firewall", {**OFF, "rules": rules})

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert f"nft insert rule bridge f f ip daddr {ATTIC} accept" in found.fix[0].command
    alone = told(silent(home()), "garage", "health/firewall", {**OFF, "rules": rules})
    assert only(alone).check == "lost-between"


def test_a_pair_with_both_ends_in_one_bridge_is_opened() -> None:
    ring = ["l0 at l1 mtu 1500 master br0 veth bridge_slave",
            "l1 at l0 mtu 1500 master br0 veth bridge_slave"]  # fmt: skip
    seen = in_table(silent(home()), "study", links=[*BRIDGED, *ring])

    found = only(seen)

    assert found.hosts == ("study",)
    assert lines(found) == [("study", "ip link set dev l1 nomaster")]


def test_a_neighbour_that_was_told_for_good_is_forgotten_whatever_the_kernel_calls_that() -> None:
    seen = silent(home())
    seen = told(seen, "garage", f"health/routes/{ATTIC}/neighbour", "noarp")
    seen = told(seen, "garage", f"health/routes/{ATTIC}/mac", "02:00:00:00:00:99")

    assert only(seen).check == "wrong-neighbour"


def test_a_limit_of_connections_that_hits_the_rendezvous_by_chance_is_an_error() -> None:
    rules = ["table inet slow {", "chain in {", INPUT, "ct count over 1 drop", "}", "}"]
    seen = broken(home(PAIR), "garage", "attic", ("rendezvous",))
    seen = told(seen, "attic", "health/firewall", {**OFF, "kind": "nft", "rules": rules})

    found = only(seen)

    assert (found.check, found.severity) == ("rendezvous-port", "error")
    assert "perhaps by `ct count over 1 drop`" in found.saw
    assert "nft insert rule inet slow in" in found.fix[0].command


def test_what_a_third_host_does_explains_the_silence_of_the_others() -> None:
    seen = silent(home(), ("garage", "attic"), ("attic", "garage"))
    queues = ["in: action order 1: mirred (Egress Mirror to device eth0) pipe"]
    seen = told(seen, "study", "health/links/eth0/queues", queues)
    seen = told(seen, "attic", "health/untold", {"health": "attic gave no answer to 'health'"})

    found = only(seen)

    assert found.hosts == ("study",)
    assert [each.check for each in found.follows] == ["agent-failed"]


def test_a_card_that_was_taken_for_everybodys_is_forgotten_with_the_route() -> None:
    seen = in_table(silent(home()), "garage", routes=[BROADCAST])
    way = {"error": "EACCES", "kind": "broadcast", "network": ATTIC, "prefix": 32}
    seen = told(seen, "garage", f"health/routes/{ATTIC}", way)

    assert [line for _, line in lines(only(seen))] == [
        f"ip route del {BROADCAST}",
        f"ip neighbour flush to {ATTIC} dev eth0 nud noarp",
    ]


@pytest.mark.parametrize("address", [ATTIC, None])
def test_who_takes_the_address_of_a_host_for_its_own_is_why_ssh_meets_another_key(
    address: str | None,
) -> None:
    lost = unreached("attic", "host-key", "REMOTE HOST IDENTIFICATION HAS CHANGED")
    lost = replace(lost, wanted={**lost.wanted, "address": address})
    seen = home()
    hosts = tuple(lost if each.name == "attic" else each for each in seen.hosts)
    kept = tuple(each for each in seen.dials if "attic" not in (each.source, each.target))
    seen = in_table(replace(seen, hosts=hosts, dials=kept, world=None), "garage", routes=[LOCAL])

    found = only(seen)

    assert (found.check, found.hosts) == ("same-address", ("garage", "attic"))
    assert lines(found) == [("garage", f"ip route del {LOCAL}")]


def test_a_program_that_makes_packets_is_told_where_nothing_else_explains_the_silence() -> None:
    raw = [{"pid": 77, "command": "python3 netcut.py"}]
    seen = told(
        silent(home()), "study", "health/writers", {"managers": [], "loops": [], "raw": raw}
    )

    found = only(seen)

    assert found.hosts == ("study",)
    assert "`python3 netcut.py` (process 77), which makes packets by itself" in found.saw
    assert found.fix[0].command.endswith("`kill 77`")
    usual = told(seen, "attic", "health/writers", {"managers": [], "loops": [], "raw": raw})
    assert only(usual).check == "lost-between"


def test_an_address_with_the_label_of_another_interface_gets_its_own() -> None:
    seen = home(PAIR)
    first, *_ = seen.host("garage").interfaces
    seen = change(seen, "garage", interfaces=(first, interface("eth0:1", GARAGE, 24)))
    kept = tuple(each for each in seen.dials if "garage" not in (each.source, each.target))
    seen = replace(seen, dials=kept, world=None)

    found = only(told(seen, "garage", "health/links/eth0", {"up": True, "carrier": True}))

    assert (found.check, found.hosts) == ("no-address", ("garage",))
    assert "bears the label eth0:1" in found.saw
    (fix,) = found.fix
    meanwhile, own = f"{GARAGE}/32 dev eth0", f"{GARAGE}/24 dev eth0"
    between = f"ip address add {meanwhile} && ip address del {own} && ip address add {own} brd +"
    assert fix.command == f"{between} && ip address del {meanwhile}"
    assert undone(fix) == f"{between} label eth0:1 && ip address del {meanwhile}"


def test_a_program_that_makes_a_forbidding_route_again_is_ended_first() -> None:
    seen = told(
        silent(home(), ("garage", "attic")), "garage", f"health/routes/{ATTIC}/error",
        "EHOSTUNREACH",
    )  # fmt: skip
    loop = {"pid": 77, "command": "portsentry", "words": "ip route", "changes": ["routes"]}

    found = only(told(seen, "garage", "health/writers", {"managers": [], "loops": [loop]}))

    assert (found.check, found.hosts) == ("forbidden-route", ("garage",))
    assert "again and again by the program `portsentry` (process 77)" in found.saw
    assert "kill 77" in found.fix[0].command
    assert found.fix[1].command.startswith(f"ip route replace {ATTIC}")
    assert "again and again" not in only(seen).saw


@pytest.mark.parametrize(
    "table", ["routes", "rules", "addresses", "neighbours", "entries", "links"]
)
@pytest.mark.parametrize("line", ["", "local", "dev", f"{MAC['attic']} dev", "unicast dev"])
def test_a_damaged_line_of_a_table_is_passed_over(table: str, line: str) -> None:
    seen = silent(home(), ("garage", "attic"))

    found = only(in_table(seen, "garage", **{table: [line]}))

    assert (found.check, found.saw) == (only(seen).check, only(seen).saw)


def test_a_macvlan_that_hears_listed_cards_alone_is_named_where_a_card_is_not_listed() -> None:
    seen = silent(home(), ("attic", "garage"))
    listed = f"eth0 at lan0 mtu 1500 macvlan remotes (1) {MAC['study']} bcqueuelen 1000"
    here = told(seen, "garage", "health/tables/links", [listed])
    has_it = told(seen, "garage", "health/tables/links", [f"{listed} {MAC['attic']}"])

    found = only(here)

    assert (found.check, found.hosts) == ("dial-failed", ("garage",))
    assert f"lacks {MAC['attic']} of attic" in found.saw
    (fix,) = found.fix
    assert fix.command == f"ip link set dev eth0 type macvlan macaddr add {MAC['attic']}"
    assert only(has_it).check == "lost-between"


def test_a_firewall_that_nobody_could_read_stays_blamed_before_what_may_make_packets() -> None:
    raw = [{"pid": 77, "command": "dhclient"}]
    seen = silent(home(), ("garage", "attic"))
    seen = told(seen, "attic", "health/firewall", firewall("ufw"))
    seen = told(seen, "study", "health/writers", {"managers": [], "loops": [], "raw": raw})

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))


def test_an_address_that_is_not_used_is_taken_and_given_again() -> None:
    line = f"eth0 inet {GARAGE}/24 scope global dadfailed tentative"
    seen = in_table(silent(home(), ("attic", "garage")), "garage", addresses=[line])

    own = f"{GARAGE}/24 dev eth0"
    assert lines(only(seen)) == [("garage", f"ip address del {own} && ip address add {own}")]


def without_cards(rule: str, policy: str = "accept") -> Examination:
    """Two hosts whose link is of IPv6, and rules of the first for what comes in."""
    own = {"attic": "fd00::1", "garage": "fd00::2"}
    seen = home(PAIR)
    for name in PAIR:
        there = own["garage" if name == "attic" else "attic"]
        first, *_ = seen.host(name).interfaces
        cards = (interface("eth0", own[name], 64), interface("eth1", ADDRESS[name], 24))
        wanted = {**seen.host(name).wanted, "address": own[name]}
        seen = change(seen, name, interfaces=(first, *cards), wanted=wanted)
        way = {"source": own[name], "interface": "eth0", "error": None, "neighbour": "failed"}
        seen = told(seen, name, f"health/routes/{there}", way)
    dials = tuple(
        replace(each, address=own[each.target], source_address=own[each.source])
        for each in seen.dials
    )
    begin = INPUT.replace("accept", policy)
    rules = ["table ip6 quiet {", "chain in {", begin, rule, "}", "}"]
    seen = silent(replace(seen, dials=dials), ("attic", "garage"), ("garage", "attic"))
    return told(seen, "attic", "health/firewall", {**OFF, "ruleset": rules, "readers": []})


@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        ("meta l4proto ipv6-icmp drop", "accept"),
        ("icmpv6 type nd-neighbor-advert drop", "accept"),
        ("ct state established,related accept", "drop"),
    ],
)
def test_a_firewall_without_icmpv6_is_why_cards_are_not_found(rule: str, policy: str) -> None:
    found = only(without_cards(rule, policy))

    assert (found.check, found.hosts) == ("firewall-drop", ("attic",))
    assert "from asking for each other's network cards" in found.saw
    (fix,) = found.fix
    assert fix.command == (
        "nft insert rule ip6 quiet in icmpv6 type '{ nd-neighbor-solicit, nd-neighbor-advert }' "
        "accept comment yoked"
    )


@pytest.mark.parametrize(
    ("rule", "policy"),
    [
        ("icmpv6 type echo-request drop", "accept"),
        ("icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept", "drop"),
        # Nobody can tell whether they have it.
        ("ip6 hoplimit 255 meta l4proto ipv6-icmp accept", "drop"),
    ],
)
def test_a_firewall_that_may_let_cards_be_found_is_not_blamed_for_it(
    rule: str, policy: str
) -> None:
    assert "network cards" not in "".join(
        each.saw for each in findings_of(without_cards(rule, policy))
        if each.check == "firewall-drop"
    )  # fmt: skip


def test_rules_for_what_is_handed_on_count_where_a_bridge_has_them_see_its_packets() -> None:
    policy = INPUT.replace("input", "forward").replace("accept", "drop")
    rules = ["table ip filter {", "chain FORWARD {", policy, "tcp dport 22 accept", "}", "}"]
    wall = {**OFF, "ruleset": rules, "readers": [], "tools": ["nft", "iptables"]}
    seen = told(bridged(silent(home(), ("attic", "garage"))), "garage", "health/firewall", wall)
    asked = told(seen, "garage", "health/settings", {"net/bridge/bridge-nf-call-iptables": "1"})

    found = only(asked)

    assert (found.check, found.hosts) == ("firewall-drop", ("garage",))
    assert "policy drop" in found.saw
    assert found.fix[0].command == f"iptables -I FORWARD -s {ATTIC} -j ACCEPT"
    assert only(seen).check == "lost-between"


GUEST = f"/etc/systemd/system/ssh.service.d/guest.conf:2 IPAddressDeny={ATTIC}"
ALLOW = "/etc/systemd/system/ssh.service.d/guest.conf:3 IPAddressAllow=192.168.1.0/24"


def test_a_unit_that_may_not_speak_to_a_peer_is_named_with_its_line() -> None:
    seen = silent(home(), ("garage", "attic"))
    denied = told(seen, "garage", "health/tables/denials", [GUEST])
    withheld = told(denied, "garage", f"health/routes/{ATTIC}/sending", "EPERM")

    for found in (only(denied), only(withheld)):
        assert (found.check, found.hosts) == ("dial-failed", ("garage",))
        assert "guest.conf, line 2" in found.saw
        (fix,) = found.fix
        assert fix.command == (
            "sed -i.yoked '2s/^/# /' /etc/systemd/system/ssh.service.d/guest.conf && systemctl "
            "daemon-reload && { systemctl restart ssh || systemctl restart sshd; }"
        )
    # What is allowed counts first.
    both = told(seen, "garage", "health/tables/denials", [GUEST, ALLOW])
    assert only(both).check == "lost-between"


def test_what_a_kernel_keeps_back_though_no_rule_does_is_no_work_for_its_firewall() -> None:
    seen = told(silent(home()), "garage", f"health/routes/{ATTIC}/sending", "EPERM")

    found = only(seen)

    assert (found.check, found.hosts) == ("firewall-out", ("garage",))
    assert "none of its rules does it" in found.saw
    (fix,) = found.fix
    assert fix.by_hand
    assert "bpftool cgroup tree" in fix.command
