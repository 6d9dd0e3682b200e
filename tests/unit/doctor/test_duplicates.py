"""Two machines with one address, of the network or of a card; and who answers for another."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.doctor.builders import (
    ADDRESS,
    MAC,
    NAMES,
    OFF,
    broken,
    change,
    firewall,
    home,
    interface,
    lines,
    told,
    unreached,
)
from tests.unit.doctor.troubles import spoofed, unheard

from yoked.doctor.causes import findings_of
from yoked.records.examination import Examination

OTHER_MAC = "02:00:5e:00:53:01"


def with_cards(seen: Examination) -> Examination:
    """The same, with hosts that tell the addresses of their cards."""
    for host in seen.up:
        seen = told(seen, host.name, "health/links/eth0/mac", MAC[host.name])
    return seen


def test_hosts_that_tell_their_cards_are_no_trouble() -> None:
    assert findings_of(with_cards(home())) == ()


@pytest.mark.parametrize(
    ("mac", "hosts", "words"),
    [
        (MAC["study"], ("study", "garage"), "of study"),
        (OTHER_MAC, ("garage",), "none of the fleet's"),
    ],
)
def test_a_card_that_answers_for_another_is_told(
    mac: str, hosts: tuple[str, ...], words: str
) -> None:
    (found,) = findings_of(spoofed(mac))

    assert (found.check, found.hosts) == ("other-answers", hosts)
    assert "the address of garage, goes to the network card" in found.saw
    assert words in found.saw


def test_a_repeater_that_all_see_in_anothers_place_is_not_blamed() -> None:
    seen = with_cards(broken(home(), None, "garage"))
    for name in ("attic", "study"):
        seen = told(seen, name, f"health/routes/{ADDRESS['garage']}/mac", OTHER_MAC)

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("firewall-drop", ("garage",))


def test_two_cards_with_one_address_are_told() -> None:
    seen = told(with_cards(home()), "study", "health/links/eth0/mac", MAC["garage"])

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("same-address", ("study", "garage"))
    assert MAC["garage"] in found.saw
    assert found.fix[0].by_hand


def lost_at(mac: str, *names: str) -> Examination:
    """Hosts that are silent, and that this machine finds at one network card."""
    seen = with_cards(
        home(tuple(each for each in ("attic", "garage", "study") if each not in names))
    )
    lost = [unreached(each, "timeout", "Connection timed out") for each in names]
    at_addresses = {each: [ADDRESS[each]] for each in names}
    for name in names:
        seen = told(seen, "attic", f"health/routes/{ADDRESS[name]}", {"mac": mac})
    controller = {**seen.controller, "lost": at_addresses}
    return replace(seen, hosts=(*seen.hosts, *lost), controller=controller)


def test_a_silent_host_at_the_card_of_another_is_told_with_both() -> None:
    (found,) = findings_of(lost_at(MAC["study"], "garage"))

    assert (found.check, found.hosts) == ("same-address", ("study", "garage"))
    assert f"others find study and garage at one network card, {MAC['study']}" in found.saw
    assert "which is eth0 of study" in found.saw
    assert [each.check for each in found.follows] == ["ssh-timeout"]


def test_a_card_that_this_machine_alone_has_met_counts_too() -> None:
    seen = lost_at(OTHER_MAC, "garage")
    seen = replace(seen, controller={**seen.controller, "met": {"garage": MAC["study"]}})

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("same-address", ("study", "garage"))


@pytest.mark.parametrize("mac", [OTHER_MAC, MAC["garage"]], ids=["another's", "its own"])
def test_a_silent_host_at_a_card_of_nobody_else_is_only_silent(mac: str) -> None:
    (found,) = findings_of(lost_at(mac, "garage"))

    assert (found.check, found.hosts) == ("ssh-timeout", ("garage",))


def test_a_host_that_is_set_to_answer_for_others_has_no_cloned_card() -> None:
    seen = lost_at(MAC["study"], "garage")
    settings = {"net/ipv4/conf/eth0/proxy_arp": "1"}

    found = findings_of(told(seen, "study", "health/settings", settings))

    assert "same-address" not in {each.check for each in found}


def test_two_silent_hosts_at_one_card_are_told_and_a_repeater_is_not() -> None:
    seen = lost_at(OTHER_MAC, "garage", "study")

    (found,) = findings_of(seen)
    behind = told(seen, "attic", "health/routes/192.168.1.1", {"mac": OTHER_MAC})

    assert (found.check, found.hosts) == ("same-address", ("garage", "study"))
    assert "one machine answers for both" in found.saw
    assert {each.check for each in findings_of(behind)} == {"ssh-timeout"}


def test_a_machine_that_ssh_met_in_anothers_place_is_no_changed_key() -> None:
    seen = home(("attic", "study"))
    lost = unreached("garage", "host-key", "Host key verification failed.")
    own = interface("eth0", ADDRESS["study"], 24)
    taken = interface("eth0", ADDRESS["garage"], 24)["addresses"]
    both = {**own, "addresses": [*own["addresses"], *taken]}
    seen = change(seen, "study", interfaces=(both,))
    seen = Examination((*seen.hosts, lost), dials=seen.dials, world=seen.world,
                       controller=seen.controller)  # fmt: skip

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("same-address", ("study", "garage"))
    assert lines(found) == [("study", f"ip address del {ADDRESS['garage']}/24 dev eth0")]
    assert [each.check for each in found.follows] == ["ssh-host-key"]


def test_rules_against_the_question_for_a_card_are_no_broken_cable() -> None:
    rules = ["table arp guard {", "chain in {",
             "type filter hook input priority filter; policy accept;",
             "arp operation request drop", "}", "}"]  # fmt: skip
    seen = broken(home(), None, "garage")
    for name in NAMES:
        seen = told(seen, name, "health/firewall", OFF)
        if name != "garage":
            seen = told(seen, name, f"health/routes/{ADDRESS['garage']}/neighbour", "failed")
    seen = told(seen, "garage", "health/firewall", firewall("nft", rules))

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("firewall-drop", ("garage",))
    assert "arp operation request drop" in found.saw
    assert lines(found) == [("garage", "nft insert rule arp guard in accept comment yoked")]


def redirecting(rule: str, *, output: bool = False) -> list[str]:
    hook = "output" if output else "prerouting"
    return [
        "table ip spoof {",
        "    chain c {",
        f"        type nat hook {hook} priority dstnat; policy accept;",
        f"        {rule} # handle 4",
        "    }",
        "}",
    ]


@pytest.mark.parametrize(
    ("host", "rule", "output"),
    [
        ("garage", 'iifname != "lo" tcp dport != 22 redirect to :4444', False),
        ("garage", "tcp dport 1024-65535 dnat to 172.17.0.2:80", False),
        ("garage", "meta l4proto tcp tproxy to :9040 accept", False),
        # The one that dials sends its own connections elsewhere.
        ("attic", "tcp dport 1-65535 redirect to :9040", True),
    ],
)
def test_a_rule_by_which_something_else_answers_is_no_foreign_machine(
    host: str, rule: str, output: bool
) -> None:
    seen = broken(home(("attic", "garage")), "attic", "garage", error="EPROTO")
    for name in ("attic", "garage"):
        seen = told(seen, name, "health/firewall", OFF)
    read = {**firewall("nft", redirecting(rule, output=output)), "tools": ["nft"]}
    seen = told(seen, host, "health/firewall", read)

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("other-answers", (host,))
    assert f"by nftables: `{rule}` in chain c of table ip spoof" in found.saw
    assert lines(found) == [(host, "nft delete rule ip spoof c handle 4")]


@pytest.mark.parametrize(
    ("mac", "words"),
    [
        (MAC["garage"], "it comes from the network card of garage"),
        (None, "another machine, or garage itself, cannot tell which"),
    ],
)
def test_who_answers_without_a_rule_is_told_as_far_as_its_card_is_known(
    mac: str | None, words: str
) -> None:
    seen = with_cards(broken(home(("attic", "garage")), "attic", "garage", error="EPROTO"))
    seen = told(seen, "attic", f"health/routes/{ADDRESS['garage']}/mac", mac)
    # A rule for another port does not do it.
    other = {**firewall("nft", redirecting("tcp dport 23 redirect to :4444")), "tools": ["nft"]}
    seen = told(seen, "garage", "health/firewall", other)

    (found,) = findings_of(seen)

    assert (found.check, found.hosts) == ("other-answers", ("garage",))
    assert words in found.saw
    assert "no rule that was read hands connections on" in found.saw
    assert "another address" not in found.fix[0].command


def speaking(seen: Examination, **cards: list[str] | None) -> Examination:
    """The same, with whose words to all came to each host's card."""
    for name, card in cards.items():
        own = {"sent": True, "heard": card, "card": card}
        seen = told(seen, name, "health/broadcasts", own)
    return seen


