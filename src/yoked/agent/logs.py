"""The output of a job's ranks, merged in the order of time, from any byte on.

A controller that lost its connection asks for what follows the bytes it has: nothing is lost and
nothing comes twice. Lines are whole; one that is still being written waits for its end, or for
that of the job.
"""

from __future__ import annotations

import heapq
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from yoked.agent.jobfolder import ACTIVE, JobFolder, find_job
from yoked.agent.jobstatus import keep_supervised
from yoked.agent.logtimes import LOG_NAME, STREAMS, Notes
from yoked.agent.server import Call
from yoked.core.fs import tail_offset
from yoked.errors import JobError

# Between two looks: the first after output, twice as long each time that there is none. Until there
# was any they stay short: nothing trains yet, and somebody waits for the first line.
_SHORTEST_S, _LONGEST_S = 0.05, 0.4
_BLOCK_BYTES = 1 << 18
# A progress bar may never end its line; so much of it is shown as it is.
_LONGEST_LINE_BYTES = 65_536


class Piece(NamedTuple):
    """Whole lines of one stream that came at one time; pieces sort by that time."""

    time_s: float
    rank: int
    attempt: int
    stream: str
    offset: int
    data: bytes


def answer_job_logs(call: Call) -> dict[str, Any]:
    """Send the output of ranks as parts {rank, attempt, stream, time_s, offset}, with its bytes.

    args: run; optionally ranks, attempt, streams (of out, err); offsets {"RANK.ATTEMPT.STREAM":
    bytes that the caller has}; tail_lines of each file, for those without an offset; follow,
    until the job is over. With tail_lines, the first part is {"begin": offsets}: a caller that
    loses the connection before a byte has come knows where to go on.
    Returns the job's state and the offsets reached.
    """
    job = find_job(call.args["run"])
    try:
        return _send_logs(call, job)
    except FileNotFoundError:
        if job.path.exists():
            raise
        # A run that never came to a rank goes at once, with its logs.
        raise JobError(f"run {job.run} was removed", fix="yoked runs") from None


def _send_logs(call: Call, job: JobFolder) -> dict[str, Any]:
    follow = bool(call.args.get("follow"))
    keep_supervised(job)
    reader = LogReader(job, call.args)
    if call.args.get("tail_lines") is not None:
        call.send({"begin": reader.begin()})
    pause_s = _SHORTEST_S
    while True:
        # Asked before reading: what is written after this look is not the last.
        state = job.state
        over = state not in ACTIVE
        pause_s = min(2 * pause_s, _LONGEST_S) if reader.offsets else _SHORTEST_S
        for piece in reader.read(last=over):
            pause_s = _SHORTEST_S
            heading = piece._asdict()
            call.send(heading, heading.pop("data"))
            if call.cancelled.is_set():
                break
        if over or not follow or call.cancelled.wait(pause_s):
            return {"state": state, "offsets": reader.offsets}
        if not job.path.exists():
            raise JobError(f"run {job.run} was removed", fix="yoked runs")


class LogReader:
    """Reads the files of a job that are wanted, each from where it stands."""

    def __init__(self, job: JobFolder, wanted: Mapping[str, Any]) -> None:
        self._job = job
        self._ranks = wanted.get("ranks")
        self._attempt = wanted.get("attempt")
        self._streams = wanted.get("streams") or STREAMS
        self._tail_lines = wanted.get("tail_lines")
        self._files: dict[str, _LogFile] = {}
        self._begun = False
        self.offsets: dict[str, int] = dict(wanted.get("offsets") or {})

    def begin(self) -> dict[str, int]:
        """Where each file that is there will be read from."""
        self._look_for_files()
        return {name: file.offset for name, file in self._files.items()}

    def read(self, *, last: bool) -> Iterator[Piece]:
        """What has come since, in the order of time. last: nothing more will."""
        self._look_for_files()
        # Without a supervisor nobody notes times; with one, what it has not noted comes next time.
        trust_notes = not last and self._job.supervised
        files = self._files.values()
        for piece in heapq.merge(*(file.pieces(trust_notes, last) for file in files)):
            name = f"{piece.rank}.{piece.attempt}.{piece.stream}"
            self.offsets[name] = piece.offset + len(piece.data)
            yield piece

    def _look_for_files(self) -> None:
        try:
            names = sorted(os.listdir(self._job.logs))  # noqa: PTH208 - names are what is wanted
        except FileNotFoundError:
            names = []
        for name in names:
            found = LOG_NAME.fullmatch(name)
            if found and name not in self._files and self._is_wanted(found):
                path = self._job.logs / name
                self._files[name] = _LogFile(path, *found.groups(), offset=self._offset(path))
        self._begun = True

    def _is_wanted(self, found: Any) -> bool:
        rank, attempt, stream = int(found[1]), int(found[2]), found[3]
        return (
            (self._ranks is None or rank in self._ranks)
            and self._attempt in (None, attempt)
            and stream in self._streams
        )

    def _offset(self, path: Path) -> int:
        # A file that appears while we look on is wanted from its beginning.
        if path.name in self.offsets or self._tail_lines is None or self._begun:
            return self.offsets.get(path.name, 0)
        with path.open("rb") as file:
            return tail_offset(file, self._tail_lines)


class _LogFile:
    """One stream of one rank in one attempt. offset: of the next byte that is to be sent."""

    def __init__(self, path: Path, rank: str, attempt: str, stream: str, *, offset: int) -> None:
        self._path = path
        self._rank, self._attempt, self._stream = int(rank), int(attempt), stream
        self.offset = offset
        self._notes = Notes(path.with_suffix(".times"), stream)
        self._noted: list[tuple[float, int]] = []

    def pieces(self, trust_notes: bool, last: bool) -> Iterator[Piece]:
        """Whole lines from here on, with the time at which each was complete, rising."""
        status = self._path.stat()
        self._noted += self._notes.more()
        if not trust_notes and (not self._noted or self._noted[-1][1] < status.st_size):
            # Never noted: it came between the last look and the last write.
            time_s = max([status.st_mtime, *(time_s for time_s, _ in self._noted[-1:])])
            self._noted.append((time_s, status.st_size))
        if not self._noted or self._noted[-1][1] <= self.offset:
            # Nothing new: many looks are to cost next to nothing.
            return
        with self._path.open("rb") as file:
            for time_s, end in self._noted:
                is_last = last and end >= status.st_size
                while self.offset < end:
                    file.seek(self.offset)
                    content = file.read(min(_BLOCK_BYTES, end - self.offset))
                    whole = _whole_lines(content, is_last)
                    if not whole:
                        break
                    offset, self.offset = self.offset, self.offset + len(whole)
                    yield Piece(time_s, self._rank, self._attempt, self._stream, offset, whole)
        # The last one may cover the beginning of a line.
        self._noted = self._noted[-1:]


def _whole_lines(content: bytes, is_last: bool) -> bytes:
    cut = content.rfind(b"\n") + 1
    if cut == 0 and (is_last or len(content) >= _LONGEST_LINE_BYTES):
        return content
    # The rest of the last block is read once more, now without a newline.
    return content[:cut]
