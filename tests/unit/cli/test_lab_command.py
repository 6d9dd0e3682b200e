"""`yoked lab` without a lab: what it understands, and what it says of one."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.argv import own_flags, split_command
from yoked.cli.commands import lab_text
from yoked.cli.main import main
from yoked.errors import LabError
from yoked.lab.faults.base import ActiveFault
from yoked.lab.host import HostProcess
from yoked.lab.lab import Lab
from yoked.lab.topology import Host, Shape, Topology
from yoked.lab.topology_load import load


@pytest.fixture(autouse=True)
def no_labs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))


@dataclass
class FakeHost:
    """A host that is up, or not, and runs what it is told that it runs."""

    spec: Host
    alive: bool = True
    running: list[HostProcess] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.spec.name

    def processes(self) -> list[HostProcess]:
        return self.running

    def enter_command(self, argv: list[str], *, as_root: bool = False) -> list[str]:
        if not self.alive:
            raise LabError(f"{self.name} is not up", fix=f"yoked lab heal {self.name}")
        return ["/bin/enter", f"as_root={as_root}", self.name, *argv]


@dataclass
class FakeLab:
    """A lab of a shipped topology, known without being there."""

    topology: Topology
    folder: Path = Path("/state/lab/home")
    name: str = "home"
    notes: list[str] = field(default_factory=lambda: ["no delay: the kernel has no netem"])

    def __post_init__(self) -> None:
        self.hosts = {spec.name: FakeHost(spec) for spec in self.topology.hosts}
        self.ssh_config = self.folder / "ssh_config"
        self.fleet_file = self.folder / "yoked.toml"

    def host(self, name: str) -> FakeHost:
        return self.hosts[name]


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLab:
    """The only lab that is up."""
    lab = FakeLab(load("two-hosts-1gbe"), folder=tmp_path)
    monkeypatch.setattr(Lab, "all", lambda: [lab])
    monkeypatch.setattr(Lab, "open", lambda name=None: lab)
    return lab


def process(pid: int, *command: str, state: str = "S") -> HostProcess:
    return HostProcess(pid, 1000 + pid, 1, state, list(command))


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("lab exec alpha ls -l --json", "lab exec alpha -- ls -l --json"),
        ("lab exec --lab x alpha --root ls -l", "lab exec --lab x alpha --root -- ls -l"),
        ("lab exec --lab=x alpha git log -- file", "lab exec --lab=x alpha -- git log -- file"),
        ("lab exec alpha -- ls -- x", "lab exec alpha -- ls -- x"),
        ("lab exec alpha --root -- id", "lab exec alpha --root -- id"),
        ("lab exec -- alpha", "lab exec -- alpha"),
        ("lab exec alpha", "lab exec alpha"),
        ("lab exec --lab", "lab exec --lab"),
        ("train --depth 4", "train --depth 4"),
    ],
)
def test_what_follows_the_name_of_the_host_is_the_programs(typed: str, meant: str) -> None:
    assert split_command(typed.split()) == meant.split()


def test_a_programs_own_json_flag_is_not_ours() -> None:
    assert own_flags(split_command(["lab", "exec", "alpha", "ip", "--json"])) == [
        "lab",
        "exec",
        "alpha",
    ]


def test_exec_becomes_the_program_with_all_its_words(
    fake: FakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    became: list[Any] = []

    def execv(path: str, argv: list[str]) -> None:
        became.append((path, argv))
        raise SystemExit(7)

    monkeypatch.setattr("os.execv", execv)

    with pytest.raises(SystemExit):
        main(["lab", "exec", "--root", "beta", "ls", "-l", "--help", "--json"])

    words = ["/bin/enter", "as_root=True", "beta", "ls", "-l", "--help", "--json"]
    assert became == [("/bin/enter", words)]


def test_exec_on_a_host_that_is_switched_off_names_the_way_back(
    fake: FakeLab, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    fake.hosts["alpha"].alive = False

    status = main(["lab", "exec", "alpha", "--", "hostname"])

    assert status == 1
    assert capsys.readouterr().err == snapshot


def test_the_way_back_is_about_the_lab_that_was_named(
    fake: FakeLab, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.hosts["alpha"].alive = False

    status = main(["lab", "exec", "--lab", fake.name, "alpha", "--", "hostname"])

    assert status == 1
    assert f"fix: yoked lab heal alpha --lab {fake.name}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    "argv",
    [
        ["lab", "status"],
        ["lab", "exec", "alpha", "--", "hostname"],
        ["lab", "shell", "alpha"],
        ["lab", "fault", "cut", "alpha"],
        ["lab", "heal"],
    ],
)
def test_without_a_lab_one_is_told_how_to_get_one(
    argv: list[str], capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main(argv) == 1
    assert capsys.readouterr().err == snapshot


def test_down_without_a_lab_names_the_way_to_clear_what_a_killed_one_left(
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    assert main(["lab", "down"]) == 1
    assert "yoked lab down --all" in capsys.readouterr().err
    assert main(["lab", "down", "--all"]) == 0
    assert capsys.readouterr().out == snapshot


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["lab", "up", "two-hosts"], "two-hosts-1gbe"),
        (["lab", "up", "unequal", "--name", "../x"], "cannot name a lab"),
        (["lab", "exec", "alpha"], "no program is named"),
        (["lab", "exec", "alpha", "--rot", "--", "ls"], "--root"),
        (["lab", "fault"], "yoked lab fault --list"),
        (["lab", "down", "x", "--all"], "give one of both"),
    ],
)
def test_what_cannot_be_meant_gets_status_2_and_a_way_on(
    argv: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(argv) == 2
    assert said in capsys.readouterr().err


def test_a_second_up_says_how_to_go_on(
    fake: FakeLab, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    fake.name = "unequal"

    status = main(["lab", "up", "unequal", "--json"])

    error = json.loads(capsys.readouterr().out)["error"]
    assert status == 1
    assert error["what"] == snapshot
    assert "yoked lab down unequal" in error["fix"]


def test_up_promises_the_fleet_the_logins_and_the_hosts(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    lab: Any = FakeLab(load("two-hosts-1gbe"), folder=tmp_path)

    payload = lab_text.up_payload(lab)

    assert payload == snapshot


def test_up_shows_addresses_notes_and_what_to_type_next(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    lab: Any = FakeLab(load("two-hosts-1gbe"), folder=tmp_path)

    lines = "\n".join(lab_text.up_lines(lab))

    assert all(spec.address in lines for spec in lab.topology.hosts)
    assert lines == snapshot
    assert lab_text.next_commands(lab, named=False) == [
        "yoked lab exec alpha -- hostname",
        f"ssh -F {tmp_path}/ssh_config alpha",
    ]
    assert lab_text.next_commands(lab, named=True)[0] == (
        "yoked lab exec --lab home alpha -- hostname"
    )


def test_status_shows_links_faults_what_runs_and_who_is_switched_off(
    snapshot: SnapshotAssertion,
) -> None:
    lab: Any = FakeLab(load("vpn-and-docker"))
    first, second = lab.hosts.values()
    first.running = [
        process(1, "python3", "-I"),
        process(7, "sshd: /usr/sbin/sshd -D"),
        process(9, "/usr/bin/python3", "-m", "x", state="T"),
    ]
    second.alive = False
    cut = ActiveFault(
        "f2", "cut", (first.name,), (first.name,), "the cable is out", {}, 0, "active"
    )

    payload = [lab_text.host_payload(host, [cut]) for host in lab.hosts.values()]
    lines = lab_text.status_lines(lab, payload)

    assert [entry["up"] for entry in payload] == [True, False]
    assert payload[0]["processes"][2]["state"] == "T"
    assert [entry["faults"] for entry in payload] == snapshot
    assert lines[0].split() == ["host", "interface", "address", "link", "faults", "processes"]
    assert lines[1] == snapshot
    assert "3 (python3), 1 stopped" in lines[1]
    assert any("docker0" in line and "leads nowhere" in line for line in lines)
    assert any("tailscale0" in line and "fd7a:115c:a1e0" in line for line in lines)
    assert any(second.name in line and "switched off" in line for line in lines)


@pytest.mark.parametrize(
    ("shape", "text"),
    [
        (Shape(), "no limit"),
        (Shape(rate_bit_per_s=1e9), "1.00 Gbit/s"),
        (Shape(4e7, 0.004, 0.003, 0.002), "40.0 Mbit/s, 4.00 ms +-3.00 ms, 0.2% lost"),
    ],
)
def test_a_link_is_told_with_its_speed_and_weather(shape: Shape, text: str) -> None:
    assert lab_text.shape_text(shape) == text


def test_the_kinds_of_faults_are_listed_without_a_lab(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["lab", "fault", "--list", "--json"]) == 0
    kinds = json.loads(capsys.readouterr().out)["faults"]
    assert main(["lab", "fault", "--list"]) == 0
    said = capsys.readouterr().out

    assert {"cut", "firewall", "suspend", "oom"} <= {kind["kind"] for kind in kinds}
    assert all(kind["usage"].split()[0] in said for kind in kinds)


def test_the_shipped_topologies_and_the_needs_are_listed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    main(["lab", "list", "--json"])

    payload = json.loads(capsys.readouterr().out)
    assert {"two-hosts-1gbe", "unequal", "vpn-and-docker"} <= {
        topology["name"] for topology in payload["topologies"]
    }
    assert payload["labs"] == []
    assert all(need["fix"] for need in payload["needs"] if not need["ok"])


def test_ctrl_c_in_a_command_is_told_in_json_too(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(name: str | None = None) -> Lab:
        raise KeyboardInterrupt

    monkeypatch.setattr(Lab, "open", interrupt)

    assert main(["lab", "status", "--json"]) == 130
    assert json.loads(capsys.readouterr().out)["error"]["kind"] == "interrupted"
