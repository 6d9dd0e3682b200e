"""Hosts of a lab are computers of their own: names, processes, files, networks and logins."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError, UsageError
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import LabUp, new_lab
from yoked.lab.topology_load import load

DEADLINE_S = 60.0
# Prints its port once it listens, on the loopback address alone.
LOOPBACK_SERVER = """
import socket
listener = socket.create_server(("127.0.0.1", 0))
print(listener.getsockname()[1], flush=True)
while True:
    listener.accept()[0].close()
"""
CONNECT = """
import socket, sys
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[1])), 5).close()
except ConnectionRefusedError:
    print("refused")
else:
    print("connected")
"""
UP_AND_WAIT = """
import sys
from yoked.errors import LabError
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load
try:
    lab = Lab.up(load(sys.argv[2]), name=sys.argv[1], tethered=True)
except LabError as problem:
    print(problem.fix[-1], flush=True)
    sys.exit(1)
with lab:
    print("up", *[host.run(["hostname"]).stdout.strip() for host in lab.hosts.values()], flush=True)
    sys.stdin.read()
"""


@dataclass(frozen=True)
class TwoHosts:
    """A lab of alpha and beta, and what the machine had before it came up."""

    lab: Lab
    alpha: LabHost
    beta: LabHost
    machine_file: Path
    own_ssh: dict[str, tuple[int, int]]


@pytest.fixture(scope="module")
def two() -> Iterator[TwoHosts]:
    own_ssh = own_ssh_folder()
    machine_file = Path.home() / f"yoked-test-{secrets.token_hex(4)}"
    machine_file.write_text("of the machine\n")
    try:
        with new_lab("two-hosts-1gbe") as lab:
            yield TwoHosts(lab, lab.host("alpha"), lab.host("beta"), machine_file, own_ssh)
    finally:
        machine_file.unlink(missing_ok=True)


def own_ssh_folder() -> dict[str, tuple[int, int]]:
    """Names, sizes and times of what lies in the person's ~/.ssh."""
    folder = Path.home() / ".ssh"
    paths = [folder, *folder.rglob("*")] if folder.exists() else []
    return {str(path): (path.lstat().st_size, path.lstat().st_mtime_ns) for path in paths}


def python(host: LabHost, program: str, *arguments: str) -> str:
    return host.run([sys.executable, "-c", program, *arguments]).stdout.strip()


def login(lab: Lab, host: str, *command: str) -> subprocess.CompletedProcess[str]:
    """Plain ssh, as a person types it."""
    return subprocess.run(
        ["ssh", "-F", str(lab.ssh_config), host, *command],
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )


def last_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def test_each_host_knows_itself_by_its_own_name(two: TwoHosts) -> None:
    names = [host.run(["hostname"]).stdout for host in (two.alpha, two.beta)]

    assert names == ["alpha\n", "beta\n"]
    assert os.uname().nodename not in ("alpha", "beta", "switch")


def test_a_name_leads_to_the_same_address_from_everywhere(two: TwoHosts) -> None:
    for name in ("alpha", "beta"):
        seen = [
            host.run(["getent", "ahostsv4", name]).stdout.split()[0]
            for host in (two.alpha, two.beta)
        ]

        assert seen == [two.lab.host(name).spec.address] * 2


def test_hosts_answer_each_others_ping(two: TwoHosts) -> None:
    done = two.alpha.run(["ping", "-c", "1", "-W", "5", "beta"])

    assert " 0% packet loss" in done.stdout


def test_a_process_of_one_host_is_seen_there_and_nowhere_else(two: TwoHosts) -> None:
    with two.alpha.popen(["sleep", "1000.25"]) as sleeper:
        try:
            listing = "cat /proc/[0-9]*/cmdline | tr '\\0' ' '"
            until_started(two.alpha, ["sleep", "1000.25"])
            seen = [host.run(["sh", "-c", listing]).stdout for host in (two.alpha, two.beta)]
            listed = [process.command for process in two.alpha.processes()]
            listed_of_beta = [process.command for process in two.beta.processes()]
        finally:
            sleeper.kill()

    assert ["sleep 1000.25" in text for text in seen] == [True, False]
    assert ["sleep", "1000.25"] in listed
    assert ["sleep", "1000.25"] not in listed_of_beta


