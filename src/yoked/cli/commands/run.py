"""`yoked run`: somebody else's torch.distributed program, unmodified, on all hosts."""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from yoked.cli.argv import unknown_flag
from yoked.cli.flags import JobFlags, JsonFlag, check_patterns, check_run_name, same_fleet
from yoked.cli.live import LiveView, job_payload, report_job, shares_hosts
from yoked.cli.output import Output
from yoked.errors import UsageError
from yoked.fleet.file import open_fleet
from yoked.fleet.model import HERE, Fleet
from yoked.launch.program import read_program
from yoked.launch.start import JobRequest
from yoked.runs import stamp
from yoked.units import listed

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
        Parameter(
            help="NAME=VALUE for the program, on every host, or NAME with its value in this shell, "
            "such as a token's; may be repeated.",
            negative="",
        ),
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
    from yoked.cli.bringing import bring_after, bring_record
    from yoked.launch.handle import RunHandle
    from yoked.launch.hosts import reconnecting
    from yoked.workflows.fleet_job import run_job
    from yoked.workflows.need import need_of

    for name, count in (("--ranks", ranks), ("--threads", threads)):
        if count is not None and count < 1:
            raise UsageError(f"{name} {count}: at least 1 is needed", fix=f"{name} 1")
    if words and words[0].startswith("--"):
        raise unknown_flag("run", command, words[0])
    fleet = open_fleet(flags.fleet)
    program = replace(
        read_program(words, Path.cwd(), _words(resume_args)),
        include=(*fleet.include, *check_patterns("--include", include)),
    )
    output = Output(json_mode=json_output)
    view = LiveView(output)
    asked = _settings(env, os.environ)
    gone_along, withheld = _of_the_shell(fleet, asked, view)
    request = JobRequest(
        run=check_run_name(run or stamp(datetime.now().astimezone())),
        program=program,
        ranks=ranks,
        restarts=flags.checked_restarts(),
        on_fault=flags.resolved_on_fault("report"),
        nice=flags.checked_nice(),
        threads=threads,
        bootstrap=bootstrap,
        env={**gone_along, **asked},
        withheld=withheld,
        outputs=check_patterns("--outputs", outputs),
    )
    came: list[Outputs | None] = [None]

    def bring(job: FleetJob) -> None:
        came[0] = bring_after(job, fleet, output, same_fleet(flags.fleet))
        if job.end is not None:
            handle = RunHandle.of(job.started, reconnecting(fleet))
            result = job_payload(job, came=came[0])
            bring_record(job.end, handle, fleet.path, output.note, result)

    job = run_job(
        request,
        fleet,
        view,
        detach=flags.detach,
        doctor=flags.doctor,
        need=need_of(),
        share=shares_hosts(flags, output),
        after=bring,
    )
    return report_job(job, flags, output, came=came[0])


def _settings(env: Sequence[str], shell: Mapping[str, str]) -> dict[str, str]:
    """The variables of --env. Raises UsageError for what names none."""
    found = {}
    for setting in env:
        name, equals, value = setting.partition("=")
        if not name.isidentifier():
            raise UsageError(
                f"--env {setting!r} is neither NAME=VALUE nor NAME", fix="--env OMP_PROC_BIND=true"
            )
        if not equals and name not in shell:
            raise UsageError(f"--env {name}: this shell does not export it", fix=f"export {name}=…")
        found[name] = value if equals else shell[name]
    return found


def _of_the_shell(
    fleet: Fleet, asked: Mapping[str, str], view: LiveView
) -> tuple[dict[str, str], list[str]]:
    """This shell's variables that go along, and the names of secrets, which do not; both told.

    On this machine alone nothing travels: ranks have the shell's.
    """
    from yoked.fleet.variables import carried, secrets

    if all(host.name == HERE for host in fleet.hosts):
        return {}, []
    found = {name: value for name, value in carried(os.environ).items() if name not in asked}
    withheld = [name for name in secrets(os.environ) if name not in asked]
    if found:
        view.note(f"from this shell to the ranks of all hosts: {listed(found)}")
    if withheld:
        flags = " ".join(f"--env {name}" for name in withheld)
        view.note(f"no rank has {listed(withheld)} of this shell: a secret is asked for, {flags}")
    return found, withheld


def _words(resume_args: str) -> list[str]:
    """The words of --resume-args, as a shell has them. Raises UsageError for an open quote."""
    try:
        return shlex.split(resume_args)
    except ValueError as problem:
        raise UsageError(
            f"--resume-args {resume_args!r}: {problem}", fix='--resume-args "--resume"'
        ) from problem
