"""What programs wrote comes from all hosts, and nothing that a host adds to it does harm here."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import HostError, UsageError, YokedError
from yoked.launch import outputs
from yoked.launch.outputs import Outputs, find_outputs, host_folders, tell_place
from yoked.launch.registry import Record
from yoked.remote.client import AgentClient, Part
from yoked.remote.transport import connect_here

NOW_NS = 1_700_000_000_123_456_789


@pytest.fixture
def agent() -> Iterator[AgentClient]:
    with connect_here("attic") as client:
        yield client


def record(folders: dict[str, Path], launch_id: str = "first") -> Record:
    nodes = [{"host": host, "address": "10.0.0.1", "ranks": 1} for host in folders]
    told = {
        host: {"state": "finished", "node_rank": number, "nodes": nodes, "folder": str(folder)}
        for number, (host, folder) in enumerate(folders.items())
    }
    return Record("night", launch_id, told)


class Host:
    """A host that answers with anything. files: what it lists and has; shown: instead of these."""

    def __init__(
        self, files: dict[str, bytes], shown: list[list[object]] | None = None, name: str = "attic"
    ) -> None:
        self.host, self.files = name, files
        self.shown = shown
        self.read: list[tuple[str, int]] = []

    def call(self, name: str, **_: object) -> list[list[object]]:
        assert name == "file_list"
        if self.shown is not None:
            return self.shown
        return [[path, len(content), NOW_NS] for path, content in self.files.items()]

    def stream(self, _name: str, *, path: str, offset: int = 0, **__: object) -> Iterator[Part]:
        below = path.partition("/work/")[2]
        self.read.append((below, offset))
        content = self.files[below]
        for start in range(offset, len(content), 4):
            yield Part(None, content[start : start + 4])


def find(here: Path, *hosts: Any, patterns: tuple[str, ...] = ("*",)) -> Outputs:
    folders = {each.host: Path("/there/night") for each in hosts}
    return find_outputs({each.host: each for each in hosts}, record(folders), here, patterns)


def came(here: Path) -> dict[str, bytes]:
    """What people see of a run's outputs, by its path."""
    below = here / "outputs"
    found = (path for path in below.rglob("*") if path.is_file() and path.name[0] != ".")
    return {path.relative_to(below).as_posix(): path.read_bytes() for path in found}


def test_what_matches_comes_from_all_hosts_and_nothing_else(
    agent: AgentClient, tmp_path: Path
) -> None:
    for host in ("attic", "cellar"):
        work = tmp_path / host / "work"
        (work / "out").mkdir(parents=True)
        (work / "out" / "model.pt").write_text(f"of {host}")
        (work / "train.py").write_text("print()")
        (work / "out" / "secret").symlink_to("/etc/passwd")
        os.mkfifo(work / "out" / "pipe")
    both = record({host: tmp_path / host for host in ("attic", "cellar")})
    here = tmp_path / "runs" / "night"

    found = find_outputs({"attic": agent, "cellar": agent}, both, here, ["out/"])
    found.bring()

    assert came(here) == {"attic/out/model.pt": b"of attic", "cellar/out/model.pt": b"of cellar"}
    assert found.refused() == []
    # For nobody else, and no program.
    assert stat.S_IMODE((here / "outputs/attic/out/model.pt").stat().st_mode) == 0o600
    assert stat.S_IMODE((here / "outputs").stat().st_mode) == 0o700


STRANGE_NAMES = [
    *(".git/config", "out/.git/hooks/post-checkout", ".bashrc", "out/.x", "../x", "out/../../x"),
    *("/etc/x", "//etc/x", "./x", "out//x", "out/", "", "a\nb", "a\x1b[2Jb", "a\u202eb", "\udc80"),
    "\ud800",
    *("a" * 201, "/".join("b" * 600), "bare/HEAD", "head", "out/."),
]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_strange_name_stays_where_it_is_and_that_is_said(tmp_path: Path, name: str) -> None:
    here = tmp_path / "here"
    found = find(here, Host({name: b"evil", "good": b"good"}), patterns=("*", "**/*"))

    found.bring()

    assert came(here) == {"attic/good": b"good"}
    assert {path.name for path in tmp_path.rglob("*")} <= {
        *("here", "outputs", "attic", "good", ".yoked-run", ".yoked-launch")
    }
    if name not in ("", "out/"):
        (line,) = found.refused()
        assert line.startswith("1 file ")
        assert line.isprintable()


