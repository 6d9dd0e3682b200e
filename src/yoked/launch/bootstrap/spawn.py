"""This host's ranks in one generation: children of the host program, with torchrun's variables.

Programs find what torchrun gives them: RANK and the like, and a store at MASTER_ADDR that is there
already. On node 0 a process of its own serves it, for each generation a new one: Gloo writes there
where its ranks listen, under the same keys each time. Where a run has one host and its program
knows how, ranks meet through a file instead, and no port listens. Standard library only: only the
ranks load torch.

Source of the variables: torch.distributed.run, "Environment Variables".
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable

from yoked.agent.facts import oom_kills
from yoked.channel.names import LOOPBACK
from yoked.core.fs import read_json
from yoked.core.names import CALLS_SUFFIX
from yoked.diagnosis.calls import Calls
from yoked.diagnosis.memory import MemoryTrend
from yoked.launch.bootstrap.exit_report import (
    GRACE_S,
    RankExit,
    calls_of,
    exit_code,
    no_start,
    rank_failure,
    store_failure,
)
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.outcome import Failure
from yoked.launch.bootstrap.rank import ATTEMPT, HOST_PID
from yoked.ranks import recorder
from yoked.ranks.freeing import ADDRESSES_VARIABLE

# Read by yoked.train.setup.
MEETING_FILE = "YOKED_MEETING_FILE"
_RANK_PROGRAM = "yoked.launch.bootstrap.rank"
_STORE_PROGRAM = "yoked.ranks.store"
# From the wish to end ranks to SIGTERM.
_WORD_S = 0.25
# A process that the kernel ends for want of memory may take so long to be gone.
_OOM_S = 10.0


class LocalRanks:
    """The ranks, from their start. Every method is called by the thread that made it.

    The kernel ends the ranks with that thread; see yoked.parent_death.
    restarts: generations before this one whose ranks had met.
    store_port: of the store on this host's loopback; None: there is none but what node 0 serves.
    on_death: called for each rank that fails and was not ended by us.
    """

    def __init__(
        self,
        job: Job,
        generation: int,
        *,
        restarts: int,
        store_port: int | None = None,
        on_death: Callable[[], None],
    ) -> None:
        self._job = job
        self._generation = generation
        self._restarts = restarts
        self._on_death = on_death
        self._ends: dict[int, RankExit] = {}
        self._deaths: dict[int, RankExit] = {}
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        # Where a word to a rank's recorder is written.
        self._words: dict[int, int] = {}
        self._store: subprocess.Popen[bytes] | None = None
        self._store_death: RankExit | None = None
        self._problem: OSError | None = None
        self._oom_kills, self._oom_s = oom_kills(), float("-inf")
        self._interrupted = False
        self._ended_s: float | None = None
        self._end_at_s = self._kill_at_s = float("inf")
        self.store_port = store_port
        job.launch_dir(generation).mkdir(parents=True, exist_ok=True)
        try:
            if job.node_rank == 0 and not job.file_store:
                self._store, self.store_port = _serve_store()
            for rank in job.local_ranks:
                self._running[rank] = self._spawn(rank)
        except OSError as problem:
            self._problem = problem
            on_death()

    @property
    def over(self) -> bool:
        """Whether no rank is left; terminates and kills those that are to end, when it is time."""
        self._note_deaths()
        if time.monotonic() > self._end_at_s and self._ended_s is None:
            self._ended_s = time.time()
            self._kill_at_s = time.monotonic() + GRACE_S
            self._signal_groups(signal.SIGTERM)
            # One that is stopped would hear of it no sooner.
            self._signal_groups(signal.SIGCONT)
        if time.monotonic() > self._kill_at_s:
            self._signal_groups(signal.SIGKILL)
        return not self._running

    @property
    def processes(self) -> dict[int, int]:
        """The processes of the ranks that run, by rank."""
        return {rank: process.pid for rank, process in self._running.items()}

    @property
    def through(self) -> dict[int, tuple[int, float]]:
        """The ranks that have ended, or whose program has: exit status, and since when."""
        found = {}
        for rank in self._running:
            with contextlib.suppress(OSError):
                mark = self._job.end_mark(self._generation, rank)
                found[rank] = (0, mark.stat().st_mtime)
        return found | {rank: (end.exit_code, end.time_s) for rank, end in self._ends.items()}

    @property
    def ended_well(self) -> tuple[int, ...]:
        """The ranks that ended by themselves, with status 0, or were about to."""
        return tuple(
            rank
            for rank, end in self._ends.items()
            if end.exit_code == 0 or self._job.end_mark(self._generation, rank).exists()
        )

    def free(self) -> None:
        """Have the collectives raise in which ranks are blocked."""
        self._tell(recorder.FREE)

    def write_stacks(self) -> None:
        """Have the ranks write where their threads are."""
        self._tell(recorder.STACKS)

    def save(self) -> None:
        """Ask the ranks of a training for a checkpoint; other programs do not hear it."""
        self._tell(recorder.SAVE)

    def trace(self, steps: int, limit_s: int) -> None:
        """Have the ranks record what they do for so many steps, and for no longer than that."""
        self._tell(recorder.TRACE + recorder.TRACE_WISH.pack(steps, limit_s))

    def _tell(self, word: bytes) -> None:
        for descriptor in self._words.values():
            # It may have ended.
            with contextlib.suppress(OSError):
                os.write(descriptor, word)

    def interrupt(self) -> None:
        """Send each rank SIGINT, once."""
        if not self._interrupted:
            self._interrupted = True
            for process in self._running.values():
                # Popen.send_signal would reap one that has died, before its group is ended.
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(process.pid, signal.SIGINT)

    def end(self) -> None:
        """Terminate all ranks, with what they started; what is left after GRACE_S is killed.

        They have a moment to fail by themselves, and to leave word of their calls: a rank may be to
        blame that has not failed, as it still computes.
        """
        if math.isinf(self._end_at_s):
            self._tell(recorder.CALLS)
        self._end_at_s = min(self._end_at_s, time.monotonic() + _WORD_S)

    def close(self) -> None:
        """End the store, once the ranks of no host need it any more."""
        for descriptor in self._words.values():
            os.close(descriptor)
        self._words = {}
        if self._store is not None:
            self._store.kill()
            self._store.wait()

    @property
    def calls(self) -> tuple[tuple[int, Calls], ...]:
        """The last collectives of the ranks that we ended, as far as they left word of them."""
        paths = {
            rank: self._job.record_file(self._generation, rank).with_suffix(CALLS_SUFFIX)
            for rank in self._ends
            if rank not in self._deaths
        }
        found = {rank: calls_of(read_json(path)) for rank, path in paths.items()}
        return tuple((rank, calls) for rank, calls in found.items() if calls is not None)

    def failures(
        self, memory_of: Callable[[int], MemoryTrend | None] = lambda _: None
    ) -> tuple[Failure, ...]:
        """What there is to report, once the ranks are over. memory_of: how a rank's memory went."""
        job, ended_s = self._job, self._ended_s
        found = [
            rank_failure(
                job,
                self._generation,
                rank,
                self._deaths.get(rank),
                ended_s,
                memory_of,
            )
            for rank in job.local_ranks
        ]
        failures = [failure for failure in found if failure is not None]
        if self._store_death is not None:
            failures.append(store_failure(job, self._store_death))
        if self._problem is not None:
            failures.append(no_start(job, self._problem))
        if not job.file_store:
            return tuple(failures)
        # There is one host: the first of its ranks speaks for all that failed alike.
        said: dict[object, Failure] = {}
        for failure in failures:
            said.setdefault((failure.kind, failure.what) if failure.kind else failure.rank, failure)
        return tuple(said.values())

    def _note_deaths(self) -> None:
        self._look_for_oom_kills()
        short_of_memory = time.monotonic() - self._oom_s < _OOM_S
        for rank, process in list(self._running.items()):
            code = exit_code(process)
            if code is None:
                continue
            # It was only looked at: now it is reaped.
            process.wait()
            del self._running[rank]
            oom_killed = code == -signal.SIGKILL and short_of_memory
            self._ends[rank] = RankExit(process.pid, code, time.time(), oom_killed)
            if code != 0 and not self._ended_by_us(code):
                self._deaths[rank] = self._ends[rank]
                self._on_death()
        if self._store is not None and self._store_death is None and self._ended_s is None:
            code = self._store.poll()
            if code is not None:
                self._store_death = RankExit(self._store.pid, code, time.time())
                self._on_death()

    def _look_for_oom_kills(self) -> None:
        if (count := oom_kills()) != self._oom_kills:
            self._oom_kills, self._oom_s = count, time.monotonic()

    def _ended_by_us(self, code: int) -> bool:
        # One that was killed just before we told all to end dies beside them.
        killed = code == -signal.SIGKILL and time.monotonic() <= self._kill_at_s
        return self._ended_s is not None and not killed

    def _signal_groups(self, number: int) -> None:
        # A rank leads a group, which has its number for as long as it is not reaped.
        for process in self._running.values():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, number)

    def _spawn(self, rank: int) -> subprocess.Popen[bytes]:
        reads, self._words[rank] = os.pipe()
        try:
            return subprocess.Popen(
                [sys.executable, "-u", "-m", _RANK_PROGRAM, str(self._job.folder / "job.json")],
                env={
                    **os.environ,
                    **self._environment(rank),
                    recorder.WORDS_VARIABLE: str(reads),
                },
                stdin=subprocess.DEVNULL,
                # A group of its own: with it end the workers that load its data.
                start_new_session=True,
                pass_fds=(reads,),
            )
        finally:
            os.close(reads)

    def _environment(self, rank: int) -> dict[str, str]:
        job, generation = self._job, self._generation
        launch_dir = job.launch_dir(generation)
        added = {
            ATTEMPT: str(generation),
            HOST_PID: str(os.getpid()),
            **dict.fromkeys(("RANK", "ROLE_RANK"), str(rank)),
            **dict.fromkeys(("WORLD_SIZE", "ROLE_WORLD_SIZE"), str(job.world_size)),
            "LOCAL_RANK": str(job.local_ranks.index(rank)),
            "LOCAL_WORLD_SIZE": str(job.node.ranks),
            "GROUP_RANK": str(job.node_rank),
            "GROUP_WORLD_SIZE": str(len(job.nodes)),
            "ROLE_NAME": "default",
            "TORCHELASTIC_RESTART_COUNT": str(self._restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(job.restarts),
            # One for all attempts, as torchrun has it: programs name their checkpoints by it.
            "TORCHELASTIC_RUN_ID": job.launch_id,
            "TORCHELASTIC_ERROR_FILE": str(launch_dir / f"torchelastic.{rank}.json"),
            recorder.FILE_VARIABLE: str(job.record_file(generation, rank)),
            recorder.FLIGHT_VARIABLE: os.getenv(
                recorder.FLIGHT_VARIABLE, recorder.FLIGHT_COLLECTIVES
            ),
            ADDRESSES_VARIABLE: " ".join((*(node.address for node in job.nodes), LOOPBACK)),
            "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.getenv("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        }
        if self.store_port is None:
            return {**added, MEETING_FILE: str(job.meeting_file(generation))}
        return {
            **added,
            "MASTER_ADDR": LOOPBACK,
            "MASTER_PORT": str(self.store_port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
        }


def _serve_store() -> tuple[subprocess.Popen[bytes], int]:
    """Start the store's process; ranks that come before it is up wait. Raises OSError."""
    with socket.socket() as listener:
        listener.bind((LOOPBACK, 0))
        listener.listen(128)
        number = listener.fileno()
        process = subprocess.Popen(
            [sys.executable, "-m", _STORE_PROGRAM, str(number), str(os.getpid())],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            pass_fds=(number,),
        )
        return process, int(listener.getsockname()[1])
