"""The program that lies where a command was typed: what it imports, and what hides modules from it.

Of its sources alone: nothing of it is run.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from yoked.core.shadows import shadowing

_MOST_FILES, _MOST_BYTES, _MOST_MODULES = 64, 200_000, 32
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+(.+))", re.MULTILINE
)
_FIRST = re.compile(r"\s*(\w+)")
# Versions of these are compared, or they come along with the run.
_KNOWN = frozenset({"torch", "numpy", "yoked"})
_LISTS = re.compile(r"\b(?:listdir|scandir|iterdir|i?glob|rglob|walk)[ \t]*\(")
_SORTS = re.compile(r"\bsorted[ \t]*\(")


@dataclass(frozen=True)
class ProgramHere:
    """shadows: files that hide modules of Python's. programs: those beside them that import torch;
    modules: what these import, by themselves or by their own modules, that is neither Python's nor
    lies here; unsorted: FILE:LINE where they list a folder, and do not sort it there.
    """

    shadows: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    unsorted: tuple[str, ...] = ()


def program_here(*, quick: bool) -> ProgramHere:
    """What is in the current folder. quick: sources are read only where something hides a module;
    each launch comes by here, in folders of any size.
    """
    try:
        # It may have been removed since.
        folder = Path.cwd()
        names = sorted(each.name for each in folder.iterdir())
    except OSError:
        return ProgramHere()
    # Path.is_file raises where it may not look.
    hiding = [
        each
        for each in shadowing([*names, *(f"{name}/__init__.py" for name in names)])
        if "/" not in each or os.path.isfile(folder / each)  # noqa: PTH113 - see above
    ]
    sources = {} if quick and not hiding else _sources(folder, names)
    programs = [name for name, text in sources.items() if "torch" in _imported(text)]
    used = {name: sources[name] for name in _reached(programs, sources)}
    beside = {name.partition(".")[0] for name in names}
    wanted = {each for text in used.values() for each in _imported(text)}
    modules = sorted(wanted - beside - _KNOWN - sys.stdlib_module_names)
    return ProgramHere(
        shadows=tuple(str(folder / name) for name in hiding),
        programs=tuple(str(folder / name) for name in programs),
        modules=tuple(modules[:_MOST_MODULES]),
        unsorted=tuple(each for name, text in used.items() for each in _unsorted(name, text)),
    )


def _sources(folder: Path, names: list[str]) -> dict[str, str]:
    """The beginnings of the first Python files here, by name; what cannot be read is left out."""
    found = {}
    for name in [each for each in names if each.endswith(".py")][:_MOST_FILES]:
        try:
            # A pipe would be waited for.
            if not (folder / name).is_file():
                continue
            with (folder / name).open("rb") as source:
                found[name] = source.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
    return found


def _imported(text: str) -> set[str]:
    """The first names of all modules that a source imports, wherever it does."""
    found = set()
    for origin, listed in _IMPORT.findall(text):
        firsts = [_FIRST.match(each) for each in listed.split(",")] if listed else []
        found |= {origin} if origin else {first[1] for first in firsts if first}
    return found


def _reached(programs: list[str], sources: dict[str, str]) -> list[str]:
    """The programs, and the modules here that they import."""
    found = list(programs)
    for name in found:
        beside = (f"{each}.py" for each in sorted(_imported(sources[name])))
        found += [each for each in beside if each in sources and each not in found]
    return found


def _unsorted(name: str, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if _LISTS.search(line) and not _SORTS.search(line):
            yield f"{name}:{number}"
