"""job.json: what a host is told of the run, and where its files go.

Standard library only: it is read in every rank before the program starts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Literal

from yoked.core.schema import Constraint, Count, decode
from yoked.errors import YokedError
from yoked.launch.bootstrap.notice import SILENCE_S

VERSION = 1

_REMAKE = "start the run again; the launch writes a new job.json"
Niceness = Annotated[int, Constraint("0 to 19", lambda nice: 0 <= nice <= 19)]
Silence = Annotated[float, Constraint("above 0", lambda silence_s: 0 < silence_s < 1e6)]
AbsolutePath = Annotated[Path, Constraint("an absolute path", Path.is_absolute)]


@dataclass(frozen=True)
class Node:
    """A host of the run: its ssh name, its address among the others, its number of ranks."""

    host: str
    address: str
    ranks: Count


@dataclass(frozen=True)
class Program:
    """What each rank runs: `python NAME args` or `python -m NAME args`."""

    kind: Literal["module", "script"]
    name: str
    args: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """The run as one host sees it; equal on all hosts but for node_rank, folder, cwd and
    nice.

    folder: the job folder on this host, absolute.
    control_fd: a listening socket for control_port that node 0 inherited, or None.
    restarts: attempts after the first.
    resume_args: what the program's arguments end with once an attempt has begun before.
    bootstrap: whether ranks prepare Gloo for programs that assume NCCL.
    file_store: there is one host, and its ranks meet through a file; see `meeting_file`.
    nice: niceness of the ranks on this host.
    ends_held_up: whether ranks are ended that do not get on, for a reason that is sure.
    silence_s: how long a host may be silent that has been heard.
    """

    run: str
    launch_id: str
    folder: AbsolutePath
    node_rank: Count
    nodes: tuple[Node, ...]
    control_port: Count
    control_fd: Count | None
    restarts: Count
    resume_args: tuple[str, ...]
    program: Program
    cwd: AbsolutePath
    bootstrap: bool
    file_store: bool = False
    nice: Niceness = 0
    ends_held_up: bool = False
    silence_s: Silence = SILENCE_S

    @property
    def node(self) -> Node:
        """The host that this file is on."""
        return self.nodes[self.node_rank]

    @property
    def ranks_by_node(self) -> list[range]:
        """The global ranks on each host."""
        ends = list(accumulate((node.ranks for node in self.nodes), initial=0))
        return list(map(range, ends, ends[1:]))

    @property
    def local_ranks(self) -> range:
        """The global ranks on this host."""
        return self.ranks_by_node[self.node_rank]

    @property
    def world_size(self) -> int:
        """The ranks of all hosts together."""
        return sum(node.ranks for node in self.nodes)

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

    def record_file(self, attempt: int, rank: int) -> Path:
        """What a rank says of itself while it runs (yoked.ranks.recorder)."""
        return self.folder / "errors" / f"{attempt}.{rank}.record"

    def crash_file(self, attempt: int, rank: int) -> Path:
        """The Python stacks of a rank that crashed (faulthandler)."""
        return self.launch_dir(attempt) / f"crash.{rank}"

    def end_mark(self, attempt: int, rank: int) -> Path:
        """A file that is there once a rank's program has ended well."""
        return self.launch_dir(attempt) / f"ended.{rank}"

    def error_file(self, attempt: int, rank: int) -> Path:
        """What ended a rank: an object with rank, time_s, kind, what, traceback, at and calls."""
        return self.folder / "errors" / f"{attempt}.{rank}.json"


def read_job(path: Path) -> Job:
    """The job in a file; raises YokedError with the field that is wrong."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise YokedError(f"{path} cannot be read: {problem.strerror}.", fix=_REMAKE) from problem
    except ValueError as problem:
        raise YokedError(f"{path} is not JSON: {problem}.", fix=_REMAKE) from problem
    version = content.get("version") if isinstance(content, dict) else None
    try:
        if version != VERSION:
            raise ValueError(f"version is {version!r}, this yoked reads {VERSION}")
        job: Job = decode(Job, content)
        if job.node_rank >= len(job.nodes):
            raise ValueError(f"node_rank is {job.node_rank}, but there are {len(job.nodes)} nodes")
    except ValueError as problem:
        raise YokedError(f"{path}: {problem}.", fix=_REMAKE) from problem
    return job
