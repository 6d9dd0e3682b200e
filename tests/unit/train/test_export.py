"""`yoked export`: what other programs read of a trained model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.unit.train.conftest import TinyState
from tests.unit.train.trained_models import make_model, make_run, save_model

from yoked.errors import CheckpointError, UsageError, YokedError
from yoked.train import export as export_module
from yoked.train.checkpoint import CheckpointStore
from yoked.train.export import MARK, export
from yoked.train.sample import load_trained
from yoked.train.tokenizer import Tokenizer

TEXT = "Was wäre, wenn der Bär größer wär? Über den Flüssen läge Öl; für süße Mäuse käme Käse. "
# What somebody without yoked does with an exported folder: the logits of a text, as JSON.
STRANGER = """
import json, sys
sys.modules["yoked"] = None
sys.path.insert(0, sys.argv[1])
import torch
from model import bos_id, load, load_tokenizer
torch.set_num_threads(1)
model, tokenizer = load(sys.argv[1]), load_tokenizer(sys.argv[1])
ids = [bos_id(tokenizer), *tokenizer.encode_ordinary(sys.argv[2])]
print(json.dumps([ids, model.logits(torch.tensor([ids]))[0].tolist()]))
"""


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.train([TEXT * 3], vocab_size=300)


@pytest.fixture
def run(tmp_path: Path, tokenizer: Tokenizer) -> Path:
    return make_run(tmp_path / "runs" / "first", tokenizer)


def exported(run: Path, target: Path, to: Any = "safetensors", **more: Any) -> Path:
    export(run, target, to, **{"checkpoint": "latest", "force": False, **more})
    return target


@torch.inference_mode()
def logits_of(trained: Any, ids: list[int]) -> torch.Tensor:
    return trained.model.logits(trained.model(torch.tensor([ids])))[0]


# More tokens than a short window has, and than its tile.
@pytest.mark.parametrize("text", ["Der Bär", TEXT * 6])
def test_a_stranger_without_yoked_gets_the_same_logits(
    run: Path, tmp_path: Path, text: str
) -> None:
    folder = exported(run, tmp_path / "out")

    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(folder), text],
        capture_output=True,
        text=True,
        check=True,
    )

    ids, logits = json.loads(done.stdout)
    trained = load_trained(run)
    assert ids == [trained.tokenizer.bos_id, *trained.tokenizer.encode(text)]
    torch.testing.assert_close(torch.tensor(logits), logits_of(trained, ids), rtol=1e-5, atol=1e-4)


def test_shared_keys_and_values_and_windows_are_exported_too(
    run: Path, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    model = make_model(tokenizer.vocab_size, n_kv_head=1, n_layer=4, pattern="SSL")
    save_model(run / "checkpoints/base_checkpoints/d4", model, step=9)
    folder = exported(run / "checkpoints/base_checkpoints/d4", tmp_path / "out")
    text = TEXT * 6

    done = subprocess.run(
        [sys.executable, "-I", "-c", STRANGER, str(folder), text],
        capture_output=True,
        text=True,
        check=True,
    )

    ids, logits = json.loads(done.stdout)
    expected = logits_of(load_trained(run / "checkpoints/base_checkpoints/d4"), ids)
    torch.testing.assert_close(torch.tensor(logits), expected, rtol=1e-5, atol=1e-4)


def test_the_folder_says_what_it_holds(run: Path, tmp_path: Path) -> None:
    folder = exported(run, tmp_path / "out")

    config = json.loads((folder / "config.json").read_text())
    assert config["n_layer"] == 3
    assert config["yoked"]["step"] == 5
    assert "step 5" in (folder / "README.md").read_text()
    assert not list(folder.glob("*.pkl"))
    # It is to be given away.
    assert not any(str(tmp_path) in file.read_text("latin-1") for file in folder.iterdir())


def test_nanochat_finds_model_optimizer_and_tokenizer(run: Path, tmp_path: Path) -> None:
    folder = exported(run, tmp_path / "out", "nanochat")

    files = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert files >= {
        "base_checkpoints/d3/model_000005.pt",
        "base_checkpoints/d3/meta_000005.json",
        "base_checkpoints/d3/optim_000005_rank0.pt",
        "tokenizer/tokenizer.pkl",
        "tokenizer/token_bytes.pt",
    }
    ids = list(range(20))
    again = load_trained(folder)
    torch.testing.assert_close(logits_of(again, ids), logits_of(load_trained(run), ids))
    assert CheckpointStore(folder / "base_checkpoints/d3").load().optim_state is not None


def save_trained(folder: Path) -> TinyState:
    """A checkpoint with an optimizer's state, of step 5."""
    state = TinyState()
    shape = vars(make_model().config) | {"vocab_size": 64}
    with CheckpointStore(folder) as store:
        meta = {**state.meta, "model_config": shape}
        store.save(5, state.model, state.saved, meta, extra={}, val_bpb=1.5, background=False)
    return state


def test_each_rank_of_nanochat_finds_its_part_of_the_optimizer(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_module, "tokenizer_of", lambda *_: None)
    state = save_trained(run / "checkpoints/base_checkpoints/d2")

    folder = exported(
        run / "checkpoints/base_checkpoints/d2", tmp_path / "out", "nanochat", ranks=2
    )

    files = folder / "base_checkpoints/d2"
    assert sorted(path.name for path in files.iterdir()) == [
        "manifest_000005.json",
        "meta_000005.json",
        "model_000005.pt",
        "optim_000005_rank0.pt",
        "optim_000005_rank1.pt",
    ]
    shapes = {
        rank: torch.load(files / f"optim_000005_rank{rank}.pt")["state"][0]["exp_avg"].shape
        for rank in range(2)
    }
    assert shapes == {0: (32, 32), 1: (32, 32)}
    assert "files for 2 ranks" in (folder / "README.md").read_text()
    # Whoever goes on from there, or exports it for another number of ranks, has all of it.
    again = exported(folder, tmp_path / "again", "nanochat", ranks=1)
    for base in (folder, again):
        store = CheckpointStore(base / "base_checkpoints/d2")
        loaded = store.load()
        assert loaded.optim_state is not None
        for name, entry in state.optim["muon"].items():
            found = loaded.optim_state["muon"][name]["momentum_buffer"]
            assert torch.equal(found, entry["momentum_buffer"])
        assert store.val_bpb(5) == 1.5
    assert not list(again.rglob("*_rank1.pt"))


