"""What a person sees while work goes on: a run that is followed, or one line of what is done."""

from __future__ import annotations

import math
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from yoked.agent.jobfolder import WORK
from yoked.agent.verdict import verdict_of
from yoked.cli.argv import about_fleet
from yoked.cli.flags import JobFlags, same_fleet
from yoked.cli.output import Output
from yoked.liveline import LivePart, LiveText

if TYPE_CHECKING:
    from rich.console import Console

    from yoked.launch.attach import JobEnd
    from yoked.launch.outputs import Outputs
    from yoked.workflows.fleet_job import FleetJob


class LiveView:
    """Shows the output of a run, on a terminal with the line that rank 0 would draw on it.

    Where there is no terminal it shows what the rank printed, and no more.
    """

    def __init__(self, output: Output) -> None:
        self._output = output
        self._lock = threading.Lock()
        self._drawn = ""
        self._line, self._since_s = LiveText(), time.monotonic()

    @property
    def console(self) -> Console:
        """The console of the output."""
        return self._output.console

    @cached_property
    def live(self) -> Callable[[LiveText], None] | None:
        """What draws a line; None where there is no terminal to draw on."""
        return self._draw if sys.stderr.isatty() else None

    def note(self, line: str) -> None:
        """Something worth knowing."""
        with self._lock:
            self.erase()
            self._output.note(line)

    def rank_output(self, stream: str, text: str) -> None:
        """What a rank wrote."""
        if self.live is not None and stream == "err":
            text = _without_progress(text)
        if text:
            with self._lock:
                self.erase()
                self._output.rank_output(stream, text)

    def _draw(self, line: LiveText) -> None:
        now_s = time.monotonic()
        if line != self._line:
            self._line, self._since_s = line, now_s
        shown = ""
        if line.parts:
            # What comes from a host acts on nothing here: `fit` sees to that.
            encoding = sys.stderr.encoding or "ascii"
            since_s = self._since_s if line.since_s is None else line.since_s
            shown = line.fit(_columns() - 1, age_s=now_s - since_s, encoding=encoding)
        with self._lock:
            if shown != self._drawn:
                # In one write, so that the line does not flicker.
                sys.stderr.write("\r" * bool(self._drawn) + shown + "\x1b[K" * bool(self._drawn))
                sys.stderr.flush()
                self._drawn = shown

    def erase(self) -> None:
        """Take the line away."""
        if self._drawn:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()
            self._drawn = ""


def _columns() -> int:
    """Of the terminal behind stderr: stdout may be a file."""
    try:
        columns = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        columns = shutil.get_terminal_size().columns
    return max(columns or 80, 11)


def _without_progress(text: str) -> str:
    """The same without the lines of progress that a log gets: the live line has them."""
    from yoked.train.progress import PROGRESS_LINE

    return "".join(line for line in text.splitlines(keepends=True) if not PROGRESS_LINE.match(line))


class StatusLine:
    """One line of progress on a terminal; nothing elsewhere."""

    def __init__(self, output: Output) -> None:
        self._view = LiveView(output)
        self._began_s = time.monotonic()

    def show(self, doing: str) -> None:
        """Show the current action."""
        if self._view.live is not None:
            passed_s = time.monotonic() - self._began_s
            # It has its own count of seconds.
            line = LiveText((LivePart(f"{passed_s:3.0f} s  {doing}", 0),), every_s=math.inf)
            self._view.live(line)

    def __enter__(self) -> Self:
        self.show("connecting")
        return self

    def __exit__(self, *problem: object) -> None:
        self._view.erase()


def shares_hosts(flags: JobFlags, output: Output) -> Callable[[Sequence[str]], bool]:
    """Asks whether a run is to start beside others: by --beside, or at a terminal by an answer."""

    def agreed(others: Sequence[str]) -> bool:
        if not (flags.beside or output.can_ask):
            return False
        for line in others:
            output.note(line)
        return flags.beside or output.asks("Start it all the same?")

    return agreed


def report_end(
    end: JobEnd, output: Output, flag: str, *, came: Outputs | None = None, **more: Any
) -> int:
    """Say how a run that was followed ended; returns the exit status.

    came: its outputs, if they were brought here. more: for programs.
    """
    evidence, commands = end.evidence, end.next_commands(flag)
    if came is not None:
        evidence += came.lines() or [f"no file matches {', '.join(came.patterns)}"]
    elif end.record.outputs and not end.detached:
        from yoked.launch.outputs import tell_place

        folders = {host: f"{told['folder']}/{WORK}" for host, told in end.record.hosts.items()}
        evidence.append(tell_place(end.record.outputs, folders))
        commands.append(f"yoked fetch {end.run}{flag}")
    # Those of a host know no fleet's file.
    commands = [about_fleet(line, flag) for line in commands]
    payload = _end_payload(end, came, **more)
    output.result(payload, verdict=end.verdict, evidence=evidence, next_commands=commands)
    return end.exit_code


def _end_payload(end: JobEnd, came: Outputs | None, **more: Any) -> dict[str, Any]:
    outputs = {} if came is None else {"outputs": came.to_dict()}
    return {**end.to_dict(), **more, **outputs}


def job_payload(
    job: FleetJob, run: str | None = None, came: Outputs | None = None
) -> dict[str, Any]:
    """The object that --json prints of a job that a command started. run, came: as below."""
    run = run or job.started.run
    told = _started(job, run)
    if job.end is None:
        return {**told, **verdict_of(run, "running", ())}
    return _end_payload(job.end, came, **told)


def _started(job: FleetJob, run: str) -> dict[str, Any]:
    hosts = [
        {
            "name": node.host.name,
            "ranks": node.ranks,
            "address": node.address,
            "interface": node.interface,
            "python": node.python,
        }
        for node in job.started.nodes
    ]
    told = {"run": run, "job": job.started.run, "hosts": hosts, "start_s": job.started.took_s}
    if job.started.sent is not None:
        told["sent"] = job.started.sent.to_dict()
    return told


def report_job(
    job: FleetJob,
    flags: JobFlags,
    output: Output,
    run: str | None = None,
    came: Outputs | None = None,
) -> int:
    """Say how a job ended that a command started, or that it runs; returns the exit status.

    run: what it is a start of; None: it is a run of its own. came: outputs that were brought here.
    """
    run, flag = run or job.started.run, same_fleet(flags.fleet)
    if job.end is not None:
        return report_end(job.end, output, flag, came=came, **_started(job, run))
    output.result(
        job_payload(job, run),
        verdict=f"run {run} runs on {len(job.started.nodes)} hosts, and needs nobody here",
        next_commands=[f"yoked {word} {run}{flag}" for word in ("watch", "attach", "stop")],
    )
    return 0
