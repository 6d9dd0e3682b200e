"""Two machines with one address, of the network or of a card; and who answers for another."""

from __future__ import annotations

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
from tests.unit.doctor.troubles import spoofed

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
