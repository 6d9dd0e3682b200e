"""The ranks of this host in one attempt: torchrun's own agent, in a thread of this process.

`torchrun --nnodes N --node-rank K --nproc-per-node R --master-addr 127.0.0.1 --master-port P` is
what this amounts to: the same agent, the same static rendezvous, one import of torch. Four things
are ours, because torchrun has no flag for them. A death is reported when it is seen, and not
when the last rank is gone. Ranks that do not obey are killed after GRACE_S, not after 30 s. The
hosts wait for each other over the control store, which knows of failures, not at a barrier of
300 s. And restarts are counted as torchrun counts them, but
for attempts whose ranks never met.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Callable
from typing import Any

from torch.distributed.elastic.agent.server.api import (
    RunResult,
    WorkerGroup,
    WorkerSpec,
    WorkerState,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SubprocessContext
from torch.distributed.elastic.rendezvous.static_tcp_rendezvous import StaticTCPRendezvous

from yoked.channel.names import LOOPBACK
from yoked.launch.bootstrap.job import Job
from yoked.launch.bootstrap.lastwords import GRACE_S, Death, exit_code, rank_failure
from yoked.launch.bootstrap.rank import HOST_PID
from yoked.launch.bootstrap.verdict import Failure

ATTEMPT_VARIABLE = "YOKED_ATTEMPT"
_RANK_PROGRAM = "yoked.launch.bootstrap.rank"
_RENDEZVOUS_S = 60
# Between two looks at the ranks. On a host of one core each look is taken from a rank: all that
# looked ten times a second took 1.5% of the core.
_MONITOR_S = 0.2


class LocalRanks:
    """This host's ranks in one attempt. Every method may be called from any thread.

    store_port: of the store on this host's loopback. restarts: attempts before this one that had
    begun.
    on_death: called from torchrun's thread for each rank that fails and was not ended by us.
    """

    def __init__(
        self,
        job: Job,
        attempt: int,
        store_port: int,
        *,
        restarts: int = 0,
        on_death: Callable[[], None],
    ) -> None:
        self._job = job
        self._attempt = attempt
        # The ranks inherit the environment; torchrun adds RANK and the like.
        os.environ[ATTEMPT_VARIABLE] = str(attempt)
        os.environ[HOST_PID] = str(os.getpid())
        self._torchrun = _Torchrun(job, attempt, store_port, restarts, on_death)
        self._problem: Exception | None = None
        self._ended_s: float | None = None
        # The kernel ends the ranks with the thread that started them; see yoked.tether.
        self._thread = threading.Thread(target=self._run, name="torchrun", daemon=True)
        self._thread.start()

    @property
    def over(self) -> bool:
        """Whether no rank is left, nor will be."""
        return not self._thread.is_alive() or self.given_up

    @property
    def given_up(self) -> bool:
        """Whether they were interrupted or ended before there were any."""
        return self._torchrun.given_up

    def interrupt(self) -> None:
        """Send each rank SIGINT, once."""
        self._torchrun.interrupting.set()

    def end(self) -> None:
        """Terminate all ranks, and kill what is left after GRACE_S."""
        if self._ended_s is None:
            # Another host may tell of a failure sooner than torchrun looks at our own ranks.
            self._torchrun.note_deaths()
            self._ended_s = time.time()
            self._torchrun.ending.set()

    def failures(self) -> tuple[Failure, ...]:
        """What this host has to report, once its ranks are over."""
        deaths = self._torchrun.deaths
        found = [
            rank_failure(self._job, self._attempt, rank, deaths.get(rank), self._ended_s)
            for rank in self._job.local_ranks
        ]
        failures = [failure for failure in found if failure is not None]
        if self._problem is not None and not failures:
            failures.append(self._no_start(self._problem))
        return tuple(failures)

    def _run(self) -> None:
        try:
            self._torchrun.run()
        except _EndedError:
            return
        except Exception as problem:  # noqa: BLE001 - whatever it is, all hosts must hear it
            self._problem = problem
            traceback.print_exception(problem)

    def _no_start(self, problem: Exception) -> Failure:
        first = self._job.nodes[0]
        words = str(problem).strip().splitlines() or [""]
        return Failure(
            host=self._job.node.host,
            node=self._job.node_rank,
            kind=type(problem).__name__,
            what=f"torchrun could not start its ranks: {words[0]}",
            fix=(f"logs/launcher.err on {self._job.node.host} and {first.host} says more",),
            time_s=time.time(),
        )


class _EndedError(Exception):
    """The attempt was ended before its ranks were started."""


class _Torchrun(LocalElasticAgent):
    """torchrun's agent for this host. Its methods run in the thread that calls `run`."""

    def __init__(
        self, job: Job, attempt: int, store_port: int, restarts: int, on_death: Callable[[], None]
    ) -> None:
        super().__init__(
            spec=_spec(job, attempt, store_port, restarts),
            logs_specs=DefaultLogsSpecs(log_dir=str(job.folder / "torchrun")),
        )
        # `restarts` are behind us, and torchrun must not begin one by itself. So
        # TORCHELASTIC_RESTART_COUNT, by which programs know that they are to resume, is right.
        self._remaining_restarts = 0
        self._job = job
        self._on_death = on_death
        self._seen: set[int] = set()
        self.deaths: dict[int, Death] = {}
        self.interrupting = threading.Event()
        self.ending = threading.Event()
        self._interrupted = False
        self._terminated = False
        self._begun = False
        self._beginning = threading.Lock()
        self._noting = threading.Lock()

    @property
    def given_up(self) -> bool:
        """Whether there are no ranks, and never will be; the rendezvous may still block."""
        with self._beginning:
            return not self._begun and (self.ending.is_set() or self.interrupting.is_set())

    def _start_workers(self, worker_group: WorkerGroup) -> dict[int, Any]:
        # The rendezvous blocks, and may come after we gave the attempt up.
        with self._beginning:
            if self.ending.is_set() or self.interrupting.is_set():
                raise _EndedError
            self._begun = True
        started: dict[int, Any] = super()._start_workers(worker_group)
        return started

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        handlers = self._processes()
        self.note_deaths()
        if self.interrupting.is_set() and not self._interrupted:
            self._interrupted = True
            for process in handlers.values():
                process.send_signal(signal.SIGINT)
        if self.ending.is_set():
            assert self._pcontext is not None
            self._terminated = True
            self._pcontext.close(signal.SIGTERM, timeout=int(GRACE_S))
        elif self.deaths and len(self._seen) < len(handlers):
            # Whether, and when, the others end is for all hosts to agree on.
            return RunResult(state=WorkerState.HEALTHY)
        result: RunResult = super()._monitor_workers(worker_group)
        return result

    def _exit_barrier(self) -> None:
        return

    def _processes(self) -> dict[int, subprocess.Popen[bytes]]:
        """The ranks' processes by global rank."""
        assert isinstance(self._pcontext, SubprocessContext)
        first = self._job.first_rank
        return {
            first + local_rank: handler.proc
            for local_rank, handler in self._pcontext.subprocess_handlers.items()
        }

    def note_deaths(self) -> None:
        """Look at the ranks, and note those that have ended. From any thread."""
        with self._noting:
            if self._pcontext is not None:
                self._note_deaths(self._processes())

    def _note_deaths(self, processes: dict[int, subprocess.Popen[bytes]]) -> None:
        for rank, process in processes.items():
            if rank in self._seen or (code := exit_code(process)) is None:
                continue
            self._seen.add(rank)
            # Another host may have heard of a death, and had us end our ranks, before we look at
            # the one that died. What only ended with a status then complains of a lost peer.
            ours = self._terminated if code < 0 else self.ending.is_set()
            if code != 0 and not ours:
                self.deaths[rank] = Death(process.pid, code, time.time())
                self._on_death()


def _spec(job: Job, attempt: int, store_port: int, restarts: int) -> WorkerSpec:
    return WorkerSpec(
        role="default",
        local_world_size=job.node.ranks,
        entrypoint=sys.executable,
        args=("-u", "-m", _RANK_PROGRAM, str(job.folder / "job.json")),
        rdzv_handler=StaticTCPRendezvous(
            master_addr=LOOPBACK,
            master_port=store_port,
            rank=job.node_rank,
            world_size=len(job.nodes),
            run_id=f"{job.launch_id}-{attempt}",
            timeout=_RENDEZVOUS_S,
        ),
        max_restarts=restarts,
        monitor_interval=_MONITOR_S,
        master_addr=LOOPBACK,
        master_port=store_port,
        local_addr=LOOPBACK,
    )


class _NotOfThreads(logging.Filter):
    """torchrun warns that in a thread it cannot handle signals; the host program does."""

    def filter(self, record: logging.LogRecord) -> bool:
        return "running on a child thread" not in record.getMessage()


logging.getLogger("torch.distributed.elastic.multiprocessing.api").addFilter(_NotOfThreads())
