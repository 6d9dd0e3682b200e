"""Files of a host that are removed or changed; the originals are kept on it.

The host's own file tree takes the changes; the machine's files stay as they are, which is checked.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

import yoked
from yoked.errors import LabError
from yoked.lab.faults import inside_files
from yoked.lab.faults.args import HOST, Optional, Parsed, matching
from yoked.lab.faults.base import Effect, Fault, FaultContext, Kind
from yoked.paths import cache_root

if TYPE_CHECKING:
    from yoked.lab.host import LabHost

Change = dict[str, Any]
# What a person would take for a version of torch.
VERSION = Parsed(
    "VERSION",
    parse=matching(r"\d+(\.\d+)+([a-z]+\d+)?(\+[\w.]+)?"),
    problem="is not a version",
    example="write it as in 2.12.1 or 2.12.1+cpu",
)
# None is the usual one.
SOME_FOLDER = Optional("[FOLDER]", tells_apart=True, of=Parsed("FOLDER", parse=str))
# Beside what people keep, and on the disk, so that it outlives a reboot.
_KEPT = "~/.yoked-lab/{0}"
_UNCOMMITTED = "\n# A change that was never committed.\n"
# A library that `import torch` needs first of all, and a small one.
TORCH_LIBRARY = "lib/libc10.so"
_COMPILERS = ("cc", "gcc", "clang", "c++", "g++", "clang++", "c99")


@functools.cache
def _program() -> str:
    return Path(inside_files.__file__).read_text(encoding="utf-8")


def _ask(host: LabHost, do: str, **request: Any) -> Any:
    """Have the host's Python look at or change the host's files."""
    words = ["python3", "-c", _program(), json.dumps({"do": do, **request})]
    done = host.run(words, check=False, as_root=True)
    if done.returncode:
        why = done.stderr.strip().rpartition("\n")[2]
        raise LabError(
            f"{host.name}: its files cannot be changed: {why}",
            fix="what belongs to root only a lab of root can change",
        )
    return json.loads(done.stdout)


def _not_the_machines(host: LabHost, path: str) -> None:
    """Raise LabError where a host's file is the machine's own and not the host's copy of it."""
    try:
        # A link by itself: where it leads would be looked up among the machine's own files.
        there, here = Path(f"/proc/{host.pid}/root{path}").lstat(), Path(path).lstat()
    except OSError:
        return  # only one of them has it
    if (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino):
        raise LabError(
            f"{path} of {host.name} is the machine's own file: it cannot be changed for one host",
            fix="name a folder on another file system",
        )


@dataclass(frozen=True)
class ChangedFiles(Effect):
    """choose: what to change, as `inside_files` takes it; it tells with `context.say`."""

    WRITES_FILES = True

    choose: Callable[[Fault, FaultContext, LabHost], list[Change]]

    def apply(self, fault: Fault, context: FaultContext) -> None:
        host = context.writable(fault.host)
        changes = self.choose(fault, context, host)
        for change in changes:
            _not_the_machines(host, change["path"])
        _ask(host, "change", keep=_KEPT.format(context.id), changes=changes)

    def undo(self, fault: Fault, context: FaultContext) -> None:
        """Put back what is still as it was left."""
        _ask(context.writable(fault.host), "restore", keep=_KEPT.format(context.id))


def other_version(fault: Fault, _context: FaultContext, host: LabHost) -> list[Change]:
    """Where torch and the package tools look for torch's version."""
    version = fault[VERSION]
    found = _ask(host, "find", package="torch")
    if found is None:
        raise _no_torch(host, "")
    by = f"__version__ = {version!r}"
    changes = [{"path": f"{found['folder']}/version.py", "replace": [r"^__version__ *=.*$", by]}]
    if "metadata" in found:
        changes.append(
            {"path": found["metadata"], "replace": ["^Version:.*$", f"Version: {version}"]}
        )
    return changes


def without_library(_fault: Fault, _context: FaultContext, host: LabHost) -> list[Change]:
    """One file of torch less."""
    found = _ask(host, "find", package="torch")
    path = None if found is None else f"{found['folder']}/{TORCH_LIBRARY}"
    if path is None or not host.exists(path):
        raise _no_torch(host, f" with {TORCH_LIBRARY}")
    return [{"path": path, "remove": True}]


