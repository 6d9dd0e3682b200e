"""Tokenised shards of a corpus: a preparation that was killed resumes after the last one.

A shard holds the tokens of all documents between two read positions, one file a split. Its
manifest is written last and has the files' sha256 and the position of the next shard. The rows do
not depend on the number of shards.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from yoked.core.fs import HashingWriter, read_json, sha256_of, write_json
from yoked.paths import private_folder
from yoked.train.data.corpus import SPLITS, Corpus, Split
from yoked.train.data.files import writing_to
from yoked.train.data.progress import ProgressSink
from yoked.train.data.readers import START, Document, ReadPosition
from yoked.train.tokenizer import Tokenizer

SHARD_TEXT_BYTES = 64 << 20  # seconds of work, which a kill costs
# A batch of texts is encoded by all threads together.
_BATCH_BYTES = 4 << 20
_BATCH_DOCUMENTS = 512
# Length in tokens, file and row group of each document, after the tokens.
_INDEX_DTYPE = np.dtype("<u4")
_INDEX_COLUMNS = 3

# Tokens without <|bos|> and (file, row group), as in Document.
TokenisedDocument = tuple[NDArray[Any], tuple[int, int]]


@dataclass(frozen=True)
class SplitShard:
    """Sizes of one split in one shard."""

    documents: int
    text_bytes: int
    tokens: int
    sha256: str


@dataclass(frozen=True)
class TokenShard:
    """A complete shard. next: where the next shard begins; None after the last."""

    splits: dict[Split, SplitShard]
    next: ReadPosition | None


class TokenShardFolder:
    """The complete shards in a folder, in order."""

    def __init__(self, folder: Path, dtype: np.dtype[Any]) -> None:
        self.folder = folder
        self.dtype = dtype
        self.shards: list[TokenShard] = []
        private_folder(folder)
        while (shard := self._read(len(self.shards))) is not None:
            self.shards.append(shard)
            if shard.next is None:
                break

    @property
    def complete(self) -> bool:
        """Whether the corpus is tokenised to its end."""
        return bool(self.shards) and self.shards[-1].next is None

    @property
    def next_position(self) -> ReadPosition:
        """Where the next shard begins."""
        after = self.shards[-1].next if self.shards else START
        assert after is not None, "the shards are complete"
        return after

    def total(self, split: Split) -> SplitShard:
        """Sums over all shards; the sha256 is empty."""
        found = [shard.splits[split] for shard in self.shards]
        return SplitShard(
            sum(shard.documents for shard in found),
            sum(shard.text_bytes for shard in found),
            sum(shard.tokens for shard in found),
            "",
        )

    @property
    def text_bytes(self) -> int:
        """Text of both splits in all shards."""
        return sum(self.total(split).text_bytes for split in SPLITS)

    def documents(self, split: Split) -> Iterator[TokenisedDocument]:
        """Tokens of one split's documents, in order, from memory-mapped files."""
        for number, shard in enumerate(self.shards):
            size = shard.splits[split]
            if size.documents == 0:
                continue
            path = self.tokens_path(number, split)
            tokens: NDArray[Any] = (
                np.memmap(path, self.dtype, "r", shape=(size.tokens,))
                if size.tokens
                else np.empty(0, self.dtype)
            )
            index = np.fromfile(path, _INDEX_DTYPE, offset=size.tokens * self.dtype.itemsize)
            start = 0
            for length, file, group in index.reshape(-1, _INDEX_COLUMNS).tolist():
                yield tokens[start : start + length], (file, group)
                start += length

    def tokens_path(self, number: int, split: Split) -> Path:
        """The file of a shard's tokens."""
        return self.folder / f"part_{number:06d}.{split}"

    def manifest_path(self, number: int) -> Path:
        """The file of a shard's manifest."""
        return self.folder / f"part_{number:06d}.json"

    def _read(self, number: int) -> TokenShard | None:
        """The shard if all of it is intact; None: it has to be made again."""
        form = read_json(self.manifest_path(number))
        if form is None:
            return None
        try:
            splits = {split: SplitShard(**form["splits"][split]) for split in SPLITS}
            after = None if form["next"] is None else ReadPosition(*form["next"])
            whole = all(
                sha256_of(self.tokens_path(number, split)) == splits[split].sha256
                for split in SPLITS
            )
        except (KeyError, TypeError, OSError):
            return None
        return TokenShard(splits, after) if whole else None


