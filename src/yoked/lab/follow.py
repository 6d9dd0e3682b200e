"""How far a run is, read from the files of its folder, on this machine or on a host."""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from yoked.errors import LabError
from yoked.lab.schedule import RunPlace

if TYPE_CHECKING:
    from yoked.lab.lab import Lab

_TAIL_BYTES = 65_536
# A finished run makes no more lines; asking a host for its result costs a process.
_ASK_EVERY_S = 1.0


@dataclass(frozen=True)
class Progress:
    """How far a run is. step: the newest one, 0 before the first."""

    step: int = 0
    finished: bool = False


class LocalRun:
    """A run's folder on this machine; one that is not there yet has made no step."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder).expanduser()

    def progress(self) -> Progress:
        """From the end of metrics.jsonl, and result.json."""
        with contextlib.suppress(OSError):
            return Progress(self._step(), is_finished(self._result()))
        return Progress()

    def _step(self) -> int:
        with (self._folder / "metrics.jsonl").open("rb") as file:
            file.seek(max(file.seek(0, os.SEEK_END) - _TAIL_BYTES, 0))
            return newest_step(file.read().splitlines()) or 0

    def _result(self) -> bytes:
        path = self._folder / "result.json"
        return path.read_bytes() if path.is_file() else b""

    def close(self) -> None:
        """Nothing is open."""


class HostRun:
    """A run's folder on a host, seen through a `tail -F` there: polling would load the host.

    The path starts at the home folder, as for scp.
    """

    def __init__(self, lab: Lab, host: str, folder: str) -> None:
        self._lab, self._host, self._folder = lab, host, folder
        self._tail: subprocess.Popen[str] | None = None
        self._torn = b""
        self._progress = Progress()
        self._asked_s = time.monotonic()

    def progress(self) -> Progress:
        """What the host has shown so far; one that is down shows nothing new."""
        with contextlib.suppress(LabError):
            step = newest_step(self._new_lines())
            if step is not None:
                self._progress = Progress(step)
            elif time.monotonic() - self._asked_s > _ASK_EVERY_S:
                self._asked_s = time.monotonic()
                path = posixpath.join(self._folder, "result.json")
                result = self._lab.host(self._host).run(["cat", path], check=False).stdout
                self._progress = Progress(self._progress.step, is_finished(result))
        return self._progress

    def close(self) -> None:
        """End the tail."""
        if self._tail is not None:
            assert self._tail.stdout is not None
            self._tail.kill()
            self._tail.wait()
            self._tail.stdout.close()
            self._tail = None

    def _new_lines(self) -> list[bytes]:
        if self._tail is None or self._tail.poll() is not None:
            self.close()
            self._start()
        assert self._tail is not None
        assert self._tail.stdout is not None
        fd, pieces = self._tail.stdout.fileno(), [self._torn]
        with contextlib.suppress(BlockingIOError):
            while piece := os.read(fd, _TAIL_BYTES):
                pieces.append(piece)
        *lines, self._torn = b"".join(pieces).split(b"\n")
        return lines

    def _start(self) -> None:
        path = posixpath.join(self._folder, "metrics.jsonl")
        self._tail = self._lab.host(self._host).popen(
            ["tail", "-n", "1", "-F", path], stderr=subprocess.DEVNULL
        )
        self._torn = b""
        assert self._tail.stdout is not None
        os.set_blocking(self._tail.stdout.fileno(), False)


def follow(lab: Lab, run: RunPlace) -> LocalRun | HostRun:
    """The run in a folder."""
    return LocalRun(run.folder) if run.host is None else HostRun(lab, run.host, run.folder)


def newest_step(lines: Iterable[bytes | str]) -> int | None:
    """The step of the last line of a metrics.jsonl that has one; torn lines are passed over."""
    for line in reversed(list(lines)):
        try:
            step = json.loads(line)["step"]
        except (ValueError, KeyError, TypeError):
            continue
        if isinstance(step, int):
            return step
    return None


def is_finished(result: bytes | str) -> bool:
    """Whether a result.json says that its run will make no more steps."""
    try:
        return bool(json.loads(result)["state"] == "finished")
    except (ValueError, KeyError, TypeError):
        return False
