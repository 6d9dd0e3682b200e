"""What a checkpoint consists of, for its writer and who fetches it; and which one is the best."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Annotated, Any

from yoked.core.schema import Amount, Constraint, Count, Digest, decode

FORMAT = 1
# A name that leads out of the folder would let a checkpoint that somebody was given replace
# files of his elsewhere, when its renames are finished.
_FileName = Annotated[
    str,
    Constraint.of_pattern(
        "a checkpoint's file", r"(model|meta|optim)_\d{6,}[A-Za-z0-9_]*\.(pt|json)"
    ),
]
_Token = Annotated[str, Constraint.of_pattern("8 digits in hex", "[0-9a-f]{8}")]


@dataclass(frozen=True)
class FileEntry:
    """One file of a checkpoint: its final name, its size and its digest."""

    name: _FileName
    size_bytes: Count
    sha256: Digest


@dataclass(frozen=True)
class Manifest:
    """What a checkpoint consists of.

    sequence: counts the saves in the folder; the newest checkpoint is the one with the highest,
    which after a resume from an earlier step need not be the one with the highest step.
    token: tells the staged names of this save from those of any other.
    val_bpb: of these very weights; None: they were not evaluated. aside: saved for that alone, so
    it takes the place of none of the newest.
    """

    step: Count
    sequence: Count
    token: _Token
    files: tuple[FileEntry, ...]
    val_bpb: Amount | None = None
    aside: bool = False

    def to_bytes(self) -> bytes:
        """The manifest as JSON, with a digest of its own."""
        content = {"format": FORMAT, **asdict(self)}
        return json.dumps({**content, "sha256": content_digest(content)}, indent=2).encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Manifest:
        """Raises ValueError when the bytes are not a manifest that this module wrote."""
        try:
            content: dict[str, Any] = json.loads(data)
            digest = content.pop("sha256")
            if digest != content_digest(content) or content["format"] != FORMAT:
                raise ValueError("its content does not match its own digest or format")
        except (AttributeError, KeyError, TypeError, RecursionError) as error:
            raise ValueError(f"it is not a manifest ({error!r})") from error
        found: Manifest = decode(cls, content)
        return found


def content_digest(content: dict[str, Any]) -> str:
    """The digest of all else that a manifest says."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def best_of(saved: Iterable[Manifest]) -> Manifest | None:
    """The one with the lowest val_bpb, of several the first; None where none was evaluated.

    Of the run as it went on: what an attempt saved beyond the step from which a later one went on
    is no part of it.
    """
    lineage: list[Manifest] = []
    for each in sorted(saved, key=lambda each: each.sequence, reverse=True):
        if not lineage or each.step < lineage[-1].step:
            lineage.append(each)
    evaluated = [(each.val_bpb, each.step, each) for each in lineage if each.val_bpb is not None]
    return min(evaluated, key=lambda one: one[:2], default=(0.0, 0, None))[2]
