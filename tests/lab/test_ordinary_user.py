"""A lab without root: the same hosts, for a user who may make user namespaces."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pwd
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from yoked.lab.pytest_plugin import LabUp

SOURCE = Path(__file__).parents[2] / "src"
DEADLINE_S = 120.0
USER = "nobody"
# Ends with one line of JSON: what the user saw.
WALK = """
import json, os, pwd, subprocess, sys
from pathlib import Path
from yoked.lab.lab import Lab, down_all
from yoked.lab.topology_load import load

def login(host):
    command = ["ssh", "-F", str(lab.ssh_config), host, "hostname; id -u"]
    return subprocess.run(command, capture_output=True, text=True).stdout.split()

saw = {}
with Lab.up(load("two-hosts-100mbit")) as lab:
    alpha, beta = lab.host("alpha"), lab.host("beta")
    saw["lab"] = {"is_root": lab.is_root, "listed": [each.name for each in Lab.all()]}
    saw["names"] = [host.run(["hostname"]).stdout.strip() for host in (alpha, beta)]
    saw["users"] = {
        "here": os.getuid(),
        "inside": int(alpha.run(["id", "-u"]).stdout),
        "as root": int(alpha.run(["id", "-u"], as_root=True).stdout),
        "name": alpha.run(["id", "-un"]).stdout.strip(),
    }
    saw["status"] = alpha.run(["sh", "-c", "exit 7"], check=False).returncode
    saw["ping"] = alpha.run(["ping", "-c", "1", "-W", "5", "beta"], check=False).returncode
    saw["logins"] = {host: login(host) for host in ("alpha", "beta")}
    saw["from alpha"] = alpha.run(["ssh", "beta", "hostname"], check=False).stdout.strip()
    saw["from beta"] = beta.run(["ssh", "alpha", "hostname"], check=False).stdout.strip()
    alpha.run(["sh", "-c", "echo mine > ~/new; echo mine > /tmp/new"])
    saw["files"] = [beta.exists(str(Path.home() / "new")), (Path.home() / "new").exists()]
    saw["processes"] = [host.processes()[0].pid for host in (alpha, beta)]
    alpha.write_text("/etc/hosts", "127.0.0.1 localhost\\n")
    saw["names without a file"] = alpha.run(["getent", "hosts", "beta"], check=False).returncode
    alpha.tool(["nft", "add", "table", "inet", "mine"])
    saw["tables"] = [host.tool(["nft", "list", "tables"]).stdout.split() for host in (alpha, beta)]
    refused = {
        "clock": ["date", "-s", "now"],
        "mount": ["mount", "-t", "tmpfs", "none", "/mnt"],
        "device": ["mknod", "/tmp/disk", "c", "1", "3"],
        "switch": ["sh", "-c", "echo 1 > /proc/sys/kernel/panic"],
    }
    saw["refused"] = {
        what: [alpha.run(act, check=False, as_root=as_root).returncode for as_root in (False, True)]
        for what, act in refused.items()
    }
    lab.stop_host("beta")
    lab.start_host("beta")
    saw["again"] = login("beta")[:1]
    saw["id"], saw["folder"], saw["notes"] = lab.id, str(lab.folder), lab.notes
saw["left"] = lab.folder.exists()
saw["others"] = down_all()
print(json.dumps(saw))
"""

# In a home with a mount below it, as a disk for data would be.
HOME = """
import json, os, subprocess
from pathlib import Path
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

home = Path.home()
(home / "data").mkdir()
subprocess.run(["mount", "-t", "tmpfs", "none", str(home / "data")], check=True)
(home / ".notes").write_text("the machine's")
(home / ".notes").chmod(0o640)
(home / ".bashrc").write_text("sleep 600")
(home / "mine" / "deep").mkdir(parents=True)
with (home / "large").open("wb") as file:
    file.truncate(17 << 20)
saw = {}
with Lab.up(load("two-hosts-100mbit")) as lab:
    alpha, beta = lab.host("alpha"), lab.host("beta")
    saw["before"] = [alpha.read_text(str(home / ".notes")), alpha.exists(str(home / "large"))]
    saw["start file"] = alpha.exists(str(home / ".bashrc"))
    saw["mode"] = alpha.run(["stat", "-c", "%a", str(home / ".notes")]).stdout.strip()
    alpha.run(["sh", "-c", "echo a hosts > ~/.notes; echo new > ~/new; rmdir ~/mine/deep"])
    alpha.run(["sh", "-c", "echo new > ~/data/new"])
    alpha.write_text(str(home / "by root"), "new")
    lab.stop_host("alpha")
    lab.start_host("alpha")
    alpha = lab.host("alpha")
    saw["after"] = alpha.read_text(str(home / ".notes"))
    saw["listed"] = alpha.run(["sh", "-c", "cd; find . -path ./state -prune -o -print"]).stdout
    saw["listed"] = sorted(set(saw["listed"].split("\\n")) - {"./.ssh"})
    saw["beta"] = beta.read_text(str(home / ".notes"))
    saw["notes"] = lab.notes
