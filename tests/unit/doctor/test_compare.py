"""Folders on hosts beside those of the controller: real files, looked at by real agents."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.agent import folders
from yoked.agent.folders import contents
from yoked.doctor import compare
from yoked.doctor.checks.content import A_FOLDER, CHANGING
from yoked.doctor.compare import with_contents
from yoked.errors import HostError, UsageError
from yoked.records.examination import Examination, HostSeen, Need, SshFailure
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


@pytest.fixture
def data(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    (folder / "part").mkdir(parents=True)
    (folder / "part" / "1.txt").write_text("one")
    (folder / "2.txt").write_text("two")
    for name in (".git", "__pycache__"):
        (folder / name).mkdir()
        (folder / name / "noise").write_text("of a tool")
    return folder


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def host(name: str, **more: Any) -> HostSeen:
    return HostSeen(name, {}, health={"limits": {}}, **more)


def connect(name: str) -> AgentClient:
    return connect_here(name)


def test_names_and_contents_are_compared_file_by_file(data: Path) -> None:
    examination = Examination((host("attic"),), need=Need(keep=7))

    seen = with_contents(examination, {"data": data}, connect)

    wanted = {"part/1.txt": digest("one"), "2.txt": digest("two")}
    assert (seen.need.data, seen.need.code, seen.need.keep) == (wanted, None, 7)
    assert seen.hosts[0].health == {"limits": {}, "data": wanted}


@pytest.mark.skipif(sys.platform != "linux", reason="its errors are Linux's")
def test_what_cannot_be_read_has_words_and_nobody_waits_for_it(data: Path) -> None:
    os.mkfifo(data / "3.txt")
    (data / "4.txt").symlink_to("gone")

    assert contents(data) == {
        "part/1.txt": digest("one"),
        "2.txt": digest("two"),
        "3.txt": "a pipe",
        "4.txt": "unreadable: No such file or directory",
    }


def test_a_folder_with_the_name_of_a_file_is_told_and_others_are_not(data: Path) -> None:
    (data / "4.txt").mkdir()

    assert contents(data) == {
        "part/1.txt": digest("one"),
        "2.txt": digest("two"),
        "4.txt": A_FOLDER,
    }


@pytest.mark.skipif(os.getuid() == 0, reason="root reads all")
def test_a_folder_that_cannot_be_read_is_no_empty_one(data: Path) -> None:
    (data / "part").chmod(0)
    try:
        with pytest.raises(PermissionError):
            contents(data)
    finally:
        (data / "part").chmod(0o755)


def test_data_here_that_is_no_file_cannot_be_compared_and_code_can(
    data: Path, snapshot: SnapshotAssertion
) -> None:
    os.mkfifo(data / "3.txt")

    with pytest.raises(UsageError) as caught:
        with_contents(Examination(()), {"data": data}, connect)
    seen = with_contents(Examination(()), {"code": data}, connect)

    assert caught.value.what.replace(str(data), "DATA") == snapshot
    assert seen.need.code is not None
    assert "3.txt" not in seen.need.code


class Agent:
    """Answers a call as it is told to, and remembers the folder that it was asked for."""

    def __init__(self, contents: dict[str, str] | None) -> None:
        self.folders: list[str] = []
        self._contents = contents

    def call(self, name: str, *, timeout_s: float, folder: str, by_time: bool = False) -> Any:
        if name == "folder_use":
            return {"lock": None, "map": None}
        assert name == "folder_contents"
        self.folders.append(folder)
        return self._contents

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *problem: object) -> None:
        pass


def test_where_the_program_takes_files_by_their_times_that_is_their_order(data: Path) -> None:
    for number, name in enumerate(("2.txt", "part/1.txt")):
        os.utime(data / name, (number, number))
    times = Examination((host("attic"),), controller={"file_times": ["train.py:7"]})

    seen = with_contents(times, {"data": data}, connect)
    os.utime(data / "2.txt", (9, 9))
    later = with_contents(times, {"data": data}, connect)

    assert seen.need.data is not None
    assert list(seen.need.data) == list(seen.hosts[0].health["data"]) == ["2.txt", "part/1.txt"]
    assert list(later.hosts[0].health["data"]) == ["part/1.txt", "2.txt"]


@pytest.mark.parametrize(
    ("number", "told"),
    [(errno.ENOLCK, {"data_lock": "ENOLCK"}), (errno.EWOULDBLOCK, {}), (None, {})],
)
def test_a_file_of_the_data_is_locked_as_programs_do_it(
    data: Path, monkeypatch: pytest.MonkeyPatch, number: int | None, told: dict[str, str]
) -> None:
    tried = []

    def flock(file: Any, how: int) -> None:
        tried.append((Path(file.name), how))
        if number is not None:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(folders, "fcntl", SimpleNamespace(flock=flock, LOCK_SH=1, LOCK_NB=4))
    monkeypatch.setattr(folders, "mount_of", lambda *_: None)
    call = SimpleNamespace(args={"folder": str(data)})

    class Locking(Agent):
        def call(self, name: str, **args: Any) -> Any:
            return folders.answer_folder_use(call) if name == "folder_use" else {}

    seen = with_contents(Examination((host("attic"),)), {"data": data}, lambda _: Locking({}))

    assert seen.hosts[0].health == {"limits": {}, "data": {}, **told}
    assert tried == [(data / "2.txt", 5)]


def test_a_file_of_the_data_is_mapped_as_programs_do_it(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = {"place": "/rows", "filesystem": "9p", "source": "share", "options": "cache=none"}
    call = SimpleNamespace(args={"folder": str(data)})

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENODEV, "No such device")

    class Mapping(Agent):
        def call(self, name: str, **args: Any) -> Any:
            return folders.answer_folder_use(call) if name == "folder_use" else {}

    def seen() -> Any:
        return with_contents(Examination((host("attic"),)), {"data": data}, lambda _: Mapping({}))

    monkeypatch.setattr(folders, "mount_of", lambda *_: mount)
    before = seen().hosts[0].health
    monkeypatch.setattr(folders, "mmap", SimpleNamespace(mmap=refuse, ACCESS_READ=1))
    after = seen().hosts[0].health

    assert before == {"limits": {}, "data": {}}
    assert after["data_map"] == "[Errno 19] No such device"
    assert after["data_mount"] == mount


def test_a_folder_that_a_host_lacks_is_empty_there(data: Path) -> None:
    seen = with_contents(Examination((host("attic"),)), {"code": data}, lambda _: Agent(None))

    assert seen.hosts[0].health["code"] == {}
    assert seen.need.code is not None


def test_of_files_that_differ_those_that_change_meanwhile_are_told(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = tmp_path / "there" / "data"
    shutil.copytree(data, there)
    (there / "2.txt").write_text("2")
    (there / "part" / "1.txt").write_text("1")
    monkeypatch.setattr(compare, "_path_there", lambda folder: str(there))
    # Somebody writes while nobody looks.
    clock = SimpleNamespace(sleep=lambda _: (there / "2.txt").write_text("22"))
    monkeypatch.setattr(compare, "time", clock)

    seen = with_contents(Examination((host("attic"),)), {"data": data}, connect)

    assert seen.hosts[0].health["data"] == {"2.txt": CHANGING, "part/1.txt": digest("1")}


def test_where_nothing_differs_nobody_looks_twice(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[float] = []
    monkeypatch.setattr(compare, "time", SimpleNamespace(sleep=waits.append))

    with_contents(Examination((host("attic"),)), {"data": data}, connect)

    assert waits == []


def test_below_the_home_folder_each_host_looks_below_its_own(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = Agent({})
    monkeypatch.setenv("HOME", str(data.parent))

    with_contents(Examination((host("attic"),)), {"data": data}, lambda _: agent)

    assert agent.folders == ["~/data"]


def test_a_host_that_cannot_tell_is_not_taken_for_one_that_differs(data: Path) -> None:
    def silent(name: str) -> AgentClient:
        raise HostError(f"{name} fell silent")

    examination = Examination((host("attic"), HostSeen("cellar", {}, SshFailure("timeout", ""))))

    seen = with_contents(examination, {"data": data}, silent)

    assert seen.hosts[0].health == {"limits": {}, "untold": {"data": "attic fell silent"}}
    assert seen.hosts[1] == examination.hosts[1]


@pytest.mark.parametrize("kind", ["empty", "missing"])
def test_what_is_not_here_cannot_be_compared(
    tmp_path: Path, kind: str, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "empty").mkdir()

    with pytest.raises(UsageError) as caught:
        with_contents(Examination(()), {"data": tmp_path / kind}, connect)
    assert str(caught.value) == snapshot
