"""Hosts find out by traffic how they reach each other, and `yoked init` writes it down."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import ModuleType

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

import yoked
from yoked.cli.commands import doctor, hosts, init
from yoked.errors import FleetError, HostError
from yoked.fleet.discover import survey
from yoked.fleet.file import load_fleet, read_fleet
from yoked.fleet.model import Host
from yoked.fleet.trust import remember
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.process import until
from yoked.lab.pytest_plugin import LabUp, new_lab
from yoked.lab.topology_load import load
from yoked.remote.client import AgentClient
from yoked.remote.connect import connect_all

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "interfaces"
NAMES = ("alpha", "beta")
DEADLINE_S = 10.0
# What a person's firewall does: ssh comes in, nothing else does.
ONLY_SSH = """
table inet person {
    chain input {
        type filter hook input priority 0; policy drop;
        ct state established,related accept
        iif lo accept
        tcp dport 22 accept
    }
}
"""
# A desktop, and a container whose bridge leads nowhere else.
BOXED = """
description = "a container with a network of its own"
[[network]]
name = "lan"
subnet = "192.168.77.0/24"
[[network]]
name = "podman"
subnet = "10.88.0.0/16"
[[host]]
name = "desk"
[[host]]
name = "box"
[[host.interface]]
name = "eth0"
network = "podman"
address = "10.88.0.7/16"
"""


@pytest.fixture(scope="module")
def lab_of_two() -> Iterator[Lab]:
    with new_lab("vpn-and-docker") as lab:
        yield lab


@contextmanager
def agents(lab: Lab, *names: str) -> Iterator[dict[str, AgentClient]]:
    clients, failures = connect_all([Host(name) for name in names], lab.ssh_config)
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        assert not failures
        yield clients


def only_ssh_listens(host: LabHost) -> bool:
    """Whether, within a moment, nothing but ssh listens on a host."""

    def holds() -> bool:
        lines = host.tool(["ss", "-H", "-t", "-l", "-n"]).stdout.splitlines()
        return {line.split()[3].rpartition(":")[2] for line in lines} == {"22"}

    return until(holds, DEADLINE_S, 0.05)


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARK))
    bench = importlib.import_module("bench")
    monkeypatch.delitem(sys.modules, "bench")
    monkeypatch.delitem(sys.modules, "random_topology")
    return bench


# IPv4 and IPv6; together they have every trait.
@pytest.mark.parametrize("seed", [1, 15, pytest.param(9, marks=pytest.mark.slow)])
def test_the_fast_link_that_reaches_all_is_found(benchmark: ModuleType, seed: int) -> None:
    case = benchmark.make_case(seed)

    with benchmark.bring_up(case) as lab:
        verdict = benchmark.judge(case, lab)

    assert verdict.wrong == [], (case.traits, verdict.chosen)


def test_nothing_listens_when_it_is_over(lab_of_two: Lab) -> None:
    hosts = [Host(name) for name in NAMES]

    with agents(lab_of_two, *NAMES) as clients:
        found = survey(hosts, clients)
        # The agents still live: nothing else than the end of the calls closes what they opened.
        left = [only_ssh_listens(lab_of_two.host(name)) for name in NAMES]

    assert len(found.attempts) > len(hosts)
    assert left == [True, True]


def test_the_interface_that_the_file_names_is_the_only_candidate(
    lab_of_two: Lab, snapshot: SnapshotAssertion
) -> None:
    hosts = [Host(name, interface="tailscale0") for name in NAMES]

    with agents(lab_of_two, *NAMES) as clients:
        choices = survey(hosts, clients).choices
        with pytest.raises(FleetError) as caught:
            survey([Host("alpha", interface="eth7"), Host("beta")], clients)
    assert str(caught.value) == snapshot

    assert {each.interface for each in choices.values()} == {"tailscale0"}


def test_a_firewall_is_named_with_the_pair(lab_of_two: Lab, snapshot: SnapshotAssertion) -> None:
    beta = lab_of_two.host("beta")
    beta.tool(["nft", "-f", "-"], input=ONLY_SSH)
    try:
        with agents(lab_of_two, *NAMES) as clients, pytest.raises(HostError) as caught:
            survey([Host(name) for name in NAMES], clients)
    finally:
        beta.tool(["nft", "delete", "table", "inet", "person"])

    assert str(caught.value) == snapshot


def test_a_container_with_a_network_of_its_own_is_told_by_init_and_doctor(
    lab_up: LabUp, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "boxed.toml").write_text(BOXED)
    lab = lab_up(load(str(tmp_path / "boxed.toml")))
    box = lab.host("box")
    box.run(["sh", "-c", "rm -f /.dockerenv; mkdir -p /run && touch /run/.containerenv"])
    # A container's way to others is its own machine.
    box.tool(["ip", "route", "add", "default", "dev", "eth0"])
    file = tmp_path / "yoked.toml"

    with raises_fault("container-bridge", host="box", address="10.88.0.7", container="podman"):
        init.command("desk", "box", fleet=file, ssh_config=lab.ssh_config)
    status = doctor.command(
        flags=doctor.DoctorFlags(quick=True), fleet=lab.fleet_file, json_output=True
    )

    told = json.loads(capsys.readouterr().out)
    assert status == 1
    # No NAT leads out of this one either, which is a finding of its own.
    found = {each["check"]: each["hosts"] for each in told["findings"]}
    assert found["container-bridge"] == ["box"]


def test_init_writes_what_hosts_then_shows(
    lab_of_two: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "yoked.toml"

    wrote = init.command(*NAMES, fleet=file, ssh_config=lab_of_two.ssh_config, json_output=True)
    told = json.loads(capsys.readouterr().out)
    shown = hosts.command(fleet=file)
    table = capsys.readouterr().out

    fleet = load_fleet(file)
    assert wrote == shown == 0
    assert [host.interface for host in fleet.hosts] == ["eth0", "eth0"]
    assert {host.python for host in fleet.hosts} == {sys.executable}
    assert [each["address"] for each in told["hosts"]] == ["192.168.77.1", "192.168.77.2"]
    assert all(each["goodput_bytes_per_s"] > 0 for each in told["hosts"])
    assert "2 of 2 " in table
    assert "eth0 192.168.77.2" in table


def test_init_again_keeps_what_a_person_set(
    lab_of_two: Lab, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    file = tmp_path / "yoked.toml"
    file.write_text(
        f'[fleet]\nname = "mine"\nssh_config = "{lab_of_two.ssh_config}"\n'
        '[[host]]\nname = "beta"\nranks = 2\ninterface = "gone0"\n[[host]]\nname = "alpha"\n'
    )
    remember(read_fleet(file))

    with pytest.raises(FleetError) as caught:
        init.command(fleet=file)
    assert str(caught.value) == snapshot
    init.command(fleet=file, force=True)

    fleet = load_fleet(file)
    assert fleet.name == "mine"
    assert [(each.name, each.ranks, each.interface) for each in fleet.hosts] == [
        ("beta", 2, "eth0"),
        ("alpha", None, "eth0"),
    ]
    assert "gone0" in (tmp_path / "yoked.toml.old").read_text()


def test_hosts_that_cannot_be_reached_are_all_named_and_nothing_is_written(
    lab_of_two: Lab, tmp_path: Path
) -> None:
    file = tmp_path / "yoked.toml"

    with pytest.raises(HostError) as caught:
        init.command("alpha", "nobody", "no-one", fleet=file, ssh_config=lab_of_two.ssh_config)

    assert " nobody: " in caught.value.what
    assert " no-one: " in caught.value.what
    assert not file.exists()


def test_hosts_shows_why_one_is_down(
    lab_of_two: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "yoked.toml"
    file.write_text(
        f'[fleet]\nssh_config = "{lab_of_two.ssh_config}"\n'
        '[[host]]\nname = "alpha"\n[[host]]\nname = "nobody"\n'
    )
    remember(read_fleet(file))

    status = hosts.command(fleet=file)

    said = capsys.readouterr().out
    assert status == 1
    assert "1 of 2 " in said
    assert " nobody: " in said


def test_one_machine_behind_two_names_is_found(
    lab_of_two: Lab, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    config = tmp_path / "config"
    config.write_text(
        lab_of_two.ssh_config.read_text().replace("Host alpha\n", "Host alpha again\n")
    )

    with pytest.raises(FleetError) as caught:
        init.command("alpha", "beta", "again", fleet=tmp_path / "f.toml", ssh_config=config)

    assert str(caught.value) == snapshot
    assert not (tmp_path / "f.toml").exists()


# Says, for each line that it reads, where the Gloo of torch listens and what the agent expects.
GLOO = """
import sys
import psutil, torch.distributed as dist
from yoked.agent.interfaces import describe, entries

