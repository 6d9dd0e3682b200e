"""Facts of a host, from the files and words of systems that are not this one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import facts, gpus, processors
from yoked.agent.ask import run_quiet


def write(root: Path, files: dict[str, str]) -> Path:
    for name, content in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def test_this_host_tells_what_every_caller_needs() -> None:
    told = json.loads(json.dumps(facts.answer_facts(FakeCall())))

    assert told["usable_cores"] >= 1
    assert told["cores"] <= told["threads"]
    assert told["memory_bytes"] >= told["memory_available_bytes"] > 0
    assert told["free_bytes"]["home"] > 0
    assert told["path"]
    assert Path(told["state"]).is_absolute()


def test_a_program_that_prints_no_text_is_heard_all_the_same() -> None:
    assert (
        run_quiet(["printf", r"GPU caf\351, 24564\n"]) == "GPU caf\N{REPLACEMENT CHARACTER}, 24564"
    )


def test_facts_need_nothing_but_the_standard_library() -> None:
    program = "import sys, yoked.agent.facts; print('torch' in sys.modules, 'numpy' in sys.modules)"

    said = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert said.stdout.split() == ["False", "False"]


# ---- processors ----


def cores(
    root: Path,
    siblings: list[str],
    frequencies: Sequence[int] = (),
    capacities: Sequence[int] = (),
) -> Path:
    """Frequencies and capacities of the first CPUs, or of none."""
    files = {"online": f"0-{len(siblings) - 1}\n"}
    for number, text in enumerate(siblings):
        files[f"cpu{number}/topology/thread_siblings_list"] = f"{text}\n"
    for number, frequency in enumerate(frequencies):
        files[f"cpu{number}/cpufreq/cpuinfo_max_freq"] = f"{frequency}\n"
    for number, capacity in enumerate(capacities):
        files[f"cpu{number}/cpu_capacity"] = f"{capacity}\n"
    return write(root / "cpu", files)


HYBRID = ["0-1", "0-1", "2-3", "2-3", "4", "5"]
SPEEDS = [5_100_000] * 4 + [3_900_000] * 2


def test_threads_and_slow_cores_do_not_count_as_cores_to_use(tmp_path: Path) -> None:
    cpus = cores(tmp_path, HYBRID, SPEEDS)

    told = processors.linux_facts(tmp_path, cpus, tmp_path, tuple(range(6)))

    assert told["threads"] == 6
    assert told["cores"] == 4
    assert told["fast_cores"] == told["usable_cores"] == 2


def test_affinity_leaves_fewer_cores_to_use(tmp_path: Path) -> None:
    cpus = cores(tmp_path, HYBRID, SPEEDS)

    told = processors.linux_facts(tmp_path, cpus, tmp_path, (0, 1))

    assert told["cores"] == 4
    assert told["usable_cores"] == 1


def test_threads_of_a_core_need_not_be_numbered_side_by_side(tmp_path: Path) -> None:
    cpus = cores(tmp_path, ["0,2", "1,3", "0,2", "1,3"])

    assert processors.first_of_each_core(cpus, (0, 1, 2, 3)) == (0, 1)


@pytest.mark.parametrize(
    ("frequencies", "capacities", "fast"),
    [
        ((5_700_000, 5_500_000, 5_200_000, 5_200_000), (), (0, 1, 2, 3)),
        ((2_000_000,) * 4, (446, 446, 1024, 1024), (2, 3)),
        ((4_000_000, 2_000_000), (), (0, 1, 2, 3)),
        ((4_000_000,) * 4, (1024, 446), (0, 1, 2, 3)),
    ],
    ids=[
        "boost bins of equal cores",
        "Arm: capacity before frequency",
        "a core of unknown speed is not a slow one",
        "capacities are not compared with frequencies",
    ],
)
def test_slow_cores_are_those_that_a_file_of_every_core_says_are_far_slower(
    tmp_path: Path, frequencies: Sequence[int], capacities: Sequence[int], fast: tuple[int, ...]
) -> None:
    cpus = cores(tmp_path, ["0", "1", "2", "3"], frequencies, capacities)

    assert processors.fast_cores(cpus, (0, 1, 2, 3)) == fast


def test_where_only_slow_cores_are_left_they_are_the_fast_ones(tmp_path: Path) -> None:
    assert processors.fast_cores(cores(tmp_path, HYBRID, SPEEDS), (4, 5)) == (4, 5)


def test_a_system_without_affinity_leaves_all_its_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {5, 2}, raising=False)
    assert processors.affinity() == (2, 5)

    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.setattr(os, "cpu_count", lambda: 3)
    assert processors.affinity() == (0, 1, 2)


@pytest.mark.parametrize(
    ("group", "files"),
    [
        ("0::/job/rank\n", {"job/cpu.max": "150000 100000\n", "job/rank/cpu.max": "max 100000\n"}),
        (
            "3:cpu,cpuacct:/job\n1:name=systemd:/\n",
            {
                "cpu,cpuacct/job/cpu.cfs_quota_us": "150000\n",
                "cpu,cpuacct/job/cpu.cfs_period_us": "100000\n",
            },
        ),
    ],
    ids=["version 2", "version 1"],
)
def test_a_quota_of_any_group_above_us_counts(
    tmp_path: Path, group: str, files: dict[str, str]
) -> None:
    proc = write(tmp_path / "proc", {"self/cgroup": group})
    groups = write(tmp_path / "cgroup", files)
    cpus = cores(tmp_path, ["0", "1", "2", "3"])

    told = processors.linux_facts(proc, cpus, groups, (0, 1, 2, 3))

    assert told["cpu_quota"] == 1.5
    assert told["usable_cores"] == 2


def test_a_system_that_tells_nothing_has_the_cores_of_its_affinity(tmp_path: Path) -> None:
    told = processors.linux_facts(tmp_path, tmp_path, tmp_path, (0, 1, 2))

    assert (told["cores"], told["usable_cores"], told["cpu_quota"]) == (3, 3, None)


@pytest.mark.parametrize(
    ("cpuinfo", "name"),
    [
        ("processor\t: 0\nmodel name\t: Intel(R)  Core(TM) i9\n", "Intel(R) Core(TM) i9"),
        ("processor : 0\nHardware : BCM2835\n", "BCM2835"),
    ],
)
def test_the_model_is_found_in_every_kernels_words(cpuinfo: str, name: str) -> None:
    assert processors.cpu_model(cpuinfo) == name


def test_a_mac_tells_its_performance_cores() -> None:
    told = processors.mac_facts(
        {
            "machdep.cpu.brand_string": "Apple M2 Pro",
            "hw.physicalcpu": "12",
            "hw.logicalcpu": "12",
            "hw.perflevel0.physicalcpu": "8",
        }
    )

    assert told["cpu_model"] == "Apple M2 Pro"
    assert (told["cores"], told["usable_cores"]) == (12, 8)


def test_an_old_mac_has_cores_of_one_kind() -> None:
    values = dict.fromkeys(processors.MAC_NAMES, "")

    told = processors.mac_facts({**values, "hw.physicalcpu": "4", "hw.logicalcpu": "8"})

    assert (told["cores"], told["threads"], told["usable_cores"]) == (4, 8, 4)


# ---- memory, power ----

MEMINFO = "MemTotal:       8000000 kB\nMemFree: 1000000 kB\nMemAvailable:    6000000 kB\n"


def test_memory_is_what_the_control_group_allows(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "0::/box\n"})
    groups = write(
        tmp_path / "cgroup", {"box/memory.max": "3000000000\n", "box/memory.current": "1000000000"}
    )

    told = facts.memory(proc, groups)

    assert told == {"memory_bytes": 3_000_000_000, "memory_available_bytes": 2_000_000_000}


def test_a_limit_beyond_the_machine_is_none(tmp_path: Path) -> None:
    proc = write(tmp_path / "proc", {"meminfo": MEMINFO, "self/cgroup": "4:memory:/\n"})
    groups = write(tmp_path / "cgroup", {"memory/memory.limit_in_bytes": "9223372036854771712\n"})

    told = facts.memory(proc, groups)

    assert told == {"memory_bytes": 8_192_000_000, "memory_available_bytes": 6_144_000_000}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, None),
        ({"BAT0/type": "Battery", "AC/type": "Mains", "AC/online": "1"}, False),
        ({"BAT0/type": "Battery", "AC/type": "Mains", "AC/online": "0"}, True),
        ({"BAT0/type": "Battery", "BAT0/status": "Discharging"}, True),
        ({"hid/type": "Battery", "hid/scope": "Device", "hid/status": "Discharging"}, None),
    ],
)
def test_a_laptop_tells_whether_it_is_plugged_in(
    tmp_path: Path, files: dict[str, str], expected: bool | None
) -> None:
    assert facts.on_battery(write(tmp_path, files)) is expected


def test_a_mac_tells_whether_it_is_plugged_in() -> None:
    battery = " -InternalBattery-0 (id=1) 80%; discharging; 3:10 remaining present: true\n"

    assert facts.battery_of_pmset("Now drawing from 'Battery Power'\n" + battery) is True
    assert facts.battery_of_pmset("Now drawing from 'AC Power'\n" + battery) is False
    assert facts.battery_of_pmset("Now drawing from 'AC Power'\n") is None


# ---- gpus ----


def test_nvidia_smi_is_understood() -> None:
    said = (
        "NVIDIA GeForce RTX 3090, 24576, 550.54.14, 8.6\n"
        "NVIDIA A2, [N/A], 550.54.14, [N/A]\nNo devices\n"
    )

    found = gpus.parse_nvidia_smi(said)

    assert [gpu["name"] for gpu in found] == ["NVIDIA GeForce RTX 3090", "NVIDIA A2"]
    assert [gpu["memory_bytes"] for gpu in found] == [24576 << 20, None]
    assert [gpu["capability"] for gpu in found] == ["8.6", None]
    assert {gpu["driver"] for gpu in found} == {"550.54.14"}


def test_an_old_nvidia_smi_is_asked_for_what_it_knows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\n"
        'case "$1" in *compute_cap*) echo \'Field "compute_cap" is not a valid field to query.\'\n'
        "exit 2;; esac\necho GeForce GTX 1080, 8192, 470.256.02\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/bin:/usr/bin")

    (found,) = gpus.find_gpus(tmp_path / "none", tmp_path / "none")

    assert (found["name"], found["memory_bytes"]) == ("GeForce GTX 1080", 8192 << 20)
    assert (found["driver"], found["capability"]) == ("470.256.02", None)


def test_a_card_is_found_by_its_driver_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    proc = write(
        tmp_path,
        {
            "driver/nvidia/gpus/0000:01:00.0/information": "Model: \t NVIDIA T4\nIRQ: 3\n",
            "driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14\n",
        },
    )

    (found,) = gpus.find_gpus(proc, tmp_path / "none")

    assert (found["name"], found["driver"]) == ("NVIDIA T4", "550.54.14")


def test_amds_gpus_are_told_from_its_cpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    nodes = write(
        tmp_path,
        {
            "0/properties": "cpu_cores_count 16\nsimd_count 0\n",
            "1/properties": "simd_count 192\ngfx_target_version 110001\n",
            "1/mem_banks/0/properties": "heap_type 1\nsize_in_bytes 21458059264\n",
        },
    )

    found = gpus.find_gpus(tmp_path / "none", nodes)

    assert [(gpu["name"], gpu["memory_bytes"]) for gpu in found] == [("gfx1101", 21458059264)]
    assert found[0]["integrated"] is False


@pytest.mark.parametrize(
    "properties",
    [
        "cpu_cores_count 0\nsimd_count 4\ngfx_target_version 100306\n",
        "cpu_cores_count 0\nsimd_count 32\ngfx_target_version 90012\n",
        "cpu_cores_count 8\nsimd_count 32\ngfx_target_version 0\n",
    ],
    ids=["gfx1036", "gfx90c", "one node with its processor"],
)
def test_a_gpu_of_amd_that_is_a_part_of_the_processor_is_told_from_a_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, properties: str
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    (found,) = gpus.find_gpus(tmp_path / "none", write(tmp_path, {"1/properties": properties}))

    assert found["integrated"] is True


# ---- identity ----


def machine(root: Path, boot: str, net: str) -> str:
    proc = write(root / "proc", {"sys/kernel/random/boot_id": boot})
    etc = write(root / "etc", {"machine-id": "0123456789abcdef\n"})
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "net").symlink_to(f"net:[{net}]")
    (proc / "self" / "ns" / "pid").symlink_to("pid:[2]")
    return facts.machine_identity(proc, etc)


def test_one_machine_is_one_whoever_looks(tmp_path: Path) -> None:
    first = machine(tmp_path / "a", "boot", "1")

    assert machine(tmp_path / "b", "boot", "1") == first
    assert "0123456789" not in first


def test_virtual_hosts_of_one_machine_are_several(tmp_path: Path) -> None:
    found = {machine(tmp_path / net, "boot", net) for net in ("1", "2", "3")}

    assert len(found) == 3


def test_the_clone_of_a_disk_is_another_machine(tmp_path: Path) -> None:
    assert machine(tmp_path / "a", "boot", "1") != machine(tmp_path / "b", "another", "1")