class _SplitWriter:
    """Writes one split of a shard: tokens as they come, the index of documents at the end."""

    def __init__(self, file: HashingWriter, dtype: np.dtype[Any]) -> None:
        self._file, self._dtype = file, dtype
        self._index: list[tuple[int, int, int]] = []
        self._tokens = self.text_bytes = 0

    def add(self, documents: Sequence[Document], ids: Sequence[list[int]]) -> None:
        tokens = np.array(list(chain.from_iterable(ids)), dtype=self._dtype)
        self._file.write(tokens.tobytes())
        self._tokens += len(tokens)
        for document, own in zip(documents, ids, strict=True):
            self._index.append((len(own), *document.group))
            self.text_bytes += len(document.text.encode())

    def finish(self) -> SplitShard:
        self._file.write(np.array(self._index, dtype=_INDEX_DTYPE).tobytes())
        return SplitShard(len(self._index), self.text_bytes, self._tokens, self._file.sha256)


def estimate_token_bytes(text_bytes: int, dtype: np.dtype[Any]) -> int:
    """Estimated bytes of a text's tokens: a byte of text gives a quarter token or less."""
    return text_bytes * dtype.itemsize // 4


@dataclass(frozen=True)
class ShardMaker:
    """Tokenises the rest of a corpus into further shards.

    total_bytes: estimated text of the corpus, for progress and messages.
    """

    corpus: Corpus
    tokenizer: Tokenizer
    shards: TokenShardFolder
    threads: int
    total_bytes: int
    progress: ProgressSink

    def run(self, shard_bytes: int) -> None:
        """Make all shards that are missing, each of at least `shard_bytes` of text but the last."""
        while not self.shards.complete:
            # Still to be written: the missing tokens, and afterwards the rows with all tokens.
            text_size = max(0, self.total_bytes - self.shards.text_bytes) + self.total_bytes
            needed_bytes = estimate_token_bytes(text_size, self.shards.dtype)
            with writing_to(self.shards.folder, needed_bytes):
                self.shards.shards.append(self._make_next(shard_bytes))

    def _make_next(self, shard_bytes: int) -> TokenShard:
        number = len(self.shards.shards)
        with contextlib.ExitStack() as stack:
            writers: dict[Split, _SplitWriter] = {}
            for split in SPLITS:
                path = self.shards.tokens_path(number, split)
                # An unfinished shard that a kill left.
                path.unlink(missing_ok=True)
                file = stack.enter_context(HashingWriter(path))
                writers[split] = _SplitWriter(file, self.shards.dtype)
            after = self._fill(writers, shard_bytes)
            shard = TokenShard({split: writers[split].finish() for split in SPLITS}, after)
        write_json(self.shards.manifest_path(number), asdict(shard))
        return shard

    def _fill(self, writers: dict[Split, _SplitWriter], shard_bytes: int) -> ReadPosition | None:
        """Write documents until the shard is large enough; returns where the next one begins."""
        batch: list[tuple[Split, Document]] = []
        shard_size = batch_size = 0
        after: ReadPosition | None = None
        start = self.shards.next_position
        # The break below leaves a file open otherwise.
        with contextlib.closing(self.corpus.split_documents(start)) as documents:
            for split, document in documents:
                # A shard ends where reading can start again: not inside a row group.
                if document.start is not None and shard_size >= shard_bytes:
                    after = document.start
                    break
                batch.append((split, document))
                shard_size += len(document.text)  # characters, an estimate of the bytes
                batch_size += len(document.text)
                if batch_size >= _BATCH_BYTES or len(batch) == _BATCH_DOCUMENTS:
                    self._encode(batch, writers)
                    batch_size = 0
        self._encode(batch, writers, last=after is None)
        return after

    def _encode(
        self,
        batch: list[tuple[Split, Document]],
        writers: dict[Split, _SplitWriter],
        *,
        last: bool = False,
    ) -> None:
        """Tokenise the batch, write its tokens, and empty it. last: of the corpus."""
        texts = [document.text for _, document in batch]
        encoded = self.tokenizer.encode_batch(texts, self.threads)
        for split, writer in writers.items():
            own = [place for place, (of, _) in enumerate(batch) if of == split]
            writer.add([batch[place][1] for place in own], [encoded[place] for place in own])
        batch.clear()
        done = self.shards.text_bytes + sum(writer.text_bytes for writer in writers.values())
        # The total is an estimate until the end is reached.
        total = done if last else max(done, self.total_bytes)
        self.progress.update("tokenising", done, total, "bytes")
