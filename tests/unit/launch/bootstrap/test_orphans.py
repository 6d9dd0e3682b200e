"""What ranks leave behind is ended by the host program, which adopts it."""

from __future__ import annotations

import json
import subprocess
import sys

import psutil
import pytest

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux gives orphans away")

# Stands for the host program: it starts what it needs itself, and a rank that leaves a daemon.
HOST = """
import json, os, subprocess, sys, time
os.environ.update(YOKED_LAUNCH_ID="l")
from yoked.launch.bootstrap.orphans import Orphans
orphans = Orphans("l")
store = subprocess.Popen(["sleep", "60"])
rank = '''
import os, sys
for environment in ({}, {**os.environ}):
    reads, writes = os.pipe()
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            os.write(writes, str(os.getpid()).encode())
            # Whoever reads what the rank prints would wait for this one too.
            os.closerange(1, 256)
            os.execve("/bin/sleep", ["sleep", "60"], environment)
        os._exit(0)
    print(os.read(reads, 20).decode(), flush=True)
'''
ran = subprocess.run([sys.executable, "-c", rank], env={**os.environ, "YOKED_ATTEMPT": "0"},
                     capture_output=True, text=True)
left = [int(pid) for pid in ran.stdout.split()]
ended = orphans.end()
print(json.dumps({"left": left, "ended": ended, "store": store.poll(), "again": orphans.end()}))
store.kill()
"""


def test_daemons_of_ranks_end_with_or_without_their_variables_and_the_store_does_not() -> None:
    done = subprocess.run(
        [sys.executable, "-c", HOST], capture_output=True, text=True, check=True, timeout=60
    )

    told = json.loads(done.stdout)
    assert len(told["left"]) == 2
    assert told["ended"] == sorted(told["left"])
    assert not any(psutil.pid_exists(pid) for pid in told["left"])
    assert (told["store"], told["again"]) == (None, [])
