"""What `yoked up` takes for missing, and what for hands: of hosts and findings that are made up."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from tests.failures import raises_fault

from yoked.console import HostsProgress
from yoked.doctor.judge import Seen
from yoked.fleet.model import Fleet
from yoked.launch.environment import Difference
from yoked.launch.install import HostEnvironment, InstallPlan
from yoked.launch.wheels import WheelSizes
from yoked.records.examination import Examination, Finding, Fix, HostSeen
from yoked.records.shell import shell_line
from yoked.workflows import up
from yoked.workflows.found_fleet import FoundFleet
from yoked.workflows.up import DoctorStep, InitStep, InstallStep, Site

TWO = '[[host]]\nname = "alpha"\ninterface = "eth0"\n[[host]]\nname = "beta"\ninterface = "eth0"\n'
LACKS_TORCH = (Difference("torch", "2.13.0", None),)
OTHER_NUMPY = (Difference("numpy", "2.4.6", "2.4.1"),)


class Screen:
    """Shows nothing, and keeps what was said."""

    def __init__(self) -> None:
        self.progress = HostsProgress(Console(file=io.StringIO()))
        self.said: list[str] = []

    @contextlib.contextmanager
    def status(self) -> Iterator[Screen]:
        yield self

    def show(self, doing: str) -> None: ...

    def say(self, line: str) -> None:
        self.said.append(line)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    (tmp_path / "yoked.toml").write_text(TWO)
    return Site((), tmp_path / "yoked.toml", None, None, False, Screen())


def environment(host: str, state: Any, *differences: Difference) -> HostEnvironment:
    return HostEnvironment(host, f"/{host}/python", "3.12.1", state, differences)


def plan(host: str) -> InstallPlan:
    base = {"python": "/usr/bin/python3", "version": "3.12"}
    return InstallPlan(host, base, "cpu", None, WheelSizes(54, 331_000_000))


@pytest.fixture
def hosts_are(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has two hosts stand so, and every one of them that has no named interpreter be planned."""

    def be(alpha: HostEnvironment, beta: HostEnvironment) -> None:
        found = {"alpha": alpha, "beta": beta}
        planned = {
            name: each if each.state == "named" else plan(name) for name, each in found.items()
        }
        monkeypatch.setattr(up, "reach_quietly", contextlib.nullcontext)
        monkeypatch.setattr(up, "check_all", lambda hosts, requirements: found)
        monkeypatch.setattr(up, "plan_all", lambda hosts, wishes, say: planned)

    return be


def test_a_broken_environment_is_made_anew_and_a_whole_one_is_left(
    site: Site, hosts_are: Any
) -> None:
    hosts_are(environment("alpha", "present"), environment("beta", "present", *OTHER_NUMPY))
    step = InstallStep(site)

    standing = step.check()

    assert standing.state == "due"
    assert [each["name"] for each in standing.facts["hosts"]] == ["beta"]
    assert standing.facts["hosts"][0]["download_bytes"] == 331_000_000
    assert isinstance(step.planned["alpha"], HostEnvironment)


def test_an_interpreter_that_a_person_named_may_have_other_versions(
    site: Site, hosts_are: Any
) -> None:
    hosts_are(environment("alpha", "present"), environment("beta", "named", *OTHER_NUMPY))

    assert InstallStep(site).check().state == "done"


def test_the_python_that_runs_yoked_may_lack_what_torch_does_without(
    site: Site, hosts_are: Any
) -> None:
    here = HostEnvironment("alpha", sys.executable, "3.12.1", "present", OTHER_NUMPY)
    hosts_are(here, environment("beta", "present"))

    assert InstallStep(site).check().state == "done"


def test_a_named_interpreter_without_torch_is_for_hands(site: Site, hosts_are: Any) -> None:
    hosts_are(environment("alpha", "present"), environment("beta", "named", *LACKS_TORCH))

    standing = InstallStep(site).check()

    assert standing.state == "hands"
    assert "beta" in standing.said


