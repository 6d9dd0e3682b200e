"""Rules are read as `nft list ruleset` prints them: what surely refuses a packet, and what may."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.doctor.builders import INPUT

from yoked.doctor.iptables_save import as_ruleset
from yoked.doctor.packets import CONFIRMS, DATA, Packet
from yoked.doctor.ruleset import Direction, suspects

OWN, PEER = "192.168.77.1", "192.168.77.2"
HIGH = (32_768, 60_999)
COMES = Packet(PEER, OWN, HIGH, (40_213, 40_213), "eth0")
ANSWER_COMES = Packet(PEER, OWN, (40_213, 40_213), HIGH, "eth0", answer=True)
LEAVES = Packet(OWN, PEER, HIGH, (40_213, 40_213), "eth0")
ITSELF = Packet("127.0.0.1", "127.0.0.1", (1024, 65_535), (1024, 65_535), "lo")
SIX = Packet("fd00::2", "fd00::1", HIGH, (40_213, 40_213), "eth0")

CLOSED = INPUT.replace("accept", "drop")
OUTPUT = INPUT.replace("input", "output")


def table(*lines: str, base: str = INPUT, family: str = "inet", extra: str = "") -> list[str]:
    """A ruleset of one chain, and of others."""
    body = ["chain in {", base, *lines, "}"]
    return [f"table {family} mine {{", *body, *extra.splitlines(), "}"]


def verdicts(
    rules: list[str], packet: Packet = COMES, direction: Direction = "in"
) -> list[tuple[str, bool]]:
    return [(each.rule, each.sure) for each in suspects(rules, packet, direction)]


@pytest.mark.parametrize(
    "rule",
    [
        "tcp dport 1024-65535 drop",
        "ip saddr 192.168.77.0/24 tcp dport { 22, 40000-41000 } drop",
        "ip saddr != 10.0.0.0/8 reject with icmpx admin-prohibited",
        'iifname "eth0" ct state new drop',
        "meta l4proto { tcp, udp } th dport > 1023 drop",
        "ct state vmap { established : accept, related : accept, new : drop }",
        "fib daddr type local drop",
        'log prefix "in: " level warn drop',
        "iif != \"lo\" counter packets 5 bytes 300 drop",
    ],
)  # fmt: skip
def test_a_rule_that_fits_surely_refuses(rule: str) -> None:
    found = verdicts(table(rule))

    assert [sure for _, sure in found] == [True], found


@pytest.mark.parametrize(
    "rule",
    [
        "tcp dport 22 drop",
        "tcp dport < 1024 drop",
        "udp dport 1-65535 drop",
        "ip saddr 10.0.0.0/8 drop",
        "ip6 saddr fd00::/8 drop",
        "ip protocol icmp drop",
        'iifname "docker*" drop',
        'oif "eth1" drop',
        "ct state invalid drop",
        "ct state vmap { established : accept, related : accept, invalid : drop }",
        "ct status dnat accept",
        "meta mark set 0x77",
        "fib daddr type { multicast, broadcast } drop",
        "tcp dport 22 limit rate over 5/minute burst 5 packets drop",
        "counter packets 1 bytes 60",
    ],
)
def test_a_rule_that_does_not_fit_refuses_nothing(rule: str) -> None:
    assert verdicts(table(rule)) == []


@pytest.mark.parametrize(
    "rule",
    [
        "ip saddr 192.168.77.0/24 tcp dport != 22 ip ttl != 64 drop",
        "ether saddr 02:00:00:00:00:22 tcp dport 1024-65535 drop",
        "ip saddr @blocked drop",
        "limit rate over 400 kbytes/second burst 200 kbytes drop",
        "quota over 12 mbytes used 0 bytes drop",
        "tcp flags & (syn | ack) == syn ct count over 1 drop",
        'xt match "recent" counter packets 0 bytes 0 xt target "REJECT"',
    ],
)
def test_a_rule_that_asks_what_is_not_known_may_refuse(rule: str) -> None:
    assert [sure for _, sure in verdicts(table(rule))] == [False]


def test_what_was_accepted_before_is_not_refused() -> None:
    assert verdicts(table("ip saddr 192.168.77.2 accept", "drop")) == []
    assert verdicts(table("tcp dport 22 accept", base=CLOSED)) == [("policy drop", True)]
    assert verdicts(table("ip saddr @friends accept", base=CLOSED)) == [("policy drop", False)]


def test_the_policy_refuses_no_answer_where_connections_are_followed() -> None:
    rules = table("ct state established,related accept", base=CLOSED)
    raw = "type filter hook prerouting priority raw; policy accept;"
    untracked = ["table inet fast {", "chain pre {", raw, "notrack", "}", "}"]

    assert verdicts(rules, ANSWER_COMES) == []
    assert verdicts(rules + untracked, ANSWER_COMES) == [("policy drop", False)]


def test_rules_against_high_ports_refuse_answers_too() -> None:
    assert verdicts(table("tcp dport 20000-65535 drop"), ANSWER_COMES) == [
        ("tcp dport 20000-65535 drop", True)
    ]


def test_a_chain_that_is_called_decides() -> None:
    guard = "chain guard {\ntcp dport 22 accept\ndrop\n}"

    assert verdicts(table("jump guard", extra=guard)) == [("drop", True)]
    assert verdicts(table("tcp dport 22 jump guard", extra=guard)) == []
    assert verdicts(table("ip ttl 3 jump guard", extra=guard)) == [("drop", False)]
    assert verdicts(table('iifname vmap { "lo" : accept, "eth0" : jump guard }', extra=guard)) == [
        ("drop", True)
    ]


def test_what_may_be_refused_before_is_surely_refused_in_the_end() -> None:
    assert verdicts(table("ct count over 1 drop", base=CLOSED)) == [
        ("policy drop", True),
        ("ct count over 1 drop", False),
    ]


def test_a_call_that_may_accept_leaves_doubt() -> None:
    friends = "chain friends {\naccept\n}"

    rules = table("ip saddr @known jump friends", extra=friends, base=CLOSED)

    assert verdicts(rules) == [("policy drop", False)]


def test_a_mark_may_send_a_packet_another_way() -> None:
    base = "type route hook output priority mangle; policy accept;"
    mark = "tcp dport 1024-65535 meta mark set 0x00000077"

    assert verdicts(table(mark, base=base), LEAVES, "out") == [(mark, False)]
    assert verdicts(table(mark, base=OUTPUT), LEAVES, "out") == []


def test_a_call_that_may_only_log_leaves_what_follows_sure() -> None:
    log = 'chain log {\nlog prefix "x" level warn\n}'

    rules = table("limit rate 3/minute burst 10 packets jump log", extra=log, base=CLOSED)

    assert verdicts(rules) == [("policy drop", True)]


def test_tables_that_are_switched_off_refuse_nothing() -> None:
    rules = table(base=CLOSED)

    assert verdicts(rules)
    assert verdicts([rules[0], "flags dormant", *rules[1:]]) == []


def test_the_family_and_the_card_of_a_chain_count() -> None:
    card = 'type filter hook ingress device "eth0" priority filter; policy accept;'

    assert verdicts(table("drop", base=card, family="netdev"))
    assert not verdicts(table("drop", base=card.replace("eth0", "eth1"), family="netdev"))
    assert not verdicts(table("drop", family="ip6"))
    assert not verdicts(table("drop", family="bridge"))
    assert verdicts(table("ip6 saddr fd00::/8 drop"), SIX)
    assert not verdicts(table("drop", family="ip"), SIX)


@pytest.mark.parametrize(
    ("hook", "rule", "packet", "direction"),
    [
        ("output", "tcp dport != 22 redirect to :12345", LEAVES, "out"),
        ("prerouting", "tcp dport 10000-65535 dnat to 192.168.122.50", COMES, "in"),
        ("postrouting", "ip daddr 192.168.77.0/24 snat to 10.8.0.2", LEAVES, "out"),
    ],
)
def test_what_changes_an_address_is_in_the_way_as_well(
    hook: str, rule: str, packet: Packet, direction: Direction
) -> None:
    base = f"type nat hook {hook} priority -100; policy accept;"

    assert verdicts(table(rule, base=base), packet, direction) == [(rule, True)]
    # Of answers nothing is changed anew.
    assert verdicts(table(rule, base=base), ANSWER_COMES, direction) == []


def test_the_nat_of_containers_is_in_nobodys_way() -> None:
    base = "type nat hook {} priority -100; policy accept;"
    docker = "\n".join(
        [
            "chain DOCKER {",
            'iifname "docker0" return',
            'iifname != "docker0" tcp dport 8080 dnat to 172.17.0.2:80',
            "}",
        ]
    )
    jump = "fib daddr type local counter packets 3 bytes 180 jump DOCKER"

    assert verdicts(table(jump, base=base.format("prerouting"), extra=docker)) == []
    assert verdicts(
        table('oifname != "docker0" ip saddr 172.17.0.0/16 masquerade',
              base=base.format("postrouting")), LEAVES, "out") == []  # fmt: skip


ASKS = replace(SIX, asks_card="nd-neighbor-solicit")


@pytest.mark.parametrize(
    ("rule", "refused"),
    [
        ("icmpv6 type nd-neighbor-solicit drop", True),
        ("icmpv6 type { 133, 135 } drop", True),
        ("meta l4proto ipv6-icmp drop", True),
        ("ip6 nexthdr 58 drop", True),
        ("icmpv6 type nd-neighbor-advert drop", False),
        ("tcp dport 0-65535 drop", False),
        ("meta l4proto tcp drop", False),
        ("ct state invalid,new drop", False),
        ("udp dport 53 drop", False),
    ],
)
def test_rules_that_keep_a_host_from_asking_for_a_card_are_found(rule: str, refused: bool) -> None:
    found = suspects(table(rule), ASKS, "in")

    assert [(each.rule, each.of_cards) for each in found] == ([(rule, True)] if refused else [])


def test_rules_for_loopback_are_found() -> None:
    rules = table('iif "lo" tcp dport 1024-65535 drop')

    assert verdicts(rules, ITSELF) == [('iif "lo" tcp dport 1024-65535 drop', True)]
    assert verdicts(rules) == []


def test_a_suspect_is_named_with_its_place() -> None:
    (found,) = suspects(table("tcp dport 1024-65535 counter packets 9 bytes 540 drop"), COMES, "in")

    assert found.words == ("`tcp dport 1024-65535 drop` in chain in of table inet mine, hook input")


def test_rules_of_an_old_iptables_say_the_same() -> None:
    saved = """\
