"""A run's folder comes to the controller, and only what is new of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.errors import CheckpointError, HostError, UsageError
from yoked.launch.mirror import fetch_bytes, fetch_json, mirror_run, newest_checkpoint
from yoked.remote.client import AgentClient
from yoked.remote.transport import Here
from yoked.train.checkpoint_files import (
    CheckpointFolder,
    Staging,
    manifest_name,
    meta_name,
    model_name,
    optim_name,
)

MODEL = "checkpoints/base_checkpoints/d4"


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with Here().connect() as client:
        yield client


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "night"
    (folder / "checkpoints/tokenizer").mkdir(parents=True)
    (folder / "run.json").write_text('{"attempt": 1}')
    (folder / "metrics.jsonl").write_bytes(b'{"step": 0}\n')
    (folder / "checkpoints/tokenizer/tokenizer.pkl").write_text("pickle")
    for step in (50, 100):
        save(folder, step)
    return folder


def stage(run: Path, step: int, content: str = "old") -> Staging:
    """The files of a checkpoint, written, but not in place."""
    staging = Staging(run / MODEL, step)
    for name in (optim_name(step), meta_name(step), model_name(step)):
        with staging.create(name) as file:
            file.write(content.encode())
    return staging


def save(run: Path, step: int, content: str = "old") -> None:
    folder = CheckpointFolder(run / MODEL)
    folder.lock()
    folder.commit(stage(run, step, content))
    folder.unlock()


def fetch(agent: AgentClient, there: Path, here: Path) -> int:
    """Bring the newest checkpoint as `yoked fetch` does; returns how many bytes came."""
    newest = newest_checkpoint(agent, str(there))
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


def test_the_newest_checkpoint_comes_with_its_tokenizer(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    newest = newest_checkpoint(agent, str(there))
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
        "tokenizer.pkl",
    ]
    require_whole(here, 100)
    assert told[-1][0] == told[-1][1]
    assert fetch(agent, there, here) == 0


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
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    newest = newest_checkpoint(agent, str(there))
    (there / MODEL / model_name(100)).write_text("new")

    with pytest.raises(CheckpointError, match=r"model_000100\.pt is not what its manifest says"):
        mirror_run(agent, str(there), here, wanted=newest.__contains__, digests=newest)

    assert not (here / MODEL / model_name(100)).exists()
    assert not (here / MODEL / manifest_name(100)).exists()


def test_a_checkpoint_that_was_removed_meanwhile_is_told(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    newest = newest_checkpoint(agent, str(there))
    for name in (manifest_name(100), model_name(100)):
        (there / MODEL / name).unlink()

    with pytest.raises(CheckpointError, match="was removed meanwhile"):
        mirror_run(agent, str(there), tmp_path / "here", wanted=newest.__contains__, digests=newest)


def test_a_run_without_a_checkpoint_has_none_to_bring(agent: AgentClient, tmp_path: Path) -> None:
    there = tmp_path / "there"
    (there / "checkpoints/tokenizer").mkdir(parents=True)
    (there / "checkpoints/tokenizer/tokenizer.pkl").write_text("pickle")
    (there / MODEL).mkdir(parents=True)
    stage(there, 50)

    assert newest_checkpoint(agent, str(there)) == {}


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
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    here.mkdir()
    (there / "events.jsonl").write_text('{"time_s": 2, "event": "start"}\n')
    (here / "events.jsonl").write_text('{"time_s": 1, "event": "start"}\n')
    (here / "metrics.jsonl").write_text('{"step": 7}\n')

    with pytest.raises(UsageError, match="is another run of that name") as refused:
        mirror_run(agent, str(there), here)

    assert refused.value.fix == (f"move it away: mv {here} {here}.other",)
    assert (here / "metrics.jsonl").read_text() == '{"step": 7}\n'


def test_a_run_is_not_brought_into_a_folder_with_a_persons_own_files(
    agent: AgentClient, there: Path, tmp_path: Path
) -> None:
    here = tmp_path / "here"
    (here / "launch-notes").mkdir(parents=True)
    (here / ".run.json.unfinished").write_text("mine")

    with pytest.raises(UsageError, match="is no run and not empty"):
        mirror_run(agent, str(there), here)

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


@pytest.mark.parametrize("name", ["/home/me/notes", "logs/../../notes"])
def test_nothing_comes_from_outside_of_a_runs_folder(tmp_path: Path, name: str) -> None:
    class Liar:
        def call(self, *_: object, **__: object) -> list[list[object]]:
            return [[name, 7, 0]]

    with pytest.raises(HostError, match="is not in it"):
        mirror_run(Liar(), "/runs/night", tmp_path / "here")  # type: ignore[arg-type]
