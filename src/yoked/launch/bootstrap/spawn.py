"""The ranks of a run on one host: children of the host program, which meet through a file.

They find the variables that torchrun sets. The store through which torch's ranks meet is a file
in the job's folder, that nobody else can open: no port of it listens. Standard library only, so
that a run on one host waits for one import of torch, its ranks' own.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.lastwords import GRACE_S, Death, exit_code, rank_failure
from yoked.launch.bootstrap.rank import ATTEMPT, HOST_PID
from yoked.launch.bootstrap.verdict import Failure

# Read by yoked.train.setup.
MEETING_FILE = "YOKED_MEETING_FILE"
_RANK_PROGRAM = "yoked.launch.bootstrap.rank"


class SpawnedRanks:
    """The ranks in one attempt. Every method is called by the thread that made it.

    The kernel ends the ranks with that thread; see yoked.tether.
    restarts: attempts before this one that had begun.
    on_death: called for each rank that fails and was not ended by us.
    """

    # There are ranks from the first moment on.
    given_up = False

    def __init__(
        self, job: Job, attempt: int, *, restarts: int, on_death: Callable[[], None]
    ) -> None:
        self._job = job
        self._attempt = attempt
        self._restarts = restarts
        self._on_death = on_death
        self._deaths: dict[int, Death] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._interrupted = False
        self._ended_s: float | None = None
        self._kill_at_s = float("inf")
        job.launch_dir(attempt).mkdir(parents=True, exist_ok=True)
        for rank in job.local_ranks:
            self._running[rank] = self._spawn(rank)

    @property
    def over(self) -> bool:
        """Whether no rank is left; kills those that were told to end and did not."""
        self._note_deaths()
        if time.monotonic() > self._kill_at_s:
            for process in self._running.values():
                process.kill()
        return not self._running

    def interrupt(self) -> None:
        """Send each rank SIGINT, once."""
        if not self._interrupted:
            self._interrupted = True
            for process in self._running.values():
                process.send_signal(signal.SIGINT)

    def end(self) -> None:
        """Terminate all ranks; what is left after GRACE_S is killed."""
        if self._ended_s is None:
            # Those that are gone already were not ended by us.
            self._note_deaths()
            self._ended_s = time.time()
            self._kill_at_s = time.monotonic() + GRACE_S
            for process in self._running.values():
                process.terminate()

    def failures(self) -> tuple[Failure, ...]:
        """What there is to report, once the ranks are over; what all say alike, once."""
        found = [
            rank_failure(self._job, self._attempt, rank, self._deaths.get(rank), self._ended_s)
            for rank in self._job.local_ranks
        ]
        said: dict[object, Failure] = {}
        for rank, failure in zip(self._job.local_ranks, found, strict=True):
            if failure is not None:
                said.setdefault((failure.kind, failure.what) if failure.kind else rank, failure)
        return tuple(said.values())

    def _note_deaths(self) -> None:
        for rank, process in list(self._running.items()):
            code = exit_code(process)
            if code is None:
                continue
            # It was only looked at: now it is reaped.
            process.wait()
            del self._running[rank]
            if code != 0 and self._ended_s is None:
                self._deaths[rank] = Death(process.pid, code, time.time())
                self._on_death()

    def _spawn(self, rank: int) -> subprocess.Popen[bytes]:
        job, world_size = self._job, str(self._job.world_size)
        environment = {
            **os.environ,
            ATTEMPT: str(self._attempt),
            HOST_PID: str(os.getpid()),
            MEETING_FILE: str(job.meeting_file(self._attempt)),
            **dict.fromkeys(("RANK", "LOCAL_RANK", "ROLE_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"), world_size),
            "GROUP_RANK": "0",
            "GROUP_WORLD_SIZE": "1",
            "ROLE_NAME": "default",
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(job.restarts),
            "TORCHELASTIC_RUN_ID": f"{job.launch_id}-{self._attempt}",
        }
        return subprocess.Popen(
            [sys.executable, "-u", "-m", _RANK_PROGRAM, str(job.folder / "job.json")],
            env=environment,
            stdin=subprocess.DEVNULL,
            # A group of its own: with it end the workers that load its data.
            start_new_session=True,
        )