saw["machine"] = [(home / ".notes").read_text(), sorted(os.listdir(home))]
print(json.dumps(saw))
"""

# In a home below a folder of somebody else's.
DEEP = """
import json
from pathlib import Path
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

home = Path.home()
(home / "mine").mkdir()
with Lab.up(load("two-hosts-100mbit")) as lab:
    alpha = lab.host("alpha")
    alpha.run(["sh", "-c", "echo new > ~/mine/new"])
    lab.stop_host("alpha")
    lab.start_host("alpha")
    saw = lab.host("alpha").run(["sh", "-c", "cat ~/mine/new"]).stdout
print(json.dumps([saw, (home / "mine" / "new").exists(), (home / ".ssh").exists(), lab.notes]))
"""


@dataclass(frozen=True)
class Ordinary:
    """How to run Python as an ordinary user, who has a home."""

    python: str
    environment: dict[str, str]
    how: dict[str, Any]

    def run(self, program: str, *before: str) -> subprocess.CompletedProcess[str]:
        """before: words of a command line before those of Python."""
        return subprocess.run(
            [*before, self.python, "-c", program],
            capture_output=True,
            text=True,
            check=False,
            cwd="/",
            env=self.environment,
            timeout=DEADLINE_S,
            **self.how,
        )


@pytest.fixture(scope="module")
def ordinary() -> Iterator[Ordinary]:
    """This user, or another one when this is root; with a home of its own either way."""
    # Not tmp_path: others may not look into it.
    home = Path(tempfile.mkdtemp(prefix="yoked-home-"))
    how: dict[str, Any] = {}
    packages = sys.path
    if os.getuid() == 0:
        try:
            user = pwd.getpwnam(USER)
        except KeyError:
            pytest.skip(f"no user {USER} on this machine")
        os.chown(home, user.pw_uid, user.pw_gid)
        packages = [sysconfig.get_path("purelib")]
        how = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
    environment = {
        "HOME": str(home),
        "YOKED_STATE": str(home / "state"),
        "PATH": os.defpath,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), *packages]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    try:
        for python in (sys.executable, "/usr/bin/python3"):
            user_of = Ordinary(python, environment, how)
            with_all = f"import sys, pydantic; assert sys.version_info >= {(3, 11)}"
            try:
                works = user_of.run(with_all + "; import yoked.lab.lab").returncode == 0
            except OSError:
                continue
            if works:
                yield user_of
                return
        pytest.skip("no Python with this one's packages that an ordinary user can run")
    finally:
        shutil.rmtree(home, ignore_errors=True)


@pytest.fixture(scope="module")
def walk(ordinary: Ordinary) -> dict[str, Any]:
    """What an ordinary user saw on a walk through a lab of two hosts."""
    if (reason := _why_not(ordinary)) is not None:
        pytest.skip(f"no lab without root on this machine: {reason}")
    done = ordinary.run(WALK)
    assert done.returncode == 0, done.stderr
    saw: dict[str, Any] = json.loads(done.stdout)
    return saw


def _why_not(ordinary: Ordinary) -> str | None:
    program = (
        "from yoked.lab import needs\n"
        "print(*[n.name + ': ' + n.detail for n in needs.check() if n.required and not n.ok])"
    )
    done = ordinary.run(program)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() or None


def test_hosts_of_an_ordinary_user_have_names_of_their_own(walk: dict[str, Any]) -> None:
    assert walk["lab"] == {"is_root": False, "listed": ["two-hosts-100mbit"]}
    assert walk["names"] == ["alpha", "beta"]
    assert walk["processes"] == [1, 1]


def test_programs_are_the_users_own_and_root_is_for_the_asking(walk: dict[str, Any]) -> None:
    here = walk["users"]["here"]

    assert here != 0
    assert walk["users"] == {
        "here": here,
        "inside": here,
        "as root": 0,
        "name": pwd.getpwuid(here).pw_name,
    }
    assert walk["status"] == 7


def test_ping_and_ssh_work_without_root(walk: dict[str, Any]) -> None:
    here = str(walk["users"]["here"])

    assert walk["ping"] == 0
    assert walk["logins"] == {"alpha": ["alpha", here], "beta": ["beta", here]}
    assert (walk["from alpha"], walk["from beta"]) == ("beta", "alpha")


def test_files_of_an_ordinary_users_host_are_there_alone(walk: dict[str, Any]) -> None:
    assert walk["files"] == [False, False]
    assert walk["names without a file"] != 0


def test_the_firewall_of_a_host_without_root_is_its_own(walk: dict[str, Any]) -> None:
    assert walk["tables"] == [["table", "inet", "mine"], []]


def test_nothing_of_the_machine_can_be_changed_from_a_host(walk: dict[str, Any]) -> None:
    # In its own namespaces the host's root may mount.
    assert {what: status[0] != 0 for what, status in walk["refused"].items()} == dict.fromkeys(
        ("clock", "mount", "device", "switch"), True
    )
    assert {what: walk["refused"][what][1] != 0 for what in ("clock", "device", "switch")} == {
        "clock": True,
        "device": True,
        "switch": True,
    }


def test_a_host_can_be_switched_off_and_on_without_root(walk: dict[str, Any]) -> None:
    assert walk["again"] == ["beta"]


def test_a_home_with_a_mount_below_is_copied_and_the_users_own_files_stay(
    ordinary: Ordinary,
) -> None:
    if (reason := _why_not(ordinary)) is not None:
        pytest.skip(f"no lab without root on this machine: {reason}")

    done = ordinary.run(HOME, "unshare", "--map-current-user", "--mount", "--keep-caps")

    assert done.returncode == 0, done.stderr
    saw = json.loads(done.stdout)
    assert saw["before"] == ["the machine's", False]
    assert saw["mode"] == "640"
    assert saw["after"] == "a hosts\n"
    assert set(saw["listed"]) >= {"./new", "./by root", "./data/new", "./mine"}
    assert not set(saw["listed"]) & {"./large", "./mine/deep"}
    assert saw["beta"] == "the machine's"
    assert [note for note in saw["notes"] if " large " in f" {note}"]
    # The person's shell may wait for anything at its start: a host's shells do not read of it.
    assert not saw["start file"]
    names = [".bashrc", ".notes", "data", "large", "mine", "state"]
    assert saw["machine"] == ["the machine's", names]


def test_hosts_write_to_a_home_below_folders_of_others(ordinary: Ordinary) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a second user")
    if (reason := _why_not(ordinary)) is not None:
        pytest.skip(f"no lab without root on this machine: {reason}")
    # /tmp is the hosts' own.
    above = Path(tempfile.mkdtemp(prefix="yoked-home-", dir="/var/tmp"))
    try:
        above.chmod(0o755)
        home = above / "ada"
        home.mkdir()
        os.chown(home, ordinary.how["user"], ordinary.how["group"])
        environment = {**ordinary.environment, "HOME": str(home)}

        done = dataclasses.replace(ordinary, environment=environment).run(DEEP)
    finally:
        shutil.rmtree(above)

    assert done.returncode == 0, done.stderr
    saw, *left, notes = json.loads(done.stdout)
    assert (saw, left) == ("new\n", [False, False])
    assert not [note for note in notes if "ssh" in note]


def test_a_lab_of_an_ordinary_user_leaves_nothing(walk: dict[str, Any]) -> None:
    marked = f"YOKED_LAB={walk['id']}".encode()
    alive = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        # Not everybody's may be read, and processes come and go.
        with contextlib.suppress(OSError):
            if marked in path.read_bytes():
                alive.append(path)
    groups = [
        name for _, names, _ in os.walk("/sys/fs/cgroup") for name in names if walk["id"] in name
    ]

    assert walk["left"] is False
    assert not Path(walk["folder"]).exists()
    assert alive == []
    assert groups == []


def test_what_is_missing_without_root_is_told(walk: dict[str, Any]) -> None:
    limited = any("control groups are missing" in note for note in walk["notes"])
    version_2 = Path("/sys/fs/cgroup/cgroup.controllers").exists()

    # Version 1 has nothing for ordinary users; version 2 may.
    assert limited or version_2


def test_down_all_of_one_user_leaves_the_labs_of_another(ordinary: Ordinary, lab_up: LabUp) -> None:
    if os.getuid() != 0:
        pytest.skip("needs a second user")
    lab = lab_up("two-hosts-100mbit")

    done = ordinary.run("from yoked.lab.lab import Lab, down_all; print(Lab.all(), down_all())")

    assert (done.stdout, done.stderr) == ("[] []\n", "")
    assert lab.host("alpha").run(["hostname"]).stdout == "alpha\n"