def until_started(host: LabHost, command: list[str]) -> None:
    """Each look takes milliseconds; that many are seconds."""
    for _ in range(1000):
        if any(process.command == command for process in host.processes()):
            return
    raise AssertionError(f"{command} did not start")


def test_the_machines_processes_are_not_seen_in_a_host(two: TwoHosts) -> None:
    here = python(two.alpha, "import os; print(*[n for n in os.listdir('/proc') if n.isdigit()])")
    inside = {process.pid for process in two.alpha.processes()}

    assert 1 in inside
    # The lister itself has ended since.
    assert len({int(number) for number in here.split()} - inside) == 1


def test_a_file_written_in_a_host_is_there_alone(two: TwoHosts) -> None:
    path = f"{Path.home()}/yoked-test-{secrets.token_hex(4)}"

    two.alpha.run(["sh", "-c", 'echo mine > "$1"', "sh", path])

    assert two.alpha.read_text(path) == "mine\n"
    assert not two.beta.exists(path)
    assert not Path(path).exists()


def test_a_host_sees_the_machines_files_and_changes_only_its_own_view(two: TwoHosts) -> None:
    path = str(two.machine_file)

    before = two.beta.read_text(path)
    two.beta.run(["sh", "-c", 'echo more >> "$1"', "sh", path])
    two.alpha.run(["rm", path])

    assert before == "of the machine\n"
    assert two.beta.read_text(path) == "of the machine\nmore\n"
    assert not two.alpha.exists(path)
    assert two.machine_file.read_text() == "of the machine\n"


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/run"])
def test_a_host_has_a_folder_for_passing_files_of_its_own(two: TwoHosts, folder: str) -> None:
    path = f"{folder}/yoked-test-{secrets.token_hex(4)}"

    two.alpha.write_text(path, "mine\n")

    assert two.alpha.read_text(path) == "mine\n"
    assert not two.beta.exists(path)
    assert not Path(path).exists()


def test_files_in_the_machines_tmp_are_not_in_a_hosts(two: TwoHosts) -> None:
    with tempfile.NamedTemporaryFile(dir="/tmp") as here:
        assert not two.alpha.exists(here.name)


def test_a_server_on_a_hosts_loopback_is_reached_from_that_host_alone(two: TwoHosts) -> None:
    with two.alpha.popen([sys.executable, "-c", LOOPBACK_SERVER]) as server:
        try:
            port = last_line(server)
            seen = [python(host, CONNECT, port) for host in (two.alpha, two.beta)]
            by_machine = subprocess.run(
                [sys.executable, "-c", CONNECT, port], capture_output=True, text=True, check=True
            ).stdout.strip()
        finally:
            server.kill()

    assert seen == ["connected", "refused"]
    assert by_machine == "refused"


def test_the_labs_links_are_not_in_the_machines_network(two: TwoHosts) -> None:
    machine = {name for _, name in _links()}
    ports = {interface.port for host in two.lab.topology.hosts for interface in host.interfaces}

    assert machine.isdisjoint(ports | {network.bridge for network in two.lab.topology.networks})


def _links() -> list[tuple[str, str]]:
    said = subprocess.run(
        ["ip", "-j", "link"],
        capture_output=True,
        text=True,
        check=True,
    )
    return [(link.get("address", ""), link["ifname"]) for link in json.loads(said.stdout)]


def test_plain_ssh_reaches_every_host(two: TwoHosts) -> None:
    for name in ("alpha", "beta"):
        done = login(two.lab, name, "hostname")

        assert (done.stdout, done.stderr, done.returncode) == (f"{name}\n", "", 0)


