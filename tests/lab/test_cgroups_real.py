"""Control groups as this machine's kernel gives them; needs root, and leaves nothing behind."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from yoked.errors import LabError
from yoked.lab import cgroups
from yoked.lab.cgroups import Cgroups
from yoked.lab.hostgroup import HostGroup, remove_group

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or os.geteuid() != 0, reason="control groups are made by root"
)
MIB = 2**20
# Joins by its own hand, as a host's first process does.
JOIN = "import sys\nfor path in sys.argv[1:]: open(path, 'w').write('0')\n"

Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def groups() -> Iterator[Cgroups]:
    made = Cgroups.find(f"test{secrets.token_hex(4)}", is_root=True)
    yield made
    made.remove()
    assert not any(folder.exists() for folder in made.folders)


@pytest.fixture
def host(groups: Cgroups) -> HostGroup:
    return groups.host("alpha")


@pytest.fixture
def start(host: HostGroup) -> Iterator[Start]:
    """Start a Python program in the host's groups; returns once it has joined them."""
    started = []

    def start(program: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{JOIN}print(flush=True)\n{program}", *host.procs_files],
            stdout=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "\n"
        return process

    yield start
    host.kill()
    for process in started:
        process.wait()
        process.stdout.close()


def needs(host: HostGroup, controller: str) -> None:
    if not host.can(controller):
        pytest.skip(f"no {controller} here: {'; '.join(host.notes)}")


def test_a_started_process_is_in_the_groups_and_gone_after_the_kill(
    host: HostGroup, start: Start
) -> None:
    process = start("import time; time.sleep(60)")
    assert host.procs() == [process.pid]

    host.kill()

    assert process.wait() == -signal.SIGKILL
    assert host.procs() == []


def test_a_quota_gives_the_share_of_a_core_that_it_names(host: HostGroup, start: Start) -> None:
    needs(host, "cpu")
    host.set_cpu(0.2)
    spin = (
        "import time\nend = time.monotonic() + 0.6\nwhile time.monotonic() < end: pass\n"
        "print(time.process_time())"
    )

    used_s = float(start(spin).communicate()[0])

    # Other work on the machine can only take from it.
    assert used_s < 0.3
    assert throttled(host) > 0


def throttled(host: HostGroup) -> int:
    """Periods in which the host used up its share."""
    path = next(f / "cpu.stat" for f in host.folders if "nr_throttled" in read(f / "cpu.stat"))
    return int(dict(line.split() for line in read(path).splitlines())["nr_throttled"])


def read(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def test_a_lifted_quota_throttles_nothing(host: HostGroup, start: Start) -> None:
    needs(host, "cpu")
    host.set_cpu(0.2)
    host.set_cpu(None)

    start("sum(range(2_000_000))").communicate()

    assert throttled(host) == 0


def test_who_needs_more_than_the_limit_of_memory_is_killed(host: HostGroup, start: Start) -> None:
    needs(host, "memory")
    host.set_memory(40 * MIB)
    process = start(f"x = bytearray({80 * MIB}); print(len(x))")

    assert process.wait() == -signal.SIGKILL


def test_a_limit_of_memory_can_be_raised_lowered_and_lifted(host: HostGroup, start: Start) -> None:
    needs(host, "memory")
    for limit_bytes in (40 * MIB, 400 * MIB, 60 * MIB, None):
        host.set_memory(limit_bytes)
    process = start(f"x = bytearray({80 * MIB}); print(len(x))")

    assert process.wait() == 0


def test_a_frozen_host_does_nothing_until_it_is_thawed(host: HostGroup, start: Start) -> None:
    needs(host, "freezer")
    process = start("while True: pass")

    host.freeze()
    was_frozen = host.frozen
    before, after = used_ticks(process.pid), used_ticks(process.pid, spin=200_000)
    host.thaw()

    assert was_frozen
    assert before == after
    assert not host.frozen
    assert any(used_ticks(process.pid, spin=20_000) != before for _ in range(10_000))


def used_ticks(pid: int, spin: int = 0) -> int:
    """CPU time of a process, after some work of our own."""
    sum(range(spin))
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def test_a_frozen_host_can_be_killed(host: HostGroup, start: Start) -> None:
    needs(host, "freezer")
    process = start("import time; time.sleep(60)")
    host.freeze()

    host.kill()

    assert process.wait() == -signal.SIGKILL


def test_groups_are_found_again_by_the_id_of_the_lab(groups: Cgroups, host: HostGroup) -> None:
    found = Cgroups.open(groups.lab_id)

    assert set(found.folders) == set(groups.folders)
    assert found.host("alpha").procs_files == host.procs_files


def test_to_look_for_the_groups_of_an_unknown_lab_makes_none() -> None:
    found = Cgroups.open("no-such-lab")
    host = found.host("alpha")

    assert found.folders == host.folders == ()
    with pytest.raises(LabError):
        host.set_memory(MIB)


def test_a_lab_is_removed_with_all_that_runs_in_it_and_twice(
    groups: Cgroups, host: HostGroup, start: Start
) -> None:
    process = start("import time; time.sleep(60)")

    cgroups.remove_lab(groups.lab_id)
    cgroups.remove_lab(groups.lab_id)

    assert process.wait() == -signal.SIGKILL
    assert not any(folder.exists() for folder in groups.folders)


def test_a_lab_is_left_over_when_it_is_old_and_empty(
    groups: Cgroups, host: HostGroup, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = cgroups.leftovers()
    monkeypatch.setattr(cgroups.time, "time", lambda: 2**40)
    empty = cgroups.leftovers()
    start("import time; time.sleep(60)")
    busy = cgroups.leftovers()

    assert groups.lab_id not in new
    assert groups.lab_id in empty
    assert groups.lab_id not in busy


def test_version_one_alone_freezes_kills_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    old = [tree for tree in cgroups.trees_here() if tree.version == 1]
    if not any("freezer" in tree.controllers for tree in old):
        pytest.skip("version 1 has no freezer here")
    monkeypatch.setattr(cgroups, "trees_here", lambda: old)
    made = Cgroups.find(f"test{secrets.token_hex(4)}", is_root=True)
    try:
        host = made.host("alpha")
        program = f"{JOIN}print(flush=True)\nimport time; time.sleep(60)"
        with subprocess.Popen(
            [sys.executable, "-c", program, *host.procs_files], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            host.freeze()
            was_frozen = host.frozen
            host.kill()

        assert was_frozen
        assert process.returncode == -signal.SIGKILL
    finally:
        made.remove()
    assert not any(folder.exists() for folder in made.folders)


# What is imported must be so before: a user may not be able to read root's Python.
AS_A_USER = """
import os, pathlib, signal, sys
from yoked.lab.cgroups import Cgroups
own, uid = pathlib.Path(sys.argv[1]), int(sys.argv[2])
(own / "cgroup.procs").write_text("0")
os.setgroups([]); os.setgid(uid); os.setuid(uid)
made = Cgroups.find("test-of-a-user", is_root=False)
host = made.host("alpha")
child = os.fork()
if child == 0:
    for path in host.procs_files:
        path.write_text("0")
    signal.pause()
while host.procs() != [child]:
    assert os.waitpid(child, os.WNOHANG) == (0, 0)
host.freeze()
print(host.frozen, [str(path.relative_to(own)) for path in made.folders], *made.notes, sep="\\n")
again = Cgroups.open("test-of-a-user")
print(again.folders == made.folders)
again.remove()
print([path.name for path in own.iterdir() if path.name.startswith("yoked-lab-")])
os.waitpid(child, 0)
"""


def test_an_ordinary_user_gets_what_was_delegated_to_him_and_is_told_the_rest() -> None:
    tree = next((tree for tree in cgroups.trees_here() if tree.version == 2), None)
    if tree is None:
        pytest.skip("no cgroup version 2 here")
    own, uid = tree.mount / f"test{secrets.token_hex(4)}", 65534
    own.mkdir()
    try:
        for path in (own, own / "cgroup.procs", own / "cgroup.subtree_control"):
            os.chown(path, uid, uid)
        done = subprocess.run(
            [sys.executable, "-c", AS_A_USER, own, str(uid)],
            check=False,
            capture_output=True,
            text=True,
            env={"PYTHONPATH": os.pathsep.join(sys.path)},
        )
    finally:
        remove_group(own)

    assert done.returncode == 0, done.stderr
    frozen, folders, *notes, found_again, left = done.stdout.splitlines()
    assert (frozen, folders) == ("True", "['yoked-lab-test-of-a-user']")
    assert (found_again, left) == ("True", "[]")
    assert not notes or "Delegate=yes" in notes[0]
