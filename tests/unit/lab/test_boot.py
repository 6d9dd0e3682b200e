from __future__ import annotations

import os
import pwd
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.lab.made import made

from yoked.errors import LabError
from yoked.lab import boot, cgroups
from yoked.lab.topology import Topology
from yoked.lab.topology_load import load


def lab_of(topology: Topology) -> Any:
    return SimpleNamespace(topology=topology, id="abcd1234", user=None, hosts={})


def test_every_name_leads_to_an_address_that_others_reach() -> None:
    topology = load("four-hosts")

    text = boot.hosts_file(lab_of(topology), topology.host("gamma"))

    names = {line.split()[1]: line.split()[0] for line in text.splitlines()}
    assert {name: names[name] for name in ("alpha", "beta", "gamma", "delta")} == {
        host.name: host.address for host in topology.hosts
    }
    assert names["localhost"] in ("127.0.0.1", "::1")
    assert not names["gamma"].startswith("127.")


def test_a_host_without_an_ipv4_network_is_known_by_its_ipv6_address() -> None:
    topology = made(
        '[[network]]\nname = "vpn"\nsubnet6 = "fd00::/64"\n'
        '[[host]]\nname = "alpha"\n'
        '[[host.interface]]\nname = "docker0"\nkind = "bridge"\naddress = "172.17.0.1/16"\n'
    )
    (host,) = topology.hosts

    text = boot.hosts_file(lab_of(topology), host)

    assert "fd00::1 alpha" in text.splitlines()
    assert "172.17.0.1" not in text


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        ({0, 1}, [(0,), (1,), (0,), (1,)]),
        ({0}, [(0,), (0,), (0,), (0,)]),
        # Only some are for us, as taskset or a container has it.
        ({2, 3, 5, 7, 11}, [(2,), (3,), (5,), (7,)]),
    ],
)
def test_hosts_have_different_cpus_as_long_as_there_are_some(
    machine: set[int], expected: list[tuple[int, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: machine, raising=False)
    topology = load("four-hosts")

    assert [boot._cpus(lab_of(topology), host) for host in topology.hosts] == expected


def test_a_second_lab_begins_with_the_cpus_that_the_first_left_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _pid: set(range(6)), raising=False)
    lab = lab_of(load("four-hosts"))

    cpus = [boot._cpus(lab, host, busy=[0, 1, 2, 3]) for host in lab.topology.hosts]
    lab.hosts = {"alpha": SimpleNamespace(cpus=cpus[0])}

    assert cpus == [(4,), (5,), (0,), (1,)]
    # Started anew, a host has what it had.
    assert boot._cpus(lab, lab.topology.host("alpha")) == (4,)


def test_a_host_that_starts_anew_from_another_login_stays_in_the_groups_of_its_lab(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = (tmp_path / name / "yoked-lab-abcd1234" for name in ("first", "other"))
    first.mkdir(parents=True)
    other.parent.mkdir()
    tree = cgroups.Hierarchy(tmp_path, 2, frozenset(), other.parent)
    monkeypatch.setattr(cgroups, "trees_here", lambda: [tree])
    monkeypatch.setattr(cgroups, "_labs", lambda: iter([first]))
    monkeypatch.setattr(cgroups, "_enable", lambda _group: None)
    new: Any = SimpleNamespace(id="abcd1234", is_root=False, hosts={})
    up: Any = SimpleNamespace(id="abcd1234", is_root=False, hosts={"alpha": None})
    (other.parent / "cgroup.procs").touch()

    assert boot._groups(up).folders == (first,)
    assert not other.exists()
    assert boot._groups(new).folders == (other,)


def test_names_come_from_files_and_dns_alone(snapshot: SnapshotAssertion) -> None:
    lines = boot._name_services().splitlines()

    assert [line for line in lines if line.startswith("hosts:")] == snapshot
    assert [line for line in lines if line.startswith("shadow:")] == ["shadow: files"]


@pytest.mark.skipif(sys.platform != "linux", reason="accounts as Linux has them")
def test_the_own_account_is_one_that_can_be_logged_in_to(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    own = pwd.getpwuid(os.getuid())

    entries = [line.split(":") for line in boot._password_file().splitlines()]
    mine = [entry for entry in entries if entry[0] == own.pw_name]

    assert len(mine) == 1
    assert mine[0][2:4] == [str(own.pw_uid), str(own.pw_gid)]
    assert mine[0][5] == str(tmp_path)
    assert mine[0][6] not in ("", "/usr/sbin/nologin", "/bin/false")


@pytest.fixture
def ended() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["true"]) as process:
        yield process


@pytest.fixture
def booting(ended: subprocess.Popen[bytes]) -> Iterator[tuple[boot._Booting, socket.socket]]:
    """A host on its way up, and its end of the line."""
    ours, theirs = socket.socketpair()
    ours.settimeout(0.2)
    group: Any = None
    spec = load("two-hosts-1gbe").host("alpha")
    with ours, theirs:
        yield boot._Booting(spec, ours, ended, (0,), group), theirs


def test_a_host_that_says_why_it_fails_is_quoted(
    booting: tuple[boot._Booting, socket.socket],
    snapshot: SnapshotAssertion,
) -> None:
    one, theirs = booting
    theirs.sendall(b'{"error": "PermissionError: mount overlay on /usr"}\n')

    with pytest.raises(LabError) as caught:
        boot._expect(one, "ready")
    assert str(caught.value) == snapshot


def test_a_host_that_ends_or_is_silent_is_told(
    booting: tuple[boot._Booting, socket.socket],
    snapshot: SnapshotAssertion,
) -> None:
    one, theirs = booting

    with pytest.raises(LabError) as caught:
        boot._expect(one, "ready")
    assert str(caught.value) == snapshot
    theirs.sendall(b'{"rea')
    theirs.close()
    with pytest.raises(LabError) as caught:
        boot._expect(one, "ready")
    assert str(caught.value) == snapshot
