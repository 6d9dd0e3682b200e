"""Which faults a lab has: a file in the lab's folder, changed by one process at a time."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from yoked.core.fs import locked, write_json
from yoked.lab.faults.base import ActiveFault

_LOCK_TIMEOUT_S = 10.0


@dataclass
class Book:
    """The content of the file: faults by id, in the order in which they came; the last number."""

    faults: dict[str, ActiveFault]
    last_number: int


class Store:
    """The file `faults.json` of a lab."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "faults.json"

    def read(self) -> Book:
        """The faults as they were last written; writing replaces the file as a whole."""
        try:
            data = json.loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return Book({}, 0)
        faults = {each["id"]: _fault(each) for each in data["faults"]}
        return Book(faults, data["last_number"])

    @contextlib.contextmanager
    def change(self) -> Iterator[Book]:
        """The faults, to be changed while nobody else does; written when the block ends well."""
        with locked(self._path.with_suffix(".lock"), _LOCK_TIMEOUT_S):
            book = self.read()
            yield book
            faults = [dataclasses.asdict(fault) for fault in book.faults.values()]
            write_json(self._path, {"last_number": book.last_number, "faults": faults})


def _fault(data: dict[str, Any]) -> ActiveFault:
    return ActiveFault(**data | {"args": tuple(data["args"]), "hosts": tuple(data["hosts"])})
