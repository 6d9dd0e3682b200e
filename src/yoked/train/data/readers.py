"""Documents from files: .parquet (column `text`), .jsonl (key `text`), .txt (one each).

Each reader streams, and can start at a position that it returned earlier: interrupted work does not
read everything again.
"""

from __future__ import annotations

import codecs
import contextlib
import errno
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yoked.errors import DataError

SUFFIXES = (".parquet", ".jsonl", ".txt")

# A .txt file up to this size is one document. A longer one is read in sections that end with a
# line, so it need not fit into memory.
SECTION_BYTES = 8 << 20
_PARQUET_BATCH_ROWS = 128
# JSON can spell a lone surrogate. It is no character and has no UTF-8.
_REPLACE_SURROGATES = dict.fromkeys(range(0xD800, 0xE000), "\N{REPLACEMENT CHARACTER}")


class ReadPosition(NamedTuple):
    """A place in a corpus where reading can start.

    file: index of the file. offset: row group in a parquet file, else bytes.
    line: number of lines before it, for messages.
    """

    file: int = 0
    offset: int = 0
    line: int = 0


class Document(NamedTuple):
    """A text and its place.

    group: file and row group; nanochat's loader begins a new batch at every row group.
    start: position from which reading starts with this document; None inside a row group.
    """

    text: str
    group: tuple[int, int]
    start: ReadPosition | None


START = ReadPosition()


def read_documents(files: Sequence[Path], start: ReadPosition = START) -> Iterator[Document]:
    """Documents of the files in order, from `start` on. Raises DataError."""
    for index in range(start.file, len(files)):
        path = files[index]
        here = start if index == start.file else ReadPosition(index)
        read = _READERS[path.suffix.lower()]
        try:
            yield from read(path, here)
        except OSError as error:
            raise unreadable(path, error) from error


def text_bytes(path: Path) -> int:
    """Estimated bytes of text in a file, without reading it. Raises DataError."""
    try:
        if path.suffix.lower() == ".parquet":
            return _parquet_text_bytes(path)
        return path.stat().st_size
    except OSError as error:
        raise unreadable(path, error) from error


def unreadable(path: Path, error: OSError) -> DataError:
    """The DataError for a file that cannot be read, with a fix."""
    fix = "check that the file is there and whole"
    if error.errno in (errno.EACCES, errno.EPERM):
        fix = f"chmod u+r {shlex.quote(str(path))}"
    # pyarrow's text is a paragraph; strerror is the reason alone.
    why = os.strerror(error.errno) if error.errno is not None else str(error)
    return DataError(f"{path} cannot be read: {why}", fix=fix)


def _read_txt(path: Path, start: ReadPosition) -> Iterator[Document]:
    with path.open("rb") as file:
        file.seek(start.offset)
        offset, rest = start.offset, b""
        while True:
            # One byte more than a section tells whether the file goes on.
            data = rest + file.read(SECTION_BYTES + 1 - len(rest))
            if not data:
                return
            section, rest = _split_section(data)
            text = _decode(path, section, offset)
            position = start._replace(offset=offset)
            yield Document(text, (start.file, 0), position)
            offset += len(section)


def _split_section(data: bytes) -> tuple[bytes, bytes]:
    """Split after a line, a word, or at least a character; returns (section, rest)."""
    if len(data) <= SECTION_BYTES:
        return data, b""
    for mark in (b"\n", b" "):
        place = data.rfind(mark, SECTION_BYTES // 2, SECTION_BYTES)  # at least half a section
        if place >= 0:
            return data[: place + 1], data[place + 1 :]
    cut = SECTION_BYTES
    # Bytes 10xxxxxx continue a character.
    while cut > SECTION_BYTES - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return data[:cut], data[cut:]


def _decode(path: Path, data: bytes, offset: int, line: int | None = None) -> str:
    """UTF-8 text without a byte order mark. offset: position of `data` in the file."""
    if offset == 0:
        data = data.removeprefix(codecs.BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        place = "" if line is None else f"line {line:,}, "
        # What editors and shells of Windows write begins with its mark.
        is_utf16 = offset == 0 and data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE))
        source, target = shlex.quote(str(path)), f"converted{path.suffix}"
        raise DataError(
            f"{path} is not UTF-8: {place}byte {offset + error.start:,} is "
            f"{data[error.start]:#04x} ({error.reason})",
            fix="convert it, for example: "
            f"iconv -f {'utf-16' if is_utf16 else 'latin1'} -t utf-8 {source} > {target}",
        ) from error


