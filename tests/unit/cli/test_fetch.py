"""`yoked fetch`: what comes of a run from hosts that nobody trusts."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli.commands import fetch
from yoked.errors import CheckpointError, DataError
from yoked.remote.transport import connect_here
from yoked.train.checkpoint_files import CheckpointFolder, meta_name, model_name
from yoked.train.tokenizer import JSON_NAME, PICKLE_NAME, Tokenizer

TOKENIZER = "checkpoints/tokenizer"


class Touch:
    """What a stranger's pickle does to those who load it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self.path,))


@pytest.fixture
def there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of run `night` on a host, with a checkpoint and a tokenizer, and no fleet file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("YOKED_STATE", str(tmp_path / "state"))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))

    @contextmanager
    def connected(_: object) -> Iterator[dict[str, Any]]:
        with connect_here() as client:
            yield {"attic": client}

    monkeypatch.setattr(fetch, "connected", connected)
    run = tmp_path / "state/runs/night"
    (run / "logs").mkdir(parents=True)
    (run / "run.json").write_text("{}")
    Tokenizer.train(["the cat sat on the mat"] * 3, 270).save(run / TOKENIZER)
    folder = CheckpointFolder(run / "checkpoints/base_checkpoints/d4")
    folder.lock()
    names = (meta_name(1), model_name(1))
    folder.save(1, {name: lambda file: file.write(b"old") for name in names})
    folder.unlock()
    return run


def test_the_tokenizers_pickle_is_made_here_and_not_the_hosts(there: Path, tmp_path: Path) -> None:
    hit = tmp_path / "hit"
    for name in (PICKLE_NAME, "token_bytes.pt"):
        (there / TOKENIZER / name).write_bytes(pickle.dumps(Touch(hit)))

    status = fetch.command("night")

    assert status == 0
    here = tmp_path / "runs/night" / TOKENIZER
    assert sorted(path.name for path in here.iterdir()) == [
        "token_bytes.pt",
        PICKLE_NAME,
        JSON_NAME,
    ]
    # As nanochat reads it.
    loaded = pickle.loads((here / PICKLE_NAME).read_bytes())
    assert loaded.encode_ordinary("the cat") == Tokenizer.load(here).encode("the cat")
    assert not hit.exists()


def test_what_a_host_hides_in_a_run_stays_there_and_is_said_once(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    for name in (".git/config", "checkpoints/.git/hooks/post-checkout", "loss.svg", "a\n\x1b[2J"):
        (there / name).parent.mkdir(parents=True, exist_ok=True)
        (there / name).write_text("[core] fsmonitor = touch hit")

    fetch.command("night")

    came = {path.name for path in (tmp_path / "runs").rglob("*")}
    assert not came & {".git", "config", "hooks", "post-checkout", "loss.svg", "a\n\x1b[2J"}
    said = capsys.readouterr().err
    assert said == snapshot
    assert "\x1b" not in said


def test_a_run_without_its_tokenizers_json_comes_without_a_tokenizer(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    (there / TOKENIZER / JSON_NAME).unlink()

    fetch.command("night")

    assert not (tmp_path / "runs/night" / TOKENIZER).exists()
    assert capsys.readouterr().err == snapshot


def test_a_tokenizer_that_is_damaged_is_an_error_and_makes_no_pickle(
    there: Path, tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    (there / TOKENIZER / JSON_NAME).write_text("{}")

    with pytest.raises(DataError) as caught:
        fetch.command("night")
    assert str(caught.value) == snapshot

    assert not (tmp_path / "runs/night" / TOKENIZER / PICKLE_NAME).exists()


def test_a_controller_without_torch_fetches_all_the_same(
    there: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    monkeypatch.setitem(sys.modules, "yoked.train.nanochat_format", None)

    status = fetch.command("night")

    assert status == 0
    assert [path.name for path in (tmp_path / "runs/night" / TOKENIZER).iterdir()] == [JSON_NAME]
    assert capsys.readouterr().err == snapshot


def save(run: Path, step: int, val_bpb: float | None) -> None:
    folder = CheckpointFolder(run / "checkpoints/base_checkpoints/d4")
    folder.lock()
    names = (meta_name(step), model_name(step))
    folder.save(step, {name: lambda file: file.write(b"more") for name in names}, val_bpb)
    folder.unlock()


@pytest.mark.parametrize(("which", "step"), [("best", 2), ("latest", 3), ("1", 1)])
def test_the_checkpoint_that_is_named_comes_and_no_other(
    there: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], which: str, step: int
) -> None:
    save(there, 2, 1.2)
    save(there, 3, 1.3)

    assert fetch.command("night", checkpoint=which) == 0

    came = CheckpointFolder(tmp_path / "runs/night/checkpoints/base_checkpoints/d4").complete()
    assert [manifest.step for manifest in came] == [step]
    flag = "" if which == "latest" else f" --checkpoint {which}"
    assert capsys.readouterr().out.endswith(f"next: yoked sample night{flag}\n")


@pytest.mark.parametrize("which", ["best", "7"])
def test_a_checkpoint_that_is_not_there_is_told_of_its_host(
    there: Path, which: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(CheckpointError) as caught:
        fetch.command("night", checkpoint=which)
    assert str(caught.value) == snapshot
