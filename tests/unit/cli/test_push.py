"""`yoked push`: data comes to hosts once, and programs find it."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms
from tests.unit.agent.job_acts import SLEEPER, job_request, no_job_left

from yoked import hashes
from yoked.cli.commands import clean, push
from yoked.core.fs import sha256_of
from yoked.errors import HostError, UsageError, YokedError
from yoked.fleet.model import Host
from yoked.launch import trees
from yoked.launch.program import Program
from yoked.launch.pushed import Pushed, push_named, pushed_there, tell_pushed
from yoked.launch.start import JobRequest, NodePlan, _with_pushed_data, rank_environment
from yoked.launch.trees import Tree
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here


@pytest.fixture
def shards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data where a person stands, who has no fleet file and a git that ignores it."""
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / "My Shards"
    (folder / "val").mkdir(parents=True)
    (folder / "a.bin").write_bytes(b"a" * 3000)
    (folder / "val" / "b.bin").write_bytes(b"b" * 2000)
    (folder / ".gitignore").write_text("*\n")
    (folder / ".git").mkdir()
    (folder / ".git" / "config").write_text("mine")
    return folder


@pytest.fixture
def agent() -> Iterator[AgentClient]:
    with connect_here("attic") as client:
        yield client


def pushed(capsys: pytest.CaptureFixture[str], *words: Any, **flags: Any) -> list[Any]:
    capsys.readouterr()
    assert push.command(*words, json_output=True, **flags) == 0
    found: list[Any] = conforms("push", json.loads(capsys.readouterr().out))["data"]
    return found


def blobs(root: Path) -> int:
    return sum(path.is_file() for path in (root / "cache" / "blobs").rglob("*"))


