"""What is read out of files and of what tools say."""

from __future__ import annotations

import os
import resource
import sys
import time
from pathlib import Path

import pytest

from yoked.agent import clock, counters, environ, firewall, gpus, interfaces, limits, nics, power
from yoked.agent.netlink import (
    Given,
    Neighbour,
    can_ask,
    given,
    interface_to,
    neighbours,
    queues,
    route_to,
)


def write(root: Path, name: str, content: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)


def test_nobody_says_what_logind_does_where_there_is_none(tmp_path: Path) -> None:
    assert power.logind_settings(tmp_path) == {}


def test_the_last_of_loginds_files_wins(tmp_path: Path) -> None:
    (tmp_path / "run/systemd/system").mkdir(parents=True)
    write(tmp_path, "usr/lib/systemd/logind.conf", "[Login]\nHandleLidSwitch=lock\n")
    write(tmp_path, "etc/systemd/logind.conf", "[Login]\n#HandleLidSwitch=suspend\nIdleAction=lock")
    write(tmp_path, "etc/systemd/logind.conf.d/90-me.conf", "KillUserProcesses = yes\n")
    write(tmp_path, "usr/lib/systemd/logind.conf.d/10-it.conf", "KillUserProcesses=no\n")

    assert power.logind_settings(tmp_path) == {
        "HandleLidSwitch": "suspend",
        "IdleAction": "lock",
        "KillUserProcesses": "yes",
    }


def test_a_setting_is_read_where_no_systemd_runs_too(tmp_path: Path) -> None:
    write(tmp_path, "etc/systemd/logind.conf", "KillUserProcesses=yes\n")

    assert power.logind_settings(tmp_path) == {"KillUserProcesses": "yes"}


@pytest.mark.parametrize(
    ("allowed", "expected"), [("4000000", False), ("1200000", True), ("", None)]
)
def test_a_cpu_that_is_held_down_is_throttled(
    tmp_path: Path, allowed: str, expected: bool | None
) -> None:
    for number in (0, 1):
        write(tmp_path, f"cpu{number}/cpufreq/cpuinfo_max_freq", "4000000")
        write(tmp_path, f"cpu{number}/cpufreq/scaling_max_freq", allowed if number else "4000000")
    if not allowed:
        for path in tmp_path.glob("*/cpufreq/*"):
            path.unlink()

    assert power.throttled(tmp_path, (0, 1)) is expected


def test_the_group_that_leaves_the_fewest_processes_counts(tmp_path: Path) -> None:
    write(tmp_path, "proc/self/cgroup", "0::/user/me\n")
    write(tmp_path, "groups/user/pids.max", "1000\n")
    write(tmp_path, "groups/user/pids.current", "990\n")
    write(tmp_path, "groups/user/me/pids.max", "100\n")
    write(tmp_path, "groups/user/me/pids.current", "3\n")

    found = limits.pids(tmp_path / "proc", tmp_path / "groups")

    assert found == {"max": 1000, "current": 990}


def test_no_limit_is_none() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    found = limits.probe_limits()

    expected = [None if each == resource.RLIM_INFINITY else each for each in (soft, hard)]
    assert found["nofile"] == expected


def test_a_card_that_is_off_has_no_carrier(tmp_path: Path) -> None:
    for name, content in [("flags", "0x1002"), ("mtu", "1500")]:
        write(tmp_path, f"eth0/{name}", content)

    found = nics.describe(tmp_path / "eth0")

    assert (found["up"], found["carrier"], found["mtu_bytes"]) == (False, None, 1500)


def test_what_an_interface_lies_over_is_told(tmp_path: Path) -> None:
    write(tmp_path, "eth0/flags", "0x1003")
    (tmp_path / "eth0/lower_lan0").mkdir()

    assert nics.describe(tmp_path / "eth0")["lower"] == ["lan0"]


def test_an_address_that_came_after_the_agent_is_told() -> None:
    own = [
        Given("10.0.0.1", "eth0", None, since_s=10.0),
        Given("10.0.0.3", "eth0", None, since_s=98.0),
        # About when the agent came.
        Given("10.0.0.4", "eth0", None, since_s=95.1),
    ]

    assert interfaces.fresh(own, now_s=100.0, age_s=5.0) == {"10.0.0.3"}
    # An agent that has run for long saw addresses come that are there to stay.
    assert interfaces.fresh(own, now_s=200.0, age_s=195.0) == set()


def test_a_card_at_a_tenth_of_its_speed_says_so(tmp_path: Path) -> None:
    for name, content in [("flags", "0x1003"), ("speed", "100"), ("duplex", "half")]:
        write(tmp_path, f"eth0/{name}", content)
    write(tmp_path, "eth0/carrier", "1")

    found = nics.describe(tmp_path / "eth0")

    assert (found["up"], found["carrier"], found["duplex"]) == (True, True, "half")
    assert found["speed_bit_per_s"] == 100_000_000


@pytest.mark.parametrize(
    ("content", "mac"),
    [("02:00:00:00:00:2a", "02:00:00:00:00:2a"), ("00:00:00:00:00:00", None), ("", None)],
)
def test_the_address_of_a_card_is_told(tmp_path: Path, content: str, mac: str | None) -> None:
    write(tmp_path, "eth0/address", content)

    assert nics.describe(tmp_path / "eth0")["mac"] == mac


