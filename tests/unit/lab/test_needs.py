from __future__ import annotations

import platform
from dataclasses import replace

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError
from yoked.lab import needs
from yoked.lab.cgroups import hierarchies
from yoked.lab.needs import Cgroups, Facts, Need

TOOLS = ("ip", "tc", "ssh", "ssh-keygen", "sshd", "nft")
FEATURES = ("veth", "bridge", "tbf", "netem", "overlay")
ALL = frozenset({"cpu", "memory", "freezer"})
SCOPE = "systemd-run --user --scope -p Delegate=yes yoked lab up"
# A machine that has everything.
DESKTOP = Facts(
    distribution=("debian",),
    kernel="6.12.0-amd64",
    programs={name: f"/usr/sbin/{name}" for name in TOOLS},
    faketime="/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1",
    filesystems=frozenset({"tmpfs", "overlay"}),
    probe=dict.fromkeys(("namespaces", *FEATURES), ""),
    loadable=frozenset(),
    cgroups=Cgroups("v2", ALL),
)


def judged(name: str, facts: Facts) -> Need:
    return next(need for need in needs.judge(facts) if need.name == name)


def without(*tools: str) -> dict[str, str]:
    return {name: path for name, path in DESKTOP.programs.items() if name not in tools}


def with_probe(**results: str) -> dict[str, str]:
    return {**DESKTOP.probe, **results}


def test_a_complete_machine_has_no_unmet_need() -> None:
    found = needs.judge(DESKTOP)

    assert [need for need in found if not need.ok or need.fix] == []
    needs.require(found)


def test_another_system_needs_linux_and_nothing_else() -> None:
    (need,) = needs.judge(Facts(system="Darwin"))

    assert (need.ok, need.required) == (False, True)
    assert "Darwin" in need.detail
    assert "virtual machine" in need.fix


@pytest.mark.parametrize(
    ("tool", "debian", "fedora", "arch"),
    [
        ("ip", "apt install iproute2", "dnf install iproute", "pacman -S iproute2"),
        ("tc", "apt install iproute2", "dnf install iproute-tc", "pacman -S iproute2"),
        ("nft", "apt install nftables", "dnf install nftables", "pacman -S nftables"),
        ("ssh-keygen", "apt install openssh-client", "dnf install openssh", "pacman -S openssh"),
    ],
)
def test_a_missing_tool_names_the_package_of_its_distribution(
    tool: str, debian: str, fedora: str, arch: str
) -> None:
    facts = replace(DESKTOP, programs=without(tool))

    fixes = [
        judged(tool, replace(facts, distribution=ids)).fix
        for ids in (("linuxmint", "ubuntu", "debian"), ("rocky", "rhel", "fedora"), ("arch",))
    ]

    assert fixes == [f"sudo {debian}", f"sudo {fedora}", f"sudo {arch}"]


def test_a_missing_tool_of_an_unknown_distribution_is_named_all_the_same(
    snapshot: SnapshotAssertion,
) -> None:
    need = judged("tc", replace(DESKTOP, programs=without("tc"), distribution=("void",)))

    assert not need.ok
    assert need.fix == snapshot


def test_debian_is_told_that_the_ssh_server_would_also_serve_the_machine() -> None:
    facts = replace(DESKTOP, programs=without("sshd"))

    assert "disable --now ssh" in judged("sshd", facts).fix
    assert "disable" not in judged("sshd", replace(facts, distribution=("fedora",))).fix


def test_what_only_faults_use_does_not_stop_a_lab() -> None:
    facts = replace(DESKTOP, programs=without("nft", "sshd"), faketime=None)

    found = needs.judge(facts)

    assert {need.name for need in found if not need.ok} == {"nft", "sshd", "libfaketime"}
    needs.require(found)


