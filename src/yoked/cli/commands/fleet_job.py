"""The report of a job that a command started on a fleet."""

from __future__ import annotations

from yoked.cli.flags import JobFlags, same_fleet
from yoked.cli.output import Output
from yoked.workflows.fleet_job import FleetJob


def report_job(job: FleetJob, flags: JobFlags, output: Output) -> int:
    """Say how a job ended, or that it runs; returns the exit status."""
    started, end, flag = job.started, job.end, same_fleet(flags.fleet)
    payload = {
        "run": started.run,
        "hosts": [
            {
                "name": node.host.name,
                "ranks": node.ranks,
                "address": node.address,
                "interface": node.interface,
                "python": node.python,
            }
            for node in started.nodes
        ],
        "start_s": started.took_s,
        **({"state": "running"} if end is None else end.to_dict()),
    }
    if end is None:
        output.result(
            payload,
            verdict=f"run {started.run} runs on {len(started.nodes)} hosts, and needs nobody here",
            next_commands=[f"yoked attach {started.run}{flag}", f"yoked stop {started.run}{flag}"],
        )
        return 0
    output.result(
        payload, verdict=end.verdict, evidence=end.evidence, next_commands=end.next_commands(flag)
    )
    return end.exit_code
