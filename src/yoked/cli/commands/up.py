"""`yoked up`: from ssh names to a fleet that trains, step by step, asking before each change."""

from __future__ import annotations

import shlex
import signal
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import JsonFlag
from yoked.cli.interrupt import ends_as_interrupt
from yoked.cli.output import Output, as_called
from yoked.errors import UsageError
from yoked.fleet.file import require_no_folder

if TYPE_CHECKING:
    from yoked.workflows.steps import Report
    from yoked.workflows.up import PlanStep, Site

_DEFAULT = Path("yoked.toml")


def command(
    *host: Annotated[
        str,
        Parameter(
            help="Names that ssh understands, rank 0's first; `.` is this machine. Default: those "
            "of the fleet's file, or this machine alone."
        ),
    ],
    fleet: Annotated[Path, Parameter(help="The fleet's file, written if need be.")] = _DEFAULT,
    ssh_config: Annotated[
        Path | None, Parameter(help="A file instead of ~/.ssh/config, also for later commands.")
    ] = None,
    depth: Annotated[
        int | None, Parameter(help="Layers of the model to plan for. Default: what devices hold.")
    ] = None,
    yes: Annotated[bool, Parameter(help="Do not ask.", negative="")] = False,
    sudo: Annotated[
        bool, Parameter(help="Use `sudo -n` on hosts for repairs that need root.", negative="")
    ] = False,
    json_output: JsonFlag = False,
) -> int:
    """Set up hosts for training: ssh, yoked.toml, environments, repairs, measurement, plan.

    Looks, and does what is missing, asking before each change. What only a person can do is said,
    and waited for. It may be ended and started again at any time: what was done is found done.
    """
    from yoked.cli.commands.up_person import Terminal
    from yoked.workflows.passed import note_passed
    from yoked.workflows.steps import climb
    from yoked.workflows.up import Site, steps_of

    if depth is not None and depth < 1:
        raise UsageError(f"--depth {depth}: a model has a layer at least", fix="--depth 4")
    require_no_folder(fleet)
    output = Output(json_mode=json_output)
    with closing(Terminal(output, yes=yes)) as person:
        site = Site(host, fleet, ssh_config, depth, sudo, person)
        # Whoever names no host that can be meant learns it before anything is looked at.
        opened = site.fleet
        steps, repair, plan = steps_of(site)
        # What it measures by a job on the hosts ends with it.
        with ends_as_interrupt(signal.SIGTERM, signal.SIGHUP):
            reports = climb(steps, repair, person)
    ended = next((each for each in reports if each.state != "done"), None)
    again = _again(host, site, yes=yes)
    commands = _train(site, plan) if ended is None else _next(ended, again)
    if ended is None:
        note_passed(site.fleet, plan.name, reports[-1].standing.said, commands)
    output.result(
        {
            "ok": ended is None,
            "fleet": str(fleet) if fleet.is_file() else None,
            "hosts": [each.name for each in opened.hosts],
            "needs": None if ended is None else _needs(ended),
            "steps": [_payload(each) for each in reports],
            "plan": _plan_payload(plan) if ended is None else None,
            "next": [{"command": line, "argv": shlex.split(line)} for line in commands],
        },
        verdict=_verdict(ended, plan),
        evidence=_explained(plan) if ended is None else _evidence(ended),
        next_commands=commands,
    )
    return 0 if ended is None else 1


def _again(names: Sequence[str], site: Site, *, yes: bool) -> str:
    """The same command once more."""
    words = ["yoked", "up", *names]
    if site.path != _DEFAULT:
        words += ["--fleet", str(site.path)]
    if site.ssh_config is not None:
        words += ["--ssh-config", str(site.ssh_config)]
    if site.depth is not None:
        words += ["--depth", str(site.depth)]
    flags = ["--yes" for _ in range(yes)] + ["--sudo" for _ in range(site.sudo)]
    return shlex.join([*words, *flags])


def _next(ended: Report, again: str) -> list[str]:
    return [f"{again} --yes"] if ended.state == "consent" else [again]


def _train(site: Site, plan: PlanStep) -> list[str]:
    from yoked.cli.commands.plan_text import train_commands

    assert plan.plan is not None
    flags = [] if site.depth is None else [f"--depth {site.depth}"]
    named = None if site.path == _DEFAULT else site.path
    return train_commands(plan.plan, flags, named, site.fleet.ssh_config)


def _needs(ended: Report) -> str | None:
    """What the step waits for: a yes, or hands; None: neither would help."""
    if ended.state in ("consent", "declined"):
        return "consent"
    return "hands" if ended.standing.state == "hands" else None


def _payload(report: Report) -> dict[str, Any]:
    standing, problem = report.standing, report.problem
    return {
        "name": report.name,
        "state": report.state,
        "said": standing.said,
        "changed": report.changed,
        "needs": None if report.state in ("done", "waiting") else _needs(report),
        "commands": [vars(each) for each in standing.commands] if report.state != "done" else [],
        "findings": list(standing.findings),
        **standing.facts,
        "error": None
        if problem is None
        else {
            "code": problem.code,
            "params": dict(problem.params),
            "what": problem.what,
            "fix": list(problem.fix),
        },
        "took_s": round(report.took_s, 3),
    }


def _plan_payload(step: PlanStep) -> dict[str, Any]:
    from yoked.cli.commands.plan_text import plan_payload

    assert step.plan is not None
    assert step.measurement is not None
    assert step.target is not None
    return plan_payload(step.plan, step.measurement, step.target, (), simulated=False)


def _explained(step: PlanStep) -> list[str]:
    from yoked.plan.explain import explanation

    assert step.plan is not None
    assert step.target is not None
    return explanation(step.plan, step.target)


def _verdict(ended: Report | None, plan: PlanStep) -> str:
    from yoked.plan.explain import verdict

    if ended is None:
        assert plan.plan is not None
        return f"ready: {verdict(plan.plan)}"
    why = {
        "hands": "it needs your hands",
        "consent": "it needs your yes",
        "declined": "you said no",
        "failed": "it failed",
    }[ended.state]
    return f"not ready: {ended.name}: {why}"


def _evidence(ended: Report) -> list[str]:
    if ended.problem is not None and not ended.standing.findings:
        lines = ended.problem.what.splitlines()
        return [*lines, *(f"fix: {as_called(line)}" for line in ended.problem.fix)]
    return [*(ended.standing.lines or (ended.standing.said,))]
