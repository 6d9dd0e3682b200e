"""Who listens on a port, without this agent itself."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import listeners
from yoked.agent.jobfolder import JobFolder
from yoked.agent.listeners import Row, leave_out, listener_owners, listeners_of


def test_the_agents_own_listeners_take_no_port() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        before = listener_owners(port)
        leave_out(server)
        after = listener_owners(port)

    assert [each["pid"] for each in before] == [os.getpid()]
    assert after == []


def test_a_connection_that_was_begun_and_not_confirmed_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rest = "00000000:00000000 01:00000063 00000001     0        0 0 1 0"
    begun = "0100007F" if sys.byteorder == "little" else "7F000001"
    table = tmp_path / "tcp"
    table.write_text(
        "  sl  local_address rem_address   st\n"
        f"   0: {begun}:9C41 {begun}:BC52 03 {rest}\n"
        f"   1: {begun}:9C41 {begun}:BC53 01 {rest}\n"
    )
    monkeypatch.setattr(listeners, "_TABLES", (str(table),))

    assert listeners.answer_half_open(FakeCall()) == [{"port": 40_001, "address": "127.0.0.1"}]

    monkeypatch.setattr(listeners, "_TABLES", (str(tmp_path / "gone"),))
    assert listeners.answer_half_open(FakeCall()) is None


OPEN = """
import socket, sys, time
families = {True: socket.AF_INET6, False: socket.AF_INET}
held = [socket.create_server((address, 0), family=families[":" in address])
        for address in sys.argv[1:]]
print(*[each.getsockname()[1] for each in held], flush=True)
time.sleep(60)
"""


@contextmanager
def program_at(launch_id: str, *addresses: str, **env: str) -> Iterator[list[int]]:
    """A program of a launch that listens at addresses; its ports."""
    process = subprocess.Popen(
        [sys.executable, "-c", OPEN, *addresses],
        env={**os.environ, "YOKED_LAUNCH_ID": launch_id, **env},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        yield [int(port) for port in process.stdout.readline().split()]
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def job_of(tmp_path: Path, launch_id: str, **more: Any) -> Path:
    folder = tmp_path / "otter"
    folder.mkdir()
    JobFolder(folder).write("job.json", {"launch_id": launch_id})
    for name, content in more.items():
        JobFolder(folder).write(f"{name}.json", content)
    return folder


@pytest.mark.skipif(sys.platform != "linux", reason="owners are found in /proc")
@pytest.mark.parametrize(
    ("launch_id", "files", "ended"),
    [
        ("a1b2", {}, False),
        ("a1b2", {"end": {"time_s": 1.0}}, True),
        ("c3d4", {}, True),
    ],
    ids=["its job is there", "its job is over", "another launch has the folder"],
)
def test_a_port_is_told_with_the_launch_of_its_owner_and_whether_that_is_over(
    tmp_path: Path, launch_id: str, files: dict[str, Any], ended: bool
) -> None:
    folder = job_of(tmp_path, launch_id, **files)

    told = {"YOKED_JOB_FOLDER": str(folder), "YOKED_RUN": folder.name}
    with program_at("a1b2", "127.0.0.1", **told) as (port,):
        (owner,) = listener_owners(port)

    assert (owner["run"], owner["launch"], owner["ended"]) == ("otter", "a1b2", ended)
    assert owner["start_ticks"] > 0


@pytest.mark.skipif(sys.platform != "linux", reason="sockets are found in /proc")
def test_what_a_program_opens_beside_the_address_of_its_run_is_told() -> None:
    with (
        # Any address of 127/8 is loopback's: nobody else reaches it.
        program_at("a1b2", "0.0.0.0", "::", "127.0.0.1", "127.9.9.9") as ports,
        program_at("c3d4", "0.0.0.0"),
    ):
        found = listeners_of("a1b2", "10.0.0.1")

    assert [(each["address"], each["port"]) for each in found] == sorted(
        [("0.0.0.0", ports[0]), ("::", ports[1])], key=lambda each: each[1]
    )
    assert all("-c" in each["command"] for each in found)


@pytest.mark.parametrize(
    ("row", "address"),
    [
        ("00000000:1F90", "0.0.0.0"),
        ("0100007F:1F90", "127.0.0.1"),
        ("0B01A8C0:1F90", "192.168.1.11"),
        ("00000000000000000000000001000000:1F90", "::1"),
        ("0000000000000000FFFF00000B01A8C0:1F90", "192.168.1.11"),
        ("000080FE00000000FF005450B6AD1DFE:1F90", "fe80::5054:ff:fe1d:adb6"),
    ],
)
@pytest.mark.skipif(sys.byteorder != "little", reason="the rows are a little-endian machine's")
def test_a_row_of_the_kernels_table_is_an_address(row: str, address: str) -> None:
    assert str(Row(row, True, 0, 0).address) == address
