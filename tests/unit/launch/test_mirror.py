"""A run's folder comes to the controller, and only what is new of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import CheckpointError, HostError, UsageError
from yoked.launch.mirror import (
    fetch_bytes,
    fetch_json,
    find_checkpoint,
    mirror_run,
    require_same_run,
)
from yoked.records.manifest import content_digest
from yoked.remote.client import AgentClient, Part
from yoked.remote.transport import connect_here
from yoked.runs import MARK
from yoked.train.checkpoint_files import (
    CheckpointFolder,
    manifest_name,
    meta_name,
    model_name,
    optim_name,
    staged_path,
)

MODEL = "checkpoints/base_checkpoints/d4"
TOKENIZER = "words"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with connect_here() as client:
        yield client


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "night"
    (folder / "checkpoints/tokenizer").mkdir(parents=True)
    (folder / "run.json").write_text('{"attempt": 1}')
    (folder / "metrics.jsonl").write_bytes(b'{"step": 0}\n')
    (folder / "checkpoints/tokenizer/tokenizer.pkl").write_text("pickle")
    (folder / "checkpoints/tokenizer/yoked_tokenizer.json").write_text(TOKENIZER)
    for step in (50, 100):
        save(folder, step)
    return folder


def names_of(step: int) -> tuple[str, str, str]:
    return optim_name(step), meta_name(step), model_name(step)


def stage(run: Path, step: int) -> None:
    """Leave the files of a checkpoint that is being saved: written, but not in place."""
    for name in names_of(step):
        staged_path(run / MODEL, step, "0123abcd", name).write_text("old")


def save(run: Path, step: int, content: str = "old", val_bpb: float | None = None) -> None:
    folder = CheckpointFolder(run / MODEL)
    files = {name: lambda file: file.write(content.encode()) for name in names_of(step)}
    folder.lock()
    folder.save(step, files, val_bpb)
    folder.unlock()


def fetch(agent: AgentClient, there: Path, here: Path) -> int:
    """Bring the newest checkpoint as `yoked fetch` does; returns how many bytes came."""
    newest = find_checkpoint(agent, str(there))
    mirror_run(agent, str(there), here)
    return mirror_run(agent, str(there), here, wanted=newest.__contains__, digests=newest)


def require_whole(run: Path, step: int) -> None:
    """Raise unless the checkpoint that was saved last is that step's, and undamaged."""
    folder = CheckpointFolder(run / MODEL)
    newest = folder.complete()[0]
    assert newest.step == step
    folder.verify(newest)


def files(folder: Path) -> dict[str, str]:
    found = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text() for path in found}


