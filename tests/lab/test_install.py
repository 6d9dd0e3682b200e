"""Hosts without the internet get environments that hold exactly what was asked for."""

from __future__ import annotations

import base64
import hashlib
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.failures import raises_fault
from tests.installing import install_environment

from yoked.cli.commands import install
from yoked.errors import HostError
from yoked.fleet.model import Host
from yoked.lab import faults
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.launch.install import (
    HostEnvironment,
    InstallOptions,
    check_environment,
)
from yoked.launch.requirements import requirements_digest
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_ssh

pytestmark = pytest.mark.slow

WANTED = ("tinyone==1.0", "tinytwo==2.0")


def make_wheel(folder: Path, name: str, version: str, needs: str = "") -> None:
    """A wheel of a few hundred bytes with one module. needs: a requirement of its own."""
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    files = {
        f"{name}.py": f'VERSION = "{version}"\n',
        f"{info}/METADATA": metadata + (f"Requires-Dist: {needs}\n" if needs else ""),
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{path},sha256={digest(text)},{len(text)}\n" for path, text in files.items())
    files[f"{info}/RECORD"] = f"{record}{info}/RECORD,,\n"
    with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)


def digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@dataclass(frozen=True)
class Attic:
    """A host of a lab, and its agent."""

    lab_host: LabHost
    agent: AgentClient
    said: list[str]

    def install(
        self, *, offline: bool, wanted: tuple[str, ...] = WANTED, added: tuple[str, ...] = ()
    ) -> HostEnvironment:
        wishes = InstallOptions(wanted, offline=offline, added=added)
        return install_environment(self.agent, Host("alpha"), wishes, self.said.append)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def attic(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Attic]:
    """Here an index with tiny wheels; there none at all."""
    for name, version, needs in (
        ("tinyone", "1.0", "tinytwo>=1"),
        ("tinytwo", "2.0", ""),
        ("tinytwo", "3.0", ""),
        ("tinymore", "1.5", "tinytwo"),
    ):
        make_wheel(tmp_path, name, version, needs)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with connect_ssh("alpha", str(lab.ssh_config)) as agent:
        yield Attic(lab.host("alpha"), agent, [])


def test_a_host_without_an_index_gets_an_environment_from_here(attic: Attic) -> None:
    with raises_fault("torch-missing", host="alpha"):
        check_environment(attic.agent, Host("alpha", python=None), WANTED)

    found = attic.install(offline=False)

    assert found.state == "made"
    assert found.differences == ()
    assert any(" index" in line for line in attic.said)
    script = "import tinyone, tinytwo; print(tinyone.VERSION, tinytwo.VERSION)"
    assert attic.lab_host.run([found.python, "-c", script]).stdout == "1.0 2.0\n"
    # Its pip and scripts are usable by hand too.
    assert attic.lab_host.exists(str(Path(found.python).parent / "activate"))
    assert attic.install(offline=False).state == "present"


def test_what_a_program_needs_besides_comes_from_here_and_changes_nothing_that_trains(
    attic: Attic,
) -> None:
    before = attic.install(offline=True)

    found = attic.install(offline=False, added=("tinymore>=1",))

    assert found.python == before.python
    assert (found.state, found.differences) == ("made", ())
    assert any("1 wheel there" in line for line in attic.said)
    script = "import tinymore, tinytwo; print(tinymore.VERSION, tinytwo.VERSION)"
    assert attic.lab_host.run([found.python, "-c", script]).stdout == "1.5 2.0\n"
    assert attic.install(offline=False, added=("tinymore>=1",)).state == "present"


def test_wheels_are_sent_at_once_where_that_is_asked_for(attic: Attic) -> None:
    found = attic.install(offline=True, wanted=("tinytwo==3.0",))

    assert (found.state, found.differences) == ("made", ())
    assert not any(" index" in line for line in attic.said)


def test_a_host_whose_disk_is_full_keeps_nothing_half_made(lab: Lab, attic: Attic) -> None:
    envs = f"{Path.home()}/.local/share/yoked/envs"
    faults.apply(lab, "disk-full", ["alpha"])
    try:
        with pytest.raises(HostError) as problem:
            attic.install(offline=True, wanted=("tinyone==1.0",))
        left = attic.lab_host.run(["find", envs, "-name", requirements_digest(("tinyone==1.0",))])
    finally:
        faults.heal(lab)

    assert "df -h" in problem.value.fix[0]
    assert left.stdout == ""


def test_a_check_of_the_fleet_changes_nothing(
    lab: Lab, attic: Attic, capsys: pytest.CaptureFixture[str]
) -> None:
    status = install.command(fleet=lab.fleet_file, check=True, json_output=True)

    payload = json.loads(capsys.readouterr().out)
    assert status == 0
    assert [(host["name"], host["state"]) for host in payload["hosts"]] == [
        ("alpha", "named"),
        ("beta", "named"),
    ]
