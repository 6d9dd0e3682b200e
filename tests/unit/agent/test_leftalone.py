"""A program and files that are left alone: their end, and each signal, is told with its sender."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.agent import leftalone
from yoked.agent.leftalone import LeftAlone
from yoked.core.proc import ProcessId
from yoked.records.ender_rules import LEFT_ALONE

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel")
SOURCES = {"common.py": "import os\n", "train.py": "import common\n"}


@pytest.fixture
def left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LeftAlone]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setattr(leftalone, "scope_helps", lambda: False)
    it = LeftAlone()
    yield it
    it.clear()


def stands() -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        own = ProcessId(int(path.name), 0)
        if own.command().split()[-2:-1] == ["stand"] and own.parent not in (None, os.getpid()):
            found.append(int(path.name))
    return found


def started(left: LeftAlone, sources: dict[str, str]) -> int:
    """The number of the program, once it listens."""
    before = set(stands())
    left.begin(sources)
    until_s = time.monotonic() + 10
    while not left._began_s and time.monotonic() < until_s:
        time.sleep(0.01)
    (pid,) = set(stands()) - before
    return pid


def test_where_nobody_does_anything_nothing_is_told_or_left(
    left: LeftAlone, tmp_path: Path
) -> None:
    pid = started(left, SOURCES)
    copies = sorted(each.name for each in tmp_path.rglob("*.py"))

    assert left.end() == {}

    assert copies == ["common.py", "common.py", "train.py", "train.py"]
    assert list(tmp_path.iterdir()) == []
    until_s = time.monotonic() + 5
    while ProcessId(pid, 0).parent is not None and time.monotonic() < until_s:
        time.sleep(0.01)
    assert ProcessId(pid, 0).parent is None


def test_a_signal_is_told_with_its_sender_and_the_program_lives_on(left: LeftAlone) -> None:
    pid = started(left, {})
    line = f"kill -USR1 {pid}; sleep 0.2; kill -TERM {pid}; sleep 0.2"
    subprocess.run(["sh", "-c", line], check=True)

    told = left.end()

    assert [each["name"] for each in told["signals"]] == ["SIGUSR1", "SIGTERM"]
    assert told["signals"][0]["sender"]["commands"][0].startswith(f"sh -c kill -USR1 {pid}")
    assert "killed" not in told
    assert LEFT_ALONE(told, "left", []) == told


def test_a_signal_that_comes_while_it_starts_is_told_too(left: LeftAlone) -> None:
    before = set(stands())
    left.begin({})
    while not (now := set(stands()) - before):
        time.sleep(0.001)
    os.kill(now.pop(), signal.SIGHUP)
    while left._reader and left._reader.is_alive() and not left._signals:
        time.sleep(0.01)

    assert [each["name"] for each in left.end()["signals"]] == ["SIGHUP"]


def test_what_a_killed_agent_left_is_removed_by_a_later_one(
    left: LeftAlone, tmp_path: Path
) -> None:
    old, new = (tmp_path / "state" / f"yoked-look-{number}" for number in (1, 2))
    for folder in (old, new):
        folder.mkdir(parents=True)
        (folder / "common.py").write_text("")
    os.utime(old, (1, 1))

    left.begin({})

    assert (old.exists(), new.exists()) == (False, True)


def test_an_end_by_force_is_told_and_so_are_files_that_are_gone(
    left: LeftAlone, tmp_path: Path
) -> None:
    os.kill(started(left, SOURCES), signal.SIGKILL)
    first, second, third, _ = sorted(tmp_path.rglob("*.py"))
    first.unlink()
    second.write_text("")
    third.write_text("# clean")
    until_s = time.monotonic() + 2
    while left._reader and left._reader.is_alive() and time.monotonic() < until_s:
        time.sleep(0.01)

    told = left.end()

    assert told["killed"]["after_s"] >= 0
    assert {each["how"] for each in told["taken"]} == {"gone", "empty", "altered"}
    assert not list(tmp_path.rglob("*.py"))