@pytest.fixture
def read_again(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files that are read for their hashes."""
    found: list[str] = []

    def read(path: Path) -> str:
        found.append(path.name)
        return sha256_of(path)

    monkeypatch.setattr(hashes, "sha256_of", read)
    return found


def test_only_what_changed_is_read_again(
    shards: Path, read_again: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    before = Tree.of_data(shards)
    assert sorted(read_again) == [".gitignore", "a.bin", "b.bin"]
    read_again.clear()

    assert Tree.of_data(shards).digest == before.digest
    assert read_again == []

    # Of the same size, with the time of before.
    time_ns = (shards / "a.bin").stat().st_mtime_ns
    (shards / "a.bin").write_bytes(b"c" * 3000)
    os.utime(shards / "a.bin", ns=(time_ns, time_ns))

    assert Tree.of_data(shards).digest != before.digest
    assert read_again == ["a.bin"]


def test_a_file_that_was_just_written_is_read_again(shards: Path, read_again: list[str]) -> None:
    Tree.of_data(shards)
    read_again.clear()

    Tree.of_data(shards)

    assert sorted(read_again) == [".gitignore", "a.bin", "b.bin"]


@pytest.mark.parametrize("content", ["[]", '{"a.bin": 3}', '{"a.bin": []}', "no JSON"])
def test_hashes_that_cannot_be_read_are_worked_out_anew(
    shards: Path,
    tmp_path: Path,
    read_again: list[str],
    monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:
    # Of files that were just written nothing is kept.
    monkeypatch.setattr(hashes, "SETTLED_NS", -1)
    before = Tree.of_data(shards)
    (kept,) = (tmp_path / "cache" / "hashes").iterdir()
    kept.write_text(content)
    read_again.clear()

    assert Tree.of_data(shards).digest == before.digest
    assert sorted(read_again) == [".gitignore", "a.bin", "b.bin"]


def test_data_comes_whole_once_and_has_a_variable(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (data,) = pushed(capsys, shards)
    (again,) = pushed(capsys, shards)
    (listed,) = pushed(capsys)

    assert (data["name"], data["variable"]) == ("my_shards", "YOKED_DATA_MY_SHARDS")
    (row,) = data["hosts"]
    there = Path(row["path"])
    assert {path.relative_to(there).as_posix() for path in there.rglob("*") if path.is_file()} == {
        *("a.bin", "val/b.bin", ".gitignore")
    }
    assert (there / "a.bin").read_bytes() == b"a" * 3000
    # A program that writes there would change what another one reads.
    assert stat.S_IMODE((there / "a.bin").stat().st_mode) == 0o444
    sent = [each["hosts"][0]["sent_bytes"] for each in (data, again, listed)]
    assert sent == [5002, 0, None]


def test_of_data_that_changed_only_the_change_is_sent(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = pushed(capsys, shards)
    (shards / "a.bin").write_bytes(b"new" * 100)
    (second,) = pushed(capsys, shards)

    assert second["hosts"][0]["sent_bytes"] == 300
    was, now = (Path(each["hosts"][0]["path"]) for each in (first, second))
    assert was != now
    assert (now / "a.bin").read_bytes() == b"new" * 100
    # A run that was told of it before may read it.
    assert (was / "a.bin").read_bytes() == b"a" * 3000
    assert blobs(tmp_path) == 4

    (shards / "a.bin").write_bytes(b"newer")
    pushed(capsys, shards)

    assert not was.exists()
    assert now.exists()
    assert blobs(tmp_path) == 4


def test_clean_shows_data_that_was_replaced_and_removes_it(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (first,) = pushed(capsys, shards)
    (shards / "a.bin").write_bytes(b"new" * 100)
    pushed(capsys, shards)
    was = Path(first["hosts"][0]["path"])

    clean.command()
    assert f"data that a later push replaced: {was}, 3.00 kB" in capsys.readouterr().out
    assert was.exists()

    with connect_here() as client:
        assert client.call("pushed_sweep", remove=True) == [
            {"folder": str(was), "size_bytes": 3000}
        ]
    assert not was.exists()
    assert blobs(tmp_path) == 3
    assert [path.name for path in was.parent.glob(f"{was.name}*")] == []


def test_data_of_a_run_that_goes_on_stays(
    shards: Path, tmp_path: Path, agent: AgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (data,) = pushed(capsys, shards)
    path = data["hosts"][0]["path"]
    request = job_request(tmp_path / "state", SLEEPER)
    request["env"]["YOKED_DATA_MY_SHARDS"] = path
    with no_job_left():
        agent.call("job_start", **request)
        agent.call("job_go", run="try")

        with pytest.raises(HostError) as caught:
            push.command(remove="my_shards")
        assert "in the environment of run try" in caught.value.what
        for content in (b"1", b"2"):
            (shards / "a.bin").write_bytes(content)
            pushed(capsys, shards)
        assert Path(path).exists()

        agent.call("job_stop", run="try", how="kill")
    assert push.command(remove="my_shards") == 0
    assert not Path(path).exists()


def test_what_is_removed_is_gone_with_its_blobs_but_for_those_of_others(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pushed(capsys, shards, name="one")
    (shards / "c.bin").write_bytes(b"c")
    pushed(capsys, shards, name="two")
    capsys.readouterr()

    assert push.command(remove="one", json_output=True) == 0
    told = conforms("push", json.loads(capsys.readouterr().out))["removed"]
    assert told == {"name": "one", "hosts": ["."]}
    assert [each["name"] for each in pushed(capsys)] == ["two"]
    assert blobs(tmp_path) == 4

    push.command(remove="two")
    assert pushed(capsys) == []
    assert blobs(tmp_path) == 0
    assert not list((tmp_path / "cache" / "pushed").iterdir())


def test_what_was_cut_off_goes_on(
    shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("yoked.launch.blobs.LARGE_BYTES", 1000)
    monkeypatch.setattr("yoked.launch.blobs.PIECE_BYTES", 500)
    tree = Tree.of_data(shards)

    class CutInTheMiddle:
        def update(self, stage: str, done: int, total: int | None, unit: str) -> None:
            if done > 2500:
                raise KeyboardInterrupt

    with connect_here() as client:
        with pytest.raises(KeyboardInterrupt):
            push_named(client, "shards", tree, CutInTheMiddle())
        assert pushed_there(client) == []
        sent = push_named(client, "shards", tree)

    assert 0 < sent <= 2500


def test_links_are_kept_or_followed_and_that_is_said(
    shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "rows").write_text("rows")
    (shards / "out").symlink_to(tmp_path / "elsewhere")
    (shards / "inside").symlink_to("a.bin")

    push.command(shards)

    assert "1 file of " in capsys.readouterr().err
    (data,) = pushed(capsys)
    there = Path(data["hosts"][0]["path"])
    assert (there / "out" / "rows").read_text() == "rows"
    assert (there / "inside").readlink() == Path("a.bin")


@pytest.mark.parametrize("name", ["Home", "home", "a b", "", "_", "ünïcode", "x" * 41])
def test_a_name_that_makes_no_variable_is_refused_with_one_that_does(
    shards: Path, name: str
) -> None:
    with pytest.raises(UsageError) as caught:
        push.command(shards, name=name)
    proposed = caught.value.fix[0].split()[1]
    assert push.command(shards, name=proposed) == 0


@pytest.mark.parametrize(
    "flags", [{"remove": "nothing"}, {"name": "x"}, {"folder": "none"}, {"folder": "empty"}]
)
def test_what_cannot_be_meant_is_told(
    shards: Path, flags: dict[str, str], snapshot: SnapshotAssertion
) -> None:
    Path("empty").mkdir()
    words = [Path(flags.pop("folder"))] if "folder" in flags else []

    with pytest.raises(YokedError) as caught:
        push.command(*words, **flags)
    assert str(caught.value) == snapshot


def test_a_folder_of_too_many_files_is_refused(
    shards: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trees, "MOST_DATA_FILES", 2)

    with pytest.raises(UsageError) as caught:
        push.command(shards)
    assert "more than 2 files" in caught.value.what


def test_ranks_find_it_and_a_start_says_so(
    shards: Path, agent: AgentClient, capsys: pytest.CaptureFixture[str]
) -> None:
    (data,) = pushed(capsys, shards)
    facts = {"state": "/state", "usable_cores": 4, "path": "/bin"}
    node = NodePlan(Host("attic"), agent, facts, 1, "/venv/bin/python", "lo", "127.0.0.1")
    said: list[str] = []

    (with_data,) = _with_pushed_data([node], said.append)

    request = JobRequest(run="night", program=Program("script", "a.py", (), shards))
    env = rank_environment(request, with_data, "id", "", "127.0.0.1")
    assert env["YOKED_DATA_MY_SHARDS"] == data["hosts"][0]["path"]
    assert said == ["data in YOKED_DATA_MY_SHARDS: 5.00 kB"]


def test_data_that_not_all_hosts_have_alike_is_told(snapshot: SnapshotAssertion) -> None:
    def data(name: str, digest: str) -> Pushed:
        return Pushed(name, digest, "/there", 1, 1_000_000)

    said: list[str] = []
    tell_pushed(
        {
            "alpha": [data("same", "1"), data("old", "1"), data("one", "1")],
            "beta": [data("same", "1"), data("old", "2")],
        },
        said.append,
    )

    assert "\n".join(said) == snapshot


def test_what_is_to_be_typed_next_is_about_the_same_fleet(
    shards: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("my.toml").write_text('[[host]]\nname = "."\n')

    push.command(shards, fleet=Path("my.toml"))
    assert "next: yoked run --fleet my.toml -- SCRIPT.py ARGS" in capsys.readouterr().out

    push.command(remove="my_shards", fleet=Path("my.toml"))
    assert "next: yoked push --fleet my.toml" in capsys.readouterr().out
