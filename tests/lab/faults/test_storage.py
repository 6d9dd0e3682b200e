"""Folders and file systems that do not take what a program wants to put there."""

from __future__ import annotations

import errno
from typing import Any

import pytest

WRITE = """
import sys
try:
    with open(sys.argv[1], "wb") as file:
        file.write(bytes(int(sys.argv[2])))
    print("written")
except OSError as problem:
    print("errno", problem.errno)
"""
RUN = """
import os, subprocess
path = "/tmp/program"
with open(path, "w") as file:
    file.write("#!/bin/sh\\necho ran\\n")
os.chmod(path, 0o755)
try:
    print(subprocess.run([path], capture_output=True, text=True).stdout.strip())
except OSError as problem:
    print("errno", problem.errno)
os.unlink(path)
"""


def write(acts: Any, path: str, size_bytes: int = 10) -> str:
    said: str = acts.python("alpha", WRITE, path, size_bytes)
    return said


def test_a_read_only_folder_takes_nothing_and_others_do(acts: Any) -> None:
    acts.fault("read-only", "alpha", "/var/tmp")
    seen = write(acts, "/var/tmp/new"), write(acts, "/var/new")
    acts.heal("alpha")

    assert seen == (f"errno {errno.EROFS}", "written")
    assert write(acts, "/var/tmp/new") == "written"


@pytest.mark.slow
def test_no_program_starts_from_a_noexec_folder(acts: Any) -> None:
    acts.fault("no-exec", "alpha", "/tmp")
    seen = acts.python("alpha", RUN)
    acts.heal("alpha")

    assert seen == f"errno {errno.EACCES}"
    assert acts.python("alpha", RUN) == "ran"


def mounts_below(acts: Any, folder: str) -> list[tuple[str, bool, bool]]:
    """(folder, read-only, noexec) of the mounts of alpha at a folder and below it."""
    seen = []
    for line in acts.lab.host("alpha").read_text("/proc/self/mounts").splitlines():
        path, flags = line.split()[1], line.split()[3].split(",")
        if path.startswith(folder):
            seen.append((path, "ro" in flags, "noexec" in flags))
    return seen


@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize(
    ("lines", "left"),
    [
        (
            ("read-only alpha /var/tmp", "no-exec alpha /var/tmp"),
            [("/var/tmp", False, True), ("/var/tmp", True, False)],
        ),
        (
            ("read-only alpha /var/tmp", "no-exec alpha /var/tmp/deep"),
            [("/var/tmp/deep", False, True), ("/var/tmp", True, False)],
        ),
        (
            ("read-only alpha /var/tmp/deep", "no-exec alpha /var/tmp"),
            [("/var/tmp", False, True), ("/var/tmp/deep", True, False)],
        ),
    ],
)
def test_folders_mounted_over_each_other_are_healed_in_either_order(
    acts: Any, lines: tuple[str, ...], left: list[tuple[str, bool, bool]], first: int
) -> None:
    acts.lab.host("alpha").run(["mkdir", "-p", "/var/tmp/deep"])
    before = mounts_below(acts, "/var/tmp")

    faults = [acts.fault(*line.split()) for line in lines]
    both = mounts_below(acts, "/var/tmp")[-1]
    acts.heal(faults.pop(first).id)
    one = mounts_below(acts, "/var/tmp")
    acts.heal(faults[0].id)

    on_one_folder = lines[0].split()[2] == lines[1].split()[2]
    assert both[1:] == (True, True) or not on_one_folder
    assert one == [*before, left[first]]
    assert mounts_below(acts, "/var/tmp") == before


@pytest.mark.slow
def test_a_disk_without_inodes_takes_no_new_file(acts: Any) -> None:
    write(acts, "/var/tmp/old")

    acts.fault("no-inodes", "alpha")
    seen = [write(acts, f"/var/tmp/{number}") for number in range(3)]
    acts.heal("alpha")

    assert f"errno {errno.ENOSPC}" in seen
    assert write(acts, "/var/tmp/another") == "written"


def test_small_shared_memory_takes_no_more_than_it_has(acts: Any) -> None:
    acts.fault("small-shm", "alpha", 1)
    seen = write(acts, "/dev/shm/big", 2 << 20)
    acts.lab.host("alpha").remove("/dev/shm/big")
    acts.heal("alpha")

    assert seen == f"errno {errno.ENOSPC}"
    assert write(acts, "/dev/shm/big", 2 << 20) == "written"


@pytest.mark.slow
def test_a_battery_is_there_as_the_kernel_tells_of_one(acts: Any) -> None:
    look = "cat /sys/class/power_supply/BAT0/status /sys/class/power_supply/AC/online"

    acts.fault("battery", "alpha", 40)
    seen = acts.lab.host("alpha").run(["sh", "-c", look]).stdout
    acts.heal("alpha")

    assert seen == "Discharging\n0\n"
    assert acts.lab.host("alpha").run(["sh", "-c", look], check=False).returncode != 0
