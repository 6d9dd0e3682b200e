"""What a launch would send of the folder where a command was typed, for the doctor to know."""

from __future__ import annotations

from itertools import chain, islice
from pathlib import Path

from yoked.core.patterns import any_matches
from yoked.fleet.model import Fleet
from yoked.launch.trees import LIMIT_FILES
from yoked.launch.walk import Folder, Found, ignored, travelling


def travelling_names(fleet: Fleet) -> frozenset[str]:
    """Names below the current folder, as far as a launch may have files. Raises UsageError."""
    walked: list[Folder] = []
    found = {each.name for each in islice(travelling(Folder(Path.cwd()), walked), LIMIT_FILES)}
    if fleet.include:
        rest = islice(chain.from_iterable(map(ignored, walked)), LIMIT_FILES)
        found |= {each.name for each in rest
                  if isinstance(each, Found) and any_matches(fleet.include, each.name)}  # fmt: skip
    return frozenset(found)
