"""A checkpoint is complete or absent, whenever the process that saves it is killed."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("checkpoint_under_kill.py")
SOURCE = Path(__file__).parents[3] / "src"

pytestmark = pytest.mark.skipif(
    not hasattr(os, "fork"), reason="the processes to be killed are made by fork"
)


def observe(way: str, folder: Path) -> list[dict]:
    done = subprocess.run(
        [sys.executable, SCRIPT, way, folder],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_kill_at_any_file_operation_leaves_the_old_or_the_new_checkpoint_whole(tmp_path):
    # Steps 1 and 2 are there; 2 is saved anew (its numbers change from 2.0 to 2.5), then 3,
    # which removes 1.
    allowed = [
        {"1": 1.0, "2": 2.0},
        {"1": 1.0, "2": 2.5},
        {"1": 1.0, "2": 2.5, "3": 3.0},
        {"2": 2.5, "3": 3.0},
    ]

    observations = observe("everywhere", tmp_path)

    assert len(observations) > 20, "the kills did not reach the operations of two saves"
    for number, seen in enumerate(observations, start=1):
        assert seen["before"] in allowed, f"after a kill at operation {number}"
        assert seen["after"] == seen["before"], f"recovery changed what operation {number} left"
        assert seen["strays"] == [], f"left behind by a kill at operation {number}"
    reached = [allowed.index(seen["before"]) for seen in observations]
    assert reached == sorted(reached), "a later kill undid what an earlier one had left"
    assert set(reached) == {0, 1, 2, 3}


def test_kills_at_random_moments_lose_no_complete_checkpoint(tmp_path):
    observations = observe("at-random", tmp_path)

    newest = 0
    for number, seen in enumerate(observations, start=1):
        for step, mark in seen["before"].items():
            assert mark == float(step), f"kill {number}: step {step}"
        assert seen["after"] == seen["before"]
        assert seen["strays"] == []
        now = max(map(int, seen["before"]), default=0)
        assert now >= newest, f"kill {number} lost step {newest}"
        newest = now
    assert newest > len(observations), "the processes were killed before they saved anything"
