"""One broken thing is one finding, with what follows from it attached, in the order to mend."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.doctor.builders import (
    ADDRESS,
    NAMES,
    PORTS,
    RENDEZVOUS,
    broken,
    change,
    home,
    told,
    unreached,
)
from tests.unit.doctor.troubles import fixed_neighbour, taken

from yoked.doctor.causes import findings_of
from yoked.doctor.check import Check, Match
from yoked.records.examination import Examination, Finding, Severity, World

# By the check that finds it.
TROUBLES = {
    "interface-down": lambda seen, name: told(seen, name, "health/links/eth0/up", False),
    "open-files": lambda seen, name: told(seen, name, "health/limits/nofile", [24, 24]),
    "torch-missing": lambda seen, name: change(
        seen, name, torch={"error": "no Python there has torch"}
    ),
    "own-name": lambda seen, name: told(seen, name, "health/names/own/addresses", ["127.0.1.1"]),
    # Hosts that agree with each other would speak against the controller's clock.
    "clock": lambda seen, name: change(seen, name, clock_offset_s=60.0 * (1 + NAMES.index(name))),
}


def made_up(code: str, severity: Severity = "error", explains: str = "") -> Check:
    """A check that finds something on attic, always."""
    return Check(
        code=code, question="?", reads=(), severity=severity, saw="saw", why="why", page="",
        look=lambda _: [Match("attic")], explains=(explains,),
    )  # fmt: skip


def names(found: tuple[Finding, ...]) -> list[tuple[str, str]]:
    return [(each.check, each.hosts[0]) for each in found]


def test_files_of_another_torch_than_was_installed_follow_from_its_version() -> None:
    flaw = {"file": "torch/version.py", "package": "torch", "version": "2.12.1", "how": "content",
            "found": "aa"}  # fmt: skip

    found = findings_of(taken(garage={"torch": "2.12.1", "altered": [flaw], "more": 0}))

    assert [each.check for each in found] == ["torch-version"]
    assert [each.check for each in found[0].follows] == ["package-altered"]


def test_a_failed_world_follows_from_what_was_found() -> None:
    seen = broken(home(), None, "garage")
    world = World(ok=False, took_s=3.0, said={"garage": "timed out"}, reason="no world")

    found = findings_of(replace(seen, world=world))

    assert names(found) == [("firewall-drop", "garage")]
    assert [each.check for each in found[0].follows] == ["world-failed"]


def test_a_world_that_fails_by_itself_is_told_with_all_evidence() -> None:
    world = World(ok=False, took_s=3.0, said={"study": "bad magic"}, reason="no world of gloo")

    found = findings_of(replace(home(), world=world))

    assert names(found) == [("world-failed", "study")]
    assert "bad magic" in found[0].saw
    assert "24 of 24 connections passed" in found[0].saw


def test_a_failed_world_is_about_the_rank_that_failed_by_itself() -> None:
    said = {
        "attic": "OSError: [Errno 99] Cannot assign requested address (opening the store)",
        "garage": "it was loading Gloo",
        "study": "RuntimeError: Connection closed by peer (waiting for all in a barrier)",
    }

    (found,) = findings_of(
        replace(home(), world=World(ok=False, took_s=8.0, said=said, reason="no world"))
    )

    assert found.hosts == ("attic",)
    assert all(words in found.saw for words in said.values())


def test_a_rank_that_could_not_load_is_told_though_no_world_was_tried() -> None:
    world = World(ok=None, said={"garage": "ImportError"}, reason="Gloo could not be loaded")

    found = findings_of(replace(home(), world=world))

    assert names(found) == [("world-failed", "garage")]


def test_an_interface_that_is_off_explains_every_link_of_its_host() -> None:
    seen = broken(broken(home(), "garage", None, error="ENETUNREACH"), None, "garage",
                  error="EHOSTUNREACH")  # fmt: skip
    seen = told(seen, "garage", "health/links/eth0/up", False)
    for name in ("attic", "study"):
        seen = told(seen, "garage", f"health/routes/{ADDRESS[name]}/error", "ENETUNREACH")
        seen = told(seen, name, f"health/routes/{ADDRESS['garage']}/neighbour", "failed")

    found = findings_of(seen)

    assert names(found) == [("interface-down", "garage")]
    assert found[0].follows


def test_errors_come_before_warnings_and_each_in_the_order_to_mend() -> None:
    seen = told(home(), "attic", "health/names/own/addresses", ["127.0.1.1"])
    seen = told(seen, "study", "health/limits/nofile", [24, 24])
    seen = told(seen, "attic", "health/limits/nofile", [24, 24])
    seen = told(seen, "garage", "health/links/eth0/up", False)

    found = findings_of(seen)

    assert names(found) == [
        ("interface-down", "garage"),
        ("open-files", "attic"),
        ("open-files", "study"),
        ("own-name", "attic"),
    ]


def test_a_host_that_is_down_does_not_hide_what_is_wrong_with_the_others() -> None:
    seen = broken(home(("attic", "garage")), "attic", "garage")
    seen = replace(seen, hosts=(*seen.hosts, unreached("study", "timeout", "timed out")))

    assert names(findings_of(seen)) == [("ssh-timeout", "study"), ("firewall-drop", "garage")]


def test_a_warning_never_hides_an_error() -> None:
    checks = (
        made_up("slow", severity="warning", explains="dead"),
        made_up("dead", severity="error"),
    )

    found = findings_of(home(), checks)

    assert [each.check for each in found] == ["dead", "slow"]


def test_two_that_explain_each_other_are_one_finding() -> None:
    checks = (made_up("hen", explains="egg"), made_up("egg", explains="hen"))

    found = findings_of(home(), checks)

    assert [(each.check, len(each.follows)) for each in found] == [("hen", 1)]


def test_what_is_on_another_host_is_not_explained() -> None:
    seen = told(broken(home(), None, "garage"), "study", "health/links/eth0/up", False)

    assert names(findings_of(seen)) == [("interface-down", "study"), ("firewall-drop", "garage")]


@given(
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(sorted(TROUBLES)), min_size=1),
)
@settings(max_examples=25)
def test_several_troubles_at_once_are_all_named_and_none_is_invented(
    troubles: dict[str, str],
) -> None:
    seen: Examination = home()
    for name, trouble in troubles.items():
        seen = TROUBLES[trouble](seen, name)

    found = findings_of(seen)

    assert sorted(names(found)) == sorted((trouble, name) for name, trouble in troubles.items())


@given(st.randoms(use_true_random=False))
@settings(max_examples=15)
def test_whatever_links_fail_each_is_told_once(chance: object) -> None:
    seen = home()
    pairs = [(a, b) for a in NAMES for b in NAMES if a != b]
    failed = [pair for pair in pairs if chance.random() < 0.4]  # type: ignore[attr-defined]
    for source, target in failed:
        seen = broken(seen, source, target)

    found = findings_of(seen)

    told_of = {name for each in found for name in (*each.hosts, *(each.link or ()))}
    assert all(set(pair) & told_of for pair in failed)
    assert bool(found) == bool(failed)
    assert len({(each.check, each.hosts) for each in found}) == len(found)


def test_a_host_without_ports_does_not_hide_who_closes_theirs() -> None:
    seen = told(home(), "garage", "health/ports/range", [40_000, 40_001])
    seen = broken(seen, None, "attic", ports=PORTS)
    seen = broken(seen, "garage", "attic", ports=[RENDEZVOUS], error="EADDRNOTAVAIL")

    assert names(findings_of(seen)) == [("port-range", "garage"), ("firewall-ephemeral", "attic")]


def test_a_wrong_neighbour_does_not_explain_a_name_that_leads_elsewhere() -> None:
    stale = {"attic": {"addresses": ["192.168.1.99"], "error": None, "took_s": 0.001}}
    seen = told(fixed_neighbour(), "garage", "health/names/others", stale)

    assert names(findings_of(seen)) == [
        ("wrong-neighbour", "garage"),
        ("peer-name-wrong", "garage"),
    ]
