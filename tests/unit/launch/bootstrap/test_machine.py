"""What holds a host's processors back, read from files as Linux has them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from yoked.core import proc as core_proc
from yoked.core.proc import LAUNCH_VARIABLE
from yoked.diagnosis.vitals import Machine
from yoked.launch.bootstrap.machine import MachineLooker

LAUNCH = "0123456789ab"
TICKS = os.sysconf("SC_CLK_TCK")


class Host:
    """Its files; `looks` gives what is seen of it after seconds in which files changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.now_s = 100.0
        self.write("proc/stat", "cpu  1000 0 100 5000 0 0 0 0 0 0\ncpu0 1 2 3\n")
        self.looker = MachineLooker(
            LAUNCH,
            proc=root / "proc",
            cpus=root / "cpu",
            cgroups=root / "cgroup",
            supplies=root / "power_supply",
        )

    def write(self, name: str, content: str | int) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{content}\n")

    def process(self, pid: int, name: str, cpu_s: float, launch: str = "") -> None:
        ticks = int(cpu_s * TICKS)
        rest = f"S 1 1 1 0 -1 0 0 0 0 0 {ticks} 0 0 0 20 0 1 0 777 0 0"
        self.write(f"proc/{pid}/stat", f"{pid} ({name}) {rest}")
        self.write(f"proc/{pid}/environ", f"A=b\0{LAUNCH_VARIABLE}={launch}\0" if launch else "A=b")

    def after(self, seconds: float, *, slow: bool = False) -> Machine | None:
        self.now_s += seconds
        return self.looker.look(self.now_s, slow=slow)

    def seen(self) -> Machine:
        found = self.after(10.0)
        assert found is not None
        return found


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(core_proc, "_PROC", tmp_path / "proc")
    return Host(tmp_path)


def test_a_host_that_tells_nothing_is_unknown(host: Host) -> None:
    assert host.after(0.0) is None
    assert host.seen() == Machine()


@pytest.mark.parametrize(
    ("own", "file"),
    [
        pytest.param("0::/jobs/a", "cgroup/jobs/a/cpu.stat", id="version 2"),
        pytest.param("3:cpu,cpuacct:/a", "cgroup/cpu,cpuacct/a/cpu.stat", id="version 1"),
        pytest.param("0::/of/the/machine", "cgroup/cpu.stat", id="in a container"),
    ],
)
def test_a_limit_that_stops_a_group_is_counted_in_its_periods(
    host: Host, own: str, file: str
) -> None:
    host.write("proc/self/cgroup", own)
    host.write(file, "usage_usec 9\nnr_periods 1000\nnr_throttled 500\nthrottled_usec 7")
    host.after(0.0)
    host.write(file, "usage_usec 9\nnr_periods 1100\nnr_throttled 580\nthrottled_usec 9")

    assert host.seen().limited == pytest.approx(0.8)


def test_a_group_without_a_limit_is_not_stopped(host: Host) -> None:
    host.write("proc/self/cgroup", "0::/")
    host.write("cgroup/cpu.stat", "nr_periods 0\nnr_throttled 0")
    host.after(0.0)

    assert host.seen().limited == 0.0


def test_time_that_another_machine_took_is_a_share_of_the_time_with_work(host: Host) -> None:
    host.after(0.0)
    # Idle time is none in which anything could be taken.
    host.write("proc/stat", "cpu  1060 0 110 9000 0 0 0 30 0 0")

    assert host.seen().stolen == pytest.approx(0.3)


def test_the_clock_is_that_of_the_core_that_runs_fastest(host: Host) -> None:
    for core, clock in enumerate((800_000, 1_200_000)):
        host.write(f"cpu/cpufreq/policy{core}/scaling_cur_freq", clock)
        host.write(f"cpu/cpufreq/policy{core}/cpuinfo_max_freq", 4_100_000)
    host.after(0.0)

    assert (host.seen().clock_hz, host.seen().most_hz) == (1.2e9, 4.1e9)


def test_heat_and_swap_are_told_by_the_second(host: Host) -> None:
    for core in (0, 1):
        host.write(f"cpu/cpu{core}/thermal_throttle/core_throttle_count", 5)
    host.write("proc/vmstat", "pswpin 100\npswpout 50\npgpgin 7")
    host.after(0.0)
    host.write("cpu/cpu1/thermal_throttle/core_throttle_count", 45)
    host.write("proc/vmstat", "pswpin 1100\npswpout 50\npgpgin 9999")

    seen = host.seen()
    assert seen.hot == pytest.approx(4.0)
    assert seen.swapped_bytes_per_s == pytest.approx(100 * os.sysconf("SC_PAGE_SIZE"))


def test_a_laptop_without_its_plug_runs_on_battery(host: Host) -> None:
    host.write("power_supply/BAT0/type", "Battery")
    host.write("power_supply/AC/type", "Mains")
    host.write("power_supply/AC/online", 0)
    host.after(0.0)

    assert host.seen().on_battery is True


def test_the_busiest_program_beside_the_run_is_named_while_it_is_slow(host: Host) -> None:
    host.process(11, "train", 500.0, launch=LAUNCH)
    host.process(12, "cc1plus", 3.0)
    host.process(13, "sshd", 1.0)
    host.after(0.0, slow=True)
    host.process(11, "train", 503.0, launch=LAUNCH)
    host.process(12, "cc1plus", 4.0)
    # It began since, and is of the same name.
    host.process(14, "cc1plus", 2.0)
    host.process(13, "sshd", 1.01)

    seen = host.after(2.0, slow=True)

    assert seen is not None
    assert (seen.program, seen.program_cores) == ("cc1plus", pytest.approx(1.5))


def test_processes_are_read_only_while_a_rank_is_slow(
    host: Host, monkeypatch: pytest.MonkeyPatch
) -> None:
    host.process(12, "cc1plus", 3.0)
    read = []
    plainly = Path.read_text
    monkeypatch.setattr(
        Path,
        "read_text",
        lambda path, **more: (read.append(path.parent.name), plainly(path, **more))[1],
    )
    for _ in range(10):
        host.after(10.0)
    assert "12" not in read
    # Two of these are needed, a second apart and then two.
    for _ in range(10):
        host.after(0.5, slow=True)
    assert read.count("12") == 3


def test_it_looks_rarely(host: Host) -> None:
    host.after(0.0)
    host.write("proc/stat", "cpu  1060 0 110 9000 0 0 0 30 0 0")
    assert host.after(9.0) is None
    first = host.after(1.0)
    host.write("proc/stat", "cpu  1120 0 120 9000 0 0 0 90 0 0")
    assert host.after(9.0) is first
    assert host.after(1.0) != first


def test_a_name_of_a_process_is_cut(host: Host) -> None:
    host.process(12, "x) Z (" * 50, 0.0)
    host.after(0.0, slow=True)
    host.process(12, "x) Z (" * 50, 2.0)

    seen = host.after(2.0, slow=True)

    assert seen is not None
    assert len(seen.program) == 32