def _no_torch(host: LabHost, what: str) -> LabError:
    return LabError(
        f"the python3 of {host.name} has no torch{what}",
        fix="bring the lab up from a shell in which `python3 -c 'import torch'` works",
    )


def without_compilers(fault: Fault, _context: FaultContext, host: LabHost) -> list[Change]:
    """The names that people and programs look for, links and all."""
    look = f"for name in {' '.join(_COMPILERS)}; do command -v $name; done"
    said = host.run(["sh", "-c", look], check=False).stdout
    paths = [line for line in said.split() if line.startswith("/")]
    if not paths:
        raise LabError(f"{fault.host} has no compiler anyway")
    return [{"path": path, "remove": True} for path in paths]


def other_data(fault: Fault, context: FaultContext, host: LabHost) -> list[Change]:
    """Remove one file by chance, flip bytes in the middle of another."""
    found = _ask(host, "list", folder=fault[SOME_FOLDER] or str(cache_root()))
    folder, files = found["folder"], [file for file in found["files"] if file[1] > 0]
    if not files:
        raise LabError(f"{fault.host} has no data in {folder}", fix=_name_the_folder(fault))
    name, size_bytes = context.random.choice(files)
    at_byte = size_bytes // 2
    told = [f"from byte {at_byte} on, {folder}/{name} has other bytes"]
    changes: list[Change] = [{"path": f"{folder}/{name}", "flip": at_byte}]
    if rest := [file for file in files if file[0] != name]:
        gone = context.random.choice(rest)[0]
        told.append(f"{folder}/{gone} is missing")
        changes.append({"path": f"{folder}/{gone}", "remove": True})
    context.say(f"on {fault.host}, {'; '.join(told)}")
    return changes


def other_code(fault: Fault, context: FaultContext, host: LabHost) -> list[Change]:
    """A comment more in one file by chance."""
    folder = fault[SOME_FOLDER]
    if folder is None:
        # The yoked that the host's Python imports, else the one that brought up the lab.
        package = _ask(host, "find", package="yoked")
        folder = package["folder"] if package else str(Path(yoked.__file__).parent)
    found = _ask(host, "list", folder=folder)
    files = [
        name
        for name, size_bytes in found["files"]
        # Hidden folders are tools' own, which nobody syncs or imports.
        if name.endswith(".py")
        and size_bytes
        and not any(part.startswith(".") for part in PurePosixPath(name).parts)
    ]
    if not files:
        what = f"{fault.host} has no Python files in {found['folder']}"
        raise LabError(what, fix=_name_the_folder(fault))
    path = f"{found['folder']}/{context.random.choice(files)}"
    context.say(f"on {fault.host}, {path} has a line more")
    return [{"path": path, "append": _UNCOMMITTED}]


def _name_the_folder(fault: Fault) -> str:
    return f"name the folder: yoked lab fault {fault.kind.name} {fault.host} FOLDER"


# ---- the faults ----

FILES = (
    Kind(
        "different-torch",
        (HOST, VERSION),
        "torch and its package metadata report another version",
        "torch on {host} says that it is {version}",
        (ChangedFiles(other_version),),
    ),
    # An installation that was interrupted, or cleaned up by hand.
    Kind(
        "broken-torch",
        (HOST,),
        "a library of torch is gone: it is installed, but cannot be imported",
        f"torch on {{host}} lacks {TORCH_LIBRARY}",
        (ChangedFiles(without_library),),
    ),
    Kind(
        "no-compiler",
        (HOST,),
        "there is no C or C++ compiler under any usual name",
        "{host} has no compiler",
        (ChangedFiles(without_compilers),),
    ),
    Kind(
        "different-data",
        (HOST, SOME_FOLDER),
        "a data file is missing, and bytes of another differ",
        "data on {host} differs",
        (ChangedFiles(other_data),),
    ),
    Kind(
        "different-code",
        (HOST, SOME_FOLDER),
        "a source file differs by a line",
        "code on {host} differs",
        (ChangedFiles(other_code),),
    ),
)
