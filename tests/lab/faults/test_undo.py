"""Each fault that changes a host is undone to the letter: the host's state is compared."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from yoked.lab import faults

# Files that faults write to, and the modes of those that ssh minds.
FILES = (
    *("/etc/hosts", "/etc/passwd", "/etc/resolv.conf", "/etc/systemd/logind.conf"),
    *("/run/yoked/sshd_config", "/proc/sys/net/ipv4/ip_local_port_range"),
    *("~/.bashrc", "~/.ssh/authorized_keys", "/etc/ufw/ufw.conf", "/etc/ufw/user.rules"),
)
LOOK = """
import json, os, pathlib, shutil, sys
seen = {}
for name in sys.argv[1:]:
    path = pathlib.Path(name).expanduser()
    seen[name] = [oct(path.stat().st_mode), path.read_text()] if path.exists() else None
compilers = ("cc", "gcc", "c++", "g++")
seen["compilers"] = {name: shutil.which(name) for name in compilers}
seen["mounts"] = sorted(pathlib.Path("/proc/self/mounts").read_text().splitlines())
disk = os.statvfs("/etc")
seen["disk"] = [disk.f_blocks, disk.f_files]
print(json.dumps(seen))
"""
# One line for each kind of fault that this file is about.
LINES = (
    "client-isolation alpha",
    "interface-down alpha",
    "no-address alpha",
    "wrong-netmask alpha 32",
    "same-address alpha beta",
    "foreign-address alpha",
    "no-route alpha beta",
    "no-route alpha beta blackhole",
    "kill-switch alpha",
    "wrong-neighbour alpha beta",
    "port-range alpha 40000 40001",
    "firewall-out alpha",
    "closed-ports alpha 32768-50000",
    "connection-limit alpha 2",
    "ufw alpha",
    "firewalld alpha",
    "iptables alpha",
    "stale-name alpha beta 192.168.77.99",
    "silent-dns alpha",
    "no-ssh alpha",
    "host-key alpha",
    "loose-keys alpha",
    "login-shell alpha",
    "noisy-shell alpha",
    "exiting-shell alpha",
    "slow-shell alpha 3",
    "exported alpha RANK=1",
    "limit alpha nofile 64",
    "busy-cpu alpha",
    "taken-port alpha 29501",
    "battery alpha",
    "logout-kills alpha",
    "no-inodes alpha",
    "read-only alpha /var/tmp",
    "no-exec alpha /tmp",
    "small-shm alpha 64",
    "no-compiler alpha",
)
# Those that do not get in each other's way; the others take seconds, or the same thing.
TOGETHER = tuple(
    line
    for line in LINES
    if line.split()[0]
    not in (
        *("ufw", "firewalld", "iptables", "interface-down", "no-address", "same-address"),
        *("foreign-address", "no-ssh", "no-inodes", "read-only", "silent-dns"),
    )
    and line != "no-route alpha beta"
)
# Of kinds with a test of their own in the files beside this one, or that need a torch.
ELSEWHERE = {
    *("cut", "one-way", "slow-link", "lossy", "mtu", "firewall", "hosts-loopback", "no-resolve"),
    *("ipv6-first", "stop", "suspend", "kill", "reboot", "slow-cpu", "oom", "stale-process"),
    *("clock-skew", "disk-full", "different-torch", "broken-torch", "different-data"),
    "different-code",
}


def state(acts: Any) -> dict[str, Any]:
    """What of alpha, and of who is where, could be left changed."""
    host = acts.lab.host("alpha")
    seen: dict[str, Any] = json.loads(acts.python("alpha", LOOK, *FILES, as_root=True))
    for name, words in {
        "addresses": ["ip", "-j", "address"],
        "routes": ["ip", "route", "show", "table", "all"],
        "routes of IPv6": ["ip", "-6", "route", "show", "table", "all"],
        "rules": ["ip", "rule"],
        "fixed neighbours": ["ip", "neighbour", "show", "nud", "permanent"],
        "listeners": ["ss", "-Hltn"],
        "nft": ["nft", "list", "ruleset"],
    }.items():
        seen[name] = host.tool(words).stdout
    seen["switch"] = acts.lab.switch.tool(["nft", "list", "ruleset"]).stdout
    seen["programs"] = sorted(
        " ".join(each.command) for each in host.processes() if each.state != "Z"
    )
    return seen


def lasting(seen: dict[str, Any]) -> dict[str, Any]:
    """The state without empty tables, without the order of lines in /etc/hosts, and without what
    tells an ssh server from its first one."""
    mode, names = seen["/etc/hosts"]
    left = re.compile("yoked|firewalld|policy drop|dport")
    return {
        **seen,
        "/etc/hosts": [mode, sorted(names.splitlines())],
        "nft": [line for line in seen["nft"].splitlines() if left.search(line)],
        "switch": [line for line in seen["switch"].splitlines() if "chain" in line],
        "programs": [each for each in seen["programs"] if "sshd" not in each],
    }


def test_every_kind_of_fault_is_undone_in_a_test() -> None:
    here = {line.split()[0] for line in LINES}

    assert here | ELSEWHERE == {kind.name for kind in faults.FAULTS}
    assert not here & ELSEWHERE
    assert set(TOGETHER) <= set(LINES)


def break_it(acts: Any, line: str) -> bool:
    """Whether this machine can."""
    kind, *words = line.split()
    if faults.kind_named(kind).unsupported(acts.lab) is not None:
        return False
    acts.fault(kind, *words)
    return True


@pytest.mark.slow
def test_many_faults_of_one_host_are_undone_together(acts: Any) -> None:
    before = state(acts)

    done = [line for line in TOGETHER if break_it(acts, line)]
    during = state(acts)
    acts.heal("alpha")

    assert len(done) > len(TOGETHER) / 2
    assert lasting(during) != lasting(before)
    assert set(during["compilers"].values()) == {None}
    assert lasting(state(acts)) == lasting(before)


@pytest.mark.slow
def test_a_reboot_between_leaves_nothing_to_undo_twice(acts: Any) -> None:
    before = state(acts)

    done = [line for line in TOGETHER if break_it(acts, line)]
    broken = lasting(state(acts))
    acts.fault("reboot", "alpha")
    rebooted = lasting(state(acts))
    left = len(faults.active(acts.lab))
    acts.heal("alpha")
    healed = lasting(state(acts))

    # Somebody's programs end with the power; all else is there again.
    gone = [line for line in done if line.startswith(("busy-cpu", "taken-port"))]
    assert left == len(done) - len(gone)
    # Its interfaces and mounts have other numbers.
    for what in (*FILES, "compilers", "disk", "routes", "rules", "nft", "fixed neighbours"):
        assert rebooted[what] == broken[what]
        assert healed[what] == lasting(before)[what]


@pytest.mark.slow
@pytest.mark.parametrize("line", LINES)
def test_a_fault_is_undone_to_the_letter(acts: Any, line: str) -> None:
    before = state(acts)

    if not break_it(acts, line):
        pytest.skip(f"this machine cannot have {line}")
    during = state(acts)
    acts.heal()

    assert lasting(during) != lasting(before)
    assert lasting(state(acts)) == lasting(before)
