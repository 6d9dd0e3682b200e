from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells a child of its parent's death"
)


def test_a_tied_command_ends_with_its_parent() -> None:
    program = (
        "import os, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-m', 'yoked.parent_death', str(os.getpid()), \n"
        "    sys.executable, '-c', 'print(1, flush=True); import time; time.sleep(60)'],\n"
        "    stdout=subprocess.PIPE)\n"
        "child.stdout.readline(); print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()

    deadline_s = time.monotonic() + 20
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline_s, "the child lives on"
        time.sleep(0.02)


def test_a_command_whose_parent_is_already_gone_does_not_start() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "yoked.parent_death", "1", sys.executable, "-c", "print('started')"],
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == ""
    assert done.returncode == -9
