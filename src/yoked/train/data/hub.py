"""Any data set of the Hugging Face hub, as a folder of documents: `hf:NAME[/FOLDER][@REVISION]`.

A branch moves: what was fetched is named by its commit, and later runs take that without asking
the hub. `hf:NAME:COLUMN` names the column of the text; without it that is `text`, or the only
column of strings.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from yoked.core.fs import sync_path
from yoked.errors import DataError
from yoked.paths import cache_root, private_folder
from yoked.train.data.download import TIMEOUT_S, explained, fetch_file, hub_endpoint
from yoked.train.data.files import require_space, writing_to
from yoked.train.data.hub_names import COMMIT, HUB, HubName, parse_hub_name
from yoked.train.data.locks import file_lock
from yoked.train.data.progress import NullProgress, ProgressSink
from yoked.train.data.readers import SUFFIXES
from yoked.units import format_bytes, listed, plural

# The hub converts most data sets to parquet by itself, on this branch.
CONVERTED = "refs/convert/parquet"
# What a run fetches unasked; `yoked data download` fetches any number of files.
MOST_UNASKED_BYTES = 20_000_000_000
# All that there is: more files than any data set has.
MOST_FILES = 10_000_000
_TRAIN = re.compile(r"(?:^|[/_.-])train(?:ing)?(?=[/_.-]|$)")
_VALIDATION = re.compile(r"(?:^|[/_.-])(?:val|valid|validation|dev)(?=[/_.-]|$)")
_TEST = re.compile(r"(?:^|[/_.-])(?:test|eval)(?=[/_.-]|$)")
_ABOUT = re.compile(r"(?i)(?:.*/)?(?:readme|license|requirements|changelog)[^/]*")


@dataclass(frozen=True)
class HubFile:
    """A file of a data set, in its repository."""

    name: str
    size_bytes: int


@dataclass(frozen=True)
class Listing:
    """What is to be fetched. train: at least one; validation: where there is a split of it."""

    commit: str
    train: tuple[HubFile, ...]
    validation: HubFile | None

    @property
    def files(self) -> list[tuple[str, HubFile]]:
        """In reading order, with their names here: the last one is held out for validation."""
        last = [] if self.validation is None else [("val", self.validation)]
        named = [*(("train", file) for file in self.train), *last]
        return [
            (f"{split}-{number:05d}{PurePosixPath(file.name).suffix.lower()}", file)
            for number, (split, file) in enumerate(named)
        ]

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for _, file in self.files)


def fetch_dataset(
    named: str,
    *,
    shards: int | None = None,
    cache: Path | None = None,
    progress: ProgressSink | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> str:
    """Fetch a data set of the hub, unless it is here; returns its name with the commit.

    shards: so many of its training files; None: all, up to MOST_UNASKED_BYTES, and nothing where
    some of it are here already. tell: is told what will be fetched, with its size.
    `$HF_ENDPOINT` replaces the hub's address. No login is used or sent.
    Raises UsageError, or DataError: no such data set, no network, no text in it, disk full.
    """
    name = parse_hub_name(named)
    root = cache or cache_root()
    if shards is None and (here := name.fetched(root)) is not None:
        return str(replace(name, revision=name.commit_of(here)))
    sink = progress or NullProgress()
    sink.update(f"asking {hub_endpoint()}", 0, None, "s")
    listing = choose_files(name, *list_files(name))
    if shards is None and listing.size_bytes > MOST_UNASKED_BYTES:
        raise DataError(
            f"{name} has {format_bytes(listing.size_bytes)} in {len(listing.files):,} files: more "
            "than is fetched unasked",
            fix=f"yoked data download {shlex.quote(str(name))} --shards 8    fetches eight files",
        )
    listing = replace(listing, train=listing.train[:shards])
    target = name.folder_of(root, listing.commit, len(listing.files))
    with file_lock(root / "locks" / f"{target.name}.lock", sink) as beating, writing_to(target):
        if not target.exists():
            tell(
                f"{replace(name, revision=listing.commit[:12])}: "
                f"{plural(len(listing.files), 'file')}, {format_bytes(listing.size_bytes)}, "
                "to be downloaded"
            )
            _fetch_all(name, listing, target, beating)
        target.touch()  # what was fetched last is what a name without a revision means
    return str(replace(name, revision=listing.commit))


def list_files(name: HubName) -> tuple[str, list[HubFile]]:
    """The commit and its files; of the hub's own conversion where the data set has none for us.

    Raises DataError.
    """
    commit, files = _ask(name.repository, name.revision)
    if name.revision is None and not _usable(name, files):
        try:
            return _ask(name.repository, CONVERTED)
        except DataError:
            # Not every data set is converted; what is wrong with it is said of its own files.
            pass
    return commit, files


def _ask(repository: str, revision: str | None) -> tuple[str, list[HubFile]]:
    endpoint = hub_endpoint()
    from huggingface_hub import HfApi

    with explained(f"{endpoint}/datasets/{repository}"):
        told = HfApi(endpoint=endpoint).dataset_info(
            repository, revision=revision, files_metadata=True, token=False, timeout=TIMEOUT_S
        )
    files = [
        HubFile(each.rfilename, each.size)
        for each in told.siblings or ()
        # The client makes a file's folders as the server calls them.
        if ".." not in PurePosixPath(each.rfilename).parts and not each.rfilename.startswith("/")
        if type(each.size) is int and each.size >= 0
    ]
    if not isinstance(told.sha, str) or not COMMIT.fullmatch(told.sha):
        raise DataError(
            f"{endpoint}/datasets/{repository}: the server names no commit",
            fix="set HF_ENDPOINT to a server that speaks the hub's protocol, or unset it",
        )
    return told.sha, files


def _usable(name: HubName, files: Sequence[HubFile]) -> list[HubFile]:
    """Files of one kind in the folder that was named, sorted; of several kinds the first."""
    inside = [
        file
        for file in sorted(files, key=lambda file: file.name)
        if file.name.startswith(name.folder.lstrip("/")) and not _ABOUT.fullmatch(file.name)
    ]
    for kind in SUFFIXES:
        if found := [file for file in inside if file.name.lower().endswith(kind)]:
            return found
    return []


def choose_files(name: HubName, commit: str, files: Sequence[HubFile]) -> Listing:
    """The files to train on and to validate with. Raises DataError.

    Splits are told by their names: `train`, `validation` and the like, in a file's or folder's
    name. Files of tests are left out; without a split for training, all others are that.
    """
    usable = _usable(name, files)
    if not usable:
        kinds = sorted({PurePosixPath(file.name).suffix for file in files} - {"", ".md"})
        raise DataError(
            f"{name}: none of its {len(files):,} files is .parquet, .jsonl or .txt "
            f"(there is {listed(kinds[:8]) or 'nothing else'})",
            fix="take another data set, or put its text into a folder: --data FOLDER",
        )
    sets = sorted({_set_of(name, file) for file in usable})
    if "" in sets:
        usable = [file for file in usable if not _set_of(name, file)]
    elif len(sets) > 1:
        raise DataError(
            f"{name} holds {len(sets)} sets: {', '.join(sets[:8])}{', ...' * (len(sets) > 8)}",
            fix=f"--data {shlex.quote(f'{HUB}{name.repository}{name.folder}/{sets[0]}')}",
        )
    train = [file for file in usable if _TRAIN.search(file.name)]
    validation = [file for file in usable if _VALIDATION.search(file.name) and file not in train]
    train = train or [f for f in usable if f not in validation and not _TEST.search(f.name)]
    if not train:
        raise DataError(
            f"{name} has no files to train on, only {listed([f.name for f in usable[:3]])}",
            fix="take another data set, or name a folder of it: --data hf:OWNER/NAME/FOLDER",
        )
    # Of other kinds documents are held out by the hash of their text.
    is_parquet = usable[0].name.lower().endswith(".parquet")
    return Listing(commit, tuple(train), validation[0] if validation and is_parquet else None)


def _set_of(name: HubName, file: HubFile) -> str:
    """The folder that tells a set from others: not `data`, nor that of a split."""
    inner = PurePosixPath(file.name.removeprefix(name.folder.lstrip("/")).lstrip("/"))
    first = inner.parts[0] if len(inner.parts) > 1 else ""
    is_split = any(split.search(f"/{first}/") for split in (_TRAIN, _VALIDATION, _TEST))
    return "" if first == "data" or is_split else first


def _fetch_all(name: HubName, listing: Listing, target: Path, progress: ProgressSink) -> None:
    """Fetch into a folder of another name, which an interrupted start left perhaps."""
    staging = target.with_name(f".staging-{target.name}")
    incoming = target.with_name(f".incoming-{target.name}")
    private_folder(staging)
    files = listing.files
    missing = [file.size_bytes for here, file in files if not (staging / here).exists()]
    require_space(staging, sum(missing))
    column = name.column
    try:
        for number, (here, file) in enumerate(files, start=1):
            if (staging / here).exists():
                continue
            shutil.rmtree(incoming, ignore_errors=True)
            size = format_bytes(listing.size_bytes)
            stage = f"downloading {number} of {len(files)} files, {size} in all"
            raw = private_folder(incoming) / f"raw{Path(here).suffix}"
            fetch_file(name.repository, file.name, listing.commit, raw, incoming, stage, progress)
            column = text_column(raw, column, name)
            if column not in ("text", None):
                progress.update(f"taking {column} of {here}", 0, None, "s")
                _keep_column(raw, column, incoming / here)
                raw = incoming / here
            raw.replace(staging / here)
            sync_path(staging)
    finally:
        shutil.rmtree(incoming, ignore_errors=True)
    staging.rename(target)
    sync_path(target.parent)


def text_column(path: Path, named: str | None, name: HubName) -> str | None:
    """The column with the text of a file: that which was named, else `text`, else the only one.

    None: a file without columns. Raises DataError that lists those with strings.
    """
    if path.suffix == ".txt":
        return None
    columns = _string_columns(path)
    if named is not None:
        if named in columns:
            return named
        what = f"{name} has no column {named!r} of strings"
    elif "text" in columns or len(columns) == 1:
        return "text" if "text" in columns else columns[0]
    else:
        what = f"{name} has no column `text`, and not one column of strings alone"
    named_so = replace(name, column=columns[0] if columns else "COLUMN")
    raise DataError(
        f"{what}; there are: {', '.join(columns[:12]) or 'none'}",
        fix=f"--data {shlex.quote(str(named_so))}",
    )


def _string_columns(path: Path) -> list[str]:
    if path.suffix == ".jsonl":
        with path.open("rb") as file:
            first = next((line for line in file if line.strip()), b"{}")
        try:
            row = json.loads(first)
        except (ValueError, RecursionError):
            row = None
        # What is wrong with a line is told when it is read.
        fields = row.items() if isinstance(row, dict) else ()
        return [key for key, value in fields if isinstance(value, str)]
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        schema = pq.read_schema(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"{path.name} is no parquet file: {str(error).splitlines()[0]}",
            fix="take another data set: this one is damaged on the hub",
        ) from error
    return [
        field.name
        for field in schema
        if pa.types.is_string(field.type) or pa.types.is_large_string(field.type)
    ]


def _keep_column(source: Path, column: str, target: Path) -> None:
    """Copy one column of a file as `text`, which is what the readers read."""
    if source.suffix == ".jsonl":
        with source.open("rb") as file, target.open("w", encoding="utf-8") as out:
            for text in _texts_of(file, column):
                out.write(json.dumps({"text": text}) + "\n")
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.large_string())])
    with pq.ParquetFile(source) as file, pq.ParquetWriter(target, schema) as writer:
        # Group by group: nanochat's packing begins anew at each.
        for group in range(file.num_row_groups):
            table = file.read_row_group(group, columns=[column])
            texts = table.column(0).cast(pa.large_string())
            writer.write_table(pa.table({"text": texts}), row_group_size=max(1, len(texts)))


def _texts_of(lines: Any, column: str) -> Iterator[str]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            text = json.loads(line)[column]
            if not isinstance(text, str):
                raise TypeError(f"it is a {type(text).__name__}")
        except (ValueError, RecursionError, KeyError, TypeError) as error:
            raise DataError(
                f"line {number:,} of the data set has no text under {column!r} ({error})",
                fix="name another column, or take another data set",
            ) from error
        yield text
