"""One rank of a launch: what the host program starts, and the person's program inside it.

    python -m yoked.launch.bootstrap.rank JOB.json

The program sees what `python SCRIPT ARGS` or `python -m MODULE ARGS` would show it, in the job's
working directory; its streams are files of the job folder. What ends it is left there too, for
the host program to find the first cause.
"""

from __future__ import annotations

import atexit
import builtins
import faulthandler
import json
import os
import runpy
import sys
import threading
import time
import traceback
import zipfile
from collections.abc import Callable
from contextlib import ExitStack, suppress
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn, TextIO

from yoked.channel.names import SECRET
from yoked.collector import without_collector
from yoked.core.fs import write_bytes
from yoked.diagnosis.activity import own_frame
from yoked.diagnosis.vitals import Frame
from yoked.errors import YokedError
from yoked.launch.bootstrap.job import Job, read_job
from yoked.parent_death import die_with_parent
from yoked.ranks.recorder import RECORDER, last_calls
from yoked.ranks.secret import FILE_VARIABLE
from yoked.streams import outlive_full_disk

ATTEMPT = "YOKED_ATTEMPT"
# The host program. If it died before a rank could look at its parent, this is how the rank knows.
HOST_PID = "YOKED_HOST_PID"
# As torchrun has it: how many attempts before this one had begun.
RESTARTS = "TORCHELASTIC_RESTART_COUNT"
_LAST_WORDS_S = 2.0
_GLOO_S = 0.05
# Of Python itself, for a script or module that is not there.
_NO_SCRIPT_STATUS = 2
_NO_MODULE_STATUS = 1


def main(argv: list[str]) -> None:
    """Become the program of the job file in argv; returns if it ends well."""
    die_with_parent(int(os.environ.get(HOST_PID, os.getppid())))
    job = _read(Path(argv[0]))
    rank, attempt = int(os.environ["RANK"]), int(os.environ.get(ATTEMPT, "0"))
    redirect(job, attempt, rank)
    be_nice(job.nice)
    os.environ["YOKED_LAUNCH_DIR"] = str(job.launch_dir(attempt))
    if (job.folder / SECRET).exists():
        os.environ[FILE_VARIABLE] = str(job.folder / SECRET)
    job.launch_dir(attempt).mkdir(parents=True, exist_ok=True)
    RECORDER.start()
    _leave_stacks_at_a_crash(job, attempt, rank)
    good_end = ExitStack()
    try:
        run(job, int(os.environ.get(RESTARTS, "0")), good_end)
    except SystemExit as end:
        status = _status(end)
        if status == 0:
            _end_well(job, attempt, rank, good_end)
            raise
        end = end.with_traceback(_without_our_frames(end.__traceback__))
        _leave_word(job, attempt, rank, end, f"exit status {status}", status)
    except YokedError as problem:
        status = problem.exit_status
        _leave_word(job, attempt, rank, problem, problem.what, status)
        sys.stderr.write(f"yoked: {problem}\n")
    except Exception as problem:  # noqa: BLE001 - whatever ends the program is its own
        # KeyboardInterrupt is not among them: a stop that was asked for is no failure.
        status = 1
        shown = _without_our_frames(problem.__traceback__)
        _leave_word(job, attempt, rank, problem.with_traceback(shown), _summary(problem), status)
        sys.excepthook(type(problem), problem, shown)
    else:
        _end_well(job, attempt, rank, good_end)
        return
    _end(status)


def _read(path: Path) -> Job:
    try:
        return read_job(path)
    except YokedError as problem:
        sys.stderr.write(f"yoked: {problem}\n")
        raise SystemExit(problem.exit_status) from None


