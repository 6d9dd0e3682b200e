"""What `yoked doctor` shows of a made-up examination: order, lines to paste, the matrix."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.doctor.troubles import vpn_meant

from yoked.doctor import link_matrix, render
from yoked.records.examination import (
    Dial,
    Examination,
    Finding,
    Fix,
    HostSeen,
    Need,
    Purpose,
    SshFailure,
    World,
)

NAMES = ("alpha", "beta", "cellar")


def host(name: str, **health: Any) -> HostSeen:
    return HostSeen(name, {}, facts={"uid": 1000}, health=health, torch={"imported": True})


def down(name: str) -> HostSeen:
    return HostSeen(name, {}, failure=SshFailure("timeout", "timed out"))


def dial(
    source: str, target: str, purpose: Purpose = "ephemeral", *, ok: bool = True, **more: Any
) -> Dial:
    fields = {"rtt_s": 2e-4, "answered_by": target} if ok else {"error": "ETIMEDOUT"}
    return Dial(
        source,
        target,
        "eth0",
        f"10.0.0.{NAMES.index(target)}",
        purpose=purpose,
        chosen=True,
        ok=ok,
        **{"port": 40_001, **fields, **more},
    )


def seen(*dials: Dial, hosts: tuple[HostSeen, ...] = (), **more: Any) -> Examination:
    fields: Mapping[str, Any] = {"world": World(True), "took_s": 2.5, **more}
    return Examination(hosts or (host("alpha"), host("beta")), dials, **fields)


FIREWALL = Finding(
    "firewall",
    "error",
    ("beta",),
    "beta gave no answer at high ports",
    "ranks would hang",
    (Fix("beta", "ufw allow from 10.0.0.0", root=True), Fix("", "yoked install")),
    link=("alpha", "beta"),
    follows=(Finding("world-failed", "error", ("alpha", "beta"), "nobody connected", ""),),
)
NAME = Finding("own-name", "error", ("alpha",), "it is 127.0.1.1", "peers dial themselves")
CLOCK = Finding("clock", "warning", ("beta",), "it is 21 s ahead", "not shown", (
    Fix("beta", "set your watch", by_hand=True),))  # fmt: skip


def shown(examination: Examination, *findings: Finding, bandwidth: bool = False) -> list[str]:
    return render.evidence(examination, findings, bandwidth=bandwidth)


@pytest.mark.parametrize(
    ("findings", "said"),
    [
        ((), "fleet home: nothing is in the way of a run (2 hosts, 1 link, a real world of ranks"),
        ((CLOCK,), "fleet home: a run will work; 1 warning ("),
        ((FIREWALL, NAME, CLOCK), "fleet home: 2 errors, 1 warning: a run would not work yet ("),
    ],
)
def test_the_first_line_is_the_verdict(findings: tuple[Finding, ...], said: str) -> None:
    assert render.verdict("home", seen(dial("alpha", "beta")), findings).startswith(said)


def test_a_fleet_of_which_a_host_is_missing_is_not_called_well(snapshot: SnapshotAssertion) -> None:
    verdict = render.verdict("home", seen(hosts=(host("alpha"), down("beta"))), ())

    assert verdict == snapshot


def test_errors_stand_under_their_host_in_the_order_to_mend_and_warnings_below() -> None:
    lines = shown(seen(), CLOCK, FIREWALL, NAME)

    places = [lines.index(line) for line in ("beta:", "alpha:", "warnings:")]
    assert places == sorted(places)
    assert lines[places[0] + 1] == "  error  firewall, alpha to beta"
    assert lines[places[1] + 1] == "  error  own-name"


def test_a_fix_is_a_line_of_its_own_below_the_name_of_its_host() -> None:
    lines = shown(seen(), FIREWALL)

    assert lines[lines.index("    on beta:") + 1].strip() == "sudo ufw allow from 10.0.0.0"
    assert lines[lines.index("    on this machine:") + 1].strip() == "yoked install"


def test_what_follows_from_an_error_stands_with_it() -> None:
    lines = shown(seen(), FIREWALL)

    assert "    so   world-failed, alpha, beta: nobody connected" in lines


def test_a_warning_is_short_and_what_a_person_must_do_is_said() -> None:
    lines = shown(seen(), CLOCK)

    place = lines.index("  clock  beta: it is 21 s ahead")
    assert lines[place + 1 : place + 3] == ["    on beta, by hand:", "      set your watch"]
    assert not any("not shown" in line for line in lines)


def test_what_is_the_same_on_several_hosts_is_said_once() -> None:
    def swaps(name: str) -> Finding:
        fix = (Fix(name, "swapoff -a", root=True), Fix(name, "look at fstab", by_hand=True))
        return Finding("swap", "warning", (name,), f"{name} swaps", "", fix)

    lines = shown(seen(), swaps("alpha"), swaps("beta"))

    place = lines.index("  swap  alpha: alpha swaps")
    assert lines[place + 1 : place + 6] == [
        "        beta: beta swaps",
        "    on alpha, beta:",
        "      sudo swapoff -a",
        "    on alpha, beta, by hand:",
        "      look at fstab",
    ]


def test_a_line_to_paste_is_never_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    long = Finding("a", "error", ("beta",), "word " * 30, "why", (Fix("beta", "x " * 60),))

    lines = shown(seen(), long)

    assert "      " + "x " * 60 in lines
    assert max(len(line) for line in lines if "x x" not in line) <= 48


def test_the_matrix_has_a_row_for_who_dials_and_a_word_for_what_fails() -> None:
    examination = seen(
        dial("alpha", "beta", ok=False),
        dial("alpha", "beta", "rendezvous", port=29_500),
        dial("beta", "alpha", goodput_bytes_per_s=117e6),
        dial("beta", "alpha", "bulk", path_mtu_bytes=1420),
        hosts=(host("alpha"), host("beta"), down("cellar")),
    )

    lines = link_matrix.links_lines(examination, 98)

    assert lines[0].split() == ["links", "from,", "to", *NAMES]
    assert lines[1].split("  ")[-2].strip() == "no answer at high ports"
    assert "200 µs 936 Mbit/s MTU 1420" in lines[2]
    assert lines[3].count("not dialled") == 2
    assert [line.partition(":")[0] for line in lines[4:]] == ["no answer", "not dialled"]


@pytest.mark.parametrize(
    ("dials", "word"),
    [
        ((dial("alpha", "beta", ok=False, error="ECONNREFUSED"),), "refused"),
        ((dial("alpha", "beta", ok=False, error="EHOSTUNREACH"),), "no host"),
        ((dial("alpha", "beta", ok=False, error="ENETUNREACH"),), "no route"),
        ((dial("alpha", "beta", ok=False, error="EWEIRD"),), "eweird"),
        ((dial("alpha", "beta", ok=False, answered_by="cellar"),), "other host"),
        ((dial("alpha", "beta"), dial("alpha", "beta", "bulk", ok=False)), "large lost"),
        (
            (dial("alpha", "beta"), dial("alpha", "beta", "rendezvous", ok=False, port=29_500)),
            "no answer at port 29500",
        ),
        (
            (
                dial("alpha", "beta", "rendezvous"),
                dial("alpha", "beta", ok=False),
                dial("alpha", "beta", "bulk", ok=False),
            ),
            "no answer at high ports",
        ),
        ((dial("alpha", "beta", "bulk", ok=False),), "no answer"),
        ((dial("alpha", "beta", rtt_s=None),), "ok"),
    ],
)
def test_a_link_has_a_word(dials: tuple[Dial, ...], word: str) -> None:
    lines = link_matrix.links_lines(seen(*dials), 98)

    assert lines[1].split("  ")[-1].strip() == word


def test_links_are_listed_where_a_matrix_is_too_wide() -> None:
    examination = seen(dial("alpha", "beta"), dial("beta", "alpha", ok=False))

    lines = link_matrix.links_lines(examination, 30)

    assert lines[0].split() == ["from", "to", "link"]
    assert lines[1].split() == ["alpha", "beta", "200", "µs"]


def test_a_vpn_is_named_below_the_matrix() -> None:
    lines = link_matrix.links_lines(vpn_meant(), 98)

    assert lines[-1] == "over tailscale0, as the fleet's file has it: a VPN encrypts on one core"


def test_a_machine_alone_has_no_links() -> None:
    assert link_matrix.links_lines(seen(hosts=(host("alpha"),)), 98) == []


@pytest.mark.parametrize(
    ("examination", "said"),
    [
        (seen(hosts=(host("alpha"), down("beta"))), "beta: no agent came up"),
        (seen(quick=True), "bulk data on the links: the quick form"),
        (seen(quick=True, world=None), "a real world of ranks: the quick form"),
        (seen(hosts=(HostSeen("alpha", {}),)), "torch's import on alpha: it was not waited for"),
        (seen(world=World(None, reason="dials failed")), "a real world of ranks: dials failed"),
        (seen(world=None), "a real world of ranks: it was not tried"),
        (seen(hosts=(host("alpha", limits=None), host("beta"))), "unknown on alpha: limits"),
        (
            seen(hosts=(host("alpha", gpu=None, untold={"clock": "late"}), host("beta"))),
            "unknown on alpha: clock",
        ),
        (
            seen(hosts=(host("alpha", firewall={"active": True, "rules": None}),)),
            "only root reads them",
        ),
    ],
)
def test_what_was_not_looked_at_is_said_with_its_reason(
    examination: Examination, said: str
) -> None:
    assert any(said in line for line in render.gaps(examination))


def test_what_is_known_is_no_gap() -> None:
    known = host("alpha", gateway=None, firewall={"active": False, "rules": None}, limits={})
    links = (dial("alpha", "beta"), dial("alpha", "beta", "bulk"))
    examination = seen(*links, hosts=(known, host("beta")), need=Need(checkpoint_bytes=1))

    assert render.gaps(examination) == []
    assert not any("not looked at" in line for line in shown(examination, bandwidth=True))


def test_programs_get_all_that_was_promised() -> None:
    examination = seen(dial("alpha", "beta", ok=False), dial("beta", "alpha"))

    told = render.payload(examination, (FIREWALL, CLOCK))

    assert (told["ok"], told["took_s"], told["hosts"]) == (False, 2.5, ["alpha", "beta"])
    first = told["findings"][0]
    assert {name: first[name] for name in ("check", "severity", "hosts", "link")} == {
        "check": "firewall",
        "severity": "error",
        "hosts": ["beta"],
        "link": ["alpha", "beta"],
    }
    assert first["fix"][0] == {
        "host": "beta",
        "command": "sudo ufw allow from 10.0.0.0",
        "root": True,
        "by_hand": False,
        "undo": None,
    }
    assert first["follows"][0]["check"] == "world-failed"
    assert [(link["from"], link["ok"], link["problem"]) for link in told["links"]] == [
        ("alpha", False, "no answer"),
        ("beta", True, None),
    ]


def test_warnings_alone_are_ok() -> None:
    assert render.payload(seen(), (CLOCK,))["ok"] is True
