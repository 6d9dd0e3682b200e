"""Values that ranks tell each other: JSON, and read by whoever expects them.

Not by pickle, which torch's own *_object collectives use: who unpickles runs what the sender
wrote. What arrives is text of another host.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch.distributed as dist

from yoked.errors import PeerError

# Of one rank. What ranks tell of themselves takes some kilobytes.
LIMIT_BYTES = 16 * 2**20

_T = TypeVar("_T")
# Makes a value of what JSON has; raises one of WRONG for what it does not expect.
Read = Callable[[Any], _T]
WRONG = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)


def gather_json(value: object, read: Read[_T], group: dist.ProcessGroup | None = None) -> list[_T]:
    """Every rank's value, by rank, over a group on Gloo; None is the default one.

    value: None, bool, int, float, str, and lists and tables of them; others are a bug.
    Collective. Traffic a rank: (N-1) times 8 bytes and the longest text. Raises PeerError on all
    ranks where one's text is too long, and where it cannot be read; RuntimeError is torch's own.
    """
    text, world_size = encode(value), dist.get_world_size(group)
    lengths = torch.empty(world_size, dtype=torch.int64)
    own = torch.tensor([len(text)])
    dist.all_gather(list(lengths.unsqueeze(1).unbind()), own, group=group)
    sizes = [int(size) for size in lengths.tolist()]
    for rank, size in enumerate(sizes):
        if not 0 < size <= LIMIT_BYTES:
            raise PeerError(
                f"rank {rank} announces {size} bytes to all ranks; the limit is {LIMIT_BYTES}",
                fix=_FIX,
            )
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(text)] = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    gathered = torch.empty(world_size, max(sizes), dtype=torch.uint8)
    dist.all_gather(list(gathered.unbind()), padded, group=group)
    return [
        decode(bytes(row[:size].numpy()), rank, read)
        for rank, (row, size) in enumerate(zip(gathered, sizes, strict=True))
    ]


def encode(value: object) -> bytes:
    """The value as JSON, from which `decode` makes an equal one."""
    _require_plain(value)
    return json.dumps(value).encode("ascii")


def decode(text: bytes, rank: int, read: Read[_T]) -> _T:
    """What a rank told. Raises PeerError."""
    return checked(text, rank, lambda text: read(json.loads(text)))


def checked(value: Any, rank: int, read: Read[_T]) -> _T:
    """What `read` makes of a rank's value. Raises PeerError."""
    try:
        return read(value)
    except WRONG as problem:
        raise PeerError(
            f"rank {rank} tells all ranks what cannot be read: {type(problem).__name__}: {problem}",
            fix=_FIX,
        ) from problem


_FIX = "the same version of yoked on all hosts: yoked doctor; ranks that are ours send no such word"


def _require_plain(value: object) -> None:
    """JSON would make a list of a tuple, and text of a table's numbers, unseen."""
    if isinstance(value, list):
        for each in value:
            _require_plain(each)
    elif isinstance(value, dict):
        for key, each in value.items():
            assert isinstance(key, str), key
            _require_plain(each)
    else:
        assert value is None or isinstance(value, bool | int | float | str), value


# --- readers


def read_nothing(value: Any) -> None:
    """None: a word that only says that this rank is here."""
    if value is not None:
        raise TypeError(f"{_short(value)} in place of nothing")


def read_flag(value: Any) -> bool:
    """True or false."""
    return _of(value, bool)


def read_text(value: Any) -> str:
    """A string."""
    return _of(value, str)


def read_whole(value: Any) -> int:
    """A whole number; true is none."""
    if isinstance(value, bool):
        raise TypeError("true or false in place of a whole number")
    return _of(value, int)


def read_number(value: Any) -> float:
    """A number; true is none."""
    return value if isinstance(value, float) else float(read_whole(value))


def read_table(value: Any) -> dict[str, Any]:
    """A table; its values are for the caller to read."""
    return _of(value, dict)


def read_list(read: Read[_T]) -> Read[list[_T]]:
    """What reads a list, each value by `read`."""
    return lambda value: [read(each) for each in _of(value, list)]


def read_table_of(read: Read[_T]) -> Read[dict[str, _T]]:
    """What reads a table, each value by `read`."""
    return lambda value: {key: read(each) for key, each in read_table(value).items()}


def _of(value: Any, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise TypeError(f"{_short(value)} in place of {kind.__name__}")
    return value


def _short(value: Any) -> str:
    return ascii(value)[:60]