def test_all_that_is_missing_is_told_at_once_and_each_fix_once() -> None:
    probe = with_probe(tbf="Specified qdisc kind is unknown", netem="unknown")
    facts = replace(DESKTOP, programs=without("ip", "tc", "nft"), probe=probe)

    with pytest.raises(LabError) as caught:
        needs.require(needs.judge(facts))

    assert all(f"{name}: " in caught.value.what for name in ("ip", "tc", "tbf"))
    assert "netem" not in caught.value.what
    assert caught.value.fix[0] == "sudo apt install iproute2"
    assert len(caught.value.fix) == 2


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("kernel.unprivileged_userns_clone", 0),
        ("user.max_user_namespaces", 0),
        ("kernel.apparmor_restrict_unprivileged_userns", 1),
    ],
)
def test_the_sysctl_that_closes_user_namespaces_is_named(
    key: str, value: int, snapshot: SnapshotAssertion
) -> None:
    probe = {"namespaces": "unshare failed: Operation not permitted"}

    need = judged("namespaces", replace(DESKTOP, probe=probe, sysctls={key: value}))

    assert (need.ok, need.required) == (False, True)
    assert key in need.detail
    assert need.fix == snapshot


def test_a_restriction_that_this_program_is_free_of_is_no_finding() -> None:
    restricted = {"kernel.apparmor_restrict_unprivileged_userns": 1}

    assert judged("namespaces", replace(DESKTOP, sysctls=restricted)).ok


def test_without_an_attempt_the_sysctls_decide() -> None:
    closed = {"user.max_user_namespaces": 0}

    assert not judged("namespaces", replace(DESKTOP, probe={}, sysctls=closed)).ok
    assert judged("namespaces", replace(DESKTOP, probe={}, sysctls={})).ok


def test_root_in_a_container_is_sent_out_of_it_and_not_to_a_sysctl() -> None:
    probe = {"namespaces": "unshare failed: Operation not permitted"}
    sysctls = {"kernel.unprivileged_userns_clone": 0, "user.max_user_namespaces": 0}

    need = judged("namespaces", replace(DESKTOP, is_root=True, probe=probe, sysctls=sysctls))

    assert "container" in need.fix
    assert "sysctl" not in need.fix


def test_netem_is_wished_for_and_its_module_named() -> None:
    facts = replace(DESKTOP, probe=with_probe(netem="Specified qdisc kind is unknown"))

    unloaded = judged("netem", replace(facts, loadable=frozenset({"sch_netem"})))
    ubuntu = judged("netem", replace(facts, distribution=("ubuntu", "debian")))
    fedora = judged("netem", replace(facts, distribution=("fedora",)))
    bare = judged("netem", replace(facts, distribution=("ubuntu",), loadable=None))

    assert (unloaded.ok, unloaded.required) == (False, False)
    assert unloaded.fix == "sudo modprobe sch_netem"
    assert ubuntu.fix == "sudo apt install linux-modules-extra-$(uname -r)"
    assert fedora.fix == "sudo dnf install kernel-modules-extra-$(uname -r)"
    assert "CONFIG_NET_SCH_NETEM" in bare.fix


def test_an_overlay_that_is_a_module_is_named() -> None:
    facts = replace(
        DESKTOP,
        filesystems=frozenset({"tmpfs"}),
        probe=with_probe(overlay="unknown filesystem type 'overlay'"),
        loadable=frozenset({"overlay"}),
    )

    need = judged("overlay", facts)

    assert (need.ok, need.required, need.fix) == (False, True, "sudo modprobe overlay")


def test_an_overlay_that_users_may_not_mount_asks_for_root() -> None:
    facts = replace(DESKTOP, probe=with_probe(overlay="mount failed: Operation not permitted"))

    assert "as root" in judged("overlay", facts).fix


def test_what_could_not_be_tried_is_not_judged() -> None:
    names = {need.name for need in needs.judge(replace(DESKTOP, probe={"namespaces": "no"}))}

    assert names.isdisjoint({"veth", "bridge", "tbf", "netem"})
    assert "overlay" in names


@pytest.mark.parametrize(
    ("groups", "is_root", "fix"),
    [
        (Cgroups("v2", frozenset(), ALL), False, SCOPE),
        (Cgroups("v2", frozenset(), ALL - {"cpu"}), False, "Delegate=cpu cpuset io memory pids"),
        (Cgroups("v1"), False, "run yoked as root"),
        (Cgroups("v2", ALL - {"memory"}), True, "cgroup_enable=memory"),
        (Cgroups("v1"), True, "outside of containers"),
    ],
)
def test_missing_controllers_are_told_with_the_way_to_get_them(
    groups: Cgroups, is_root: bool, fix: str
) -> None:
    need = judged("cgroups", replace(DESKTOP, cgroups=groups, is_root=is_root))

    assert (need.ok, need.required) == (False, False)
    assert fix in need.fix


