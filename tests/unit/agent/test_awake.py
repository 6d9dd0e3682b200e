"""A host that trains is kept awake by a helper that ends with its holder."""

from __future__ import annotations

import subprocess
import sys

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.agent import awake
from yoked.agent.awake import Awake, inhibitor_argv

HOLD = """
import time
from yoked.agent.awake import Awake
held = Awake(["cat"])
print(held._helper.pid, flush=True)
time.sleep(60)
"""


def test_systemd_is_asked_for_sleep_idleness_and_the_lid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake.sys, "platform", "linux")
    monkeypatch.setattr(awake.shutil, "which", lambda name: f"/usr/bin/{name}")

    argv = inhibitor_argv("night")

    assert argv is not None
    assert {"--what=sleep:idle:handle-lid-switch", "--mode=block"} < set(argv)
    assert any("run night" in word for word in argv)


def test_a_mac_is_kept_awake_by_caffeinate(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(awake.sys, "platform", "darwin")
    monkeypatch.setattr(awake.shutil, "which", lambda name: f"/usr/bin/{name}")

    assert (inhibitor_argv("night") or [])[0] == "caffeinate"


def test_where_nothing_can_hold_it_the_reason_is_told(
    monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    monkeypatch.setattr(awake.shutil, "which", lambda name: None)

    held = Awake(inhibitor_argv("night"))

    assert held.reason == snapshot
    held.release()


def test_a_helper_that_is_refused_says_why() -> None:
    held = Awake(["sh", "-c", "echo Access denied >&2; exit 1"])

    assert held.reason == "sh: Access denied"
    held.release()


def test_the_lock_is_held_until_it_is_released() -> None:
    held = Awake(["cat"])
    helper = held._helper
    assert helper is not None
    running = helper.poll() is None

    held.release()
    held.release()

    assert (held.reason, running, helper.poll()) == ("", True, 0)


def test_the_lock_goes_when_its_holder_is_killed() -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            HOLD,
        ],
        stdout=subprocess.PIPE,
        env={"PYTHONPATH": ":".join(sys.path)},
    )
    assert holder.stdout is not None
    import psutil

    helper = psutil.Process(int(holder.stdout.readline()))

    holder.kill()
    holder.wait()
    holder.stdout.close()

    assert helper.wait(timeout=10) in (0, None)
