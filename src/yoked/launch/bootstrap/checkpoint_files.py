"""torch.distributed.checkpoint where hosts share no disk: a load has the files of all hosts.

Each rank saves a file of its own on its host, and the coordinator one that says what is where; a
load reads them all by their names, as on a cluster's shared disk. So before a load the ranks tell
each other which files lie in its folder, and each host gets those that it lacks. On a shared disk
all have the same, and nothing is sent.
"""

# What stands in for a part of torch must reach into it.
# ruff: noqa: SLF001

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import stat
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from yoked.launch.bootstrap.substitutions import before_import, log_substitution
from yoked.units import format_bytes

_MODULE = "torch.distributed.checkpoint.state_dict_loader"
# .metadata, and __0_0.distcp or __0.metadata of rank 0.
_OURS = re.compile(r"[\w.-]*\.(metadata|distcp)")
_CHUNK_BYTES = 16 << 20


class Listing(NamedTuple):
    """What a rank has. place: its host, and the folder there, which ranks of one host share. files:
    {name: (time_ns, bytes)}.
    """

    place: tuple[str, str]
    files: Mapping[str, tuple[int, int]]


class Transfer(NamedTuple):
    """A file that goes from one rank to another, by their numbers in the group."""

    name: str
    source: int
    target: int
    time_ns: int
    size_bytes: int


def transfers(listings: Sequence[Listing]) -> list[Transfer]:
    """What has to be sent so that each place has each file, in the order in which it is sent.

    Of unlike files of one name the newest counts. It is written by one rank in each save, so all
    its copies, which keep its time, have that of one clock.
    """
    first: dict[tuple[str, str], int] = {}
    for rank, listing in enumerate(listings):
        first.setdefault(listing.place, rank)
    found = []
    for name in sorted({name for listing in listings for name in listing.files}):
        # What a rank says becomes a path on the others.
        if not _OURS.fullmatch(name):
            continue
        newest, source = max(
            (listings[rank].files[name], -rank)
            for rank in first.values()
            if name in listings[rank].files
        )
        found += [
            Transfer(name, -source, rank, *newest)
            for rank in first.values()
            if listings[rank].files.get(name) != newest
        ]
    return found


def share_checkpoints() -> None:
    """Have the program's loads find the files of all hosts. Once in a process."""
    if (module := sys.modules.get(_MODULE)) is not None:
        _prepare(module)
    else:
        # It takes its time to load, and few programs need it.
        before_import(_MODULE, _find)


def _find() -> ModuleSpec | None:
    """The spec that Python finds, whose module is prepared as soon as it is loaded."""
    spec = importlib.util.find_spec(_MODULE)
    if spec is not None and spec.loader is not None:
        native = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            native(module)
            _prepare(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
    return spec


def _prepare(module: ModuleType) -> None:
    native: Callable[..., None] | None = getattr(module, "_load_state_dict", None)
    if native is None:
        return

    @wraps(native)
    def load(state_dict: Any, storage_reader: Any, *args: Any, **kwargs: Any) -> None:
        names = ("process_group", "coordinator_rank", "no_dist")
        given = {**dict(zip(names, args, strict=False)), **kwargs}
        # A reader of addresses (fsspec) is another class, and reads what all reach.
        if type(storage_reader).__name__ == "FileSystemReader" and not given.get("no_dist"):
            _complete(Path(storage_reader.path), given.get("process_group"))
        native(state_dict, storage_reader, *args, **kwargs)

    module._load_state_dict = load  # type: ignore[attr-defined]


def _complete(folder: Path, group: dist.ProcessGroup | None) -> None:
    """Bring what this host lacks. Collective: every rank of the group calls it, as it loads.

    Raises RuntimeError on all of them when a file could not be read or written.
    """
    if not dist.is_initialized() or dist.get_rank(group) < 0 or dist.get_world_size(group) == 1:
        return
    group = group or dist.group.WORLD
    place = (os.environ.get("GROUP_RANK", ""), os.path.realpath(folder))
    listings: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(listings, Listing(place, _files(folder)), group=group)
    due = transfers(listings)
    if not due:
        return
    size_bytes = sum(each.size_bytes for each in due)
    log_substitution(
        f"brings {format_bytes(size_bytes)} of a checkpoint to the hosts that lack them",
        "torch.distributed.checkpoint reads the files of all ranks, and hosts share no disk",
    )
    problems: list[Any] = [None] * len(listings)
    mine = [_move(each, folder, group) for each in due]
    said = next((problem for problem in mine if problem), None)
    # A rank that met one went on: the others wait for its part.
    dist.all_gather_object(problems, said, group=group)
    if found := [f"rank {rank}: {problem}" for rank, problem in enumerate(problems) if problem]:
        raise RuntimeError(f"a checkpoint could not be brought to all hosts: {'; '.join(found)}")


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    found = {}
    with contextlib.suppress(OSError):
        for path in folder.iterdir():
            status = path.lstat()
            if stat.S_ISREG(status.st_mode) and _OURS.fullmatch(path.name):
                found[path.name] = (status.st_mtime_ns, status.st_size)
    return found


def _move(each: Transfer, folder: Path, group: dist.ProcessGroup | None) -> str | None:
    """This rank's part in a transfer; what went wrong with it."""
    rank, path = dist.get_rank(group), folder / each.name
    if rank == each.source:
        return _send(each, path, group)
    if rank == each.target:
        return _receive(each, path, group)
    return None


def _send(each: Transfer, path: Path, group: dist.ProcessGroup | None) -> str | None:
    problem, file = None, None
    with contextlib.ExitStack() as stack:
        try:
            file = stack.enter_context(path.open("rb"))
        except OSError as error:
            problem = f"{path}: {error.strerror}"
        for size in _pieces(each.size_bytes):
            piece = bytearray(size)
            # Whatever happened, the other rank waits for so many bytes.
            if file is not None and problem is None:
                try:
                    if file.readinto(piece) != size:
                        problem = f"{path} became shorter"
                except OSError as error:
                    problem = f"{path}: {error.strerror}"
            dist.send(
                torch.frombuffer(piece, dtype=torch.uint8), group=group, group_dst=each.target
            )
    return problem


def _receive(each: Transfer, path: Path, group: dist.ProcessGroup | None) -> str | None:
    problem, file = None, None
    part = path.with_name(f".{path.name}.part")
    with contextlib.ExitStack() as stack:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(part.open("wb"))
        except OSError as error:
            problem = f"{part}: {error.strerror}"
        for size in _pieces(each.size_bytes):
            piece = torch.empty(size, dtype=torch.uint8)
            dist.recv(piece, group=group, group_src=each.source)
            if file is not None and problem is None:
                try:
                    file.write(piece.numpy().tobytes())
                except OSError as error:
                    problem = f"{part}: {error.strerror}"
        try:
            if file is not None:
                # What is left of it is written now, and may find no room either.
                file.close()
        except OSError as error:
            problem = problem or f"{part}: {error.strerror}"
    # Nothing is raised here: all ranks tell each other of their problems.
    try:
        if problem is None:
            os.utime(part, ns=(each.time_ns, each.time_ns))
            part.replace(path)
        else:
            part.unlink(missing_ok=True)
    except OSError as error:
        problem = problem or f"{path}: {error.strerror}"
    return problem


def _pieces(size_bytes: int) -> list[int]:
    whole, rest = divmod(size_bytes, _CHUNK_BYTES)
    return [_CHUNK_BYTES] * whole + [rest] * bool(rest)
