"""The program that a person names after `--`: found, and read once, before any host is asked."""

from __future__ import annotations

import importlib.util
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Literal

from yoked.errors import UsageError

_HOW = ("yoked run -- SCRIPT.py ARGS", "yoked run -- -m MODULE ARGS")


@dataclass(frozen=True)
class Program:
    """What each rank runs. name: of a module, or a script's path below its folder.

    folder: what travels to the hosts, and where the program runs; None: nothing of the person's.
    resume_args: what is added to the arguments when the program is started again. is_limited: the
    folder is a person's, in which much may lie that hosts need not get. include: patterns of files
    in it that travel although git's rules ignore them.
    """

    kind: Literal["module", "script"]
    name: str
    args: tuple[str, ...]
    folder: Path | None
    resume_args: tuple[str, ...] = ()
    is_limited: bool = True
    include: tuple[str, ...] = ()

    @property
    def argv(self) -> list[str]:
        """What stands behind `yoked run --`."""
        return [*(["-m"] if self.kind == "module" else []), self.name, *self.args]

    def to_dict(self) -> dict[str, object]:
        """As job.json has it."""
        return {"kind": self.kind, "name": self.name, "args": list(self.args)}


def read_program(words: Sequence[str], folder: Path, resume_args: Sequence[str] = ()) -> Program:
    """The program of a command line, which runs in folder.

    Raises UsageError when there is none, or when Python cannot read it: every host would say so.
    """
    if not words:
        raise UsageError("no program is named", fix=_HOW)
    first, rest = words[0], tuple(words[1:])
    if first == "-m":
        if not rest:
            raise UsageError("-m needs the name of a module", fix=_HOW)
        _check_module(rest[0], folder)
        return Program("module", rest[0], rest[1:], folder, tuple(resume_args))
    if first.startswith("-"):
        raise UsageError(f"{first} is no program", fix=_HOW)
    return Program("script", _script(first, folder), rest, folder, tuple(resume_args))


def _script(named: str, folder: Path) -> str:
    path = Path(folder, named)
    if not path.is_file():
        raise UsageError(f"there is no script {path}", fix=_similar(path))
    below = path.resolve()
    if not below.is_relative_to(folder.resolve()):
        raise UsageError(
            f"{path} lies outside of {folder}, the folder that is sent to the hosts",
            fix=f"cd {shlex.quote(str(below.parent))}    and start it from there",
        )
    _check_syntax(path)
    return below.relative_to(folder.resolve()).as_posix()


def _similar(path: Path) -> tuple[str, ...]:
    import difflib

    there = sorted(each.name for each in path.parent.glob("*.py")) if path.parent.is_dir() else []
    near = difflib.get_close_matches(path.name, there, n=1)
    if near:
        return (f"did you mean {path.parent / near[0]}?",)
    return ("cd to the program's folder, and name it from there", *_HOW)


def _check_module(name: str, folder: Path) -> None:
    """Refuse a module that cannot be read; one that is not in the folder may be on the hosts."""
    top = name.partition(".")[0]
    found = PathFinder.find_spec(top, [str(folder)])
    if found is None:
        if top not in sys.stdlib_module_names and importlib.util.find_spec(top) is None:
            raise UsageError(
                f"there is no module {name} in {folder}, nor in the environment of this yoked",
                fix="cd to the folder that has it; or install it in the environment of each host",
            )
        return
    path = folder.joinpath(*name.split("."))
    files = [path.with_suffix(".py"), path / "__main__.py"]
    source = next((file for file in files if file.is_file()), None)
    if source is None:
        raise UsageError(
            f"there is no module {name} in {folder}: neither {files[0]} nor {files[1]} is there",
            fix=_similar(files[0]),
        )
    _check_syntax(source)


def _check_syntax(path: Path) -> None:
    try:
        compile(path.read_bytes(), str(path), "exec")
    except (SyntaxError, ValueError) as problem:
        line = getattr(problem, "lineno", None)
        text = (getattr(problem, "text", None) or "").strip()
        where = f"{path}:{line}" if line else str(path)
        raise UsageError(
            f"{where}: {getattr(problem, 'msg', problem)}" + (f"\n    {text}" if text else ""),
            fix="every rank would end here; mend it and start again",
        ) from problem