def finding(check: str, fix: Fix) -> Finding:
    return Finding(check, "error", ("beta",), "seen", "it breaks", (fix,))


INSTALL = finding(
    "torch-missing",
    Fix("", shell_line("yoked install --host beta"), repair="install_torch"),
)
ALLOW = finding("firewall-ephemeral", Fix("beta", shell_line("ufw allow from 10.0.0.1"), root=True))


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Has the doctor find these on two hosts whose users are not root."""

    def find(*findings: Finding) -> None:
        facts = {"uid": 1000}
        hosts = tuple(HostSeen(name, {}, facts=facts) for name in ("alpha", "beta"))

        class Examiner:
            def __init__(self, *args: Any, **more: Any) -> None: ...

            def __call__(self, fleet: Fleet, *, quick: bool | None = None) -> Seen:
                return Seen(fleet.name, Examination(hosts), findings)

        monkeypatch.setattr(up, "Examiner", Examiner)

    return find


@pytest.mark.parametrize(("early", "state"), [(True, "done"), (False, "due")])
def test_what_install_brings_is_left_to_it_at_first(
    site: Site, found: Any, early: bool, state: str
) -> None:
    found(INSTALL)

    assert DoctorStep(site, early=early).check().state == state


def test_what_needs_root_is_for_hands_with_the_line_to_type(site: Site, found: Any) -> None:
    found(ALLOW)

    standing = DoctorStep(site).check()

    assert standing.state == "hands"
    assert [(each.host, each.command, each.root) for each in standing.commands] == [
        ("beta", "sudo ufw allow from 10.0.0.1", True)
    ]


def test_what_needs_root_is_due_where_sudo_may_be_used(
    site: Site, found: Any, tmp_path: Path
) -> None:
    found(ALLOW)
    with_sudo = Site((), site.path, None, None, True, Screen())

    assert DoctorStep(with_sudo).check().state == "due"


def test_a_repair_that_failed_is_for_hands_then(
    site: Site, found: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    found(INSTALL)

    def fails(seen: Seen, *args: Any, **more: Any) -> tuple[Seen, Sequence[Any]]:
        return seen, [up.Mended(INSTALL, "failed", said="no index")]

    monkeypatch.setattr(up, "mend", fails)
    step = DoctorStep(site)
    assert step.check().state == "due"

    assert step.act(lambda _: True)

    assert step.check().state == "hands"
    assert [each["state"] for each in step.check().facts["fixed"]] == ["failed"]


def test_the_host_that_is_named_first_has_rank_0_whatever_the_file_says(site: Site) -> None:
    swapped = Site(("beta", "alpha"), site.path, None, None, False, Screen())

    assert [host.name for host in swapped.fleet.hosts] == ["beta", "alpha"]
    assert InitStep(swapped).check().state == "due"


def test_a_file_that_is_to_be_replaced_says_where_it_stays(site: Site) -> None:
    site.path.with_name("yoked.toml.old").write_text("of before")
    swapped = Site(("beta", "alpha"), site.path, None, None, False, Screen())

    assert InitStep(swapped).check().said.endswith(f"stays as {site.path}.old2")


def test_a_file_that_is_written_while_hosts_are_looked_at_is_left_alone(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    site.path.unlink()
    named = Site(("alpha", "beta"), site.path, None, None, False, Screen())

    def look(wanted: Fleet) -> FoundFleet:
        # Another command was faster.
        site.path.write_text(TWO)
        return FoundFleet(wanted, {}, {})

    monkeypatch.setattr(up, "look_at", look)

    with raises_fault("fleet-exists"):
        InitStep(named).act(lambda lines: True)
    assert site.path.read_text() == TWO


def test_what_was_mended_early_is_told_too(site: Site) -> None:
    steps, early, _ = up.steps_of(site)
    assert isinstance(early, DoctorStep)

    early.fixed.append(up.Mended(ALLOW, "fixed"))

    (doctor,) = [step for step in steps if isinstance(step, DoctorStep)]
    assert doctor.fixed == early.fixed
