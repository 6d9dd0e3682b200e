"""A run's folder comes to the controller, and only what is new of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.launch.mirror import fetch_bytes, fetch_json, mirror_run, newest_checkpoint
from yoked.remote.client import AgentClient
from yoked.remote.transport import Here


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with Here().connect() as client:
        yield client


@pytest.fixture
def there(tmp_path: Path) -> Path:
    folder = tmp_path / "there" / "night"
    (folder / "checkpoints/base_checkpoints/d4").mkdir(parents=True)
    (folder / "checkpoints/tokenizer").mkdir()
    (folder / "run.json").write_text('{"attempt": 1}')
    (folder / "metrics.jsonl").write_bytes(b'{"step": 0}\n')
    for step in (50, 100):
        for name in (f"model_{step:06d}.pt", f"manifest_{step:06d}.json"):
            (folder / "checkpoints/base_checkpoints/d4" / name).write_text(name)
    (folder / "checkpoints/tokenizer/tokenizer.pkl").write_text("pickle")
    return folder


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
    names = [entry[0] for entry in agent.call("file_list", folder=str(there))]
    told: list[tuple[int, int]] = []

    mirror_run(
        agent,
        str(there),
        here,
        wanted=newest_checkpoint(names),
        progress=lambda done, total: told.append((done, total)),
    )

    assert sorted(Path(name).name for name in files(here)) == [
        "manifest_000100.json",
        "model_000100.pt",
        "tokenizer.pkl",
    ]
    assert told[-1][0] == told[-1][1]


def test_a_run_without_a_checkpoint_has_none_to_bring() -> None:
    wanted = newest_checkpoint(["run.json", "metrics.jsonl"])

    assert not wanted("run.json")


def test_a_folder_that_is_not_there_is_empty(agent: AgentClient, tmp_path: Path) -> None:
    assert mirror_run(agent, str(tmp_path / "nowhere"), tmp_path / "here") == 0


def test_a_large_file_comes_whole(agent: AgentClient, tmp_path: Path) -> None:
    content = bytes(range(256)) * 20_000
    (tmp_path / "large.pt").write_bytes(content)

    assert fetch_bytes(agent, str(tmp_path / "large.pt")) == content


def test_a_json_file_that_is_missing_is_none(agent: AgentClient, there: Path) -> None:
    assert fetch_json(agent, str(there / "run.json")) == {"attempt": 1}
    assert fetch_json(agent, str(there / "result.json")) is None