def test_as_many_ranks_as_nanochat_itself_cannot_use_are_refused(run: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its 320 rows are no multiple of 7") as caught:
        exported(run, tmp_path / "out", "nanochat", ranks=7)

    assert caught.value.fix == ("--ranks 5",)
    assert not (tmp_path / "out").exists()


def test_a_part_that_is_missing_is_named(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "theirs"
    save_trained(folder)
    (folder / "manifest_000005.json").unlink()
    (folder / "optim_000005_rank0.pt").rename(folder / "optim_000005_rank1.pt")

    with pytest.raises(CheckpointError, match=r"optim_000005_rank0\.pt is missing"):
        CheckpointStore(folder).load()


def test_weights_are_exported_whatever_lacks_of_the_optimizers_state(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder,) = (run / "checkpoints" / "base_checkpoints").glob("*/")
    for manifest in folder.glob("manifest_*.json"):
        manifest.unlink()
    (part,) = folder.glob("optim_*_rank0.pt")
    part.rename(part.with_name(part.name.replace("rank0", "rank1")))
    model_bytes = sum(path.stat().st_size for path in folder.glob("model_*.pt"))
    meta_bytes = sum(path.stat().st_size for path in folder.glob("meta_*.json"))
    monkeypatch.setattr(export_module, "free_bytes", lambda _: model_bytes + meta_bytes)

    assert (exported(run, tmp_path / "out") / "model.safetensors").is_file()


@pytest.mark.parametrize("name", [".", "..", "/"])
def test_a_place_without_a_name_is_refused(
    run: Path, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")

    with pytest.raises(UsageError, match="takes its place"):
        exported(run, Path(name))


@pytest.mark.parametrize("to", ["safetensors", "nanochat"])
def test_the_checkpoint_that_was_named_is_exported(
    run: Path, tmp_path: Path, tokenizer: Tokenizer, to: str
) -> None:
    tag = run / "checkpoints/base_checkpoints/d3"
    for step, val_bpb in ((10, 1.1), (20, 1.2)):
        save_model(tag, make_model(tokenizer.vocab_size), step, val_bpb)

    folders = {
        which: exported(run, tmp_path / which, to, checkpoint=which)
        for which in ("best", "latest", "5")
    }

    steps = {which: json.loads((f / MARK).read_text())["step"] for which, f in folders.items()}
    assert steps == {"best": 10, "latest": 20, "5": 5}


def test_an_export_is_replaced_with_force_alone(run: Path, tmp_path: Path) -> None:
    folder = exported(run, tmp_path / "out")
    (folder / "mine.txt").write_text("notes")

    with pytest.raises(UsageError, match="is there already"):
        exported(run, folder)
    assert (folder / "mine.txt").is_file()
    exported(run, folder, "nanochat", force=True)

    assert (folder / "base_checkpoints").is_dir()
    assert not (folder / "model.safetensors").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


@pytest.mark.parametrize("kind", ["folder", "file", "link"])
def test_what_is_no_export_is_never_replaced(run: Path, tmp_path: Path, kind: str) -> None:
    target = tmp_path / "thesis"
    if kind == "folder":
        target.mkdir()
        (target / "chapter.txt").write_text("words")
    elif kind == "file":
        target.write_text("words")
    else:
        target.symlink_to(exported(run, tmp_path / "out"))
    before = os.lstat(target).st_ino

    with pytest.raises(UsageError, match="not replaced"):
        exported(run, target, force=True)

    assert os.lstat(target).st_ino == before


def test_an_empty_folder_is_filled(run: Path, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()

    assert (exported(run, tmp_path / "out") / MARK).is_file()


def test_a_failure_leaves_the_old_export_and_nothing_else(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = exported(run, tmp_path / "out")
    before = {path.name: path.stat().st_ino for path in folder.iterdir()}

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(export_module, "write_json", full)
    with pytest.raises(YokedError, match="No space left"):
        exported(run, folder, force=True)

    assert {path.name: path.stat().st_ino for path in folder.iterdir()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "runs"]


def test_what_a_killed_export_left_is_cleared_and_the_old_one_gets_its_name_back(
    run: Path, tmp_path: Path
) -> None:
    old = exported(run, tmp_path / "out").rename(tmp_path / ".out.01234567.old")
    (tmp_path / ".out.89abcdef.part").mkdir()

    exported(run, tmp_path / "other")
    assert old.is_dir(), "an export elsewhere has nothing to do with it"
    with pytest.raises(UsageError, match="is there already"):
        exported(run, tmp_path / "out")

    assert (tmp_path / "out" / MARK).is_file()
    assert not list(tmp_path.glob(".out.*"))


def test_a_damaged_checkpoint_is_not_exported(run: Path, tmp_path: Path) -> None:
    model = run / "checkpoints/base_checkpoints/d3/model_000005.pt"
    content = bytearray(model.read_bytes())
    content[-100] ^= 1
    model.write_bytes(content)

    with pytest.raises(CheckpointError, match="SHA-256"):
        exported(run, tmp_path / "out", "nanochat")

    assert not (tmp_path / "out").exists()
