"""A training on this machine: the job of a fleet of one host, in the person's own folder.

An agent is a child of this process. What it starts is not: a run goes on when the one who follows
it is gone, and `yoked attach` finds it. Its log, its errors and its state lie in the job's folder,
what it learns in `runs/`, as its ranks write it there. Nothing here imports torch.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from yoked.agent.jobfolder import ACTIVE, JobFolder, all_jobs, jobs_root
from yoked.core.fs import locked, nearest_folder
from yoked.core.proc import has_proc
from yoked.errors import HostError, JobError, UsageError, YokedError, error_kinds
from yoked.fleet.model import HERE, Fleet, Host
from yoked.launch.attach import JobEnd, View
from yoked.launch.busy import Share, other_runs, require_free, runs_of_others, tell_all
from yoked.launch.handle import RunHandle
from yoked.launch.program import Program
from yoked.launch.registry import collect, job_name
from yoked.launch.runrecord import bring_said, keep_doctor, not_asked
from yoked.launch.start import Home, JobRequest, NodePlan, OnFault, Started, plan_nodes, start_job
from yoked.paths import private_folder
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here
from yoked.runs import require_new

# What a rank of ours may have ended by; whatever else was raised is a bug.
_KINDS = {kind.__name__: kind for kind in error_kinds()}
_SAY_ALL = set(_KINDS.values()) - {YokedError, JobError}
_HOW = ("checkpoint", "terminate", "kill")
_SAID = (
    "it saves and stops; Ctrl-C again ends it without saving",
    "its ranks are told to end; Ctrl-C again kills them",
    "its ranks are killed",
)
# A start has its agent answer and its folders made: a second or two.
_START_WITHIN_S = 60.0


class RankCrash(Exception):  # noqa: N818 - a crash is what it is
    """A rank ended by an exception that yoked did not foresee: a bug. verdict: of the run."""

    verdict: Mapping[str, object] | None = None

    def __init__(self, rank: int, trace: str) -> None:
        super().__init__(f"rank {rank} failed:\n{trace}")


@dataclass(frozen=True)
class LocalRun:
    """What to start. config: the run's configuration as plain data; module: what a rank runs.

    run_dir: None for a dry run, which leaves nothing. is_new: it must not be there yet. flags: what
    a command line about the run ends with, such as its --fleet. go_on: the command that resumes it.
    """

    run: str
    run_dir: Path | None
    ranks: int
    config: Mapping[str, Any]
    threads: int | None = None
    nice: int | None = None
    restarts: int = 0
    on_fault: OnFault = "report"
    module: str = "yoked.train"
    is_new: bool = False
    flags: str = ""
    go_on: str = "yoked train --resume"

    @property
    def quoted(self) -> str:
        """The run, as it is named on a command line to paste."""
        return f"{shlex.quote(self.run)}{self.flags}"


def supervises() -> bool:
    """Whether this system can have jobs: what runs of one is recognised by its entry in /proc."""
    return has_proc()


def run_here(
    run: LocalRun,
    view: View,
    *,
    detach: bool = False,
    check: Callable[[list[NodePlan]], None] = lambda _: None,
    share: Share = lambda _: True,
) -> dict[str, Any] | None:
    """Run to the end, and return rank 0's result. Call it from the main thread.

    detach: return None as soon as it runs. check: called before anything starts, and may raise.
    share: whether it is to start where other runs are.
    Raises the YokedError of the rank that failed first, RankCrash if that was a bug, and
    KeyboardInterrupt if the run was stopped before it could leave a result.
    """
    with connect_here(HERE) as client, _Stopping(view).listening() as stopping:
        nodes = plan_nodes(Fleet("here", (Host(HERE),), Path()), {HERE: client}, run.ranks, dict)
        check(nodes)
        _require_idle(run)
        records, clients = collect({HERE: client})[0], {HERE: client}
        others = [*other_runs(records, None), *runs_of_others(clients)]
        # A dry run is over in seconds.
        require_free(others, tell_all(view.note) if run.run_dir is None else share)
        with one_at_a_time():
            _require_idle(run)
            if run.is_new and run.run_dir is not None:
                require_new(run.run_dir)
            # A run in another folder may have the same name.
            job = job_name(run.run, lambda name: (jobs_root() / name).exists())
            _start(run, job, nodes, lambda: stopping.started(job, client))
        if detach:
            return None
        if run.run_dir is not None:
            view.note(
                f"run {run.run}: Ctrl-C saves and stops; should this terminal go, the run goes "
                f"on, and `yoked attach {run.quoted}` or `yoked watch {run.quoted}` shows it"
            )
        handle = RunHandle(job, {HERE: client}, _again)
        end = handle.follow(view)
        if run.run_dir is not None and _has_begun(run):
            bring_said(end.record, run.run_dir, handle.reach, view.note)
        result = JobFolder(jobs_root() / job).read(f"errors/{end.attempt}/result.json")
        went_well = bool(result) and end.state in ("finished", "interrupted")
        problem = None if went_well else explain(run, end)
        if went_well and end.restarts:
            result["restarts"] = end.restarts
        if _leaves_no_trace(run, problem):
            _call(client, "job_remove", run=job, launch_id=end.record.launch_id)
    if problem is not None:
        raise problem
    return result


def _again(host: str, patience_s: int) -> AgentClient:
    """Another connection, should the agent have been killed."""
    del patience_s
    return connect_here(host)


def _call(client: AgentClient, name: str, **args: Any) -> None:
    """Ask an agent; should it have been killed, another one."""
    try:
        client.call(name, **args)
    except HostError:
        with connect_here(HERE) as other:
            other.call(name, **args)


def _start(run: LocalRun, job: str, nodes: list[NodePlan], started: Callable[[], None]) -> None:
    folder = f"{nodes[0].job_root}/{job}"
    arguments = ("--config-file", f"{folder}/config.json")
    request = JobRequest(
        run=job,
        program=Program("module", run.module, arguments, None, resume_args=("--resume",)),
        ranks=run.ranks,
        restarts=run.restarts,
        on_fault=run.on_fault,
        threads=run.threads,
        nice=run.nice,
        own_threads=True,
        # yoked.train speaks Gloo and NCCL as they are.
        bootstrap=False,
        # A dry run trains nothing, and is not to be taken for the run.
        trains=None if run.run_dir is None else run.run,
        file_store=True,
        files={"config.json": json.dumps(dict(run.config))},
        home=Home(Path.cwd(), run.run_dir),
    )

    def approve(begun: Started) -> None:
        started()
        keep_doctor(nodes[0].client, job, begun.launch_id, not_asked("there is no link"))

    start_job(request, nodes, lambda _: None, approve=approve)


@contextlib.contextmanager
def one_at_a_time() -> Iterator[None]:
    """While a run is looked up and started, no other one is, by this user on this machine."""
    path = jobs_root() / ".starting"
    held = contextlib.ExitStack()
    try:
        private_folder(path.parent)
        held.enter_context(locked(path, _START_WITHIN_S))
    except TimeoutError:
        raise JobError(
            f"another run has been starting for {_START_WITHIN_S:.0f} s",
            fix=f"fuser {shlex.quote(str(path))}    shows which process holds that",
        ) from None
    except OSError as problem:
        folder = shlex.quote(str(nearest_folder(path.parent)))
        raise JobError(
            f"{path.parent} cannot be written: {problem.strerror}",
            fix=(
                f"ls -ld {folder}    there shows whose it is",
                "export YOKED_STATE=FOLDER    puts yoked's state there",
            ),
        ) from problem
    with held:
        yield


def _require_idle(run: LocalRun) -> None:
    """Raise UsageError where the run goes on already: two starts would write into one folder."""
    for job in all_jobs():
        if job.state not in ACTIVE:
            continue
        if run.run_dir is not None and job.read("job.json").get("run_dir") == str(run.run_dir):
            raise UsageError(
                f"run {run.run} in {run.run_dir.parent} goes on already",
                fix=(
                    f"yoked attach {run.quoted}    shows it",
                    *(("--run NAME with another name starts a run of its own",) * run.is_new),
                ),
            )


def _has_begun(run: LocalRun) -> bool:
    """Whether there is something to go on from."""
    return run.run_dir is not None and (run.run_dir / "run.json").exists()


def _leaves_no_trace(run: LocalRun, problem: BaseException | None) -> bool:
    """Whether nothing is worth keeping: all was said before there was a run."""
    if run.run_dir is None:
        return True
    # Of others the log may say more.
    said_all = isinstance(problem, KeyboardInterrupt) or type(problem) in _SAY_ALL
    return said_all and not _has_begun(run)


def explain(run: LocalRun, end: JobEnd) -> BaseException:
    """The exception that a run without a result ended by, as the rank that failed first has it."""
    problem = _explain(run, end)
    if isinstance(problem, (YokedError, RankCrash)):
        problem.verdict = end.record.verdict
    return problem


def _explain(run: LocalRun, end: JobEnd) -> BaseException:
    failure = end.record.failure
    if failure is None:
        if end.state in ("interrupted", "stopped"):
            return KeyboardInterrupt()
        return JobError(f"{end.verdict}, without a result", fix=_look(run))
    kind, what, rank = failure.get("kind"), str(failure.get("what")), failure.get("rank")
    fix = tuple(str(line) for line in failure.get("fix") or ())
    if kind in _KINDS:
        # What a usage is wrong in is no matter of one rank; nor is what any of them may have done.
        of_all = rank in (None, 0) or kind == "UsageError"
        return _KINDS[kind](what if of_all else f"rank {rank}: {what}", fix=fix)
    if rank is None:
        return JobError("\n".join([end.verdict, *end.evidence]), fix=(*fix, *_look(run)))
    if kind not in (None, "SystemExit"):
        return RankCrash(rank, str(failure.get("traceback") or what))
    said = f"rank {rank} {'was ' if failure.get('signal') else ''}{what}"
    if lines := failure.get("last_lines"):
        said += "\nits last lines:\n" + "\n".join(f"  {line}" for line in lines)
    again = run.go_on if _has_begun(run) else "the same command again, once that is mended"
    return YokedError(said, fix=(again, *fix, *_look(run)))


def _look(run: LocalRun) -> tuple[str, ...]:
    return (f"yoked logs {run.quoted} --tail 50",)


class _Stopping:
    """Turns the signals that this process gets into the run's orderly end.

    The first asks it to save and stop, the second terminates its ranks, the third kills them.
    Before there is a run, a signal ends this process.
    """

    def __init__(self, output: View) -> None:
        self._output = output
        self._job: str | None = None
        self._client: AgentClient | None = None
        self._asked = 0

    def started(self, job: str, client: AgentClient) -> None:
        """From now on there is a job to stop."""
        self._client, self._job = client, job

    @contextlib.contextmanager
    def listening(self) -> Iterator[_Stopping]:
        """Handle SIGINT and SIGTERM here for the time of the block."""
        before: dict[int, Callable[[int, FrameType | None], Any] | int | None] = {}
        number: int
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.signal(number, self._on_signal)
        try:
            yield self
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        if self._job is None:
            raise KeyboardInterrupt
        step = min(self._asked, len(_HOW) - 1)
        self._asked += 1
        # A handler must not wait for an answer: what it interrupted may hold the connection.
        threading.Thread(target=self._stop, args=(step,), name="stop", daemon=True).start()

    def _stop(self, step: int) -> None:
        assert self._client is not None
        self._output.note(_SAID[step])
        # It may have ended by itself meanwhile.
        with contextlib.suppress(YokedError):
            _call(self._client, "job_stop", run=self._job, how=_HOW[step])