*filter
:INPUT DROP [0:0]
:OUTPUT ACCEPT [0:0]
:guard - [0:0]
-A INPUT -i lo -j ACCEPT
-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A INPUT -p tcp -m tcp --dport 22 -m comment --comment "come in" -j ACCEPT
-A INPUT -s 10.0.0.0/8 -j guard
-A guard -j ACCEPT
-A OUTPUT ! -d 10.0.0.0/8 -p tcp -m multiport --dports 1024:65535,80 -j REJECT
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
-A PREROUTING -p tcp -m tcp --dport 10000:65535 -j DNAT --to-destination 192.168.122.50
COMMIT
""".splitlines()
    rules = as_ruleset(saved)

    assert [each.chain.words for each in suspects(rules, COMES, "in")] == [
        "ip filter INPUT",
        "ip nat PREROUTING",
    ]
    assert suspects(rules, ANSWER_COMES, "in") == []
    assert suspects(rules, ITSELF, "in") == []
    (out,) = suspects(rules, LEAVES, "out")
    assert out.sure
    assert suspects(rules, COMES, "in")[0].sure
    (may,) = suspects(as_ruleset(["-A INPUT -m recent --update -j DROP"]), COMES, "in")
    assert not may.sure


SAID = replace(COMES, answer=True, flags=(DATA,))


@pytest.mark.parametrize(
    ("rule", "what"),
    [
        # As nft 1.0 prints them, and as later ones do.
        ("tcp flags psh / fin,psh,urg drop", "data"),
        ("tcp flags & (fin | psh | urg) == psh drop", "data"),
        ("tcp flags fin,psh,urg / fin,psh,urg drop", ""),
        ("tcp flags & (fin | psh | urg) == fin | psh | urg drop", ""),
        ("tcp flags psh,ack / psh,ack drop", "data"),
        ("tcp flags == psh | ack drop", "data"),
        ("tcp flags psh,ack drop", "answer data"),
        ("tcp flags { syn | ack, syn } drop", "first answer"),
        ("tcp flags != { syn, ack } drop", "answer data"),
        ("tcp flags != syn / fin,syn,rst,ack drop", "answer data"),
        ("tcp flags & (syn | ack) != syn drop", "answer data"),
        ("tcp flags ! syn drop", "data"),
        ("tcp flags ! fin,syn,rst,psh,ack,urg drop", ""),
        ("tcp flags & (fin | syn) == 0x0 drop", "data"),
        ("tcp flags syn drop", "first answer"),
        ("tcp flags == 0x2 drop", "first"),
        ("tcp flags vmap { syn : accept, psh | ack : drop }", "data"),
        ("tcp flags & (syn | ack) vmap { syn : accept, ack : drop }", "data"),
    ],
)
def test_flags_of_tcp_are_compared_as_nft_does(rule: str, what: str) -> None:
    packets = {"first": COMES, "answer": ANSWER_COMES, "data": SAID}

    found = {name: verdicts(table(rule), each) for name, each in packets.items()}

    assert [name for name, told in found.items() if told] == what.split()
    assert all(sure for told in found.values() for _, sure in told)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("-p tcp -m tcp --tcp-flags FIN,PSH,URG PSH -j DROP", "data"),
        ("-p tcp -m tcp --tcp-flags FIN,PSH,URG FIN,PSH,URG -j DROP", ""),
        ("-p tcp -m tcp ! --tcp-flags FIN,SYN,RST,ACK SYN -j DROP", "answer data"),
        ("-p tcp -m tcp --tcp-flags FIN,SYN,RST,PSH,ACK,URG NONE -j DROP", ""),
        ("-p tcp -m tcp --tcp-flags SYN,RST SYN -j DROP", "first answer"),
    ],
)
def test_flags_of_tcp_are_compared_as_iptables_does(line: str, what: str) -> None:
    rules = as_ruleset(["# iptables-save", "*filter", ":INPUT ACCEPT [0:0]", f"-A INPUT {line}"])
    packets = {"first": COMES, "answer": ANSWER_COMES, "data": SAID}

    found = {name: verdicts(rules, each) for name, each in packets.items()}

    assert [name for name, told in found.items() if told] == what.split()
    assert all(sure for told in found.values() for _, sure in told)


def test_what_may_have_flags_or_not_is_perhaps_dropped() -> None:
    either = replace(COMES, answer=True, flags=(DATA, CONFIRMS))

    assert [sure for _, sure in verdicts(table("tcp flags psh / psh drop"), either)] == [False]
    assert [sure for _, sure in verdicts(table("tcp flags what drop"))] == [False]