def redirect(job: Job, attempt: int, rank: int) -> None:
    """Send what this process and its children print to the rank's files; stdin is empty."""
    _onto(os.open(os.devnull, os.O_RDONLY), 0)
    streams: tuple[tuple[TextIO, int, str], ...] = ((sys.stdout, 1, "out"), (sys.stderr, 2, "err"))
    for stream, number, name in streams:
        path = job.log_file(attempt, rank, "out" if name == "out" else "err")
        path.parent.mkdir(parents=True, exist_ok=True)
        stream.flush()
        _onto(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    # It also writes by lines: in blocks, a killed rank would lose its last ones.
    outlive_full_disk()


def _leave_stacks_at_a_crash(job: Job, attempt: int, rank: int) -> None:
    """Have the stacks written when the process is ended by SIGSEGV, SIGABRT and the like."""
    # A full disk: the run goes on. The file stays open for as long as the process is there.
    with suppress(OSError):
        faulthandler.enable(job.crash_file(attempt, rank).open("w"))


def be_nice(nice: int) -> None:
    """Give this process, and what it starts, a niceness of at least so much.

    Linux weighs sessions before it looks at processes (sched(7), autogroup), and a rank leads a
    session of its own: that gets the niceness too.
    """
    if nice > (before := os.nice(0)):
        os.nice(nice - before)
        # Kernels without autogroups do not have it.
        with suppress(OSError):
            Path("/proc/self/autogroup").write_text(str(nice))


def run(job: Job, restarts: int, good_end: ExitStack) -> None:
    """Run the program as `__main__`; whatever it raises is raised.

    restarts: attempts before this one that had begun.
    good_end: gets what is to be closed if the program ends well.
    """
    if not job.cwd.is_dir():
        raise _not_here(f"there is no folder {job.cwd}.", _NO_SCRIPT_STATUS)
    os.chdir(job.cwd)
    args = job.arguments(restarts)
    sys.argv[:] = [job.program.name, *args]
    script = Path(job.program.name).absolute() if job.program.kind == "script" else None
    if script is not None and not script.exists():
        raise _not_here(f"there is no {script}.", _NO_SCRIPT_STATUS)
    _first_on_path(job.cwd if script is None else script.resolve().parent)
    if job.bootstrap:
        good_end.callback(_bootstrap(job, args))
    if script is not None:
        _run_script(script)
    else:
        _require_module(job)
        runpy.run_module(job.program.name, run_name="__main__", alter_sys=True)


def _end(status: int) -> NoReturn:
    """End now, with a status. Python's own end would first wait, inside torch, for the peers' part
    in every unfinished collective, and the failure would stay unknown for as long.

    What the program registered to run at its end does, for at most _LAST_WORDS_S seconds.
    """
    _flush()
    limit = threading.Timer(_LAST_WORDS_S, os._exit, (status,))
    limit.daemon = True
    limit.start()
    atexit._run_exitfuncs()  # noqa: SLF001 - the one way to have them run before os._exit
    _flush()
    os._exit(status)


def _end_well(job: Job, attempt: int, rank: int, good_end: ExitStack) -> None:
    good_end.close()
    RECORDER.write_last()
    # The others, if they go on, lose their connections before this process has its exit status.
    with suppress(OSError):
        job.end_mark(attempt, rank).touch()
    _let_gloo_finish()


def _let_gloo_finish() -> None:
    """Wait while Gloo frees the tensors of the last collectives, which takes Python's lock.

    A thread that still wants it when Python ends is ended by Python, here within a destructor that
    may not throw: "terminate called without an active exception", and SIGABRT after a good run.
    Source: take_gil in CPython 3.11, ProcessGroupGloo::runLoop in torch 2.13; under torchrun too.
    """
    if "torch.distributed" in sys.modules:
        time.sleep(_GLOO_S)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        # The program may have closed or replaced it.
        with suppress(Exception):
            stream.flush()


def _run_script(script: Path) -> None:
    """Run a file as `python SCRIPT` does.

    runpy would show it another argv[0] and __package__, and is for folders and archives alone.
    """
    if script.is_dir() or zipfile.is_zipfile(script):
        runpy.run_path(str(script), run_name="__main__")
        return
    main_module = ModuleType("__main__")
    loader = SourceFileLoader("__main__", str(script))
    vars(main_module).update(
        __file__=str(script), __loader__=loader, __package__=None, __builtins__=builtins
    )
    sys.modules["__main__"] = main_module
    code = compile(script.read_bytes(), str(script), "exec", dont_inherit=True)
    exec(code, vars(main_module))  # noqa: S102 - it is the person's own program


def _not_here(what: str, status: int) -> YokedError:
    problem = YokedError(what, fix="check its name, and that the program's folder was sent here")
    problem.exit_status = status
    return problem


def _require_module(job: Job) -> None:
    """Raises YokedError where `python -m` would find no such module."""
    name = job.program.name
    try:
        found = find_spec(name)
    except ModuleNotFoundError as problem:
        # A package on the way to it is missing, or else it imports what is.
        if problem.name is None or not f"{name}.".startswith(f"{problem.name}."):
            raise
        found = None
    if found is None:
        where = f"neither in {job.cwd} nor among the packages of {sys.executable}"
        raise _not_here(f"there is no module {name}: {where}.", _NO_MODULE_STATUS)


def _first_on_path(folder: Path) -> None:
    # With -P or PYTHONSAFEPATH, Python puts no such folder there, and neither do we.
    if not sys.flags.safe_path:
        sys.path[0] = str(folder)


def _bootstrap(job: Job, args: tuple[str, ...]) -> Callable[[], None]:
    """Prepare torch for a program that assumes NCCL; returns what ends our part in it."""
    with without_collector():
        from yoked.launch.bootstrap import (
            accelerate,
            checkpoint_files,
            coalescing,
            ddp_hooks,
            gloo,
            nanochat,
        )
        from yoked.launch.bootstrap.carried import Carried
        from yoked.launch.bootstrap.group import Ranks, Starter
        from yoked.launch.bootstrap.learning import Learning

    ranks = Ranks()
    starter = Starter(ranks)
    gloo.supply_what_gloo_lacks()
    coalescing.supply_coalescing()
    ddp_hooks.accept_bf16_hooks()
    starter.install()
    if ranks.count > 1:
        carried = Carried()
        carried.count_calls()
        learning = Learning(carried, lambda: starter.is_ours)
        learning.install()
        RECORDER.learning = learning.told
    accelerate.prepare(ranks)
    if ranks.count > 1:
        checkpoint_files.share_checkpoints()
    nanochat.prepare(job, args, ranks, starter)
    return starter.close


def _onto(descriptor: int, number: int) -> None:
    os.dup2(descriptor, number)
    os.close(descriptor)


def _status(end: SystemExit) -> int:
    """The exit status that Python gives a SystemExit, after printing what it prints."""
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        # True is one, and is 1.
        return int(end.code)
    sys.stderr.write(f"{end.code}\n")
    return 1


def _summary(problem: BaseException) -> str:
    return "".join(traceback.format_exception_only(problem)).strip()


def _without_our_frames(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the program's first frame on: ours and runpy's come before it."""
    outer = (__file__, runpy.__file__, "<frozen runpy>")
    while trace is not None and trace.tb_frame.f_code.co_filename in outer:
        trace = trace.tb_next
    return trace


def _own_line(trace: TracebackType | None) -> str | None:
    """Where the program was: train.py:41 in main, not the line of a package that it called."""
    frames = [
        Frame(each.filename, each.lineno or 0, each.name)
        for each in reversed(traceback.extract_tb(trace))
    ]
    frame = own_frame(tuple(frames))
    return None if frame is None else f"{frame.file}:{frame.line} in {frame.function}"


def _leave_word(
    job: Job, attempt: int, rank: int, problem: BaseException, what: str, status: int
) -> None:
    """Write why this rank ends, such that a reader sees all of it or nothing.

    status: the exit status to come. Another rank's failure may have this one ended before that.
    """
    path = job.error_file(attempt, rank)
    content = {
        "rank": rank,
        "time_s": time.time(),
        "kind": type(problem).__name__,
        "what": what,
        "exit_code": status,
        "traceback": "".join(traceback.format_exception(problem)),
        "at": _own_line(problem.__traceback__),
        "calls": last_calls(),
    }
    # A full disk may be the very cause; the log and the exit status tell it too.
    with suppress(OSError):
        write_bytes(path, json.dumps(content).encode(), durable=False)


if __name__ == "__main__":
    main(sys.argv[1:])
