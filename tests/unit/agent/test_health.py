"""What a host says of itself: each part by itself, whatever the others do."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import environ, firewall, names, power, routes, stale_processes, storage
from yoked.agent.facts import answer_facts
from yoked.agent.health import PARTS, answer_health
from yoked.agent.interfaces import answer_interfaces
from yoked.core.mounts import mount_of
from yoked.paths import private_folder
from yoked.records.answers import understood

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel")


def test_every_part_is_told_here_and_can_travel() -> None:
    told = answer_health(FakeCall(limit_s=20.0))

    untold = told.pop("untold")
    assert untold == {}
    assert set(told) == set(PARTS)
    assert json.loads(json.dumps(told)) == told


def test_what_this_very_host_says_of_itself_is_understood() -> None:
    odd: list[str] = []
    answers = {
        "facts": answer_facts(FakeCall()),
        "interfaces": answer_interfaces(FakeCall()),
        "health": answer_health(
            FakeCall(limit_s=20.0, names=["localhost"], addresses=["127.0.0.1"], ports=[22])
        ),
    }

    read = {name: understood(name, answer, odd) for name, answer in answers.items()}

    assert odd == []
    assert read["facts"] == answers["facts"]
    assert read["interfaces"] == answers["interfaces"]


@LINUX
@pytest.mark.parametrize("asked", [False, True])
def test_sudo_is_asked_only_where_somebody_allowed_it(
    asked: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sudo, note = tmp_path / "sudo", tmp_path / "asked"
    sudo.write_text(f'#!/bin/sh\necho "$@" >> {note}\necho yes\n')
    sudo.chmod(0o755)
    monkeypatch.setattr(firewall, "TOOL_PATH", str(tmp_path))
    monkeypatch.setattr(firewall, "_may_try_sudo", lambda: True)
    monkeypatch.setattr(os, "getuid", lambda: 1000)

    firewall.probe_firewall(sudo=asked)

    assert note.exists() == asked


def test_no_secret_of_an_environment_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOKED_SECRET", "deep-in-the-night")
    monkeypatch.setenv("NCCL_DEBUG", "INFO")

    told = answer_health(FakeCall(parts=["environment"]))

    assert told["environment"]["NCCL_DEBUG"] == "INFO"
    assert told["environment"]["YOKED_SECRET"] == "***"
    assert "deep-in-the-night" not in json.dumps(told)


def test_only_what_is_asked_for_is_told() -> None:
    told = answer_health(FakeCall(parts=["clock", "shell"]))

    assert set(told) == {"clock", "shell", "untold"}


def test_a_part_that_hangs_or_fails_costs_no_other(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    def fail() -> None:
        raise OSError("no such thing")

    released = threading.Event()
    monkeypatch.setattr(names, "probe_names", lambda: released.wait(20))
    monkeypatch.setattr(power, "probe_power", fail)

    told = answer_health(FakeCall(parts=["names", "power", "shell"], limit_s=0.5))
    released.set()

    assert told["names"] is None
    assert told["power"] is None
    assert told["shell"]["sources_noise"] is None
    assert told["untold"] == snapshot


def test_names_have_their_addresses_or_the_reason() -> None:
    told = names.probe_names(names=["localhost", "no.such.invalid"])

    assert told["hostname"] == socket.gethostname()
    assert told["others"]["localhost"]["addresses"]
    assert told["others"]["no.such.invalid"]["addresses"] == []
    assert told["others"]["no.such.invalid"]["error"]


def test_names_of_addresses_are_asked_for_and_not_kept() -> None:
    told = names.probe_names(addresses=["127.0.0.1", "no address"])["reverse"]

    assert [set(each) for each in told.values()] == [{"error", "took_s"}] * 2
    assert told["127.0.0.1"]["error"] is None
    assert told["no address"]["error"]


def test_a_name_server_that_does_not_answer_is_not_waited_for(
    monkeypatch: pytest.MonkeyPatch,
    snapshot: SnapshotAssertion,
) -> None:
    released = threading.Event()

    def resolve(*args: Any, **more: Any) -> Any:
        released.wait(20)
        return []

    monkeypatch.setattr(names.socket, "getaddrinfo", resolve)
    monkeypatch.setattr(names.socket, "getnameinfo", resolve)
    monkeypatch.setattr(names, "_LIMIT_S", 0.2)

    told = names.probe_names(addresses=["192.168.1.11"])
    released.set()

    assert told["own"] == snapshot
    late = {"error": "no answer in 0.2 s", "took_s": 0.2}
    # Ranks of one host meet at the second.
    assert told["reverse"] == {"192.168.1.11": late, "127.0.0.1": late}


@LINUX
def test_the_way_to_an_address_has_its_source_and_interface() -> None:
    told = routes.probe_routes(["127.0.0.1"])["127.0.0.1"]

    assert (told["source"], told["interface"], told["error"]) == ("127.0.0.1", "lo", None)


def test_the_gateway_with_the_least_metric_counts(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net/route").write_text(
        "Iface\tDestination\tGateway\tFlags\tRefCnt\tUse\tMetric\tMask\n"
        "wlan0\t00000000\t0101A8C0\t0003\t0\t0\t600\t00000000\n"
        "eth0\t00000000\tFE01A8C0\t0003\t0\t0\t100\t00000000\n"
        "eth0\t0001A8C0\t00000000\t0001\t0\t0\t100\t00FFFFFF\n"
    )

    assert routes.default_gateway(tmp_path) == ("192.168.1.254", "eth0")
    assert routes.default_gateway(tmp_path / "none") is None


def test_macs_routes_are_read() -> None:
    said = "   route to: default\n    gateway: 192.168.1.1\n  interface: en0\n"

    assert routes.gateway_of_route(said) == ("192.168.1.1", "en0")
    assert routes.gateway_of_route("") is None


def test_only_variables_that_matter_are_told_and_no_password(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "lo")
    monkeypatch.setenv("https_proxy", "http://me:secret@proxy:3128/")
    monkeypatch.setenv("AWS_SECRET", "secret")

    told = environ.probe_environment()

    assert told["GLOO_SOCKET_IFNAME"] == "lo"
    assert told["https_proxy"] == "http://***@proxy:3128/"
    assert "secret" not in str(told)


def test_a_folder_that_is_not_there_is_told_by_its_parent(tmp_path: Path) -> None:
    told = storage.describe(tmp_path / "cache" / "yoked")

    assert (told["exists"], told["writable"], told["error"]) == (False, True, None)
    assert told["free_bytes"] > 0
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_a_disk_that_is_not_there_is_in_the_way_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / ".cache").symlink_to(tmp_path / "media" / "ssd")

    told = storage.describe(tmp_path / ".cache" / "yoked")

    assert told["writable"] is False
    assert told["error"].startswith("ENOENT: ")
    assert told["blocked"] == str(tmp_path / ".cache")
    assert told["link_to"] == str(tmp_path / "media" / "ssd")
    # As a launch would find it.
    with pytest.raises(FileNotFoundError):
        private_folder(tmp_path / ".cache" / "yoked")


@pytest.mark.parametrize("below", ["", "yoked/jobs"])
def test_a_file_is_in_the_way_of_a_folder(below: str, tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")

    told = storage.describe(tmp_path / "state" / below)

    assert told["error"].startswith("ENOTDIR: ")
    assert (told["blocked"], told["link_to"]) == (str(tmp_path / "state"), None)


def test_a_link_to_a_folder_is_in_nobodys_way(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / ".cache").symlink_to("disk")

    told = storage.describe(tmp_path / ".cache" / "yoked")

    assert (told["writable"], told["blocked"]) == (True, None)


def test_libraries_that_are_forced_on_every_program_are_told(tmp_path: Path) -> None:
    settings = tmp_path / "ld.so.preload"
    assert environ.probe_preload(settings) == []

    settings.write_text(
        "# of IT\n/usr/lib/arm-linux-gnueabihf/libarmmem-${PLATFORM}.so\n/a.so:/b.so\n"
    )

    assert environ.probe_preload(settings) == ["/a.so", "/b.so"]


def test_a_folder_to_which_files_may_only_be_added_is_none_to_work_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert storage.describe(tmp_path)["marks"] is None
    # FS_APPEND_FL of linux/fs.h; to set it takes root, and a file system that has it.
    monkeypatch.setattr(storage.fcntl, "ioctl", lambda *_: (0x20).to_bytes(8, sys.byteorder))

    told = storage.describe(tmp_path)

    assert (told["writable"], told["marks"]) == (False, "a") or sys.platform != "linux"


@LINUX
def test_a_folder_that_cannot_be_written_says_why() -> None:
    told = storage.describe(Path("/proc/self"))

    assert told["writable"] is False
    assert told["error"].startswith("E")


def test_the_mount_of_a_folder_is_the_nearest_and_the_latest(tmp_path: Path) -> None:
    home = tmp_path.resolve()
    mounts = "\n".join(
        [
            "1 0 8:1 / / rw - ext4 /dev/sda1 rw",
            f"2 1 0:5 / {home} rw - ext4 /dev/sdb1 rw",
            f"3 2 0:6 / {home} ro,noexec - nfs4 server:/home rw",
            f"4 1 0:7 / {home}-other rw - tmpfs tmpfs rw",
        ]
    )

    assert storage.filesystem_of(home / "runs", mounts) == "nfs4"
    assert storage.filesystem_of(home.parent, mounts) == "ext4"
    assert mount_of(home / "runs", mounts) == {
        "place": str(home),
        "filesystem": "nfs4",
        "source": "server:/home",
        "options": "ro,noexec,rw",
    }


@LINUX
def test_who_listens_on_a_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]

        told = answer_health(FakeCall(parts=["ports"], ports=[port]))["ports"]

    assert [each["pid"] for each in told["owners"][str(port)]] == [os.getpid()]
    assert told["range"][0] < told["range"][1]


@contextmanager
def left_behind(*argv: str, **env: str) -> Iterator[int]:
    """A process whose parent is gone; its number."""
    script = '"$@" >/dev/null 2>&1 & echo $!'
    done = subprocess.run(
        ["sh", "-c", script, "sh", *(argv or ("sleep", "60"))],
        env={**os.environ, **env}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    pid = int(done.stdout)
    try:
        yield pid
    finally:
        os.kill(pid, 9)


@LINUX
def test_a_rank_that_lost_its_launcher_is_stale() -> None:
    with left_behind(RANK="0", WORLD_SIZE="2") as pid, left_behind() as other:
        told = stale_processes.probe_processes()

    assert told is not None
    found = {each["pid"]: each for each in told["stale"]}
    assert pid in found
    assert other not in found
    assert found[pid]["command"] == "sleep 60"
    assert found[pid]["run"] is None
    assert found[pid]["age_s"] < 60


_LAUNCH = """
import os, subprocess, sys, time
rank = subprocess.Popen(["sleep", "60"], env={**os.environ, "RANK": "0", "WORLD_SIZE": "2"})
open(sys.argv[1], "w").write(f"{rank.pid}\\n")
rank.wait()
"""


@LINUX
@pytest.mark.parametrize("env", [{}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_training_that_goes_on_after_a_logout_is_not_stale(
    tmp_path: Path, env: dict[str, str]
) -> None:
    program, note = tmp_path / "torchrun", tmp_path / "rank"
    program.write_text(_LAUNCH)
    with left_behind(sys.executable, str(program), str(note), **env) as launcher:
        until_s = time.monotonic() + 20
        while not note.exists() or not note.read_text().endswith("\n"):
            assert time.monotonic() < until_s
            time.sleep(0.02)
        rank = int(note.read_text())
        told = stale_processes.probe_processes()
        os.kill(rank, 9)

    assert told is not None
    assert not {launcher, rank} & {each["pid"] for each in told["stale"]}


@pytest.mark.parametrize(
    ("command", "starts"),
    [
        ("/opt/env/bin/python /opt/env/bin/torchrun train.py", True),
        ("python3 train.py", True),
        ("/usr/bin/python3.12 -m torch.distributed.run train.py", True),
        ("bash -c torchrun train.py", True),
        ("/sbin/init splash", False),
        ("sleep infinity", False),
        ("/usr/sbin/sshd -D", False),
    ],
)
def test_the_first_process_of_a_container_may_be_a_launcher(command: str, starts: bool) -> None:
    assert stale_processes.starts_ranks(command) is starts


@LINUX
def test_a_program_that_computes_is_seen_though_the_doctor_takes_its_core() -> None:
    cpu = min(os.sched_getaffinity(0))
    loop = f"import os; os.sched_setaffinity(0, [{cpu}])\nwhile True: pass"
    with left_behind(sys.executable, "-c", loop) as pid, ExitStack() as own:
        for _ in range(4):
            child = own.enter_context(subprocess.Popen([sys.executable, "-c", loop]))
            own.callback(child.kill)
        time.sleep(0.5)
        told = stale_processes.probe_processes()

    assert told is not None
    assert {each["pid"]: each["cores"] for each in told["busy"]}.get(pid) == 1.0


@LINUX
def test_what_this_agent_started_is_nobody_elses() -> None:
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        try:
            time.sleep(0.2)
            told = stale_processes.probe_processes()
        finally:
            child.kill()

    assert told is not None
    assert child.pid not in {each["pid"] for each in told["busy"]}