PARTS = st.sampled_from(
    ["a", "A", "b", ".", "..", ".x", "HEAD", "", "\n", "\u0000", "\udc80", "\ud800", "c d"]
)
LISTED = st.lists(
    st.tuples(
        st.lists(PARTS, min_size=1, max_size=4).map("/".join),
        st.sampled_from([0, 1, 4, 4, 10, 2**64]),
        st.integers(-(2**64), 2**64),
    ),
    max_size=6,
)


@given(LISTED)
@settings(max_examples=200)
def test_whatever_a_host_lists_nothing_is_written_but_plain_files_in_its_folder(
    listed: list[tuple[str, int, int]],
) -> None:
    with tempfile.TemporaryDirectory() as name:
        here = Path(name) / "runs" / "night"
        host = Host({}, [[path, size, at] for path, size, at in listed])
        # It sends a few bytes of whatever it is asked for.
        host.stream = lambda *_, **__: iter([Part(None, b"evil")])  # type: ignore[method-assign]
        found = find(here, host, patterns=("*", "**/*"))
        with contextlib.suppress(YokedError):
            found.bring()

        written = [path for path in Path(name).rglob("*") if not path.is_dir()]
        own = {here / ".yoked-run", here / "outputs" / ".yoked-launch"}
        for path in set(written) - own:
            assert stat.S_ISREG(path.lstat().st_mode)
            below = path.relative_to(here / "outputs" / "attic")
            assert not any(part.startswith(".") for part in below.parts)
            assert path.stat().st_size <= 4


def test_what_nobody_asked_for_does_not_come(tmp_path: Path) -> None:
    found = find(tmp_path / "here", Host({"a.pt": b"a", "Makefile": b"m"}), patterns=("*.pt",))

    found.bring()

    assert came(tmp_path / "here") == {"attic/a.pt": b"a"}


def test_names_that_a_file_system_takes_for_one_do_not_overwrite_each_other(
    tmp_path: Path,
) -> None:
    listed = [[name, 1, 0] for name in ("A", "a", "b", "b/c", "d", "d", "e\u0301", "\u00e9")]
    files = dict.fromkeys(("A", "a", "b", "b/c", "d", "é", "é"), b"x")

    found = find(tmp_path / "here", Host(files, listed))
    found.bring()

    assert sorted(found.hosts[0].refused) == ["a", "b/c", "d", "\u00e9"]


def test_a_host_that_sends_more_than_it_listed_gets_no_further(tmp_path: Path) -> None:
    found = find(tmp_path / "here", Host({"a": b"0123456789"}, [["a", 4, NOW_NS]]))

    found.bring()

    assert came(tmp_path / "here") == {"attic/a": b"0123"}


def test_a_file_that_became_shorter_is_left_for_the_next_time(tmp_path: Path) -> None:
    found = find(tmp_path / "here", Host({"a": b"0123"}, [["a", 10, NOW_NS]]))

    found.bring()

    assert came(tmp_path / "here") == {}
    assert found.hosts[0].refused == {"a": "changed while it came"}
    assert not list((tmp_path / "here/outputs/attic").iterdir())


def test_what_is_here_does_not_come_again_and_what_changed_does(tmp_path: Path) -> None:
    here, host = tmp_path / "here", Host({"a": b"old", "b": b"same"})
    find(here, host).bring()
    host.files["a"] = b"newer"
    host.read.clear()

    again = find(here, host)
    again.bring()

    assert host.read == [("a", 0)]
    assert (again.new_files, again.new_bytes) == (1, 5)
    assert came(here) == {"attic/a": b"newer", "attic/b": b"same"}
    assert find(here, host).new_files == 0


class Cut(Host):
    """Its connection is cut in the middle of the first file."""

    def stream(self, _name: str, **more: Any) -> Iterator[Part]:
        yield next(super().stream(_name, **more))
        raise HostError("attic: cut")


def test_a_transfer_that_was_cut_goes_on_where_it_ended(tmp_path: Path) -> None:
    here, files = tmp_path / "here", {"a": b"0123456789"}
    with pytest.raises(HostError):
        find(here, Cut(files)).bring()
    assert came(here) == {}

    host = Host(files)
    told: list[tuple[str, int, int]] = []
    find(here, host).bring(lambda *amounts: told.append(amounts))

    assert host.read == [("a", 4)]
    assert told[-1] == ("attic", 6, 6)
    assert came(here) == {"attic/a": b"0123456789"}