def _read_jsonl(path: Path, start: ReadPosition) -> Iterator[Document]:
    with path.open("rb") as file:
        file.seek(start.offset)
        offset, line = start.offset, start.line
        for content in file:
            line += 1
            text = _decode(path, content, offset, line)
            if text.strip():
                position = ReadPosition(start.file, offset, line - 1)
                yield Document(_text_of(path, line, text), (start.file, 0), position)
            offset += len(content)


def _text_of(path: Path, line: int, content: str) -> str:
    try:
        value = json.loads(content)
    # Deeply nested brackets exhaust the parser's stack.
    except (ValueError, RecursionError) as error:
        raise DataError(
            f"{path}:{line}: not JSON ({error})",
            fix='each line must be an object such as {"text": "..."}; correct or remove the line',
        ) from error
    if not isinstance(value, dict) or not isinstance(value.get("text"), str):
        raise DataError(
            f"{path}:{line}: no text in it ({_what_instead(value)})",
            fix='each line must be an object with the document as a string under "text"',
        )
    return _without_surrogates(value["text"])


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.translate(_REPLACE_SURROGATES)
    return text


def _what_instead(value: object) -> str:
    if not isinstance(value, dict):
        return f"it is a JSON {type(value).__name__}"
    if "text" in value:
        return f'"text" is a {type(value["text"]).__name__}'
    return f"its keys are {', '.join(value)}" if value else "an object without keys"


def _read_parquet(path: Path, start: ReadPosition) -> Iterator[Document]:
    with _open_parquet(path) as file:
        for group in range(start.offset, file.num_row_groups):
            position: ReadPosition | None = ReadPosition(start.file, group)
            for batch in file.iter_batches(
                batch_size=_PARQUET_BATCH_ROWS, row_groups=[group], columns=["text"]
            ):
                for text in batch.column(0).to_pylist():
                    if text is not None:
                        yield Document(text, (start.file, group), position)
                        position = None


def _parquet_text_bytes(path: Path) -> int:
    with _open_parquet(path) as file:
        column = file.schema_arrow.names.index("text")
        groups = (file.metadata.row_group(index) for index in range(file.num_row_groups))
        return sum(group.column(column).total_uncompressed_size for group in groups)


@contextlib.contextmanager
def _open_parquet(path: Path) -> Iterator[Any]:
    """Open a parquet file that has a text column. Raises DataError."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _require_text_column(path, file.schema_arrow)
            yield file
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path}: the column `text` holds bytes that are not UTF-8 ({error.reason})",
            fix="convert the documents to UTF-8",
        ) from error
    # pyarrow reports damage by many exceptions; a page that does not decompress is an OSError.
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise DataError(
            f"{path} is not a whole parquet file: "
            f"{(str(error) or type(error).__name__).splitlines()[0]}",
            fix="it was probably cut off while it was copied or downloaded: fetch it again",
        ) from error


def _require_text_column(path: Path, schema: Any) -> None:
    import pyarrow as pa

    names = schema.names
    if names.count("text") != 1:
        raise DataError(
            f"{path} has no column `text`; its columns are {', '.join(names) or 'none'}",
            fix="rename the column that holds the documents to text",
        )
    kind = schema.field("text").type
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(
            f"{path}: the column `text` holds {kind}, not strings",
            fix="store the documents as strings",
        )


_READERS = {".parquet": _read_parquet, ".jsonl": _read_jsonl, ".txt": _read_txt}
