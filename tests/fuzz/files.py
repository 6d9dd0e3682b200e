"""Files of a folder that somebody was given: prepared data, a tokenizer, a checkpoint."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import pickle
import tempfile
import zipfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from hypothesis import strategies as st
from tests.fuzz.hostile import ODD, json_files, near, near_bytes
from tests.unit.train.conftest import TinyState

from yoked.errors import CheckpointError, DataError
from yoked.records.manifest import content_digest
from yoked.train.checkpoint import CheckpointStore, LoadedCheckpoint, check_matches
from yoked.train.checkpoint_files import CheckpointFolder, checkpoint_files
from yoked.train.data.dataset import list_datasets, load_dataset
from yoked.train.nanochat_format import from_nanochat, to_nanochat
from yoked.train.tokenizer import JSON_NAME, PICKLE_NAME, Tokenizer, _fingerprint

SPLIT = {
    "documents": 1, "text_bytes": 8, "tokens_kept": 6, "tokens_dropped": 0, "bos_tokens": 2,
    "rows": 2, "sha256": "0" * 64,
}  # fmt: skip
DATASET = {
    "format": 2, "name": "farm", "source": "farm.jsonl", "fingerprint": "1" * 64,
    "corpus_fingerprint": "2" * 64, "tokenizer_fingerprint": "3" * 64, "max_seq_len": 3,
    "packing": "bestfit", "vocab_size": 300, "requested_vocab_size": 300, "bos_id": 256,
    "unigram_entropy_nats": 2.5, "train": SPLIT, "val": SPLIT, "notes": ["a"],
}  # fmt: skip
ROWS = bytes(16)


def datasets() -> st.SearchStrategy[tuple[bytes, bytes]]:
    """dataset.json, and what both files of rows hold."""
    rows = near_bytes(ROWS) | st.binary(max_size=100)
    return st.one_of(
        st.tuples(json_files(DATASET), st.just(ROWS)),
        st.tuples(st.just(json.dumps(DATASET).encode()), rows),
    )


def decode_dataset(example: tuple[bytes, bytes], folder: Path) -> None:
    place = folder / "data" / "farm"
    place.mkdir(parents=True, exist_ok=True)
    form, rows = example
    (place / "dataset.json").write_bytes(form)
    for split in ("train", "val"):
        (place / f"{split}.rows").write_bytes(rows)
    for entry in list_datasets(folder):
        str(entry.detail).encode(errors="backslashreplace")
    with contextlib.suppress(DataError):
        dataset = load_dataset(place)
        assert dataset.train.rows([0]).shape == (1, dataset.info.max_seq_len + 1)


@cache
def tokenizer_form() -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        Tokenizer({bytes([value]): value for value in range(256)}).save(Path(name))
        form: dict[str, Any] = json.loads(Path(name, JSON_NAME).read_bytes())
    return form


@cache
def tokenizer_pickle() -> bytes:
    return pickle.dumps(Tokenizer({bytes([value]): value for value in range(256)})._encoding)


def with_its_fingerprint(form: Any) -> Any:
    """The forger knows how it is made."""
    with contextlib.suppress(Exception):
        tokens = [base64.b64decode(token, validate=True) for token in form["tokens_base64"]]
        ranks = {token: rank for rank, token in enumerate(tokens)}
        form["fingerprint"] = _fingerprint(ranks, form["pattern"], form["special_tokens"])
    return form


def tokenizers() -> st.SearchStrategy[tuple[str, bytes]]:
    """A file's name and what is in it."""
    form = tokenizer_form()
    short = {**form, "tokens_base64": [form["tokens_base64"]]}
    forged = near(form).map(with_its_fingerprint).map(lambda value: json.dumps(value).encode())
    tokens = {"tokens_base64": form["tokens_base64"]}
    others = {key: value for key, value in form.items() if key != "tokens_base64"}
    parts = near(others).map(
        lambda value: json.dumps(with_its_fingerprint({**value, **tokens})).encode()
    )
    texts = st.one_of(forged, parts, json_files(short))
    return st.one_of(
        st.tuples(st.just(JSON_NAME), texts),
        st.tuples(st.just(PICKLE_NAME), near_bytes(tokenizer_pickle()) | st.binary(max_size=80)),
    )


def decode_tokenizer(example: tuple[str, bytes], folder: Path) -> None:
    for name in (JSON_NAME, PICKLE_NAME):
        (folder / name).unlink(missing_ok=True)
    (folder / example[0]).write_bytes(example[1])
    with contextlib.suppress(DataError):
        tokenizer = Tokenizer.load(folder)
        # A pattern may pass over what it does not know.
        assert tokenizer.decode(tokenizer.encode("a")) in ("a", "")