def test_plain_ssh_reaches_each_host_from_the_others_by_name_and_address(two: TwoHosts) -> None:
    for here, there in ((two.alpha, two.beta), (two.beta, two.alpha)):
        for target in (there.name, there.spec.address):
            done = here.run(["ssh", target, "hostname"])

            assert (done.stdout, done.stderr) == (f"{there.name}\n", "")


def test_ssh_hands_on_input_and_exit_status(two: TwoHosts) -> None:
    done = subprocess.run(
        ["ssh", "-F", str(two.lab.ssh_config), "beta", "cat; exit 7"],
        input="hello\n" * 10_000,
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )

    assert (done.stdout, done.returncode) == ("hello\n" * 10_000, 7)


def test_a_login_is_a_process_of_its_host(two: TwoHosts) -> None:
    here, there = (
        login(two.lab, name, "readlink", "/proc/self/ns/pid").stdout for name in ("alpha", "beta")
    )

    assert here != there
    assert here == two.alpha.run(["readlink", "/proc/self/ns/pid"]).stdout


def test_the_persons_own_ssh_folder_is_neither_shown_nor_touched(two: TwoHosts) -> None:
    folder = Path.home() / ".ssh"
    inside = two.alpha.run(["ls", "-A", str(folder)]).stdout.split()
    two.alpha.run(["touch", f"{folder}/new"])
    login(two.lab, "alpha", "true")
    two.alpha.run(["ssh", "beta", "true"])

    assert sorted(inside) == ["authorized_keys", "config", "id_ed25519", "id_ed25519.pub",
                              "known_hosts"]  # fmt: skip
    assert own_ssh_folder() == two.own_ssh


def test_the_keys_of_the_lab_are_hidden_from_its_hosts(two: TwoHosts) -> None:
    assert two.lab.ssh_config.exists()
    assert not two.alpha.exists(str(two.lab.ssh_config))


def test_the_fleet_file_names_every_host_as_ssh_knows_it(two: TwoHosts) -> None:
    fleet = tomllib.loads(two.lab.fleet_file.read_text())

    assert [host["name"] for host in fleet["host"]] == ["alpha", "beta"]
    assert {host["interface"] for host in fleet["host"]} == {"eth0"}
    assert fleet["fleet"]["ssh_config"] == str(two.lab.ssh_config)
    for host in fleet["host"]:
        assert login(two.lab, host["name"], host["python"], "--version").returncode == 0


@pytest.mark.parametrize("status", [0, 3, 255])
def test_a_program_ends_with_its_own_status(two: TwoHosts, status: int) -> None:
    done = two.alpha.run(["sh", "-c", f"exit {status}"], check=False)

    assert done.returncode == status


def test_a_program_that_is_not_there_ends_with_127_and_is_named(two: TwoHosts) -> None:
    done = two.alpha.run(["no-such-program"], check=False)

    assert done.returncode == 127
    assert "no-such-program" in done.stderr


def test_a_file_that_is_no_program_ends_with_126(two: TwoHosts) -> None:
    assert two.alpha.run(["/etc/hosts"], check=False).returncode == 126


def test_a_program_has_the_callers_input_and_both_outputs(two: TwoHosts) -> None:
    done = two.alpha.run(["sh", "-c", "cat; echo oops >&2"], input="hi\n")

    assert (done.stdout, done.stderr) == ("hi\n", "oops\n")


def test_a_program_has_the_folder_and_the_variables_that_are_asked_for(two: TwoHosts) -> None:
    done = two.alpha.run(["sh", "-c", "pwd; echo $COLOUR"], cwd="/usr", env={"COLOUR": "blue"})

    assert done.stdout == "/usr\nblue\n"