def test_what_is_small_comes_and_checkpoints_stay(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"

    mirror_run(agent, str(there), here)

    assert files(here) == {"run.json": '{"attempt": 1}', "metrics.jsonl": '{"step": 0}\n'}


def test_only_what_was_added_comes_again(agent: AgentClient, there: Path, tmp_path: Path) -> None:
    here = tmp_path / "here"
    mirror_run(agent, str(there), here)
    added = b'{"step": 1}\n'
    with (there / "metrics.jsonl").open("ab") as file:
        file.write(added)

    came = mirror_run(agent, str(there), here)

    assert came == len(added) + len('{"attempt": 1}')
    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()


def test_a_journal_that_was_cut_in_the_middle_of_a_line_is_completed(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "metrics.jsonl").write_bytes(b'{"st')

    mirror_run(agent, str(there), here)

    assert (here / "metrics.jsonl").read_bytes() == b'{"step": 0}\n'


def test_the_find_checkpoint_comes_with_its_tokenizer(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    newest = find_checkpoint(agent, str(there))
    told: list[tuple[int, int]] = []
    mirror_run(agent, str(there), here)

    mirror_run(
        agent,
        str(there),
        here,
        wanted=newest.__contains__,
        digests=newest,
        progress=lambda done, total: told.append((done, total)),
    )

    assert sorted(Path(name).name for name in files(here)) == [
        "manifest_000100.json",
        "meta_000100.json",
        "metrics.jsonl",
        "model_000100.pt",
        "optim_000100_rank0.pt",
        "run.json",
        "yoked_tokenizer.json",
    ]
    require_whole(here, 100)
    assert told[-1][0] == told[-1][1]
    # It has no digest: it comes again.
    assert fetch(agent, there, here) == len(TOKENIZER)


def test_a_checkpoint_that_is_being_saved_is_left_where_it_is(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    stage(there, 150)

    fetch(agent, there, here)

    require_whole(here, 100)
    assert not [name for name in files(here) if Path(name).name.startswith(".")]


def test_a_step_that_is_being_saved_anew_is_left_where_it_is(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    save(there, 100, "new")
    token = CheckpointFolder(there / MODEL).complete()[0].token
    (there / MODEL / f".yoked-000100-{token}-{model_name(100)}.part").write_text("new")

    fetch(agent, there, here)

    require_whole(here, 50)


def test_a_step_that_was_saved_anew_comes_again(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    fetch(agent, there, here)
    save(there, 100, "new")

    fetch(agent, there, here)

    require_whole(here, 100)
    assert (here / MODEL / model_name(100)).read_text() == "new"


def test_what_an_abandoned_attempt_left_is_not_the_newest(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    fetch(agent, there, here)
    save(there, 75)

    fetch(agent, there, here)

    require_whole(here, 75)


@pytest.mark.parametrize("damage", ["gone", "cut", "no manifest"])
def test_a_checkpoint_that_is_not_whole_is_passed_over(
    agent: AgentClient, there: Path, tmp_path: Path, damage: str
) -> None:
    folder = there / MODEL
    if damage == "gone":
        (folder / optim_name(100)).unlink()
    elif damage == "cut":
        (folder / model_name(100)).write_text("o")
    else:
        (folder / manifest_name(100)).write_text("{")

    fetch(agent, there, tmp_path / "here")

    require_whole(tmp_path / "here", 50)


def test_a_checkpoint_of_nanochat_comes_where_there_is_no_other(
    agent: AgentClient, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    (there / MODEL).mkdir(parents=True)
    for name in (model_name(20), meta_name(20), "optim_000020_rank1.pt", model_name(30)):
        (there / MODEL / name).write_text("text")

    fetch(agent, there, tmp_path / "here")

    assert sorted(Path(name).name for name in files(tmp_path / "here")) == [
        "meta_000020.json",
        "model_000020.pt",
        "optim_000020_rank1.pt",
    ]


def test_a_file_that_is_replaced_while_it_comes_is_not_taken(
    agent: AgentClient, there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    here = tmp_path / "here"
    newest = find_checkpoint(agent, str(there))
    (there / MODEL / model_name(100)).write_text("new")

    with pytest.raises(CheckpointError) as caught:
        mirror_run(agent, str(there), here, wanted=newest.__contains__, digests=newest)
    assert str(caught.value) == snapshot

    assert not (here / MODEL / model_name(100)).exists()
    assert not (here / MODEL / manifest_name(100)).exists()


def test_a_checkpoint_that_was_removed_meanwhile_is_told(
    agent: AgentClient, there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    newest = find_checkpoint(agent, str(there))
    for name in (manifest_name(100), model_name(100)):
        (there / MODEL / name).unlink()

    with pytest.raises(CheckpointError) as caught:
        mirror_run(agent, str(there), tmp_path / "here", wanted=newest.__contains__, digests=newest)
    assert str(caught.value) == snapshot


def test_a_run_without_a_checkpoint_has_none_to_bring(agent: AgentClient, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "checkpoints/tokenizer").mkdir(parents=True)
    (there / "checkpoints/tokenizer/tokenizer.pkl").write_text("pickle")
    (there / MODEL).mkdir(parents=True)
    stage(there, 50)

    assert find_checkpoint(agent, str(there)) == {}


def test_a_folder_that_is_not_there_is_empty(agent: AgentClient, tmp_path: Path) -> None:
    assert mirror_run(agent, str(tmp_path / "nowhere"), tmp_path / "here") == 0


def test_a_large_file_comes_whole(agent: AgentClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    (tmp_path / "large.pt").write_bytes(content)

    assert fetch_bytes(agent, str(tmp_path / "large.pt")) == content


def test_a_json_file_that_is_missing_is_none(agent: AgentClient, there: Path) -> None:
    assert fetch_json(agent, str(there / "run.json")) == {"attempt": 1}
    assert fetch_json(agent, str(there / "result.json")) is None


def test_a_run_is_not_brought_into_the_folder_of_another(
    agent: AgentClient, there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    here = tmp_path / "my runs"
    here.mkdir()
    (there / "events.jsonl").write_text('{"time_s": 2, "event": "start"}\n')
    (here / "events.jsonl").write_text('{"time_s": 1, "event": "start"}\n')
    (here / "metrics.jsonl").write_text('{"step": 7}\n')

    with pytest.raises(UsageError) as refused:
        mirror_run(agent, str(there), here)
    assert str(refused.value) == snapshot

    assert refused.value.fix == snapshot
    assert (here / "metrics.jsonl").read_text() == '{"step": 7}\n'


def test_a_run_is_not_brought_into_a_folder_with_a_persons_own_files(
    agent: AgentClient, there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    here = tmp_path / "here"
    (here / "launch-notes").mkdir(parents=True)
    (here / ".run.json.unfinished").write_text("mine")

    with pytest.raises(UsageError) as caught:
        mirror_run(agent, str(there), here)
    assert str(caught.value) == snapshot

    assert files(here) == {".run.json.unfinished": "mine"}


def test_a_line_that_was_torn_here_and_cut_there_leaves_no_trace(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (here / "metrics.jsonl").write_bytes(b'{"step": 0}\n{"st')
    (there / "metrics.jsonl").write_bytes(b'{"step": 0}\n{"attempt": 2, "step": 1}\n')

    mirror_run(agent, str(there), here)

    assert (here / "metrics.jsonl").read_bytes() == (there / "metrics.jsonl").read_bytes()


class Host:
    """A host that answers with anything. listed: what it says of its files; content: of each."""

    host = "attic"

    def __init__(self, listed: dict[str, int], content: bytes = b"evil") -> None:
        self.listed, self.content = listed, content

    def call(self, name: str, **_: object) -> list[list[object]]:
        assert name == "file_list"
        return [[path, size, 0] for path, size in self.listed.items()]

    def stream(self, _name: str, *, path: str, offset: int = 0, **__: object) -> Iterator[Part]:
        for start in range(offset, len(self.content), 4):
            yield Part(None, self.content[start : start + 4])


def bring(host: Host, here: Path) -> list[str]:
    """Bring all that a host lists, checkpoints too; returns what was said."""
    said: list[str] = []
    mirror_run(
        host,  # type: ignore[arg-type]
        "/runs/night",
        here,
        wanted=lambda _: True,
        note=said.append,
    )
    return said


STRANGE_NAMES = [
    ".git/config",
    ".gitattributes",
    "checkpoints/.git/hooks/post-checkout",
    "checkpoints/base_checkpoints/d4/.git/config",
    "checkpoints/base_checkpoints/.d4/model_000001.pt",
    "checkpoints/tokenizer/.envrc",
    "../x",
    "logs/../../x",
    "/etc/x",
    "//etc/x",
    "./run.json",
    "logs//a.0.log",
    "logs/a\n.0.log",
    "logs/\x1b]0;x\x07.0.log",
    "logs/\u202ea.0.log",
    "logs/a.\u0661.log",
    "run.json\n",
    "\udc80.json",
    "logs/" + "a" * 250 + ".0.log",
    "Makefile",
    "conftest.py",
    "loss.svg",
    "checkpoints/base_checkpoints/d4/model_000001.py",
    "checkpoints/tokenizer/sitecustomize.py",
    "",
]


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_a_file_that_no_run_has_stays_where_it_is_and_that_is_said(
    tmp_path: Path, name: str
) -> None:
    said = bring(Host({name: 4, "metrics.jsonl": 4}), tmp_path / "here")

    assert list(tmp_path.rglob("*")) == [tmp_path / "here", tmp_path / "here/metrics.jsonl"]
    assert len(said) == 1
    assert said[0].startswith("1 file ")
    assert "attic" in said[0]
    assert ascii(name)[:40] in said[0]
    assert said[0].isprintable()


def test_many_strange_files_are_said_in_one_line(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    said = bring(Host({f".git/{number}": 4 for number in range(50)}), tmp_path / "here")

    (line,) = said
    assert line == snapshot


@pytest.mark.parametrize("name", ["tokenizer.pkl", "token_bytes.pt"])
def test_a_pickle_of_the_tokenizer_never_comes(tmp_path: Path, name: str) -> None:
    host = Host({f"checkpoints/tokenizer/{name}": 4})

    said = bring(host, tmp_path / "here")

    assert files(tmp_path / "here") == {}
    # It is made here: nothing is missing.
    assert said == []


def test_of_names_that_differ_by_case_alone_the_first_comes(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    host = Host(
        {
            "checkpoints/base_checkpoints/d4/model_000001.pt": 4,
            "checkpoints/base_checkpoints/D4/model_000002.pt": 4,
            "logs/attic.0.log": 4,
            "logs/Attic.0.log": 4,
        }
    )

    said = bring(host, tmp_path / "here")

    assert sorted(files(tmp_path / "here")) == [
        "checkpoints/base_checkpoints/d4/model_000001.pt",
        "logs/attic.0.log",
    ]
    assert said[0] == snapshot


@pytest.mark.parametrize("stands", ["folder", "link", "link above"])
@pytest.mark.parametrize("name", ["logs/attic.0.log", "logs/attic.1.log"])
def test_nothing_is_written_over_a_folder_or_through_a_link(
    tmp_path: Path, stands: str, name: str, snapshot: SnapshotAssertion
) -> None:
    here, other = tmp_path / "here", tmp_path / "other"
    other.mkdir()
    (other / "attic.0.log").write_text("mine")
    (other / "attic.1.log").write_text("mine")
    if stands == "link above":
        here.mkdir()
        (here / "logs").symlink_to(other)
    elif stands == "link":
        (here / "logs").mkdir(parents=True)
        (here / name).symlink_to(other / Path(name).name)
    else:
        (here / name).mkdir(parents=True)
    # It is a run's folder, so that it may be written into.
    (here / MARK).touch()

    said = bring(Host({name: 8}, b"mineevil"), here)

    assert set(files(other).values()) == {"mine"}
    assert said[0] == snapshot


def test_a_checkpoint_whose_place_here_is_taken_is_an_error(
    agent: AgentClient, there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (tmp_path / "here" / MODEL / model_name(100)).mkdir(parents=True)
    (tmp_path / "here" / MARK).touch()

    with pytest.raises(CheckpointError) as caught:
        fetch(agent, there, tmp_path / "here")
    assert str(caught.value) == snapshot


def test_a_link_that_waits_for_an_unfinished_file_is_not_followed(tmp_path: Path) -> None:
    here, mine = tmp_path / "here", tmp_path / "mine"
    here.mkdir()
    mine.write_text("mine")
    (here / "run.json").write_text("{}")
    bring(Host({"run.json": 4}), here)
    for name in (".run.json.unfinished", ".yoked-unfinished-run.json"):
        (here / name).symlink_to(mine)

    bring(Host({"run.json": 4}, b"new!"), here)

    assert mine.read_text() == "mine"
    assert (here / "run.json").read_text() == "new!"


def test_a_file_that_is_replaced_whole_never_comes_larger_than_it_was_listed(
    tmp_path: Path,
) -> None:
    host = Host({"run.json": 4}, b"evil" * 1000)

    with raises_fault("file-grew", most_bytes=4):
        bring(host, tmp_path / "here")

    assert files(tmp_path / "here") == {}


def test_a_journal_grows_by_no_more_than_was_listed(tmp_path: Path) -> None:
    host = Host({"metrics.jsonl": 6}, b"evil\n" * 1000)

    bring(host, tmp_path / "here")

    assert (tmp_path / "here/metrics.jsonl").read_bytes() == b"evil\ne"


@pytest.mark.parametrize("name", ["run.json", "checkpoints/base_checkpoints/d4/meta_000001.json"])
def test_a_small_file_of_a_terabyte_stays_where_it_is(tmp_path: Path, name: str) -> None:
    said = bring(Host({name: 10**12}), tmp_path / "here")

    assert files(tmp_path / "here") == {}
    assert "too large" in said[0]


def test_what_the_disk_has_no_room_for_is_refused_before_it_comes(tmp_path: Path) -> None:
    host = Host({"checkpoints/base_checkpoints/d4/model_000001.pt": 2**60})

    with raises_fault("disk-full-here"):
        bring(host, tmp_path / "here")

    assert files(tmp_path / "here") == {}


def test_ever_more_files_are_refused_before_they_come(tmp_path: Path) -> None:
    host = Host({f"logs/attic.{rank}.log": 0 for rank in range(20_000)})

    with raises_fault("run-too-many-files", files=20000):
        bring(host, tmp_path / "here")

    assert files(tmp_path / "here") == {}


def test_a_json_file_without_end_is_not_read_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("yoked.launch.mirror.MOST_JSON_BYTES", 10)

    with raises_fault("file-grew"):
        fetch_bytes(Host({}, b"evil" * 1000), "/x/result.json")  # type: ignore[arg-type]


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_json_file_that_is_no_object_is_a_hosts_error(
    content: bytes, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(HostError) as caught:
        fetch_json(Host({}, content), "/x/result.json")
    assert str(caught.value) == snapshot  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["sequence", "token", "files", "name", "size_bytes", "sha256"])
def test_a_manifest_that_is_no_manifest_is_passed_over(
    agent: AgentClient, there: Path, key: str
) -> None:
    path = there / MODEL / manifest_name(100)
    manifest = json.loads(path.read_bytes())
    del manifest["sha256"]
    for place in (*manifest["files"], manifest):
        if key in place:
            place[key] = {"evil": 1}
    # Its own digest fits.
    path.write_text(json.dumps({**manifest, "sha256": content_digest(manifest)}))

    newest = find_checkpoint(agent, str(there))

    assert f"{MODEL}/{model_name(50)}" in newest


def test_a_beginning_is_compared_without_reading_all_of_the_events(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(b'{"a": 1}\n')

    class Endless(Host):
        def stream(self, *_: object, **__: object) -> Iterator[Part]:
            yield Part(None, b'{"a": 1}\n')
            raise AssertionError("it was read on")

    require_same_run(Endless({}), "/runs/night", tmp_path)  # type: ignore[arg-type]


@pytest.mark.parametrize(("which", "step"), [("latest", 200), ("best", 120), ("50", 50)])
def test_the_checkpoint_that_was_named_is_found(
    agent: AgentClient, there: Path, which: str, step: int
) -> None:
    for saved, val_bpb in ((110, 1.4), (120, 1.2), (200, 1.3)):
        save(there, saved, val_bpb=val_bpb)

    found = find_checkpoint(agent, str(there), which)

    assert {f"{MODEL}/{name}" for name in names_of(step)} < found.keys()
    assert not any(f"_{other:06d}" in name for name in found for other in {50, 120, 200} - {step})


@pytest.mark.parametrize("which", ["best", "60"])
def test_a_checkpoint_that_is_not_there_is_nothing(
    agent: AgentClient, there: Path, which: str
) -> None:
    assert find_checkpoint(agent, str(there), which) == {}
