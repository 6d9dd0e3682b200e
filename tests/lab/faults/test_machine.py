"""Faults of a whole machine: power, processor, memory, disk, clock."""

from __future__ import annotations

import errno
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import LabError
from yoked.lab import faults

SOON_S = 0.7
MIB = 1 << 20
WRITE = """
import os, sys
try:
    with open(os.path.expanduser(sys.argv[1]), "wb") as file:
        file.write(bytes(100_000))
    print("written")
except OSError as problem:
    print("errno", problem.errno)
"""
# Uses so much time of the CPU, and tells how much passed on the clock.
SPIN = """
import sys, time
started_s = time.monotonic()
while time.process_time() < float(sys.argv[1]):
    pass
print(time.monotonic() - started_s)
"""


def test_a_killed_host_is_silent_and_comes_back_with_its_files(acts: Any) -> None:
    acts.lab.host("alpha").write_text("/var/tmp/kept", "here")
    before = acts.call("beta", "alpha")

    acts.fault("kill", "alpha")
    killed = acts.lab.host("alpha").alive, acts.lab.host("alpha").processes()
    answer = acts.call("beta", "alpha", patience_s=SOON_S)
    acts.heal("alpha")

    assert (before, killed) == ("passed", (False, []))
    assert answer not in ("passed", f"errno {errno.ECONNREFUSED}")
    assert acts.lab.host("alpha").read_text("/var/tmp/kept") == "here"
    assert acts.call("beta", "alpha") == "passed"


def test_a_reboot_takes_processes_and_tmp_and_leaves_files_and_no_fault(acts: Any) -> None:
    host = acts.lab.host("alpha")
    for path in ("/tmp/gone", "/var/tmp/kept"):
        host.write_text(path, "here")
    acts.resident("alpha")

    acts.fault("reboot", "alpha")

    again = acts.lab.host("alpha")
    assert again.pid != host.pid
    assert (again.exists("/tmp/gone"), again.exists("/var/tmp/kept")) == (False, True)
    assert faults.active(acts.lab) == []
    assert acts.call("beta", "alpha") == "passed"


def test_faults_of_a_rebooted_host_are_those_that_a_reboot_leaves(acts: Any) -> None:
    acts.fault("hosts-loopback", "alpha")
    acts.fault("stop", "alpha")
    acts.fault("slow-link", "alpha", "10mbit")
    acts.fault("cut", "alpha")

    acts.fault("reboot", "alpha")
    left = [fault.kind for fault in faults.active(acts.lab)]
    link, name = acts.link("alpha"), acts.resolve("alpha")
    rate = acts.lab.host("alpha").tool(["tc", "qdisc", "show", "dev", "eth0"]).stdout
    acts.heal()

    assert left == ["hosts-loopback", "slow-link", "cut"]
    assert "NO-CARRIER" in link
    assert "rate 10Mbit" in rate
    assert name == ["127.0.1.1"]
    assert acts.resolve("alpha") == [acts.address("alpha")]
    assert acts.call("beta", "alpha") == "passed"


def test_what_cannot_be_healed_without_power_is_healed_with_it(acts: Any) -> None:
    name = acts.fault("hosts-loopback", "alpha")
    acts.fault("kill", "alpha")

    acts.heal(name.id)
    (waiting,) = [fault for fault in faults.active(acts.lab) if fault.id == name.id]
    acts.heal()

    assert waiting.state == "healing"
    assert faults.active(acts.lab) == []
    assert acts.resolve("alpha") == [acts.address("alpha")]


def test_nothing_but_power_can_be_done_to_a_host_without_it(acts: Any) -> None:
    acts.fault("kill", "alpha")

    with pytest.raises(LabError) as refused:
        acts.fault("hosts-loopback", "alpha")

    assert refused.value.fix == ("yoked lab heal alpha",)
    assert [fault.kind for fault in faults.active(acts.lab)] == ["kill"]


def throttled(acts: Any) -> int:
    """In how many periods the host used up its quota."""
    for folder in acts.lab.host("alpha").group.folders:
        for line in (Path(folder) / "cpu.stat").read_text().splitlines():
            if line.startswith("nr_throttled"):
                return int(line.split()[1])
    raise AssertionError("no cpu.stat")


def test_a_slow_cpu_takes_as_many_times_longer(acts: Any) -> None:
    used_s = 0.4

    acts.fault("slow-cpu", "alpha", "0.25")
    took_s = float(acts.python("alpha", SPIN, used_s))
    acts.heal()
    before = throttled(acts)
    acts.python("alpha", SPIN, used_s)

    # A busy machine can only take longer. What it used before it began to count is let pass.
    assert took_s > 2 * used_s
    assert throttled(acts) == before


def test_who_needs_more_memory_than_there_is_gets_killed(acts: Any) -> None:
    host = acts.lab.host("alpha")
    take = ["python3", "-c", f"bytearray(b'x') * {200 * MIB}"]

    acts.fault("oom", "alpha", 100)
    small = host.run(["python3", "-c", "print('fine')"]).stdout
    killed = host.run(take, check=False).returncode
    acts.heal("alpha")

    assert small == "fine\n"
    assert killed == -signal.SIGKILL
    assert host.run(take, check=False).returncode == 0


def test_a_full_disk_takes_no_more_and_memory_file_systems_do(acts: Any) -> None:
    places = ("/var/tmp/new", "/tmp/new", "/dev/shm/new")
    full = f"errno {errno.ENOSPC}"

    acts.fault("disk-full", "alpha")
    seen = [acts.python("alpha", WRITE, place) for place in places]
    elsewhere = acts.python("beta", WRITE, "/var/tmp/new")
    acts.heal("alpha")

    assert seen == [full, "written", "written"]
    assert elsewhere == "written"
    assert acts.python("alpha", WRITE, "/var/tmp/new") == "written"


@pytest.mark.parametrize("kind", ["disk-full", "no-inodes"])
def test_a_file_is_not_touched_on_a_full_disk_where_writing_would_empty_it(
    acts: Any, kind: str
) -> None:
    acts.fault(kind, "alpha")

    with pytest.raises(LabError) as refused:
        acts.fault("hosts-loopback", "alpha")

    assert refused.value.fix == ("yoked lab heal alpha",)
    assert acts.resolve("alpha") == [acts.address("alpha")]


def test_a_wrong_clock_is_seen_by_new_programs_of_that_host_only(acts: Any) -> None:
    clocks = "import time; time.sleep(0.01); print(time.time(), time.monotonic())"

    def ahead_s(host: str) -> float:
        return float(acts.python(host, clocks).split()[0]) - time.time()

    def monotonic_s() -> float:
        return float(acts.python("alpha", clocks).split()[1])

    before_s = monotonic_s()
    acts.fault("clock-skew", "alpha", "3600")
    skewed = ahead_s("alpha"), ahead_s("beta")
    after_s = monotonic_s()
    acts.heal()

    assert skewed[0] == pytest.approx(3600, abs=60)
    assert skewed[1] == pytest.approx(0, abs=60)
    assert before_s <= after_s < before_s + 60
    assert ahead_s("alpha") == pytest.approx(0, abs=60)


def test_a_clock_can_be_behind(acts: Any) -> None:
    fault = acts.fault("clock-skew", "alpha", "-90.5")

    now_s = float(acts.python("alpha", "import time; print(time.time())"))
    assert {"alpha", "90.5"} <= set(fault.text.split())
    assert now_s - time.time() == pytest.approx(-90.5, abs=30)
