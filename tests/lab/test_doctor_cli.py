"""`yoked doctor` as a person types it, on two hosts with real ssh and a real firewall."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.lab.commands import run
from tests.schemas import conforms

from yoked.lab import faults
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")

LIMIT_S = 120
ADDS_UP = """
import torch, torch.distributed as dist
dist.init_process_group("gloo")
ones = torch.ones(1)
dist.all_reduce(ones)
print("sum", int(ones), flush=True)
"""


class Person:
    """Types commands about a lab's fleet."""

    def __init__(self, lab: Lab, folder: Path) -> None:
        self.lab = lab
        self.folder = folder

    def types(self, command: str, *words: str) -> subprocess.CompletedProcess[str]:
        fleet = ("--fleet", str(self.lab.fleet_file))
        return run(self.folder, command, *fleet, *words, limit_s=LIMIT_S)

    def doctor(self, *words: str) -> tuple[int, dict[str, Any]]:
        """Status, and what --json says."""
        done = self.types("doctor", *words, "--json")
        assert done.stdout, done.stderr
        schema = "doctor-undo" if "--undo" in words else "doctor"
        return done.returncode, conforms(schema, json.loads(done.stdout))

    def rules(self, host: str) -> str:
        return self.lab.host(host).tool(["nft", "list", "ruleset"]).stdout


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def person(lab: Lab, tmp_path: Path) -> Iterator[Person]:
    yield Person(lab, tmp_path)
    faults.heal(lab)


def errors(told: dict[str, Any]) -> list[tuple[str, list[str]]]:
    return [
        (each["check"], each["hosts"]) for each in told["findings"] if each["severity"] == "error"
    ]


def test_a_firewall_is_named_mended_verified_and_put_back(person: Person) -> None:
    faults.apply(person.lab, "firewall", ["alpha"])
    before = person.rules("alpha")

    status, told = person.doctor("--quick")
    assert status == 1
    ((check, hosts),) = errors(told)
    assert check.startswith("firewall")
    assert hosts[0] == "alpha"
    assert person.rules("alpha") == before

    status, told = person.doctor("--quick", "--fix", "--sudo", "--yes")
    assert (status, [each["state"] for each in told["fixed"]]) == (0, ["fixed"])
    assert person.rules("alpha") != before

    status, told = person.doctor("--undo", "--yes")
    assert status == 0
    assert [each["host"] for each in told["undone"]] == ["alpha"]
    assert person.rules("alpha") == before


def test_a_launch_is_stopped_by_an_error_unless_it_is_wanted_so(person: Person) -> None:
    (person.folder / "adds_up.py").write_text(ADDS_UP)
    faults.apply(person.lab, "firewall", ["beta"])

    stopped = person.types("run", "--run=stopped", "--", "adds_up.py")

    assert stopped.returncode == 1
    assert "firewall" in stopped.stderr
    assert "    on beta" in stopped.stderr
    assert "--no-doctor" in stopped.stderr
    assert "sum" not in stopped.stdout
    assert "stopped" not in person.types("runs").stdout


@pytest.mark.slow
def test_a_launch_that_can_work_says_a_line_and_goes_on(
    person: Person, snapshot: SnapshotAssertion
) -> None:
    (person.folder / "adds_up.py").write_text(ADDS_UP)

    done = person.types("run", "--", "adds_up.py")

    assert done.returncode == 0, done.stderr
    assert "sum 2" in done.stdout
    line = next(line for line in done.stderr.splitlines() if "doctor" in line)
    assert re.sub(r"[\d.]+ s", "TIME", line) == snapshot


@pytest.mark.slow
def test_what_is_left_of_a_fleet_is_looked_at_when_a_host_is_off(person: Person) -> None:
    person.lab.stop_host("beta")
    try:
        status, told = person.doctor("--quick")
    finally:
        person.lab.start_host("beta")

    assert status == 1
    assert (told["hosts"], told["up"]) == (["alpha", "beta"], ["alpha"])
    assert [hosts for _, hosts in errors(told)] == [["beta"]]
    assert any(line.startswith("beta: no agent") for line in told["not_looked_at"])


def test_a_bundle_says_again_what_was_found(person: Person) -> None:
    faults.apply(person.lab, "firewall", ["alpha"])
    status, told = person.doctor("--quick", "--bundle", "b.zip")

    again, retold = person.doctor("--from", "b.zip")

    assert again == status == 1
    assert errors(retold) == errors(told)
