"""What this machine itself gives meanwhile, seen by programs that know nothing of a run.

usage: witness.py CPU

Two hosts of a lab are one machine, which shares its cores with other machines. On each core a
witness does the same small work five times a second, and takes the core's time that it needs: a
neighbour on the same physical core, or a lower clock, makes it need more. Besides, what programs of
this machine take is summed up, by their names and by whether they are of a lab.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from yoked.core.proc import ProcessId

# The newest, which are compared with those before them.
_NOW_S, _BEFORE_S = 3.0, 60.0
_EVERY_S = 0.2
_SIDE, _TIMES = 256, 3
# A rank that was on a core for this share of its looks may have been slow because of it.
_WAS_THERE = 0.3


@dataclass(frozen=True)
class _Process:
    """took_s: with its ended children, so far."""

    of_lab: bool
    name: str
    took_s: float


class Witness:
    """A witness on each core, from enter to exit; look() has to be called often."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="yw-")
        self._processes: list[subprocess.Popen[bytes]] = []
        self._files: dict[int, TextIO] = {}
        self._rest: dict[int, str] = {}
        # By core: when, and the core's seconds that the work took.
        self._took: dict[int, deque[tuple[float, float]]] = {}
        # By rank: when it was seen on which core.
        self._seen: dict[int, deque[tuple[float, int]]] = {}
        self._programs: deque[tuple[float, dict[ProcessId, _Process]]] = deque()

    def __enter__(self) -> Self:
        for cpu in sorted(os.sched_getaffinity(0)):
            path = Path(self._folder.name) / str(cpu)
            with path.open("wb") as out:
                words = [sys.executable, __file__, str(cpu)]
                one_thread = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
                process = subprocess.Popen(
                    words, stdin=subprocess.DEVNULL, stdout=out, env=one_thread
                )
            self._processes.append(process)
            self._files[cpu] = path.open()
            self._rest[cpu] = ""
            self._took[cpu] = deque()
        self._look_at_programs()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        for file in self._files.values():
            file.close()
        self._folder.cleanup()

    def look(self, pids: Mapping[int, int]) -> None:
        """Take what is new. pids: of the ranks."""
        now_s = time.time()
        for cpu, file in self._files.items():
            # A line that is not whole yet is read with the next look.
            *lines, self._rest[cpu] = (self._rest[cpu] + file.read()).split("\n")
            for line in lines:
                at_s, took_s = map(float, line.split())
                self._took[cpu].append((at_s, took_s))
            _forget(self._took[cpu], now_s - _BEFORE_S)
        for rank, pid in pids.items():
            if (cpu := _core_of(pid)) is not None:
                seen = self._seen.setdefault(rank, deque())
                seen.append((now_s, cpu))
                _forget(seen, now_s - _NOW_S)
        if now_s - self._programs[-1][0] >= 1.0:
            self._look_at_programs()

    def _look_at_programs(self) -> None:
        own = {os.getpid(), *(each.pid for each in self._processes)}
        self._programs.append((time.time(), _processes(own)))
        if len(self._programs) > 1 + _NOW_S:
            self._programs.popleft()

    def slower(self, rank: int | None = None) -> float:
        """By what the same work takes longer now than in the last minute, as the medians have it:
        on the cores that a rank was on; None: on any. 1.0 where too little is known.
        """
        cpus = set(self._took)
        if rank is not None:
            seen = Counter(cpu for _, cpu in self._seen.get(rank, ()))
            cpus &= {cpu for cpu, count in seen.items() if count >= _WAS_THERE * seen.total()}
        return max((self._slower(cpu) for cpu in cpus), default=1.0)

    def _slower(self, cpu: int) -> float:
        since_s = time.time() - _NOW_S
        now = [took_s for at_s, took_s in self._took[cpu] if at_s >= since_s]
        before = [took_s for at_s, took_s in self._took[cpu] if at_s < since_s]
        if len(now) < 5 or len(before) < 25:
            return 1.0
        return round(statistics.median(now) / statistics.median(before), 2)

    @property
    def others(self) -> float:
        """Cores that programs took in the last seconds that are of no lab."""
        taken = (cores for (of_lab, _), cores in self._cores().items() if not of_lab)
        return round(max(0.0, sum(taken)), 2)

    @property
    def busiest(self) -> list[tuple[str, float]]:
        """The names of the programs that took the most cores in the last seconds, and how many."""
        found = [
            (f"{name}{' of a lab' if of_lab else ''}", round(cores, 2))
            for (of_lab, name), cores in self._cores().most_common(6)
        ]
        return [(name, cores) for name, cores in found if cores > 0]

    def _cores(self) -> Counter[tuple[bool, str]]:
        (from_s, then), (until_s, now) = self._programs[0], self._programs[-1]
        cores: Counter[tuple[bool, str]] = Counter()
        for process, seen in now.items():
            # One that began since had taken nothing; the names of the kernel's own change.
            took_s = seen.took_s - (then[process].took_s if process in then else 0.0)
            cores[seen.of_lab, seen.name] += took_s / max(1.0, until_s - from_s)
        return cores


def _forget(found: deque[tuple[float, Any]], until_s: float) -> None:
    while found and found[0][0] < until_s:
        found.popleft()


def _fields(pid: int) -> list[str]:
    """From the state on. Raises OSError where it is gone. Source: proc_pid_stat(5)."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _core_of(pid: int) -> int | None:
    """Where a process ran last; None: it is gone."""
    try:
        return int(_fields(pid)[36])
    except OSError:
        return None


def _processes(own: set[int]) -> dict[ProcessId, _Process]:
    """All that run, without own."""
    found = {}
    for pid in {int(path.name) for path in Path("/proc").glob("[0-9]*")} - own:
        with contextlib.suppress(OSError):
            process = ProcessId.of(pid)
            ticks = sum(map(int, _fields(pid)[11:15]))
            name = Path(f"/proc/{pid}/comm").read_text().strip()
            # A host of a lab has a PID namespace of its own.
            of_lab = not process.shares("pid")
            found[process] = _Process(of_lab, name, ticks / os.sysconf("SC_CLK_TCK"))
    return found


def _work(cpu: int) -> None:
    import numpy as np

    os.sched_setaffinity(0, {cpu})
    side = np.full((_SIDE, _SIDE), 0.5, np.float32)
    while True:
        from_s = time.thread_time()
        for _ in range(_TIMES):
            side @ side
        print(round(time.time(), 2), round(time.thread_time() - from_s, 6), flush=True)
        time.sleep(_EVERY_S)


if __name__ == "__main__":
    _work(int(sys.argv[1]))