@pytest.mark.parametrize(
    ("cards", "hosts", "words"),
    [
        # The network passes nothing for all on to garage; what garage says comes to the others.
        ({"attic": ["garage", "study"], "garage": [], "study": ["attic", "garage"]}, ("garage",),
         "does not come to the card of garage, and to those of attic and study it does"),
        ({"attic": ["study"], "garage": ["attic", "study"], "study": ["attic"]}, ("garage",),
         "what garage says to all comes to no other card"),
        ({"attic": ["garage"], "garage": []}, ("attic", "garage"),
         "from attic to garage, and at which end cannot be told"),
        # It hears the question.
        ({"attic": ["garage", "study"], "garage": ["attic", "study"], "study": ["attic", "garage"]},
         ("garage", "attic", "study"), "what attic says to all comes to the card of garage"),
        # Nobody could look: nothing more is said than before.
        ({"attic": None, "garage": None, "study": None}, None, "gets no answer"),
    ],
    ids=["deaf", "mute", "two", "hears", "unknown"],
)  # fmt: skip
def test_who_does_not_find_a_card_is_told_apart_by_what_was_said_to_all(
    cards: dict[str, list[str] | None], hosts: tuple[str, ...] | None, words: str
) -> None:
    usual = unheard("failed", router=False)

    found = findings_of(speaking(usual, **cards))[0]

    assert found.check == "silent-neighbour"
    assert words in found.saw
    assert found.hosts == (hosts or findings_of(usual)[0].hosts)


def test_an_access_point_that_hands_on_what_is_for_all_keeps_nobody_apart() -> None:
    seen = unheard("failed", router=True)
    heard = {name: [each for each in NAMES if each != name] for name in NAMES}

    assert findings_of(seen)[0].check == "client-isolation"
    assert findings_of(speaking(seen, **heard))[0].check == "silent-neighbour"