def test_the_beginning_of_what_has_changed_since_is_thrown_away(tmp_path: Path) -> None:
    here = tmp_path / "here"
    with pytest.raises(HostError):
        find(here, Cut({"a": b"0123456789"})).bring()

    find(here, Host({"a": b"abcdef"})).bring()

    assert came(here) == {"attic/a": b"abcdef"}
    assert [path.name for path in (here / "outputs/attic").iterdir()] == ["a"]


def test_links_that_somebody_put_here_are_not_written_through(tmp_path: Path) -> None:
    here, mine = tmp_path / "here", tmp_path / "mine"
    mine.mkdir()
    find(here, Host({"a": b"a"})).bring()
    (here / "outputs" / "cellar").symlink_to(mine)

    with pytest.raises(UsageError) as caught:
        find(here, Host({"a": b"a"}, name="cellar"))

    assert "is a link" in caught.value.what
    assert not list(mine.iterdir())


def test_a_folder_of_somebodys_work_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "thesis.tex").write_text("mine")

    with pytest.raises(UsageError) as caught:
        find(tmp_path / "here", Host({"a": b"a"}))

    assert "somebody's work" in caught.value.what


def test_a_training_of_that_name_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.json").write_text("{}")

    with pytest.raises(UsageError) as caught:
        find(tmp_path / "here", Host({"a": b"a"}))

    assert "is a training" in caught.value.what


def test_beside_the_record_of_a_program_its_outputs_come_and_no_others(tmp_path: Path) -> None:
    program = {"trains": False, "launch_id": "first"}
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "run.json").write_text(json.dumps(program))

    found = find(tmp_path / "here", Host({"a": b"a"}))
    (tmp_path / "here" / "run.json").write_text(json.dumps({**program, "launch_id": "another"}))

    assert found.new_files == 1
    with pytest.raises(UsageError, match="has the record of another run"):
        find(tmp_path / "here", Host({"a": b"a"}))


def test_another_run_of_that_name_does_not_mix_with_this(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    here, host = tmp_path / "here", Host({"a": b"a"})
    find(here, host).bring()
    later = record({"attic": Path("/there/night")}, launch_id="second")

    with pytest.raises(UsageError) as caught:
        find_outputs({"attic": host}, later, here, ("*",))  # type: ignore[dict-item]
    assert str(caught.value) == snapshot


def test_much_is_asked_about(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, snapshot: SnapshotAssertion
) -> None:
    here, host = tmp_path / "here", Host({"a": b"0123", "b": b"0123"})
    assert not find(here, host).is_large

    monkeypatch.setattr(outputs, "LIMIT_FILES", 1)
    assert find(here, host).is_large
    monkeypatch.setattr(outputs, "LIMIT_FILES", 2)
    monkeypatch.setattr(outputs, "LIMIT_BYTES", 7)
    large = find(here, host)

    assert large.is_large
    assert large.question().replace(str(tmp_path), "TMP") == snapshot
    # What is here already is not asked about again.
    large.bring()
    assert not find(here, host).is_large


def test_a_disk_that_is_too_small_is_told_before_anything_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs, "free_bytes", lambda _: 3)

    with raises_fault("disk-full-here"):
        find(tmp_path / "here", Host({"a": b"0123"})).bring()

    assert not (tmp_path / "here").exists()


def test_every_host_has_a_folder_of_its_own() -> None:
    hosts = (".", "here", "me@laptop", "fe80::1%eth0", "fe80::1_eth0", "..", ".ssh", "A", "a")

    folders = host_folders(hosts)

    assert folders["me@laptop"] == "me@laptop"
    assert folders["."] == "here"
    assert len({each.lower() for each in folders.values()}) == len(hosts)
    assert not any(each.startswith(".") or "/" in each for each in folders.values())


def test_the_place_is_told_once_for_hosts_that_share_it(snapshot: SnapshotAssertion) -> None:
    home = {"alpha": "/home/me/work", "beta": "/home/me/work", "mini": "/Users/me/work"}

    assert tell_place(["out/*.pt", "log"], home) == snapshot
