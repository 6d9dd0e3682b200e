"""A lab that goes down leaves nothing behind, whoever is killed at whatever moment."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.lab.lab import Lab, down_all, labs_folder
from yoked.lab.process import until
from yoked.lab.topology_load import load

DEADLINE_S = 60.0
UP = """
import sys
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load
lab = Lab.up(load(sys.argv[1]), tethered=sys.argv[2] == "tethered")
print(lab.id, flush=True)
sys.stdin.read()
"""
# What is there first when `up` has come so far: claimed, keeper, keys, hosts, client, all.
MOMENTS = ["claim.json", "keeper.json", "ssh/id_ed25519", "beta.log", "ssh_config", "lab.json"]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """`down_all` of these tests must not reach the labs of others."""
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    yield
    down_all()


def left_of(lab_id: str) -> list[str]:
    """What a person would find of a lab on this machine."""
    return [*_processes(lab_id), *_groups(lab_id), *_mounts(lab_id), *_links(), *_folders()]


def _processes(lab_id: str) -> Iterator[str]:
    marked = f"YOKED_LAB={lab_id}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if marked in (folder / "environ").read_bytes().split(b"\0"):
                yield f"process {folder.name}: {(folder / 'cmdline').read_text()}"


def _groups(lab_id: str) -> Iterator[str]:
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        yield from (f"group {folder}/{name}" for name in names if lab_id in name)


def _mounts(lab_id: str) -> Iterator[str]:
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        if lab_id in line or "/run/hosts" in line:
            yield f"mount {line}"


def _links() -> Iterator[str]:
    """Ports and bridges; no machine calls its own so."""
    named = ("br-lan", "br-vpn", "p0-", "p1-", "p2-", "p3-")
    yield from (f"link {path.name}" for path in Path("/sys/class/net").glob("*")
                if path.name.startswith(named))  # fmt: skip


def _folders() -> Iterator[str]:
    yield from (f"folder {path}" for path in labs_folder().glob("*/"))


def namespaces(lab: Lab) -> set[str]:
    """Those of the lab's switch and hosts, which are not this process's."""
    found = set()
    for pid in (lab.init.pid, *(host.pid for host in lab.hosts.values())):
        for kind in ("mnt", "net", "pid", "uts", "ipc"):
            found.add(str(Path(f"/proc/{pid}/ns/{kind}").readlink()))
    return found - namespaces_of("self")


def namespaces_of(pid: str) -> set[str]:
    found = set()
    for link in Path(f"/proc/{pid}/ns").glob("*"):
        with contextlib.suppress(OSError):
            found.add(str(link.readlink()))
    return found


def holders(wanted: set[str], lab_id: str) -> list[str]:
    """Processes in one of these namespaces, and open files and mounts that keep one.

    Not those of another lab: the kernel gives the number of a namespace that is gone again.
    """
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        # Processes come and go; the dead wait for the machine's first process to collect them.
        with contextlib.suppress(OSError):
            if not _is_zombie(folder) and not _is_of_another(folder, lab_id):
                found += [f"{folder} in {name}" for name in namespaces_of(folder.name) & wanted]
                for link in (folder / "fd").iterdir():
                    if (target := str(link.readlink())) in wanted:
                        found.append(f"{link} -> {target}")
    mounts = Path("/proc/self/mountinfo").read_text()
    return found + [name for name in wanted if name in mounts]


def _is_of_another(folder: Path, lab_id: str) -> bool:
    named = re.findall(rb"(?<=\0)YOKED_LAB=(\w+)", b"\0" + (folder / "environ").read_bytes())
    return named not in ([], [lab_id.encode()])


def _is_zombie(folder: Path) -> bool:
    return (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"


def until_nothing_is_left(lab_id: str) -> None:
    assert until(lambda: not left_of(lab_id), DEADLINE_S, 0.02), left_of(lab_id)


def start(topology: str = "two-hosts-100mbit", how: str = "tethered") -> subprocess.Popen[str]:
    """A process that brings a lab up, says its id, and waits."""
    return subprocess.Popen(
        [sys.executable, "-c", UP, topology, how],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )


def heard_id(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    lab_id = process.stdout.readline().strip()
    assert lab_id
    return lab_id


def kill_at(process: subprocess.Popen[str], moment: str) -> str:
    """kill -9 as soon as a file is there; the id of the lab."""
    folder = labs_folder() / "two-hosts-100mbit"
    end = time.monotonic() + DEADLINE_S
    while not (folder / moment).exists():
        assert process.poll() is None
        assert time.monotonic() < end
    process.kill()
    process.wait()
    # The keeper may be taking it away already.
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((folder / "claim.json").read_text())["id"])
    return "unknown"


def test_down_leaves_nothing_of_a_lab() -> None:
    lab = Lab.up(load("vpn-and-docker"), name=f"test-{secrets.token_hex(4)}", tethered=True)
    was = namespaces(lab)
    there = left_of(lab.id)
    mounts = Path("/proc/self/mountinfo").read_text()
    with lab.host("alpha").popen(["sh", "-c", "echo ready; sleep 1000"]) as sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "ready\n"
        lab.down()
        status = sleeper.wait(DEADLINE_S)

    assert len(was) == 3 * 5
    # That they are found while it is up makes finding none afterwards worth something.
    assert {line.split()[0] for line in there} >= {"process", "folder"}
    assert status == -signal.SIGKILL
    assert left_of(lab.id) == []
    assert holders(was, lab.id) == []
    assert Path("/proc/self/mountinfo").read_text() == mounts


def test_the_end_of_a_lab_does_not_wait_for_anybody_outside() -> None:
    with Lab.up(load("two-hosts-100mbit"), tethered=True) as lab:
        namespace = Path(f"/proc/{lab.init.pid}/ns/pid").readlink()
        family = [
            folder
            for folder in Path("/proc").glob("[0-9]*")
            if str(namespace) in namespaces_of(folder.name)
        ]
        waiting = [folder for folder in family if _is_zombie(folder)]

    # The kernel ends a PID namespace when all its dead are collected by their parents.
    assert len(family) >= 1
    assert waiting == []


def test_down_by_another_process_leaves_nothing_and_the_person_is_not_waited_for() -> None:
    with start(how="let go") as owner:
        lab_id = heard_id(owner)
        owner.kill()
    lab = Lab.open()
    was = namespaces(lab)
    answer = lab.host("beta").run(["hostname"]).stdout

    lab.down()

    assert (lab.id, answer) == (lab_id, "beta\n")
    assert left_of(lab_id) == []
    assert holders(was, lab.id) == []


def test_down_of_a_lab_with_a_host_that_is_frozen_or_off_leaves_nothing() -> None:
    lab = Lab.up(load("four-hosts"), tethered=True)
    lab.stop_host("alpha")
    group = lab.host("beta").group
    if group is not None and group.can("freezer"):
        group.freeze()

    lab.down()

    assert left_of(lab.id) == []


def test_a_tethered_lab_ends_with_the_process_that_has_it() -> None:
    with start() as owner:
        lab_id = heard_id(owner)
        was = namespaces(Lab.open())
        owner.kill()

    until_nothing_is_left(lab_id)
    assert holders(was, lab_id) == []


def test_down_all_takes_labs_down_that_are_up() -> None:
    with start(how="let go") as first, start("unequal", how="let go") as second:
        ids = [heard_id(process) for process in (first, second)]
        for process in (first, second):
            process.kill()

    gone = down_all()

    assert gone == ["two-hosts-100mbit", "unequal"]
    assert [left_of(lab_id) for lab_id in ids] == [[], []]


@pytest.mark.parametrize("how", ["tethered", "let go"])
@pytest.mark.parametrize("moment", MOMENTS)
def test_up_killed_in_the_middle_leaves_nothing_after_down_all(moment: str, how: str) -> None:
    with start(how=how) as killed:
        lab_id = kill_at(killed, moment)

    down_all()

    assert list(_folders()) == []
    # A keeper that had not even begun ends by itself.
    until_nothing_is_left(lab_id)


@pytest.mark.parametrize("moment", MOMENTS[1:])
def test_tethered_up_killed_in_the_middle_leaves_nothing_by_itself(moment: str) -> None:
    with start() as killed:
        lab_id = kill_at(killed, moment)

    until_nothing_is_left(lab_id)


def test_a_name_is_free_again_after_up_was_killed() -> None:
    with start(how="let go") as killed:
        lab_id = kill_at(killed, "claim.json")

    with Lab.up(load("two-hosts-100mbit"), tethered=True) as lab:
        assert lab.host("alpha").run(["hostname"]).stdout == "alpha\n"

    assert left_of(lab_id) == []
    assert left_of(lab.id) == []


def test_a_killed_keeper_takes_all_processes_with_it_and_down_all_the_rest() -> None:
    lab = Lab.up(load("two-hosts-100mbit"), tethered=True)
    was = namespaces(lab)

    lab.keeper.kill()
    assert lab.init.wait(DEADLINE_S)
    is_up = [other.name for other in Lab.all()]
    left_before = left_of(lab.id)
    gone = down_all()
    lab.down()  # harmless by now

    assert is_up == []
    assert [line for line in left_before if line.startswith("process")] == []
    assert gone == ["two-hosts-100mbit"]
    assert left_of(lab.id) == []
    assert holders(was, lab.id) == []


def test_a_killed_first_process_is_the_end_of_the_lab_and_the_keeper_clears_up() -> None:
    lab = Lab.up(load("two-hosts-100mbit"), tethered=True)
    was = namespaces(lab)

    lab.init.kill()

    until_nothing_is_left(lab.id)
    assert holders(was, lab.id) == []
    lab.down()


def test_a_host_whose_first_process_is_killed_is_off_and_the_others_go_on() -> None:
    with Lab.up(load("two-hosts-100mbit"), tethered=True) as lab:
        lab.host("alpha").process.kill()

        assert not lab.host("alpha").alive
        assert lab.host("beta").run(["hostname"]).stdout == "beta\n"
        lab.start_host("alpha")
        assert lab.host("alpha").run(["hostname"]).stdout == "alpha\n"

    assert left_of(lab.id) == []


def test_up_that_fails_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "ssh-keygen").write_text("#!/bin/sh\necho no keys today >&2\nexit 1\n")
    (tmp_path / "ssh-keygen").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    ids: list[str] = []
    monkeypatch.setattr(
        "yoked.lab.lab.secrets.token_hex", lambda size: ids.append(os.urandom(size).hex()) or ids[0]
    )

    with pytest.raises(Exception, match="no keys today"):
        Lab.up(load("two-hosts-100mbit"), tethered=True)

    assert left_of(ids[0]) == []
