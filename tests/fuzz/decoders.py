"""The decoders of foreign bytes, by name: an explicit list.

Each either decodes, or raises the error that it is documented to raise; nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

from hypothesis import HealthCheck, given, seed, settings
from hypothesis.strategies import SearchStrategy
from tests.fuzz import connection, files, wire


class Decoder(NamedTuple):
    """examples: what it may be given; run: decodes one, in a folder that all share."""

    examples: Callable[[], SearchStrategy[Any]]
    run: Callable[[Any, Path], None]


DECODERS: dict[str, Decoder] = {
    "protocol": Decoder(wire.messages, wire.decode_messages),
    "frames": Decoder(connection.conversations, connection.hear),
    "answers": Decoder(wire.answers, wire.use_answer),
    "yoked.toml": Decoder(wire.fleets, wire.decode_fleet),
    "examinations": Decoder(wire.examinations, wire.decode_examination),
    "datasets": Decoder(files.datasets, files.decode_dataset),
    "tokenizers": Decoder(files.tokenizers, files.decode_tokenizer),
    "checkpoints": Decoder(files.checkpoints, files.decode_checkpoint),
}


def fuzz(name: str, folder: Path, *, examples: int, first: int = 0) -> None:
    """Give a decoder so many examples. first: a seed, by which others come."""
    decoder = DECODERS[name]
    folder.mkdir(parents=True)

    @seed(first)
    @settings(max_examples=examples, database=None, suppress_health_check=list(HealthCheck))
    @given(decoder.examples())
    def decode(example: Any) -> None:
        decoder.run(example, folder)

    decode()
