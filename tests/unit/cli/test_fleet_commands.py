"""`yoked init` and `yoked hosts`: what they refuse, and how they show what they found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault
from tests.schemas import conforms

from yoked.cli.commands import hosts, init
from yoked.errors import HostError, UsageError
from yoked.fleet.choose import Choice
from yoked.fleet.file import load_fleet
from yoked.fleet.model import Host
from yoked.workflows.looks import Look, cores_text, gpus_text, torch_lines

FACTS: dict[str, Any] = {
    "hostname": "tower",
    "machine": "1",
    "cpu_model": "i9-9900K",
    "cores": 8,
    "fast_cores": 8,
    "usable_cores": 8,
    "memory_bytes": 34_000_000_000,
    "gpus": [],
    "free_bytes": {"state": 5_000_000_000},
}
ETH0 = {"name": "eth0", "gloo_address": "10.0.0.1"}


def seen(**facts: Any) -> Look:
    return Look({**FACTS, **facts}, [ETH0], "/usr/bin/python3", {"torch": "2.13.0"})


@pytest.mark.parametrize(
    ("names", "more"),
    [
        ((), {}),
        (("a", "b", "a"), {}),
        (("-oProxyCommand=x",), {}),
        (("two words",), {}),
        (("a",), {"ranks": 0}),
        (("a",), {"ssh_config": Path("nowhere")}),
        (tuple("abcdefghi"), {}),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anybody_is_dialled(
    tmp_path: Path, names: tuple[str, ...], more: dict[str, Any], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        init.command(*names, fleet=tmp_path / "yoked.toml", **more)
    assert str(caught.value) == snapshot


def test_a_file_that_is_there_stops_init_before_anybody_is_dialled(tmp_path: Path) -> None:
    file = tmp_path / "yoked.toml"
    file.write_text("by hand")

    with raises_fault("fleet-exists"):
        init.command("nobody", fleet=file)


def test_a_fleet_of_this_machine_needs_no_network(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "yoked.toml"

    status = init.command(".", fleet=file, ranks=2)

    assert status == 0
    assert load_fleet(file).hosts == (Host(".", ranks=2),)
    assert "not needed" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("cores", "fast", "usable", "text"),
    [(8, 8, 8, "8"), (12, 4, 4, "4+8"), (16, 16, 2, "2 of 16"), (12, 4, 2, "2 of 12")],
)
def test_cores_are_told_in_short(cores: int, fast: int, usable: int, text: str) -> None:
    facts = {"cores": cores, "fast_cores": fast, "usable_cores": usable}

    assert cores_text(facts) == text


def test_gpus_of_one_kind_are_counted() -> None:
    assert gpus_text([]) == "none"
    assert gpus_text([{"name": "T4"}, {"name": "A2"}, {"name": "T4"}]) == "2 x T4, A2"


def test_a_host_whose_python_the_file_names_is_not_told_to_be_installed_on() -> None:
    own = Host("laptop", python="/opt/venv/bin/python")
    gone = Host("mini", python="/gone/python")
    fleet = [Host("i9"), own, gone, Host("attic")]
    found = {
        "i9": seen(),
        "laptop": Look(FACTS, [ETH0], "/opt/venv/bin/python", {"torch": None}),
        "mini": Look(FACTS, [ETH0], None, {}, "mini: there is no /gone/python", ("mend it",)),
    }

    named = torch_lines(fleet, found, " --fleet home.toml")
    attic = Look(FACTS, [ETH0], None, {}, "attic: no Python there has torch")
    with_attic = torch_lines(fleet, {**found, "attic": attic}, " --fleet home.toml")

    install = "yoked install --host laptop --fleet home.toml"
    assert named == [
        "/opt/venv/bin/python -m pip install torch==2.13.0    on laptop",
        f"remove `python` of laptop from the fleet's file, and run `{install}`",
        "mend it",
    ]
    assert with_attic == ["yoked install --fleet home.toml", *named]
    assert torch_lines(fleet, {"i9": seen()}, "") == []


def test_init_shows_the_link_that_was_proved() -> None:
    fleet = [Host("i9"), Host("laptop")]
    choices = {"i9": Choice("i9", "enp4s0", "10.0.0.1", 2e-4, 117e6)}

    said = "\n".join(hosts.init_lines(fleet, {each.name: seen() for each in fleet}, choices))

    assert "enp4s0 10.0.0.1" in said
    assert "936 Mbit/s" in said


def test_hosts_shows_rows_and_below_them_what_is_missing(snapshot: SnapshotAssertion) -> None:
    fleet = [Host("i9", interface="eth0"), Host("laptop", interface="eth9"), Host("mini")]
    no_torch = Look(FACTS, [ETH0], None, {}, "laptop: no Python there has torch")
    found = {"i9": seen(), "laptop": no_torch, "mini": HostError("mini: silent", fix="ping mini")}

    lines = hosts.hosts_lines(fleet, found)

    assert lines[1].split()[-4:] == ["eth0", "10.0.0.1", "5.00", "GB"]
    assert lines[2] == snapshot
    assert lines[3].split() == ["mini", "down"]
    assert lines[4:] == snapshot
    told = [hosts.payload(host, found[host.name]) for host in fleet]
    conforms("hosts", {"fleet": "home", "hosts": told})
    assert [each["up"] for each in told] == [True, True, False]
