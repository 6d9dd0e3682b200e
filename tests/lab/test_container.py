"""A lab in a container, whose files in /etc are mounts of the machine's that can be neither
removed nor replaced."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
# In a mount namespace of its own; ends with one line of JSON: what was seen.
WALK = """
import json, subprocess, sys
from pathlib import Path
from yoked.lab.lab import Lab
from yoked.lab.topology_load import load

for name in ("hosts", "hostname", "resolv.conf"):
    subprocess.run(["mount", "--bind", sys.argv[1], f"/etc/{name}"], check=True)
saw = {}
with Lab.up(load("two-hosts-100mbit")) as lab:
    alpha = lab.host("alpha")
    saw["name"] = alpha.read_text("/etc/hostname")
    saw["resolved"] = alpha.run(["getent", "hosts", "beta"]).stdout.split()[1:]
    alpha.write_text("/etc/hosts", "127.0.0.1 localhost\\n")
    accounts = alpha.read_text("/etc/passwd") + "new:x:4711:4711::/:/bin/sh\\n"
    alpha.write_text("/etc/passwd", accounts)
    lab.stop_host("alpha")
    lab.start_host("alpha")
    saw["hosts again"] = lab.host("alpha").read_text("/etc/hosts")
    saw["account again"] = lab.host("alpha").run(["id", "-u", "new"]).stdout.strip()
saw["machine"] = Path("/etc/hosts").read_text()
print(json.dumps(saw))
"""


@pytest.mark.usefixtures("root_only")
def test_hosts_come_up_where_files_of_etc_are_mounts_and_keep_what_they_write(
    tmp_path: Path,
) -> None:
    mounted = tmp_path / "mounted"
    mounted.write_text("the container's")
    environment = {
        "PATH": os.defpath,
        "PYTHONPATH": str(SOURCE),
        "HOME": str(tmp_path),
        "YOKED_STATE": str(tmp_path / "state"),
    }

    done = subprocess.run(
        ["unshare", "--mount", sys.executable, "-c", WALK, str(mounted)],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
        timeout=120,
    )

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "name": "alpha\n",
        "resolved": ["beta"],
        "hosts again": "127.0.0.1 localhost\n",
        "account again": "4711",
        "machine": "the container's",
    }
