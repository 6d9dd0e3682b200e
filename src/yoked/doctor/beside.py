"""Files beside a program that Python may take for one and the same module.

Of each it is told for which Python and machine it was built, so that a check can say which one a
host takes: `NAME.cpython-311-x86_64-linux-gnu.so` stands before NAME.py, NAME/ before both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

_MOST = 100
_COMPILED = re.compile(r"(\w+)(?:\.([\w-]+))?\.(so|pyd)")
# Source: Include/cpython, `EXT_SUFFIX`: cpython-313t-aarch64-linux-gnu.
_TAG = re.compile(r"cpython-(3)(\d+)([a-z]*)-(\w+)-linux-\w+")
_ELF = b"\x7fELF"
# Source: elf(5), e_machine.
_MACHINES = {3: "i386", 40: "arm", 62: "x86_64", 183: "aarch64", 243: "riscv64"}
# Source: importlib/_bootstrap_external.py: from 3.11 on, Python 3.N begins at 2900 + 50 N.
_FIRST_MAGIC, _MAGICS, _REGULAR = 2900, 50, 3450
_EARLIER = {3430: "3.10", 3420: "3.9"}


def modules_beside(folder: Path, wanted: Iterable[str]) -> list[dict[str, Any]]:
    """The files of modules that these may be, of each module of which there are several, or one
    that is no source: in the order in which Python takes them.

    module: its name; file: below the folder; kind: "package", "extension", "source" or
    "bytecode"; python: "3.N" for which it is; arch: of its machine; both None: any, or unknown;
    foreign: whether no Linux loads it; older: whether a source beside it is younger.
    """
    names = sorted(set(wanted))
    places = [("", names)]
    for name in names:
        if (folder / name).is_dir():
            inside = {each.name.partition(".")[0] for each in _files(folder / name)}
            places.append((f"{name}/", sorted(inside)))
    found = (each for prefix, own in places for each in _of_folder(folder, prefix, own))
    return list(islice(found, _MOST))


def _of_folder(folder: Path, prefix: str, names: Sequence[str]) -> Iterator[dict[str, Any]]:
    files: dict[str, list[Path]] = {}
    for path in _files(folder / prefix):
        files.setdefault(path.name.partition(".")[0], []).append(path)
    for name in names:
        own = files.get(name, [])
        told = [each for path in own if (each := _extension(path))]
        # As FileFinder takes them: those for one Python first, and those for any last.
        told.sort(key=lambda each: (each["tag"] == "", each["tag"] == "abi3", each["file"]))
        source = folder / prefix / f"{name}.py"
        package = folder / prefix / name
        if any(package.glob("__init__.*")):
            told.insert(0, {"file": package.name, "kind": "package"})
        if source in own:
            told.append({"file": source.name, "kind": "source"})
        elif (compiled := source.with_suffix(".pyc")) in own:
            told.append({"file": compiled.name, "kind": "bytecode", "python": _of_magic(compiled)})
        kinds = {each["kind"] for each in told}
        if len(told) > 1 or kinds & {"extension", "bytecode"}:
            for each in told:
                yield {
                    "module": f"{prefix}{name}".replace("/", "."),
                    "python": None,
                    "arch": None,
                    "foreign": False,
                    **{key: value for key, value in each.items() if key != "tag"},
                    "file": f"{prefix}{each['file']}",
                    "older": source in own and _time(package.parent / each["file"]) < _time(source),
                }


def _extension(path: Path) -> dict[str, Any] | None:
    """A compiled module, by its name and its first bytes; None: it is none."""
    match = _COMPILED.fullmatch(path.name)
    if match is None:
        return None
    tag = match[2] or ""
    told = _TAG.fullmatch(tag)
    machine = _machine(path)
    return {
        "file": path.name,
        "kind": "extension",
        "tag": tag,
        "python": f"3.{told[2]}{told[3]}" if told else None,
        "arch": told[4] if told else machine,
        "foreign": match[3] == "pyd" or machine == "" or (not told and tag not in ("", "abi3")),
    }


def _machine(path: Path) -> str | None:
    """For which machine a library is; "": for no Linux; None: nobody knows."""
    try:
        with path.open("rb") as stream:
            head = stream.read(20)
    except OSError:
        return None
    if head[:4] != _ELF:
        return "" if head else None
    order = "little" if head[5:6] == b"\x01" else "big"
    return _MACHINES.get(int.from_bytes(head[18:20], order))  # type: ignore[arg-type]


def _of_magic(path: Path) -> str | None:
    """The Python that compiled a file."""
    try:
        with path.open("rb") as stream:
            magic = int.from_bytes(stream.read(2), "little")
    except OSError:
        return None
    if magic < _REGULAR:
        return next((python for first, python in _EARLIER.items() if magic >= first), None)
    return f"3.{(magic - _FIRST_MAGIC) // _MAGICS}"


def _files(folder: Path) -> list[Path]:
    try:
        return sorted(each for each in folder.iterdir() if each.is_file())
    except OSError:
        return []


def _time(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0