def test_what_iw_says_is_understood() -> None:
    assert nics.saves_power("Power save: on\n") is True
    assert nics.saves_power("Power save: off\n") is False
    assert nics.saves_power("") is None


def test_the_signal_is_told_without_iw() -> None:
    wireless = "Inter-| sta-|\n face | tus |\n wlan0: 0000   54.  -56.  -256   0 0 0\n"

    assert nics.signals_of(wireless) == {"wlan0": -56.0}


@pytest.mark.parametrize("hook", ["input", "prerouting", "ingress", "output", "postrouting"])
def test_rules_at_any_hook_of_the_hosts_own_packets_decide(hook: str) -> None:
    rules = f"table inet t {{\n chain c {{\n type filter hook {hook} priority 0;\n }}\n}}"

    assert firewall.decides(rules)
    assert not firewall.decides(rules.replace("inet", "arp"))
    assert not firewall.decides(rules.replace(hook, "forward"))


def test_what_the_kernel_could_not_send_is_read_from_its_counters(tmp_path: Path) -> None:
    write(
        tmp_path,
        "net/netstat",
        "TcpExt: TCPLoss TCPRetransFail\nTcpExt: 3 7\nIpExt: InNoRoutes\nIpExt: 1\n",
    )
    write(tmp_path, "net/xfrm_stat", "XfrmInError 5\nXfrmOutNoStates 2\nXfrmOutPolBlock 1\n")

    assert counters.unsent_segments(tmp_path) == 7
    assert counters.withheld_by_ipsec(tmp_path) == 3
    assert counters.unsent_segments(tmp_path / "gone") is None
    assert counters.withheld_by_ipsec(tmp_path / "gone") is None


def test_what_is_said_of_gpus_is_understood(tmp_path: Path) -> None:
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22\n"
    for name, vendor, kind in [("a", "0x10de", "0x030000"), ("b", "0x10de", "0x040300")]:
        write(tmp_path, f"{name}/vendor", vendor)
        write(tmp_path, f"{name}/class", kind)

    assert gpus.driver_version(version) == "550.54.14"
    assert gpus.driver_version("") is None
    assert gpus.nvidia_cards(tmp_path) == 1
    assert gpus.busy_of("812, /usr/bin/python3, 4096\n\n") == [
        {"pid": 812, "command": "/usr/bin/python3", "memory_bytes": 4 << 30}
    ]


def test_the_clock_is_now() -> None:
    before_s = time.time()

    found = clock.probe_clock()

    assert before_s <= found["time_s"] <= time.time()


@pytest.mark.parametrize(
    ("in_s", "mode", "is_planned"),
    [(600, "poweroff", True), (600, "dry-poweroff", False), (-600, "reboot", False)],
)
def test_a_shutdown_that_is_planned_is_told(
    tmp_path: Path, in_s: int, mode: str, is_planned: bool
) -> None:
    assert power.planned_shutdown_s(tmp_path) is None
    folder = tmp_path / "run/systemd/shutdown"
    folder.mkdir(parents=True)

    (folder / "scheduled").write_text(
        f"USEC={int(time.time() + in_s)}000000\nWARN_WALL=1\nMODE={mode}\n"
    )

    found_s = power.planned_shutdown_s(tmp_path)
    assert (found_s is not None and 500 < found_s < 601) is is_planned


@pytest.mark.parametrize(("zone", "offset_s"), [("UTC+5", -18_000), ("UTC-5:30", 19_800)])
def test_the_clock_has_the_zone_that_a_program_would_have(
    monkeypatch: pytest.MonkeyPatch, zone: str, offset_s: int
) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        found = clock.probe_clock()
    finally:
        monkeypatch.undo()
        time.tzset()

    assert (found["zone"], found["utc_offset_s"]) == (zone, offset_s)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel")
def test_the_cpus_of_any_process_are_counted() -> None:
    assert limits.allowed_to(os.getpid()) == len(os.sched_getaffinity(0))
    # No process has that number.
    assert limits.allowed_to(1 << 30) is None


def test_what_sshd_runs_at_each_login_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environ, "_RC", (tmp_path / "rc", tmp_path / "sshrc"))
    assert environ.probe_shell()["rc"] is None

    (tmp_path / "sshrc").write_text("echo Good morning\n")

    assert environ.probe_shell()["rc"] == str(tmp_path / "sshrc")


def test_a_compiler_with_arguments_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/cc -m64")
    monkeypatch.setenv("CXX", f"{sys.executable} -m64")

    found = environ.probe_compiler()

    assert found["cxx"] == sys.executable
    assert found["cc"] != "/no/such/cc"


@pytest.mark.skipif(not can_ask(), reason="this system has no netlink")
def test_the_kernel_tells_ways_and_neighbours() -> None:
    assert interface_to("127.0.0.1") == "lo"
    assert interface_to("127.0.0.1", 40_000) == "lo"
    # There is a route to the network, and one to the very address.
    found = route_to("127.0.0.1")
    assert (found.network, found.prefix) in (("127.0.0.0", 8), ("127.0.0.1", 32))
    assert (found.gateway, found.hops, found.metrics) == (None, (), {})
    assert all(name and kinds and all(kinds) for name, kinds in queues().items())
    (own,) = (each for each in given() if each.address == "127.0.0.1")
    assert (own.interface, own.valid_s) == ("lo", None)
    assert 0.0 <= own.since_s <= time.monotonic() + 60.0
    assert all(isinstance(each, Neighbour) and each.state for each in neighbours())
