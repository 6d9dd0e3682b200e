"""What names resolve to, by the resolver of a program in the host."""

from __future__ import annotations

from typing import Any

import pytest

from yoked.errors import LabError


def hosts_file(acts: Any, host: str) -> str:
    text: str = acts.lab.host(host).read_text("/etc/hosts")
    return text


def test_the_own_name_on_loopback_is_what_debian_writes(acts: Any) -> None:
    before, file = acts.resolve("alpha"), hosts_file(acts, "alpha")

    acts.fault("hosts-loopback", "alpha")
    seen = acts.resolve("alpha"), acts.resolve("beta", "alpha")
    acts.heal("alpha")

    assert before == [acts.address("alpha")]
    assert seen == (["127.0.1.1"], [acts.address("alpha")])
    assert acts.resolve("alpha") == before
    assert sorted(hosts_file(acts, "alpha").split()) == sorted(file.split())


def test_healing_after_a_person_mended_the_file_leaves_one_good_line(acts: Any) -> None:
    acts.fault("hosts-loopback", "alpha")
    mend = f"s/^127.0.1.1.*alpha/{acts.address('alpha')} alpha/"
    acts.lab.host("alpha").run(["sed", "-i", mend, "/etc/hosts"], as_root=True)

    mended = acts.resolve("alpha")
    acts.heal("alpha")

    assert mended == [acts.address("alpha")]
    assert acts.resolve("alpha") == [acts.address("alpha")]
    assert hosts_file(acts, "alpha").split().count("alpha") == 1


def test_a_name_does_not_resolve_on_one_host_only(acts: Any) -> None:
    acts.fault("no-resolve", "alpha", "beta")

    seen = acts.resolve("alpha", "beta"), acts.resolve("gamma", "beta")
    acts.heal()

    assert seen == ([], [acts.address("beta")])
    assert acts.resolve("alpha", "beta") == [acts.address("beta")]


def test_a_name_that_is_not_known_anyway_is_refused_with_the_nearest(acts: Any) -> None:
    with pytest.raises(LabError) as refused:
        acts.fault("no-resolve", "alpha", "bata")

    assert "'bata'" in refused.value.what
    assert "'beta'" in refused.value.fix[0]
    assert acts.heal() == []


def test_the_own_name_is_ipv6_first_and_the_others_still_see_ipv4(acts: Any) -> None:
    acts.fault("ipv6-first", "alpha")

    own, others = acts.resolve("alpha"), acts.resolve("beta", "alpha")
    acts.heal("alpha")

    assert ":" in own[0]
    assert own[1:] == others == [acts.address("alpha")]
    assert acts.resolve("alpha") == others
    assert acts.lab.host("alpha").tool(["ip", "-6", "addr", "show", "scope", "global"]).stdout == ""


def test_two_faults_of_one_file_are_healed_in_either_order(acts: Any) -> None:
    before = sorted(hosts_file(acts, "alpha").split())
    first = acts.fault("no-resolve", "alpha", "beta")
    second = acts.fault("hosts-loopback", "alpha")

    acts.heal(first.id)
    between = acts.resolve("alpha"), acts.resolve("alpha", "beta")
    acts.heal(second.id)

    assert between == (["127.0.1.1"], [acts.address("beta")])
    assert sorted(hosts_file(acts, "alpha").split()) == before


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    "lines",
    [
        ("hosts-loopback alpha", "no-resolve alpha alpha"),
        ("no-resolve alpha alpha", "hosts-loopback alpha"),
        ("stale-name alpha beta 192.168.77.99", "no-resolve alpha beta"),
        ("hosts-loopback alpha", "ipv6-first alpha"),
    ],
)
def test_two_faults_of_one_name_are_healed_in_either_order(
    acts: Any, lines: tuple[str, str], first: int
) -> None:
    before = hosts_file(acts, "alpha")
    alone = []
    for line in lines:
        fault = acts.fault(*line.split())
        alone.append(hosts_file(acts, "alpha"))
        acts.heal(fault.id)

    faults = [acts.fault(*line.split()) for line in lines]
    acts.lab.host("alpha").run(["sh", "-c", "echo 10.0.0.9 nas >> /etc/hosts"], as_root=True)
    acts.heal(faults.pop(first).id)
    one = hosts_file(acts, "alpha")
    acts.heal(faults[0].id)
    none = hosts_file(acts, "alpha")
    acts.lab.host("alpha").write_text("/etc/hosts", before)

    assert sorted(one.splitlines()) == sorted([*alone[1 - first].splitlines(), "10.0.0.9 nas"])
    assert sorted(none.splitlines()) == sorted([*before.splitlines(), "10.0.0.9 nas"])
