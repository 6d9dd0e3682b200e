from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import LabError
from yoked.lab import cgroups, hostgroup
from yoked.lab.cgroups import Cgroups, Hierarchy
from yoked.lab.hostgroup import CONTROLLERS, HostGroup

V2_ONLY = "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
HYBRID = """\
31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
35 31 0:32 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory
36 31 0:33 / /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices
37 31 0:34 / /sys/fs/cgroup/freezer rw - cgroup cgroup rw,freezer
41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
"""
HYBRID_OWN = """\
6:freezer:/
5:devices:/
4:memory:/batch/job7
2:cpu,cpuacct:/
0::/
"""
MIB = 2**20


def group_v2(folder: Path, *, cpu: bool = True, memory: bool = True) -> HostGroup:
    """A host's folder as the kernel of a version 2 machine fills it."""
    files = {"cgroup.procs": "", "cgroup.freeze": "0", "cgroup.events": "populated 0\nfrozen 0\n"}
    if cpu:
        files["cpu.max"] = "max 100000"
    if memory:
        files |= {"memory.max": "max", "memory.swap.max": "max"}
    return HostGroup("alpha", (filled(folder / "alpha", files),), ("said why",))


def group_v1(folder: Path, *, swap: bool = True) -> HostGroup:
    cpu = {"cgroup.procs": "", "cpu.cfs_quota_us": "-1", "cpu.cfs_period_us": "100000"}
    memory = {"cgroup.procs": "", "memory.limit_in_bytes": "9223372036854771712"}
    if swap:
        memory["memory.memsw.limit_in_bytes"] = "9223372036854771712"
    freezer = {"cgroup.procs": "", "freezer.state": "THAWED"}
    trees = {"cpu": cpu, "memory": memory, "freezer": freezer}
    return HostGroup("alpha", tuple(filled(folder / name, files) for name, files in trees.items()))


def filled(folder: Path, files: dict[str, str]) -> Path:
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return folder


def test_a_version_two_machine_has_one_tree_and_knows_our_place_in_it() -> None:
    (tree,) = cgroups.hierarchies(V2_ONLY, "0::/user.slice/run-7.scope\n")

    assert tree == Hierarchy(
        mount=Path("/sys/fs/cgroup"),
        version=2,
        controllers=frozenset(),
        own=Path("/sys/fs/cgroup/user.slice/run-7.scope"),
    )


def test_a_hybrid_machine_has_version_two_first_and_only_trees_of_use() -> None:
    trees = cgroups.hierarchies(HYBRID, HYBRID_OWN)

    assert [(tree.mount.name, tree.version, set(tree.controllers)) for tree in trees] == [
        ("unified", 2, set()),
        ("cpu,cpuacct", 1, {"cpu"}),
        ("freezer", 1, {"freezer"}),
        ("memory", 1, {"memory"}),
    ]
    assert trees[-1].own == Path("/sys/fs/cgroup/memory/batch/job7")


@pytest.mark.parametrize(
    ("root", "own", "place"),
    [
        ("/docker/abc", "/docker/abc", "/sys/fs/cgroup"),
        ("/docker/abc", "/docker/abc/inner", "/sys/fs/cgroup/inner"),
        ("/", "/../elsewhere", "/sys/fs/cgroup"),
        ("/docker/abc", "/system.slice", "/sys/fs/cgroup"),
    ],
)
def test_our_place_is_relative_to_what_a_container_has_mounted(
    root: str, own: str, place: str
) -> None:
    (tree,) = cgroups.hierarchies(V2_ONLY.replace(" / ", f" {root} "), f"0::{own}\n")

    assert tree.own == Path(place)


def test_a_mount_with_a_space_in_its_name_is_read() -> None:
    (tree,) = cgroups.hierarchies(V2_ONLY.replace("/sys/fs/cgroup", "/my\\040groups"), "0::/\n")

    assert tree.mount == Path("/my groups")