def test_a_signal_that_ends_a_program_is_seen_by_who_waits(two: TwoHosts) -> None:
    done = two.alpha.run(["sh", "-c", "kill -USR1 $$"], check=False)

    assert done.returncode == -signal.SIGUSR1


def test_a_program_ends_when_who_started_it_is_killed(two: TwoHosts) -> None:
    with two.alpha.popen(["sh", "-c", "echo ready; exec sleep 1000.5"]) as sleeper:
        assert last_line(sleeper) == "ready"
        sleeper.kill()
        # Its end of the pipe is closed with the last process that has it.
        rest = sleeper.communicate(timeout=DEADLINE_S)[0]

    assert rest == ""
    assert ["sleep", "1000.5"] not in [process.command for process in two.alpha.processes()]


def test_a_program_that_takes_too_long_is_ended_and_named(
    two: TwoHosts, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(LabError) as caught:
        two.alpha.run(["sleep", "1000.75"], timeout_s=0.2)
    assert str(caught.value) == snapshot


def test_a_program_that_fails_is_an_error_with_what_it_said(
    two: TwoHosts, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(LabError) as caught:
        two.alpha.run(["sh", "-c", "echo because of this >&2; exit 4"])
    assert str(caught.value) == snapshot


def test_a_host_that_is_not_there_is_an_error_with_the_nearest_name(two: TwoHosts) -> None:
    with pytest.raises(UsageError) as caught:
        two.lab.host("alhpa")
    assert "alpha" in caught.value.fix[0]


def test_another_process_finds_the_lab_by_its_name(two: TwoHosts) -> None:
    found = Lab.open(two.lab.name)

    assert found.host("beta").run(["hostname"]).stdout == "beta\n"
    assert (found.id, found.topology, found.notes) == (
        two.lab.id,
        two.lab.topology,
        two.lab.notes,
    )
    assert two.lab.name in [lab.name for lab in Lab.all()]


def test_a_second_lab_of_one_name_is_an_error_and_the_first_goes_on(two: TwoHosts) -> None:
    with pytest.raises(LabError) as caught:
        Lab.up(load("two-hosts-100mbit"), name=two.lab.name, tethered=True)
    assert f" {two.lab.name} " in caught.value.what

    assert two.alpha.run(["hostname"]).stdout == "alpha\n"
    assert login(two.lab, "alpha", "true").returncode == 0


def test_a_host_that_was_switched_off_keeps_its_files_and_loses_what_was_in_memory(
    two: TwoHosts,
    snapshot: SnapshotAssertion,
) -> None:
    kept, lost = f"{Path.home()}/kept-{secrets.token_hex(4)}", "/tmp/lost"
    two.beta.write_text(kept, "kept\n")
    two.beta.write_text("/etc/hosts", "127.0.0.1 localhost\n192.168.77.99 elsewhere\n")
    two.beta.write_text(lost, "lost\n")
    with two.beta.popen(["sleep", "1000"]) as sleeper:
        until_started(two.beta, ["sleep", "1000"])
        two.lab.stop_host("beta")

        was_alive, processes = two.beta.alive, two.beta.processes()
        other = two.alpha.run(["hostname"]).stdout
        with pytest.raises(LabError) as caught:
            two.beta.run(["true"])
        assert str(caught.value) == snapshot
        assert sleeper.wait(DEADLINE_S) == -signal.SIGKILL

    two.lab.start_host("beta")
    beta = two.lab.host("beta")

    assert (was_alive, processes, other) == (False, [], "alpha\n")
    assert beta.read_text(kept) == "kept\n"
    assert "elsewhere" in beta.read_text("/etc/hosts")
    assert not beta.exists(lost)
    assert ["sleep", "1000"] not in [process.command for process in beta.processes()]
    assert login(two.lab, "beta", "hostname").stdout == "beta\n"
    assert two.alpha.run(["ping", "-c", "1", "-W", "5", beta.spec.address]).returncode == 0
    assert Lab.open(two.lab.name).host("beta").run(["hostname"]).stdout == "beta\n"


def start_another(name: str, topology: str = "two-hosts-100mbit") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", UP_AND_WAIT, name, topology],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def test_labs_of_several_processes_do_not_collide(two: TwoHosts) -> None:
    names = [f"test-{secrets.token_hex(4)}" for _ in range(2)]
    with start_another(names[0]) as first, start_another(names[1]) as second:
        said = [last_line(process) for process in (first, second)]
        # Their hosts have the same addresses as these.
        hit = two.alpha.run(["ssh", two.beta.spec.address, "cat", "/etc/machine-id"]).stdout
        for process in (first, second):
            process.communicate(timeout=DEADLINE_S)

    assert said == ["up alpha beta"] * 2
    assert hit.startswith(two.lab.id)
    assert (first.returncode, second.returncode) == (0, 0)


def test_of_two_processes_that_want_one_name_one_has_it() -> None:
    name = f"test-{secrets.token_hex(4)}"
    with start_another(name) as first, start_another(name) as second:
        said = [last_line(process) for process in (first, second)]
        for process in (first, second):
            process.communicate(timeout=DEADLINE_S)

    assert sorted(said) == ["up alpha beta", f"yoked lab down {name}"]
    assert sorted([first.returncode, second.returncode]) == [0, 1]


@pytest.mark.lab_needs("cgroups")
def test_a_slow_host_has_a_quota_in_periods_of_ten_milliseconds_at_most(lab_up: LabUp) -> None:
    lab = lab_up("unequal")

    for name, share in (("fast", 0.8), ("slow", 0.2)):
        quota_us, period_us = _quota(lab.host(name))
        assert 0 < period_us <= 10_000
        # The share, and a little for coming back to cold caches.
        assert share <= quota_us / period_us < 1.15 * share
        # What is run in a host, by whatever way, is in its group.
        group = lab.host(name).group
        assert group is not None
        assert {process.outer_pid for process in lab.host(name).processes()} <= set(group.procs())


def _quota(host: LabHost) -> tuple[int, int]:
    assert host.group is not None
    for folder in host.group.folders:
        if (folder / "cpu.max").exists():
            quota, period = (folder / "cpu.max").read_text().split()
            return int(quota), int(period)
        if (folder / "cpu.cfs_quota_us").exists():
            quota = (folder / "cpu.cfs_quota_us").read_text()
            return int(quota), int((folder / "cpu.cfs_period_us").read_text())
    raise AssertionError("no quota")


def test_docker_bridges_have_one_address_everywhere_and_the_vpn_a_network(lab_up: LabUp) -> None:
    lab = lab_up("vpn-and-docker")
    other = lab.topology.host("beta").interfaces[-1]
    assert other.address6 is not None

    docker = [
        host.tool(["ip", "-br", "address", "show", "docker0"]).stdout.split()[2]
        for host in lab.hosts.values()
    ]
    over_vpn = lab.host("alpha").run(["ping", "-c", "1", "-W", "5", str(other.address6.ip)])

    assert docker == ["172.17.0.1/16"] * 2
    assert " 0% packet loss" in over_vpn.stdout


def test_folders_with_blanks_commas_and_percent_signs_in_their_names_are_served(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab_up: LabUp
) -> None:
    # No account's home has a colon: it parts the fields of /etc/passwd.
    home = tmp_path / "a,b 100%h"
    home.mkdir()
    (home / "file").write_text("mine\n")
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("YOKED_STATE", str(home / "state"))

    lab = lab_up("two-hosts-100mbit")

    assert lab.host("alpha").read_text(str(home / "file")) == "mine\n"
    assert lab.host("alpha").run(["pwd"]).stdout == f"{home}\n"
    assert login(lab, "beta", "hostname").stdout == "beta\n"
    lab.host("alpha").write_text(str(home / "file"), "changed\n")
    assert (home / "file").read_text() == "mine\n"
