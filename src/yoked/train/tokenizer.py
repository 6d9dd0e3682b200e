"""Byte-pair tokenizer: rustbpe trains it, tiktoken encodes with it.

Split pattern and special tokens are nanochat's, so both programs can use each other's tokenizers.
A tokenizer is saved as JSON and as nanochat's pickle. yoked prefers the JSON, which runs no code.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import logging
import pickle
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.core.fs import write_bytes
from yoked.errors import DataError, UsageError
from yoked.paths import private_folder
from yoked.train.limits import MOST_VOCABULARY

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# GPT-4's pattern with groups of at most two digits.
SPLIT_PATTERN = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,2}"
    r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"
)
BOS = "<|bos|>"
# Their ids follow the ids of the merges, in this order.
SPECIAL_TOKENS = (
    BOS,
    "<|user_start|>",
    "<|user_end|>",
    "<|assistant_start|>",
    "<|assistant_end|>",
    "<|python_start|>",
    "<|python_end|>",
    "<|output_start|>",
    "<|output_end|>",
)
MIN_VOCAB_SIZE = 256 + len(SPECIAL_TOKENS)

PICKLE_NAME = "tokenizer.pkl"
JSON_NAME = "yoked_tokenizer.json"
_JSON_FORMAT = 1

# The regular expression engines of tiktoken and rustbpe keep one stack entry for each character
# of a run of white space, and panic at 1,000,000. Texts are cut after a run of this length.
_MAX_WHITESPACE_RUN = 900_000
# rustbpe buffers so many texts; sections of this size bound its buffer to 128 MB of text.
_TRAINING_BUFFER = 512
_TRAINING_SECTION_CHARACTERS = 1 << 18
_LONG_WHITESPACE = re.compile(rf"\s{{{_MAX_WHITESPACE_RUN}}}")


class Tokenizer:
    """A tiktoken encoding with `<|bos|>`.

    vocab_size: number of merges (including the 256 bytes) and special tokens.
    requested_vocab_size: argument of the training; None: not known. vocab_size is smaller if the
    text had too few distinct pairs.
    """

    def __init__(
        self,
        ranks: dict[bytes, int],
        pattern: str = SPLIT_PATTERN,
        specials: dict[str, int] | None = None,
        *,
        requested_vocab_size: int | None = None,
    ) -> None:
        import tiktoken

        if specials is None:
            specials = {name: len(ranks) + place for place, name in enumerate(SPECIAL_TOKENS)}
        self._ranks, self._pattern, self._specials = ranks, pattern, specials
        self._encoding = tiktoken.Encoding(
            name="yoked", pat_str=pattern, mergeable_ranks=ranks, special_tokens=specials
        )
        self.requested_vocab_size = requested_vocab_size
        self.vocab_size = len(ranks) + len(specials)
        self.bos_id = specials[BOS]
        self.fingerprint = _fingerprint(ranks, pattern, specials)

    @classmethod
    def train(cls, texts: Iterable[str], vocab_size: int) -> Tokenizer:
        """Train on whole documents. Equal texts in equal order give equal tokenizers.

        texts: streamed; only counts of distinct words stay in memory.
        vocab_size: including special tokens. The result is smaller if the text has too few pairs.
        Raises UsageError below 265 tokens: 256 bytes and 9 special tokens.
        """
        require_vocab_size(vocab_size)
        import rustbpe

        # rustbpe logs its progress to the root logger's handlers.
        logging.getLogger("rustbpe").setLevel(logging.WARNING)
        trainer = rustbpe.Tokenizer()
        trainer.train_from_iterator(
            (section for text in texts for section in _sections(text)),
            vocab_size - len(SPECIAL_TOKENS),  # rustbpe knows no special tokens
            buffer_size=_TRAINING_BUFFER,
            pattern=SPLIT_PATTERN,
        )
        ranks = {bytes(token): rank for token, rank in trainer.get_mergeable_ranks()}
        return cls(ranks, requested_vocab_size=vocab_size)

    @classmethod
    def load(cls, folder: Path) -> Tokenizer:
        """Read a tokenizer that yoked or nanochat saved. Raises DataError.

        The unpickler for nanochat's pickle accepts plain data only, and refuses a file that would
        run code.
        """
        own, pickled = folder / JSON_NAME, folder / PICKLE_NAME
        for path, read in ((own, _read_json), (pickled, _read_pickle)):
            try:
                content = path.read_bytes()
            except FileNotFoundError:
                continue
            except OSError as error:
                raise _unreadable(path, str(error)) from error
            ranks, pattern, specials, requested = read(path, content)
            _require_valid(path, ranks, pattern, specials)
            try:
                return cls(ranks, pattern, specials, requested_vocab_size=requested)
            except ValueError as error:
                raise _unreadable(path, f"its split pattern is wrong: {error}") from error
        raise DataError(
            f"{folder}: no tokenizer here ({JSON_NAME} or {PICKLE_NAME})",
            fix="name the folder that holds the tokenizer's files, or leave --tokenizer out "
            "to train one on the data",
        )

    def save(self, folder: Path) -> None:
        """Write the JSON and nanochat's pickle into `folder`, each file atomically."""
        private_folder(folder)
        by_rank = sorted(self._ranks, key=self._ranks.__getitem__)
        form = {
            "format": _JSON_FORMAT,
            "fingerprint": self.fingerprint,
            "vocab_size": self.vocab_size,
            "requested_vocab_size": self.requested_vocab_size,
            "pattern": self._pattern,
            "special_tokens": self._specials,
            "tokens_base64": [base64.b64encode(token).decode("ascii") for token in by_rank],
        }
        write_bytes(folder / PICKLE_NAME, pickle.dumps(self._encoding, protocol=4))
        # The JSON last: `prepare` takes a folder that has it for complete.
        write_bytes(folder / JSON_NAME, json.dumps(form, indent=0).encode())

    def encode(self, text: str) -> list[int]:
        """Token ids of ordinary text. A `<|bos|>` in it is encoded as text."""
        parts = _split_long_whitespace(text)
        if len(parts) == 1:
            return self._encoding.encode_ordinary(text)
        return [token for part in parts for token in self._encoding.encode_ordinary(part)]

    def encode_batch(self, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
        """Encode each text, with `threads` threads."""
        if threads <= 1 or len(texts) < 2:
            return [self.encode(text) for text in texts]
        from concurrent.futures import ThreadPoolExecutor

        # The encoder releases the interpreter's lock.
        with ThreadPoolExecutor(threads) as pool:
            return list(pool.map(self.encode, texts))

    def decode(self, ids: Sequence[int]) -> str:
        """Text of token ids, special tokens included. Invalid UTF-8 becomes U+FFFD."""
        return self._encoding.decode(list(ids))

    def decode_bytes(self, ids: Sequence[int]) -> bytes:
        """Bytes of token ids; they may begin or end inside a character."""
        return self._encoding.decode_bytes(list(ids))

    def token_bytes(self) -> NDArray[np.int32]:
        """Length of each token's text in bytes, int32, (vocab_size,); 0 for special tokens."""
        import numpy as np

        sizes = np.zeros(self.vocab_size, dtype=np.int32)
        for token, rank in self._ranks.items():
            sizes[rank] = len(token)
        return sizes


def require_vocab_size(vocab_size: int) -> None:
    """Raise UsageError if the vocabulary is too small for the bytes and special tokens, or larger
    than any.
    """
    if vocab_size > MOST_VOCABULARY:
        raise UsageError(
            f"--vocab-size {vocab_size} is too large", fix=f"give {MOST_VOCABULARY} or less"
        )
    if vocab_size < MIN_VOCAB_SIZE:
        raise UsageError(
            f"a vocabulary of {vocab_size:,} tokens cannot hold 256 bytes "
            f"and {len(SPECIAL_TOKENS)} special tokens",
            fix=f"--vocab-size {MIN_VOCAB_SIZE} or more",
        )


def _sections(text: str) -> Iterator[str]:
    """Cut a long training document into sections, at the end of a line if there is one."""
    start = 0
    while len(text) - start > _TRAINING_SECTION_CHARACTERS:
        limit = start + _TRAINING_SECTION_CHARACTERS
        end = text.rfind("\n", start, limit) + 1 or limit
        yield text[start:end]
        start = end
    yield text[start:] if start else text


def _split_long_whitespace(text: str) -> list[str]:
    """Cut a text after each run of white space that tiktoken could not split; most have none."""
    if len(text) < _MAX_WHITESPACE_RUN or _LONG_WHITESPACE.search(text) is None:
        return [text]
    parts: list[str] = []
    start = 0
    for run in _LONG_WHITESPACE.finditer(text):
        parts.append(text[start : run.end()])
        start = run.end()
    return [part for part in [*parts, text[start:]] if part]


def _fingerprint(ranks: Mapping[bytes, int], pattern: str, specials: Mapping[str, int]) -> str:
    """sha256 of all that encoding depends on."""
    digest = hashlib.sha256()
    for field in _fields(ranks, pattern, specials):
        digest.update(len(field).to_bytes(8, "little"))  # else fields could run into each other
        digest.update(field)
    return digest.hexdigest()


def _fields(
    ranks: Mapping[bytes, int], pattern: str, specials: Mapping[str, int]
) -> Iterator[bytes]:
    yield pattern.encode()
    for token, rank in sorted(ranks.items(), key=lambda item: item[1]):
        yield rank.to_bytes(8, "little") + token
    yield b"special tokens"
    for name, token_id in sorted(specials.items(), key=lambda item: item[1]):
        yield token_id.to_bytes(8, "little") + name.encode()


# The content of a file: merges, pattern, special tokens, requested vocabulary size.
_Content = tuple[Any, Any, Any, int | None]


def _unreadable(path: Path, why: str) -> DataError:
    return DataError(
        f"{path} is not a tokenizer that yoked can read: {why}",
        fix="take the folder of another tokenizer, or leave --tokenizer out to train one",
    )


def _read_json(path: Path, content: bytes) -> _Content:
    try:
        form = json.loads(content)
        if form["format"] != _JSON_FORMAT:
            raise _unreadable(path, f"format {form['format']}, this yoked reads {_JSON_FORMAT}")
        tokens = (base64.b64decode(token, validate=True) for token in form["tokens_base64"])
        ranks = {token: rank for rank, token in enumerate(tokens)}
        found = _fingerprint(ranks, form["pattern"], form["special_tokens"])
        if found != form["fingerprint"]:
            raise _unreadable(path, "its content does not match its fingerprint")
        return ranks, form["pattern"], form["special_tokens"], form["requested_vocab_size"]
    except (
        ValueError,
        KeyError,
        TypeError,
        AttributeError,
        OverflowError,
        RecursionError,
    ) as error:
        raise _unreadable(path, f"damaged ({type(error).__name__}: {error})") from error


class _PickledEncoding:
    """Replaces tiktoken.Encoding while unpickling: it keeps the state and runs no code."""

    state: object = None

    def __setstate__(self, state: object) -> None:
        self.state = state


# Python's unpickler: the one in C allocates as much memory as a number in the file says.
class _PlainUnpickler(pickle._Unpickler):  # noqa: SLF001
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("tiktoken.core", "Encoding"):
            return _PickledEncoding
        raise pickle.UnpicklingError(f"it wants to run {module}.{name}")


def _read_pickle(path: Path, content: bytes) -> _Content:
    try:
        found = _PlainUnpickler(io.BytesIO(content)).load()
    # A damaged pickle can raise nearly any exception, and only pickle's code runs here.
    except Exception as error:
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error
    state = found.state if isinstance(found, _PickledEncoding) else None
    if not isinstance(state, dict):
        raise _unreadable(path, "it does not hold an encoding with its merges")
    values = (state.get(key) for key in ("mergeable_ranks", "pat_str", "special_tokens"))
    ranks, pattern, specials = values
    return ranks, pattern, specials, None


def _require_valid(path: Path, ranks: Any, pattern: Any, specials: Any) -> None:
    """Raise DataError, with the reason, if a tokenizer's parts are invalid."""
    if not (isinstance(ranks, dict) and isinstance(specials, dict) and isinstance(pattern, str)):
        raise _unreadable(path, "merges, pattern or special tokens are missing")
    if not all(isinstance(token, bytes) for token in ranks) or not all(
        isinstance(name, str) for name in specials
    ):
        raise _unreadable(path, "a token is neither bytes nor the name of a special token")
    ids = [*ranks.values(), *specials.values()]
    if not all(type(i) is int for i in ids) or sorted(ids) != list(range(len(ids))):
        raise _unreadable(path, f"its {len(ids):,} ids are not 0 to {len(ids) - 1:,}, each once")
    missing = [value for value in range(256) if bytes([value]) not in ranks]
    if missing:
        raise _unreadable(path, f"it has no token for byte {missing[0]:#04x}")
    if BOS not in specials:
        raise _unreadable(path, f"it has no {BOS}, with which every document begins")
