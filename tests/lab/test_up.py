"""`yoked up` on hosts with real sshd: what hands are to do, what it mends, and where it ends."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from yoked.cli.main import main
from yoked.fleet.file import load_fleet, read_fleet
from yoked.fleet.trust import remember
from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="firewalls of the lab's hosts are root's")

Up = Callable[..., tuple[int, dict[str, Any]]]


@pytest.fixture(scope="module")
def fleet_lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def up(
    fleet_lab: Lab,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> Iterator[Up]:
    """Types `yoked up alpha beta` in a folder of its own; its status, and what it printed."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    config = str(fleet_lab.ssh_config)

    def type_it(*flags: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        status = main(["up", "alpha", "beta", "--ssh-config", config, "--json", *flags])
        return status, json.loads(capsys.readouterr().out)

    yield type_it
    faults.heal(fleet_lab)


def states(found: dict[str, Any]) -> dict[str, str]:
    return {each["name"]: each["state"] for each in found["steps"]}


def test_a_host_that_lets_nobody_in_is_for_hands_and_then_it_goes_on(
    up: Up, fleet_lab: Lab
) -> None:
    faults.apply(fleet_lab, "no-ssh", ["beta"])

    status, before = up()
    faults.heal(fleet_lab)
    _, after = up()

    assert (status, before["needs"]) == (1, "hands")
    assert states(before)["ssh"] == "hands"
    ssh = before["steps"][0]
    assert [each["check"] for each in ssh["findings"]] == ["ssh-refused"]
    assert ssh["commands"][0]["host"] == "beta"
    assert states(after)["ssh"] == "done"
    assert (states(after)["init"], after["needs"]) == ("consent", "consent")
    assert after["next"][0]["argv"][-1] == "--yes"
    assert not Path("yoked.toml").exists()


@pytest.mark.slow
def test_one_line_mends_a_firewall_and_ends_with_the_line_that_trains(
    up: Up, fleet_lab: Lab
) -> None:
    faults.apply(fleet_lab, "firewall", ["alpha"])
    # The hosts' interpreter is the one that runs this, with its torch; interfaces are not chosen.
    lines = ["[fleet]", f'ssh_config = "{fleet_lab.ssh_config}"']
    for name in ("alpha", "beta"):
        lines += ["[[host]]", f'name = "{name}"', f'python = "{sys.executable}"']
    Path("yoked.toml").write_text("\n".join(lines))
    remember(read_fleet(Path("yoked.toml")))

    status, found = up("--yes")
    again, second = up()

    assert (status, found["ok"]) == (0, True), json.dumps(found["steps"])
    assert set(states(found).values()) == {"done"}
    assert [host.interface for host in load_fleet(Path("yoked.toml")).hosts] == ["eth0", "eth0"]
    assert found["plan"]["chosen"]["predicted"]["tokens_per_second"] > 0
    assert found["next"][-1]["argv"][:2] == ["yoked", "train"]
    # What was done is found done, by somebody who agrees to nothing.
    assert (again, [each["changed"] for each in second["steps"]]) == (0, [False] * 6)
