"""The program that lies where a command was typed: what it imports, and what hides modules from it.

Of its sources alone: nothing of it is run.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from yoked.core.fs import is_lfs_pointer
from yoked.core.names import NOT_UTF8
from yoked.core.shadows import shadowing
from yoked.doctor.beside import modules_beside
from yoked.doctor.damage import damage_in
from yoked.doctor.wants import Asks, asks
from yoked.fleet.variables import carried

_MOST_FILES, _MOST_BYTES, _MOST_MODULES = 200, 200_000, 32
# Of names that are looked at, for what is odd in them, and of those that are told.
_MOST_NAMES, _MOST_ODD, _MOST_NAMED = 10_000, 20, 100
# Of its sources that are left on hosts for the time of a look.
_LEFT_BYTES = 65_536
_IMPORT = re.compile(
    r"^[ \t]*(?:from[ \t]+(\w+)[\w.]*[ \t]+import\b|import[ \t]+(.+))", re.MULTILINE
)
_FIRST = re.compile(r"\s*(\w+)")
# One that is no part of a function or a condition, with the module's whole name.
_IMPORT_AT_ONCE = re.compile(
    r"^(?:from[ \t]+([\w.]+)[ \t]+import\b|import[ \t]+([^#\n]+))", re.MULTILINE
)
# These show something to whoever imports them.
_SHOWN = frozenset({"antigravity", "this"})
# Versions of these are compared, or they come along with the run.
_KNOWN = frozenset({"torch", "yoked"})
# A text that may be the name of a file.
_QUOTED = re.compile(r"[\"']([^\"'\n\\{}]{1,200})[\"']")
_BUILDS = re.compile(r"\b(?:cpp_extension|torch_extensions|FileBaton|load_inline)\b")
# Lines that ask for what may be another on each host: a folder's names as they come, files in the
# order of their times, local time. And what such a line has where that does no harm.
_ASKS = {
    "unsorted": (
        re.compile(r"\b(?:listdir|scandir|iterdir|i?glob|rglob|walk)[ \t]*\("),
        re.compile(r"\bsorted[ \t]*\("),
    ),
    "file_times": (
        re.compile(r"\bkey\s*=.*(?:\bst_[mc]time(?:_ns)?|\bget[mc]time)\b"),
        # The newest checkpoint is that of one host.
        re.compile(r"\b(?:max|min)[ \t]*\("),
    ),
    "local_time": (
        re.compile(r"\b(?:localtime|strftime|fromtimestamp)\b|\.(?:now|today)\(\)|\btime\.ctime\b"),
        re.compile(r"gmtime|utc", re.IGNORECASE),
    ),
}
# What belongs to tools, to this machine or to earlier runs.
_PASSED_OVER = frozenset({"node_modules", "__pycache__", "runs", "venv"})
_KINDS = {stat.S_IFIFO: "a pipe", stat.S_IFSOCK: "a socket",
          stat.S_IFBLK: "a device", stat.S_IFCHR: "a device"}  # fmt: skip


@dataclass(frozen=True)
class ProgramHere:
    """shadows: files that hide modules of Python's, or of torch's. programs: those beside them
    that import torch; own: files below this folder that these are, or import; broken: those of
    them that cannot be read or compiled, each with why; named: other files below this folder
    whose names stand in own ones; modules: what they import that is neither Python's nor lies
    here; standard: modules of Python's own that they import whenever they run; plain: of what they
    import here, folders without __init__.py, before which Python takes any package of that name,
    wherever it is installed; unsorted, file_times, local_time:
    as FILE:LINE, what `_ASKS` has; special: names below this folder that are no files, each
    with its kind; misnamed: those that are no UTF-8; pointers: files that say where git-lfs would
    get their content; extensions: names in sources that build some by torch; asks: what they ask
    of a host, see wants.py; damaged: files that they read, and that are not whole here, each with
    why; set_here: variables of these that are set in this shell; beside: see `modules_beside`;
    miscased: modules that lie here under a name with other capitals, each with its file.
    """

    shadows: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    standard: tuple[str, ...] = ()
    plain: tuple[str, ...] = ()
    unsorted: tuple[str, ...] = ()
    file_times: tuple[str, ...] = ()
    local_time: tuple[str, ...] = ()
    broken: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    special: tuple[str, ...] = ()
    links: tuple[str, ...] = ()
    misnamed: tuple[str, ...] = ()
    pointers: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    asks: Asks = field(default_factory=dict)
    damaged: Mapping[str, str] = field(default_factory=dict)
    set_here: tuple[str, ...] = ()
    beside: tuple[Mapping[str, Any], ...] = ()
    miscased: Mapping[str, str] = field(default_factory=dict)


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
    programs = [name for name, text in sources.items()
                if "/" not in name and "torch" in _imported(text)]  # fmt: skip
    used = {name: sources[name] for name in _reached(programs, sources)}
    beside = {name.partition(".")[0] for name in names}
    wanted = {each for text in used.values() for each in _imported(text)}
    modules = sorted(wanted - beside - _KNOWN - sys.stdlib_module_names)
    odd = _odd(folder) if programs and not quick else {}
    asked = {} if quick else _asked(folder, used)
    if odd:
        odd["links"] = [name for name in odd["links"] if _comes_by(name, used)]
        asked["links"] = _led_away(folder, odd["links"])
    return ProgramHere(
        shadows=tuple(str(folder / name) for name in hiding),
        programs=tuple(str(folder / name) for name in programs),
        own=tuple(used),
        modules=tuple(modules[:_MOST_MODULES]),
        standard=tuple(_standard(used.values(), beside))[:_MOST_MODULES],
        plain=tuple(_plain(folder, wanted & set(names)))[:_MOST_MODULES],
        **{how: tuple(_asking(used, *lines)) for how, lines in _ASKS.items()},
        broken=() if quick else tuple(_broken(folder, used, wanted & beside, names))[:_MOST_ODD],
        named=() if quick else tuple(_named(folder, used))[:_MOST_NAMED],
        extensions=tuple(_extensions(used))[:_MOST_NAMED],
        asks=asked,
        damaged=_damaged(asked),
        beside=() if quick else tuple(modules_beside(folder, wanted & beside)),
        miscased={
            name: each
            for name in modules
            for each in names
            if each.casefold() in (name.casefold(), f"{name.casefold()}.py")
        },
        set_here=tuple(each for each in asked.get("variables", ()) if each in os.environ),
        **{how: tuple(names[:_MOST_ODD]) for how, names in odd.items()},
    )


def _asked(folder: Path, used: Mapping[str, str]) -> Asks:
    """What the program asks of a host, but for what a launch or its own folder gives it."""
    found = asks(used)
    along = carried(os.environ)
    given: dict[str, Callable[[str], bool]] = {
        "variables": lambda name: name in along,
        "shuffled": lambda _: "PYTHONHASHSEED" in along,
        "above": lambda name: (folder / name).exists(),
        # What is not here either may be one of many places.
        "beyond": lambda name: not (folder / name).exists(),
        "fills": lambda name: not (folder / name).is_dir(),
    }
    found = {
        kind: {name: place for name, place in names.items()
               if kind not in given or not given[kind](name)}
        for kind, names in found.items()
    }  # fmt: skip
    read = {**found.get("reads", {}), **found.get("reads_below", {})}
    here = {name: place for name, place in read.items() if os.path.exists(os.path.expanduser(name))}  # noqa: PTH110, PTH111 - see above
    return {**found, "here": here}


def _comes_by(name: str, used: Mapping[str, str]) -> bool:
    """Whether a program may open a name: one beside it, or one that stands in its sources."""
    word = re.compile(rf"(?<![\w.-]){re.escape(Path(name).name)}(?![\w.-])")
    return "/" not in name or any(map(word.search, used.values()))


def _led_away(folder: Path, links: Iterable[str]) -> dict[str, str]:
    """By target, links that lead to nothing here, by a path that a host may have."""
    found = {}
    for name in links:
        with contextlib.suppress(OSError):
            target = str((folder / name).readlink())
            if target.startswith("/") and not (folder / name).exists():
                found[target] = name
    return found


def _damaged(asked: Asks) -> dict[str, str]:
    """Files that the program names, as far as they are here, and are not whole."""
    found: dict[str, str] = {}
    for name in asked.get("here", ()):
        # A folder that may not be read tells nothing.
        with contextlib.suppress(OSError):
            found |= damage_in(Path(name).expanduser())
    return dict(islice(found.items(), _MOST_ODD))


def _sources(folder: Path, names: list[str]) -> dict[str, str]:
    """The beginnings of the first Python files here, and of packages beside them, by name; what
    cannot be read is left out.
    """
    found = {}
    packages = [name for name in names if name.isidentifier() and name not in _PASSED_OVER]
    inside = (f"{name}/{each}" for name in packages for each in _listed(folder / name))
    files = (each for each in (*names, *inside) if each.endswith(".py"))
    for name in islice(files, _MOST_FILES):
        try:
            # A pipe would be waited for.
            if not (folder / name).is_file():
                continue
            with (folder / name).open("rb") as source:
                found[name] = source.read(_MOST_BYTES).decode(errors="replace")
        except OSError:
            continue
    return found


def _listed(folder: Path) -> list[str]:
    try:
        return sorted(each.name for each in folder.iterdir())
    except OSError:
        return []


def _broken(
    folder: Path, used: Mapping[str, str], wanted: Iterable[str], names: Collection[str]
) -> Iterator[str]:
    """Files of the program that no Python could run: NAME: why."""
    for each in sorted(f"{name}.py" for name in wanted):
        if each in names and each not in used:
            yield f"{each}: {_why_none(folder / each)}"
    for name, text in used.items():
        try:
            # What begins there may not end there.
            if len(text) < _MOST_BYTES:
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    compile((folder / name).read_bytes(), name, "exec", dont_inherit=True)
        except (SyntaxError, ValueError) as problem:
            line = getattr(problem, "lineno", None)
            yield f"{name}{f':{line}' if line else ''}: {getattr(problem, 'msg', problem)}"
        except OSError:
            continue


def _why_none(path: Path) -> str:
    """Why a file that is there has no content."""
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind == stat.S_IFREG:
            with path.open("rb"):
                return "it is not among the first files here"
        return "a folder" if kind == stat.S_IFDIR else _KINDS.get(kind, "no file")
    except OSError as problem:
        return str(problem.strerror)


def _named(folder: Path, used: Mapping[str, str]) -> list[str]:
    """Files below the folder, but those of the program, whose names stand in its sources."""
    texts = {each for text in used.values() for each in _QUOTED.findall(text)}
    found = []
    for name in sorted(set(map(os.path.normpath, texts))):
        try:
            is_here = not name.startswith(("/", "..")) and (folder / name).is_file()
        except OSError:
            continue
        if is_here and name not in used:
            found.append(name)
    return found


def _extensions(used: Mapping[str, str]) -> list[str]:
    """Names that may be those of extensions, which torch builds on each host."""
    texts = [text for text in used.values() if _BUILDS.search(text)]
    quoted = {each for text in texts for each in _QUOTED.findall(text)}
    return sorted({part for each in quoted for part in each.split("/") if part.isidentifier()})


def sources_of(names: Iterable[str]) -> dict[str, str]:
    """The largest of these files that have room together, by their last names."""
    found: dict[str, str] = {}
    room = _LEFT_BYTES
    for path in sorted(map(Path, names), key=_size_of, reverse=True):
        if 0 < (size := _size_of(path)) <= room and path.name not in found:
            with contextlib.suppress(OSError, ValueError):
                found[path.name] = path.read_text(encoding="utf-8")
                room -= size
    return found


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _odd(folder: Path) -> dict[str, list[str]]:
    """special, links, misnamed and pointers below a folder, as `ProgramHere` has them."""
    kinds = ("special", "links", "misnamed", "pointers")
    found: dict[str, list[str]] = {kind: [] for kind in kinds}
    count = 0
    for where, folders, names in os.walk(folder):
        folders[:] = [each for each in folders if each[0] != "." and each not in _PASSED_OVER
                      and not Path(where, each, "pyvenv.cfg").exists()]  # fmt: skip
        for name in (*folders, *(each for each in names if each[0] != ".")):
            below = str(Path(where, name).relative_to(folder))
            count += 1
            if count > _MOST_NAMES:
                return found
            if NOT_UTF8.search(name):
                found["misnamed"].append(below)
            try:
                told = os.lstat(Path(where, name))
                kind = stat.S_IFMT(told.st_mode)
                if kind == stat.S_IFREG and is_lfs_pointer(Path(where, name), told.st_size):
                    found["pointers"].append(below)
            except OSError:
                continue
            if kind == stat.S_IFLNK:
                found["links"].append(below)
            if kind in _KINDS:
                found["special"].append(f"{below} ({_KINDS[kind]})")
    return found


def _plain(folder: Path, wanted: Iterable[str]) -> Iterator[str]:
    """Those of these names in a folder that are folders without __init__.py."""
    for name in sorted(wanted):
        is_package = any((folder / name).glob("__init__.*"))
        if (folder / name).is_dir() and not is_package and not any(folder.glob(f"{name}.*")):
            yield name


def _imported(text: str) -> set[str]:
    """The first names of all modules that a source imports, wherever it does."""
    found = set()
    for origin, listed in _IMPORT.findall(text):
        firsts = [_FIRST.match(each) for each in listed.split(",")] if listed else []
        found |= {origin} if origin else {first[1] for first in firsts if first}
    return found


def _standard(texts: Iterable[str], beside: Collection[str]) -> list[str]:
    found = set()
    for origin, listed in (each for text in texts for each in _IMPORT_AT_ONCE.findall(text)):
        found |= {origin, *(each.split()[0] for each in listed.split(",") if each.strip())}
    firsts = sys.stdlib_module_names - _SHOWN - set(beside)
    return sorted(each for each in found if each.partition(".")[0] in firsts)


def _reached(programs: list[str], sources: dict[str, str]) -> list[str]:
    """The programs, and the modules here that they import."""
    found = list(programs)
    for name in found:
        wanted = _imported(sources[name])
        found += [each for each in sources if each not in found and _module_of(each) in wanted]
    return found


def _module_of(name: str) -> str:
    """The module, or the package, that a file below the folder is of."""
    return name.partition("/")[0].removesuffix(".py")


def _asking(
    used: Mapping[str, str], asks: re.Pattern[str], harmless: re.Pattern[str]
) -> Iterator[str]:
    for name, text in used.items():
        for number, line in enumerate(text.splitlines(), start=1):
            if asks.search(line) and not harmless.search(line):
                yield f"{name}:{number}"