HYBRID = """\
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory
37 31 0:34 / /sys/fs/cgroup/freezer ro,relatime - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw
20 18 0:19 / /proc rw - proc proc rw
"""
V2_ONLY = "30 23 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
MANAGER = "/sys/fs/cgroup/user.slice/user-1000.slice/user@1000.service"


def test_root_on_hybrid_cgroups_uses_the_old_controllers_and_either_freezer() -> None:
    writable = {
        "/sys/fs/cgroup/cpu,cpuacct",
        "/sys/fs/cgroup/memory",
        "/sys/fs/cgroup/unified",
        "/sys/fs/cgroup/unified/cgroup.procs",
    }

    found = needs.find_cgroups(
        hierarchies(HYBRID, "0::/\n"), 0, read=lambda path: "", writable=writable.__contains__
    )

    assert found == Cgroups("v1 and v2", ALL)


def test_a_user_on_old_cgroups_may_use_what_he_was_given() -> None:
    own = "4:memory:/mine\n2:cpu,cpuacct:/\n1:freezer:/\n0::/\n"
    writable = {"/sys/fs/cgroup/memory/mine"}

    found = needs.find_cgroups(
        hierarchies(HYBRID, own), 1000, read=lambda path: "", writable=writable.__contains__
    )

    assert found.usable == {"memory"}


def test_a_login_session_has_no_group_of_its_own_but_its_manager_has() -> None:
    files = {f"{MANAGER}/cgroup.controllers": "cpu memory pids\n"}

    found = needs.find_cgroups(
        hierarchies(V2_ONLY, "0::/user.slice/user-1000.slice/session-3.scope\n"),
        1000,
        read=lambda path: files.get(path, ""),
        writable=lambda path: path.startswith(MANAGER),
    )

    assert found == Cgroups("v2", frozenset(), ALL)


def test_a_delegated_scope_is_usable() -> None:
    group = "/user.slice/user-1000.slice/user@1000.service/app.slice/run-1.scope"
    files = {f"/sys/fs/cgroup{group}/cgroup.controllers": "memory pids\n"}

    found = needs.find_cgroups(
        hierarchies(V2_ONLY, f"0::{group}\n"),
        1000,
        read=lambda path: files.get(path, ""),
        writable=lambda path: path.startswith(MANAGER),
    )

    assert found.usable == {"memory", "freezer"}


def test_a_machine_without_cgroups_says_so() -> None:
    found = needs.find_cgroups([], 0, read=lambda path: "", writable=lambda path: True)

    assert found == Cgroups("none")


def test_attempts_are_read_with_the_reason_of_their_failure(snapshot: SnapshotAssertion) -> None:
    output = "yes namespaces\nyes veth\nno netem Error: Specified qdisc kind is unknown.\nno tbf\n"

    assert needs.read_probe(output, "") == snapshot
    assert needs.read_probe("", "unshare: unshare failed:\n Operation not permitted\n") == {
        "namespaces": "unshare: unshare failed: Operation not permitted"
    }


@pytest.mark.skipif(platform.system() != "Linux", reason="namespaces are Linux's")
def test_this_machine_is_looked_at_without_leaving_anything_behind() -> None:
    before = needs._read("/proc/self/mounts")

    facts = needs.gather()

    # Namespaces come first: nothing else is tried, or is there to be told, without them.
    assert not facts.probe or next(iter(facts.probe)) == "namespaces"
    assert {need.name for need in needs.judge(facts)} >= {"Linux", "ip", "namespaces", "cgroups"}
    assert needs._read("/proc/self/mounts") == before


def test_without_unshare_nothing_is_tried() -> None:
    assert needs.probe_kernel(False, None, "/usr/sbin/ip", "/usr/sbin/tc") == {}
