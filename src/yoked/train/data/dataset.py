"""Prepared data: packed rows and their tokenizer, in a folder named by a hash of its inputs."""

from __future__ import annotations

import json
import shlex
import socket
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from yoked.core.schema import Amount, Count, Digest, decode
from yoked.errors import DataError
from yoked.paths import cache_root
from yoked.train.data.corpus import CLIMBMIX, EMBEDDED, climbmix_folder
from yoked.train.data.rows import RowFile
from yoked.train.limits import Packing
from yoked.train.tokenizer import Tokenizer

DATASET_NAME = "dataset.json"
TOKENIZER_NAME = "tokenizer"
STAGING_PREFIX = ".staging-"
# Incremented when the same inputs give other files.
FORMAT = 2


@dataclass(frozen=True)
class SplitStats:
    """Counts of one split. Tokens are those of the text, without `<|bos|>`.

    text_bytes: of the text in UTF-8. tokens_kept + tokens_dropped: all tokens of the text.
    bos_tokens: `<|bos|>` in the rows, which have tokens_kept + bos_tokens tokens.
    sha256: of the row file.
    """

    documents: Count
    text_bytes: Count
    tokens_kept: Count
    tokens_dropped: Count
    bos_tokens: Count
    rows: Count
    sha256: Digest


@dataclass(frozen=True)
class DatasetInfo:
    """The content of `dataset.json`.

    source: the name or path that the user gave. fingerprint: sha256 of all that the rows depend
    on: corpus, tokenizer, max_seq_len, packing, format.
    requested_vocab_size: None for a given tokenizer that does not record it.
    unigram_entropy_nats: of the training targets: the loss of the best guess without context.
    notes: sentences for people about held-out text and dropped tokens.
    """

    name: str
    source: str
    fingerprint: Digest
    corpus_fingerprint: Digest
    tokenizer_fingerprint: Digest
    max_seq_len: Count
    packing: Packing
    vocab_size: Count
    requested_vocab_size: Count | None
    bos_id: Count
    unigram_entropy_nats: Amount
    train: SplitStats
    val: SplitStats
    notes: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """Plain data, with the format's number."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, form: dict[str, Any]) -> DatasetInfo:
        """The inverse of `to_json`. Raises ValueError."""
        info: DatasetInfo = decode(cls, form)
        if not (info.train.rows and info.val.rows):
            raise ValueError("a split has no rows")
        if info.bos_id >= info.vocab_size:
            raise ValueError(f"bos_id is {info.bos_id} of {info.vocab_size}")
        return info


@dataclass(frozen=True)
class Dataset:
    """Prepared data, open for reading.

    train, val: rows of info.max_seq_len + 1 tokens, each beginning with info.bos_id.
    """

    folder: Path
    info: DatasetInfo
    train: RowFile
    val: RowFile

    @property
    def tokenizer_folder(self) -> Path:
        """Folder for `Tokenizer.load`."""
        return self.folder / TOKENIZER_NAME

    def tokenizer(self) -> Tokenizer:
        """By which the rows were made. Raises DataError."""
        try:
            return Tokenizer.load(self.tokenizer_folder)
        except DataError as error:
            # Not one that a flag names.
            again = f"remove the folder {self.folder} and prepare the data again"
            raise DataError(error.what, fix=again) from error

    def recorded_sha256(self, rows: RowFile) -> str:
        """sha256 of one of the two row files, from when it was written."""
        return self.info.train.sha256 if rows is self.train else self.info.val.sha256

    def damaged(self, rows: RowFile, why: str = "") -> DataError:
        """The error for one of the two row files, with the commands that make it again.

        why: if the reason is not its sha256.
        """
        why = why or f"is damaged: its sha256 is not the one in {DATASET_NAME}"
        info = self.info
        # The tokenizer may exist nowhere else.
        aside = self.folder.with_name(f"{self.folder.name}-damaged")
        again = ["yoked", "data", "prepare", info.source, "--max-seq-len", str(info.max_seq_len)]
        again += ["--packing", info.packing, "--tokenizer", str(aside / TOKENIZER_NAME)]
        return DataError(
            f"{rows.path} on {socket.gethostname()} {why}. Checkpoints that this run has saved so "
            "far may come from other rows than those that were prepared",
            fix=(
                shlex.join(["mv", str(self.folder), str(aside)]),
                shlex.join(again),
                shlex.join(["rm", "-r", str(aside)]),
            ),
        )


def load_dataset(folder: Path) -> Dataset:
    """Open prepared data. Raises DataError if it is missing, damaged or of another format."""
    path = folder / DATASET_NAME
    try:
        form = json.loads(path.read_bytes())
        if not isinstance(form, dict):
            raise TypeError("no object")
        if form.get("format") != FORMAT:
            raise DataError(
                f"{path} has format {form.get('format')}; this yoked reads format {FORMAT}",
                fix=shlex.join(["yoked", "data", "prepare", str(form.get("source", "NAME"))]),
            )
        info = DatasetInfo.from_json(form)
    except OSError as error:
        raise DataError(
            f"{folder} holds no prepared data: {DATASET_NAME} cannot be read ({error.strerror})",
            fix=("yoked data prepare NAME", "yoked data list    shows what is there"),
        ) from error
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise DataError(
            f"{path} is damaged ({type(error).__name__}: {error})",
            fix=f"remove the folder {folder} and prepare the data again",
        ) from error
    train, val = (
        RowFile(
            folder / f"{split}.rows",
            num_rows=stats.rows,
            row_tokens=info.max_seq_len + 1,
            vocab_size=info.vocab_size,
        )
        for split, stats in (("train", info.train), ("val", info.val))
    )
    return Dataset(folder, info, train, val)


@dataclass(frozen=True)
class DatasetEntry:
    """One line of `yoked data list`.

    name: the value for `--data`; of a data set of the hub, that of its folder.
    state: `embedded` (comes with the package), `available` (can be downloaded), `downloaded`,
    `prepared`, `unfinished` (a preparation that was interrupted and will go on), or `damaged`.
    """

    name: str
    state: str
    folder: Path | None
    size_bytes: int
    detail: str


def list_datasets(cache: Path | None = None) -> list[DatasetEntry]:
    """The data sets that yoked knows, and all prepared data."""
    root = cache or cache_root()
    entries = [
        DatasetEntry(EMBEDDED, "embedded", None, 0, "speeches of US presidents, 1790 to now"),
        _climbmix_entry(root),
    ]
    for folder in sorted((root / "corpora").glob("hf-*@*/")):
        detail = f"{len(list(folder.iterdir())):,} files of the hub"
        entries.append(DatasetEntry(folder.name, "downloaded", folder, _size(folder), detail))
    for folder in sorted((root / "data").glob("*/")):
        if folder.name.startswith(STAGING_PREFIX):
            name = folder.name.removeprefix(STAGING_PREFIX)
            detail = "goes on with the next yoked data prepare"
            entries.append(DatasetEntry(name, "unfinished", folder, _size(folder), detail))
            continue
        try:
            info = load_dataset(folder).info
        except DataError as error:
            entries.append(DatasetEntry(folder.name, "damaged", folder, _size(folder), error.what))
            continue
        detail = (
            f"{info.train.rows:,} + {info.val.rows:,} rows of {info.max_seq_len:,} tokens, "
            f"vocabulary {info.vocab_size:,}, {info.packing}"
        )
        entries.append(DatasetEntry(folder.name, "prepared", folder, _size(folder), detail))
    return entries


def _climbmix_entry(cache: Path) -> DatasetEntry:
    folder = climbmix_folder(cache)
    shards = len(list(folder.glob("shard_*.parquet")))
    if shards == 0:
        hint = "web pages; yoked data download climbmix --shards N"
        return DatasetEntry(CLIMBMIX, "available", None, 0, hint)
    return DatasetEntry(CLIMBMIX, "downloaded", folder, _size(folder), f"{shards:,} shards")


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