def listening():
    return {each.laddr for each in psutil.Process().net_connections() if each.status == "LISTEN"}

for _ in sys.stdin:
    before = listening()
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    taken = {each.ip for each in listening() - before}
    dist.destroy_process_group()
    eth0 = next(each for each in describe(list(entries())) if each["name"] == "eth0")
    print(*taken, eth0["gloo_address"], flush=True)
"""
# What is done to eth0, one after the other; it begins with 192.168.77.1/24 alone.
CHANGES = (
    [],
    [["add", "10.9.0.1/24"], ["add", "192.168.77.90/24"], ["add", "fd09::1/64", "nodad"]],
    [["del", "192.168.77.1/24"]],
    [["del", "10.9.0.1/24"]],
    [["add", "fd09::2/64", "nodad"]],
)


@pytest.mark.slow
def test_gloo_takes_the_address_that_the_agent_expects(lab_up: LabUp) -> None:
    pytest.importorskip("torch")
    alpha = lab_up("two-hosts-1gbe").host("alpha")
    source = str(Path(yoked.__file__).parents[1])
    process = alpha.popen(
        [sys.executable, "-W", "ignore", "-c", GLOO],
        env={"PYTHONPATH": source, "GLOO_SOCKET_IFNAME": "eth0"},
        tied=True,
        stdin=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )

    heard = []
    with process:
        assert process.stdin is not None
        assert process.stdout is not None
        for change in CHANGES:
            for verb, address, *flags in change:
                alpha.tool(["ip", "address", verb, address, "dev", "eth0", *flags])
            process.stdin.write("next\n")
            process.stdin.flush()
            heard.append(process.stdout.readline().split())

    assert [taken for taken, _ in heard] == [expected for _, expected in heard]
    assert len({taken for taken, _ in heard}) == 4