@cache
def saved() -> dict[str, bytes]:
    """The files of a checkpoint of step 1."""
    state = TinyState()
    with tempfile.TemporaryDirectory() as name:
        with CheckpointStore(Path(name)) as store:
            store.save(1, state.model, state.saved, state.meta, extra={"seed": 1}, background=False)
        return {path.name: path.read_bytes() for path in Path(name).iterdir()}


def torch_file(value: Any) -> bytes:
    content = io.BytesIO()
    torch.save(value, content)
    return content.getvalue()


def with_another_pickle(file: bytes, change: st.SearchStrategy[bytes]) -> st.SearchStrategy[bytes]:
    """A file of torch.save whose zip is whole, and whose pickle is another."""

    def rebuilt(data: bytes) -> bytes:
        content = io.BytesIO()
        with zipfile.ZipFile(io.BytesIO(file)) as old, zipfile.ZipFile(content, "w") as new:
            for entry in old.infolist():
                is_pickle = entry.filename.endswith("data.pkl")
                new.writestr(entry, data if is_pickle else old.read(entry))
        return content.getvalue()

    return change.map(rebuilt)


def pickle_of(file: bytes) -> bytes:
    with zipfile.ZipFile(io.BytesIO(file)) as archive:
        return archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))


TENSORS = st.sampled_from(
    [
        torch.zeros(3),
        torch.zeros(()),
        torch.zeros(2, 3, dtype=torch.int64),
        torch.zeros(2, 3, dtype=torch.complex64),
        torch.zeros(4, 4).to_sparse(),
        torch.zeros(1).expand(2**40),
    ]
)


def checkpoints() -> st.SearchStrategy[dict[str, bytes]]:
    """Files of a checkpoint by name, one of them another's work; those that change alone."""
    files = saved()
    model, optim, meta = "model_000001.pt", "optim_000001_rank0.pt", "meta_000001.json"
    content = {k: v for k, v in json.loads(files["manifest_000001.json"]).items() if k != "sha256"}
    forged = near(content).map(signed)
    state = TinyState()
    optimizer = to_nanochat(state.optim, state.shapes, settings=state.settings)
    small = torch_file({"small": torch.zeros(3)})
    return st.one_of(
        st.builds(lambda raw: {"manifest_000001.json": raw}, forged | json_files(content)),
        st.builds(lambda raw: {meta: raw}, json_files(json.loads(files[meta]))),
        st.builds(lambda raw: {model: raw}, near_bytes(small) | st.binary(max_size=80)),
        st.builds(
            lambda raw: {model: raw},
            with_another_pickle(files[model], near_bytes(pickle_of(files[model]))),
        ),
        st.builds(
            lambda key, value: {model: torch_file({**state.model, key: value})},
            st.sampled_from([*state.model, "other", 7, ("a",), "_orig_mod.lm_head.weight"]),
            TENSORS | ODD,
        ),
        st.builds(lambda value: {model: torch_file(value)}, ODD | TENSORS),
        st.builds(lambda value: {optim: torch_file(value)}, near(optimizer) | ODD),
    )


def signed(content: Any) -> bytes:
    if not isinstance(content, dict):
        return json.dumps(content).encode()
    return json.dumps({**content, "sha256": content_digest(content)}).encode()


def decode_checkpoint(changed: dict[str, bytes], folder: Path) -> None:
    for name, content in {**saved(), **changed}.items():
        (folder / name).write_bytes(content)
    outside = sorted(folder.parent.iterdir())
    store, files = CheckpointStore(folder), CheckpointFolder(folder)
    for act in (
        store.newest,
        store.steps,
        files.complete,
        lambda: checkpoint_files(folder),
        lambda: use(store.load()),
        store.load_newest_good,
        store.recover,
        # Without its manifest no digest keeps what was changed from being read.
        (folder / "manifest_000001.json").unlink,
        lambda: use(store.load(1)),
    ):
        with contextlib.suppress(CheckpointError):
            act()
    store.close()
    # Nothing has left the folder.
    assert sorted(folder.parent.iterdir()) == outside


def use(loaded: LoadedCheckpoint) -> None:
    """As a run that goes on, and `yoked sample`, use it."""
    state = TinyState()
    check_matches(loaded.meta, {"n_embd": state.n_embd})
    ours = loaded.meta.get("yoked") or {}
    ours.get("seed", loaded.meta.get("seed"))
    figures = loaded.meta.get("loop_state") or {}
    float(figures.get("total_training_time") or 0.0)
    float(figures.get("min_val_bpb") or 0.0)
    for name, tensor in loaded.model_state.items():
        assert isinstance(name, str)
        assert isinstance(tensor, torch.Tensor)


def use_optimizer(state: Any, folder: Path) -> None:
    del folder
    with contextlib.suppress(CheckpointError):
        from_nanochat(state, TinyState().shapes)