@pytest.mark.parametrize(("cores", "text"), [(0.5, "5150"), (4.0, "40000"), (0.1, "1270")])
def test_a_share_becomes_a_quota_of_a_ten_millisecond_period_with_its_warm_up(
    tmp_path: Path, cores: float, text: str
) -> None:
    new, old = group_v2(tmp_path / "new"), group_v1(tmp_path / "old")

    new.set_cpu(cores)
    old.set_cpu(cores)

    assert (new.folders[0] / "cpu.max").read_text() == f"{text} 10000"
    assert (old.folders[0] / "cpu.cfs_quota_us").read_text() == text
    assert (old.folders[0] / "cpu.cfs_period_us").read_text() == "10000"


def test_no_share_is_no_quota(tmp_path: Path) -> None:
    new, old = group_v2(tmp_path / "new"), group_v1(tmp_path / "old")
    for group in (new, old):
        group.set_cpu(0.5)
        group.set_cpu(None)

    assert (new.folders[0] / "cpu.max").read_text() == "max 10000"
    assert (old.folders[0] / "cpu.cfs_quota_us").read_text() == "-1"


@pytest.mark.parametrize("make", [group_v1, group_v2])
def test_too_small_a_share_names_the_smallest(
    tmp_path: Path, make: Callable[[Path], HostGroup], snapshot: SnapshotAssertion
) -> None:
    group = make(tmp_path)

    with pytest.raises(LabError) as caught:
        group.set_cpu(0.05)
    assert str(caught.value) == snapshot


