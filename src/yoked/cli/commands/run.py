"""`yoked run`: somebody else's torch.distributed program, unmodified, on all hosts."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yoked.cli.argv import unknown_flag
from yoked.cli.flags import JobFlags, JsonFlag, check_patterns, check_run_name, same_fleet
from yoked.cli.live import LiveView, report_job, shares_hosts
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.launch.program import read_program
from yoked.launch.start import JobRequest
from yoked.runs import stamp

if TYPE_CHECKING:
    from yoked.launch.outputs import Outputs
    from yoked.workflows.fleet_job import FleetJob


def command(
    *words: Annotated[
        str, Parameter(help="SCRIPT ARGS, or -m MODULE ARGS.", allow_leading_hyphen=True)
    ],
    flags: Annotated[JobFlags, Parameter(name="*")] = JobFlags(),  # noqa: B008
    ranks: Annotated[
        int | None, Parameter(help="Ranks on each host. Default: what yoked.toml says.")
    ] = None,
    threads: Annotated[
        int | None,
        Parameter(help="Threads of each rank. Default: the host's cores shared out."),
    ] = None,
    resume_args: Annotated[
        str,
        Parameter(
            help="What the program's arguments end with when --restarts starts it again, as one "
            'word: "--resume --step 3".',
            # Most begin with one.
            allow_leading_hyphen=True,
        ),
    ] = "",
    env: Annotated[
        tuple[str, ...],
        Parameter(help="NAME=VALUE for the program, on every host; may be repeated.", negative=""),
    ] = (),
    include: Annotated[
        tuple[str, ...],
        Parameter(
            help="PATTERN of files that travel although .gitignore names them, beside those of "
            "yoked.toml; may be repeated.",
            negative="",
        ),
    ] = (),
    outputs: Annotated[
        tuple[str, ...],
        Parameter(
            help="PATTERN of files that the program writes: at the end they come from all hosts to "
            "outputs/HOST below runs/RUN; may be repeated.",
            negative="",
        ),
    ] = (),
    bootstrap: Annotated[
        bool, Parameter(help="Help programs that assume NCCL and CUDA on Gloo.")
    ] = True,
    run: Annotated[str | None, Parameter(help="Name of the run. Default: the time.")] = None,
    json_output: JsonFlag = False,
) -> int:
    """Run a torch.distributed program, unmodified, on all hosts of a fleet, or on this machine.

    The folder in which this is typed is sent to the hosts (what .gitignore names stays), and the
    program runs there. Ctrl-C leaves it running; `yoked attach` comes back to it.
    """
    from yoked.cli.bringing import bring_after
    from yoked.workflows.fleet_job import run_job
    from yoked.workflows.need import need_of

    for name, count in (("--ranks", ranks), ("--threads", threads)):
        if count is not None and count < 1:
            raise UsageError(f"{name} {count}: at least 1 is needed", fix=f"{name} 1")
    if words and words[0].startswith("--"):
        raise unknown_flag("run", command, words[0])
    environment = {}
    for setting in env:
        name, equals, value = setting.partition("=")
        if not equals or not name.isidentifier():
            raise UsageError(f"--env {setting!r} is not NAME=VALUE", fix="--env OMP_PROC_BIND=true")
        environment[name] = value
    fleet = open_fleet(flags.fleet)
    program = replace(
        read_program(words, Path.cwd(), _words(resume_args)),
        include=(*fleet.include, *check_patterns("--include", include)),
    )
    request = JobRequest(
        run=check_run_name(run or stamp(datetime.now().astimezone())),
        program=program,
        ranks=ranks,
        restarts=flags.checked_restarts(),
        on_fault=flags.resolved_on_fault("report"),
        nice=flags.checked_nice(),
        threads=threads,
        bootstrap=bootstrap,
        env=environment,
        outputs=check_patterns("--outputs", outputs),
    )
    output = Output(json_mode=json_output)
    came: list[Outputs | None] = [None]

    def bring(job: FleetJob) -> None:
        came[0] = bring_after(job, fleet, output, same_fleet(flags.fleet))

    job = run_job(
        request,
        fleet,
        LiveView(output),
        detach=flags.detach,
        doctor=flags.doctor,
        need=need_of(),
        share=shares_hosts(flags, output),
        after=bring,
    )
    return report_job(job, flags, output, came=came[0])


def _words(resume_args: str) -> list[str]:
    """The words of --resume-args, as a shell has them. Raises UsageError for an open quote."""
    try:
        return shlex.split(resume_args)
    except ValueError as problem:
        raise UsageError(
            f"--resume-args {resume_args!r}: {problem}", fix='--resume-args "--resume"'
        ) from problem
