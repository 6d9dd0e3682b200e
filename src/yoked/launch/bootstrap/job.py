"""job.json: what a host is told of the run, and where its files go.

Standard library only: it is read in every rank before the program starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar

from yoked.errors import YokedError

VERSION = 1

_T = TypeVar("_T")
_REMAKE = "start the run again; the launch writes a new job.json"
_NAMES: dict[type, str] = {
    dict: "a table",
    list: "a list",
    str: "a string",
    int: "a whole number",
    bool: "true or false",
}


@dataclass(frozen=True)
class Node:
    """A host of the run: its ssh name, its address among the others, its number of ranks."""

    host: str
    address: str
    ranks: int


@dataclass(frozen=True)
class Program:
    """What each rank runs: `python NAME args` or `python -m NAME args`."""

    kind: Literal["module", "script"]
    name: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """The run as one host sees it; equal on all hosts but for node_rank, folder and cwd.

    folder: the job folder on this host, absolute.
    control_fd: a listening socket for control_port that node 0 inherited, or None.
    restarts: attempts after the first.
    resume_args: what the program's arguments end with once an attempt has begun before.
    bootstrap: whether ranks prepare Gloo for programs that assume NCCL.
    file_store: there is one host, and its ranks meet through a file; see `meeting_file`.
    """

    run: str
    launch_id: str
    folder: Path
    node_rank: int
    nodes: tuple[Node, ...]
    control_port: int
    control_fd: int | None
    restarts: int
    resume_args: tuple[str, ...]
    program: Program
    cwd: Path
    bootstrap: bool
    file_store: bool = False

    @property
    def node(self) -> Node:
        """The host that this file is on."""
        return self.nodes[self.node_rank]

    @property
    def first_rank(self) -> int:
        """The lowest global rank on this host."""
        return sum(node.ranks for node in self.nodes[: self.node_rank])

    @property
    def local_ranks(self) -> range:
        """The global ranks on this host."""
        return range(self.first_rank, self.first_rank + self.node.ranks)

    @property
    def world_size(self) -> int:
        """The ranks of all hosts together."""
        return sum(node.ranks for node in self.nodes)

    def node_of(self, rank: int) -> Node:
        """The host of a global rank."""
        for node in self.nodes:
            if rank < node.ranks:
                return node
            rank -= node.ranks
        raise AssertionError(f"rank {rank} beyond a world of {self.world_size}")

    def arguments(self, restarts: int) -> tuple[str, ...]:
        """The program's arguments, with as many attempts before that had begun."""
        return self.program.args + (self.resume_args if restarts > 0 else ())

    def log_file(self, attempt: int, rank: int, stream: Literal["out", "err"]) -> Path:
        """What a rank wrote to a stream, in its own bytes."""
        return self.folder / "logs" / f"{rank}.{attempt}.{stream}"

    def launch_dir(self, attempt: int) -> Path:
        """YOKED_LAUNCH_DIR of an attempt's ranks: `yoked.train` hands over its result here.

        Its ranks leave error.<rank>.json and result.json in it.
        """
        return self.folder / "errors" / str(attempt)

    def meeting_mark(self, attempt: int, rank: int) -> Path:
        """A file that is there from when a rank meets the others until it has.

        `yoked.ranks.meeting` makes it.
        """
        return self.launch_dir(attempt) / f"meeting.{rank}"

    def meeting_file(self, attempt: int) -> Path:
        """The file store through which the ranks of one host meet, without a port."""
        return self.folder / "errors" / f"{attempt}.meeting"

    def error_file(self, attempt: int, rank: int) -> Path:
        """What ended a rank: an object with rank, time_s, kind, what and traceback."""
        return self.folder / "errors" / f"{attempt}.{rank}.json"


def read_job(path: Path) -> Job:
    """The job in a file; raises YokedError with the field that is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise YokedError(f"{path} cannot be read: {problem.strerror}.", fix=_REMAKE) from problem
    except ValueError as problem:
        raise YokedError(f"{path} is not JSON: {problem}.", fix=_REMAKE) from problem
    try:
        return _job(content)
    except _WrongError as problem:
        raise YokedError(f"{path}: {problem}.", fix=_REMAKE) from problem


class _WrongError(Exception):
    """What is wrong with a field, by its name."""


def _job(content: object) -> Job:
    table = _as(content, "the file", dict)
    if table.get("version") != VERSION:
        raise _WrongError(f"version is {table.get('version')!r}, this yoked reads {VERSION}")
    job = Job(
        run=_field(table, "run", str),
        launch_id=_field(table, "launch_id", str),
        folder=_absolute(table, "folder"),
        node_rank=_count(table, "node_rank"),
        nodes=tuple(
            _node(node, f"nodes[{i}]") for i, node in enumerate(_field(table, "nodes", list))
        ),
        control_port=_count(table, "control_port"),
        control_fd=None if table.get("control_fd") is None else _count(table, "control_fd"),
        restarts=_count(table, "restarts"),
        resume_args=_strings(table, "resume_args"),
        program=_program(_field(table, "program", dict)),
        cwd=_absolute(table, "cwd"),
        bootstrap=_field(table, "bootstrap", bool),
        file_store=_as(table.get("file_store", False), "file_store", bool),
    )
    if job.node_rank >= len(job.nodes):
        raise _WrongError(f"node_rank is {job.node_rank}, but there are {len(job.nodes)} nodes")
    return job


def _node(content: object, where: str) -> Node:
    table = _as(content, where, dict)
    return Node(
        host=_field(table, "host", str),
        address=_field(table, "address", str),
        ranks=_count(table, "ranks"),
    )


def _program(table: dict[str, Any]) -> Program:
    kind = table.get("kind")
    if kind not in ("module", "script"):
        raise _WrongError(f"program.kind is {kind!r}, not 'module' or 'script'")
    return Program(kind, name=_field(table, "name", str), args=_strings(table, "args"))


def _as(value: object, where: str, kind: type[_T]) -> _T:
    # bool is a kind of int in Python, but true is no count.
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise _WrongError(f"{where} is {value!r}, not {_NAMES[kind]}")
    return value


def _field(table: dict[str, Any], name: str, kind: type[_T]) -> _T:
    if name not in table:
        raise _WrongError(f"{name} is missing")
    return _as(table[name], name, kind)


def _count(table: dict[str, Any], name: str) -> int:
    value = _field(table, name, int)
    if value < 0:
        raise _WrongError(f"{name} is {value}, below 0")
    return value


def _strings(table: dict[str, Any], name: str) -> tuple[str, ...]:
    values = _field(table, name, list)
    return tuple(_as(value, f"{name}[{i}]", str) for i, value in enumerate(values))


def _absolute(table: dict[str, Any], name: str) -> Path:
    path = Path(_field(table, name, str))
    if not path.is_absolute():
        raise _WrongError(f"{name} is {str(path)!r}, not an absolute path")
    return path