def test_a_limit_of_memory_leaves_no_way_out_into_swap(tmp_path: Path) -> None:
    new, old = group_v2(tmp_path / "new"), group_v1(tmp_path / "old")
    for group in (new, old):
        group.set_memory(64 * MIB)

    assert (new.folders[0] / "memory.max").read_text() == str(64 * MIB)
    assert (new.folders[0] / "memory.swap.max").read_text() == "0"
    assert (old.folders[1] / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert (old.folders[1] / "memory.memsw.limit_in_bytes").read_text() == str(64 * MIB)


def test_a_lifted_limit_of_memory_gives_swap_back(tmp_path: Path) -> None:
    new, old = group_v2(tmp_path / "new"), group_v1(tmp_path / "old")
    for group in (new, old):
        group.set_memory(64 * MIB)
        group.set_memory(None)

    assert (new.folders[0] / "memory.max").read_text() == "max"
    assert (new.folders[0] / "memory.swap.max").read_text() == "max"
    assert (old.folders[1] / "memory.memsw.limit_in_bytes").read_text() == "-1"


def test_memory_is_limited_where_the_kernel_does_not_count_swap(tmp_path: Path) -> None:
    group = group_v1(tmp_path, swap=False)

    group.set_memory(64 * MIB)

    assert (group.folders[1] / "memory.limit_in_bytes").read_text() == str(64 * MIB)
    assert not (group.folders[1] / "memory.memsw.limit_in_bytes").exists()


def test_what_is_not_there_is_refused_with_the_reason(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    group = group_v2(tmp_path, cpu=False, memory=False)

    assert [name for name in CONTROLLERS if group.can(name)] == ["freezer"]
    with pytest.raises(LabError) as caught:
        group.set_cpu(0.5)
    assert str(caught.value) == snapshot
    with pytest.raises(LabError) as caught:
        group.set_memory(MIB)
    assert str(caught.value) == snapshot


def test_a_host_that_does_not_freeze_in_time_is_told_and_thawed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(hostgroup, "until", lambda ready, _limit_s: ready())
    group = group_v2(tmp_path)

    with pytest.raises(LabError) as caught:
        group.freeze()
    assert str(caught.value) == snapshot

    assert (group.folders[0] / "cgroup.freeze").read_text() == "0"


def test_a_host_without_groups_has_no_processes_and_thaws_without_harm() -> None:
    group = HostGroup("alpha", ())

    group.thaw()

    assert group.procs() == group.procs_files == []
    assert not group.frozen


def test_processes_of_all_groups_and_those_below_are_found_once(tmp_path: Path) -> None:
    group = group_v1(tmp_path)
    (group.folders[0] / "cgroup.procs").write_text("12\n7\n")
    (group.folders[1] / "cgroup.procs").write_text("7\n0\n")
    filled(group.folders[2] / "inner", {"cgroup.procs": "40\n"})

    assert group.procs() == [7, 12, 40]


def test_a_user_who_was_given_nothing_is_told_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    tree = Hierarchy(tmp_path, 2, frozenset(), tmp_path / "session-2.scope")
    monkeypatch.setattr(cgroups, "trees_here", lambda: [tree])

    found = Cgroups.find("1a2b", is_root=False)

    assert found.folders == ()
    (note,) = found.notes
    assert note == snapshot
    assert "no freezer" in note


def test_a_machine_without_control_groups_is_told_as_such(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(cgroups, "trees_here", list)

    found = Cgroups.find("1a2b", is_root=True)

    assert found.notes[0] == snapshot
    assert found.host("alpha").procs_files == []


def test_a_folder_in_a_group_that_others_use_gets_no_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = filled(
        tmp_path / "terminal.scope",
        {"cgroup.procs": "1\n", "cgroup.controllers": "cpu memory", "cgroup.subtree_control": ""},
    )
    # No process is kin of another; so the one in this group is a stranger's.
    monkeypatch.setattr(cgroups, "_ancestors", lambda pid: [pid])
    monkeypatch.setattr(cgroups, "trees_here", lambda: [Hierarchy(tmp_path, 2, frozenset(), own)])

    found = Cgroups.find("1a2b", is_root=False)

    assert found.folders == (own / "yoked-lab-1a2b",)
    assert (own / "cgroup.subtree_control").read_text() == ""
    assert not (own / "yoked-cli").exists()


def test_a_delegated_group_of_our_own_hands_its_controllers_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = filled(
        tmp_path / "run-7.scope",
        {"cgroup.procs": f"{os.getpid()}\n", "cgroup.controllers": "cpu memory pids"},
    )
    monkeypatch.setattr(cgroups, "_is_delegated", lambda group: group == own)
    monkeypatch.setattr(cgroups, "trees_here", lambda: [Hierarchy(tmp_path, 2, frozenset(), own)])
    filled(own / "yoked-lab-1a2b", {"cgroup.controllers": "cpu memory", "cgroup.freeze": "0"})

    found = Cgroups.find("1a2b", is_root=False)

    assert (own / "yoked-cli" / "cgroup.procs").read_text() == str(os.getpid())
    # A file keeps the last word, the kernel every one.
    assert (own / "cgroup.subtree_control").read_text() == "+memory"
    assert (found.folders[0] / "cgroup.subtree_control").exists()


def test_the_next_lab_of_the_same_scope_goes_beside_our_leaf(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scope = filled(tmp_path / "run-7.scope", {"cgroup.procs": "", "cgroup.controllers": ""})
    leaf = filled(scope / "yoked-cli", {"cgroup.procs": f"{os.getpid()}\n"})
    filled(scope / "yoked-lab-1a2b", {"cgroup.controllers": ""})
    monkeypatch.setattr(cgroups, "trees_here", lambda: [Hierarchy(tmp_path, 2, frozenset(), leaf)])

    found = Cgroups.find("1a2b", is_root=False)

    assert found.folders == (scope / "yoked-lab-1a2b",)


def test_a_host_has_only_the_groups_that_are_there(tmp_path: Path) -> None:
    for path in ("one/alpha", "one/beta", "two/beta"):
        (tmp_path / path).mkdir(parents=True)

    alpha, beta = Cgroups("1a2b", (tmp_path / "one", tmp_path / "two")).hosts()

    assert alpha.procs_files == [tmp_path / "one" / "alpha" / "cgroup.procs"]
    assert beta.folders == (tmp_path / "one" / "beta", tmp_path / "two" / "beta")
