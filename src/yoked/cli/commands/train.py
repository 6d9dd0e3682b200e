"""`yoked train`: name the run, start its ranks, say how it went."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
from collections.abc import Mapping
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import JobFlags, check_run_name, same_fleet
from yoked.cli.live import LiveView, report_job, shares_hosts
from yoked.cli.output import INTERRUPTED_STATUS, Output
from yoked.console import StageProgress
from yoked.errors import UsageError, YokedError
from yoked.fleet.file import find_fleet, load_fleet
from yoked.fleet.model import Fleet
from yoked.runs import find_run, new_run_name, same_runs
from yoked.train.config import TrainConfig
from yoked.train.data.hub_names import HUB
from yoked.units import format_bytes, format_count, format_duration

if TYPE_CHECKING:
    from yoked.launch.here import LocalRun

Result = Mapping[str, Any]


def command(
    *,
    config: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig(),  # noqa: B008
    flags: Annotated[JobFlags, Parameter(name="*")] = JobFlags(),  # noqa: B008
) -> int:
    """Train a model: on the hosts of yoked.toml where there is one, else on this machine.

    Without flags it trains a small model on the embedded corpus, with settings that fit the
    device. --dry-run shows every choice and its reason. On this machine Ctrl-C saves a checkpoint
    and says how to go on; on a fleet it leaves the run to itself, and `yoked stop` saves. A run
    outlives the terminal that follows it: `yoked attach` finds it.
    """
    output = Output(json_mode=config.json_output)
    if config.config_file is not None:
        from yoked.train.config_file import with_config_file

        config, others = with_config_file(config, JobFlags)
        flags = flags.on_top_of(others)
        config = dataclasses.replace(config, json_output=output.json_mode)
    if config.dry_run and flags.detach:
        raise UsageError("--dry-run is over at once", fix="leave --detach out")
    fleet = named_fleet(flags)
    config = with_fetched_data(config, output)
    if fleet is None:
        return run_training(config, output, flags)
    return run_on_fleet(config, fleet, flags, output)


def with_fetched_data(config: TrainConfig, output: Output) -> TrainConfig:
    """The configuration with a data set of the hub fetched, and named by its commit."""
    if not config.data.startswith(HUB):
        return config
    from yoked.train.data.hub import fetch_dataset

    with closing(StageProgress(output.console)) as progress:
        named = fetch_dataset(config.data, progress=progress, tell=output.note)
    return dataclasses.replace(config, data=named)


def named_fleet(flags: JobFlags) -> Fleet | None:
    """The fleet to train on; None: this machine alone."""
    path = find_fleet(flags.fleet)
    return None if path is None else load_fleet(path)


def run_on_fleet(config: TrainConfig, fleet: Fleet, flags: JobFlags, output: Output) -> int:
    """Train on the hosts of a fleet and report; returns the exit status."""
    from yoked.workflows.train_fleet import newest_run, train_fleet

    for note in config.notes:
        output.note(note)
    output.note(f"the hosts of {fleet.path}; --fleet . trains on this machine alone")
    # A run that was left to its hosts has no folder here, and may be newer than all that have.
    if config.goes_on and config.run is None and (run := newest_run(fleet, output.note)):
        output.note(f"run {run} is the newest of these hosts")
        config = dataclasses.replace(config, run=run)
    # Ranks are the hosts' own matter, those of an earlier start too.
    if not _known_to_hosts_alone(config):
        named = with_run_name(config, datetime.now().astimezone())
        config = dataclasses.replace(named, ranks=config.ranks)
    check_run_name(config.run or "")
    flag = same_fleet(flags.fleet)
    job, result = train_fleet(
        config,
        fleet,
        LiveView(output),
        detach=flags.detach,
        doctor=flags.doctor,
        restarts=flags.checked_restarts(),
        on_fault=flags.resolved_on_fault("stop"),
        nice=flags.checked_nice(),
        share=shares_hosts(flags, output),
        fleet_flag=flag,
    )
    if result is None:
        return report_job(job, flags, output, config.run)
    return report_result(result, config, output, fleet_flag=flag)


def train_here(config: TrainConfig, flags: JobFlags, output: Output) -> Result | None:
    """Train on this machine; rank 0's result, or None for a run that was left to itself."""
    from yoked.launch.here import LocalRun, run_here, supervises

    flag = same_fleet(flags.fleet)
    where = "" if config.run is None else _run_flags(config.run, config)
    run = LocalRun(
        run=config.run or "dry-run",
        # Nothing is trained in a dry run, so no folder of a run may stay.
        run_dir=None if config.dry_run else (config.runs_dir / (config.run or "")).resolve(),
        ranks=config.local_ranks,
        config=config.to_dict(),
        threads=config.thread_count,
        nice=flags.checked_nice(),
        restarts=flags.checked_restarts(),
        on_fault=flags.resolved_on_fault("stop"),
        is_new=not config.goes_on,
        flags=flag,
        go_on=f"yoked train --resume --run {where}{flag}",
    )
    view = LiveView(output)
    if supervises():
        from yoked.workflows.room import require_room

        return run_here(
            run,
            view,
            detach=flags.detach,
            check=lambda nodes: require_room(config, nodes, view.note),
            share=shares_hosts(flags, output),
        )
    return _train_without_jobs(config, run, flags, view)


def _train_without_jobs(
    config: TrainConfig, run: LocalRun, flags: JobFlags, view: LiveView
) -> Result:
    """Train on a system without /proc: one rank in this process, several as its children."""
    from yoked.agent import processors
    from yoked.agent.facts import memory
    from yoked.launch.filestore import UNKNOWN_HERE, run_in_process, run_without_proc
    from yoked.workflows.room import check_room

    if flags.detach or flags.restarts:
        raise UsageError(
            "--detach and --restarts need Linux's /proc, which this system does not have",
            fix="leave them out: the run lasts as long as this command",
        )
    if told := check_room("this machine", config.local_ranks, {**processors.facts(), **memory()}):
        view.note(told)
    if run.nice:
        # Nothing supervises: this process is a rank, or its children are.
        os.nice(run.nice)
    view.note(f"this system has no /proc: {UNKNOWN_HERE} do not work on this run")
    if config.local_ranks > 1:
        return run_without_proc(run, view)
    from yoked.train.parts import train

    def act() -> dict[str, Any]:
        found = train(config, console=view.console)
        assert found is not None, "a rank alone does not sit out"
        return found.to_dict()

    return run_in_process(run, act)


def run_training(config: TrainConfig, output: Output, flags: JobFlags) -> int:
    """Train on this machine as configured and report; returns the exit status."""
    for note in config.notes:
        output.note(note)
    if not config.dry_run or config.goes_on:
        config = with_run_name(config, datetime.now().astimezone())
    found = train_here(config, flags, output)
    if found is not None:
        return report_result(found, config, output)
    named = f"{shlex.quote(config.run or '')}{same_fleet(flags.fleet)}"
    output.result(
        {"run": config.run, "state": "running", "dir": str(config.runs_dir / (config.run or ""))},
        verdict=f"run {config.run} trains, and needs nobody here",
        next_commands=[f"yoked {word} {named}" for word in ("watch", "attach", "stop")],
    )
    return 0


def report_result(
    found: Result, config: TrainConfig, output: Output, *, fleet_flag: str | None = None
) -> int:
    """Say what came of a run, or would come of it; returns the exit status.

    fleet_flag: the run's checkpoints are on hosts, and a command line about those ends with this.
    """
    if config.dry_run:
        from yoked.cli.commands.train_text import plan_lines

        output.result(
            found,
            verdict=f"would train {found['params']['total']:,} parameters (nothing was trained)",
            evidence=plan_lines(found),
            next_commands=["the same command without --dry-run"],
        )
        return 0
    result = dict(found)
    try:
        from yoked.report.loss_plot import plot_loss

        result["plot"] = str(plot_loss(Path(result["dir"]))[0])
    except (YokedError, ImportError, OSError) as problem:
        # The training is done and saved; a picture is not worth a failed command.
        output.note(f"no loss plot: {problem}")
    interrupted = result.get("state") == "interrupted"
    steps, tokens = int(result["steps"]), float(result["tokens"])
    verb = "stopped and saved" if interrupted else "trained"
    where = _run_flags(str(result["run"]), config)
    go_on = [f"yoked train --resume --run {where}{fleet_flag or ''}"]
    bring = [] if fleet_flag is None else [f"yoked fetch {where}{fleet_flag}"]
    look = [*bring, f"yoked sample {where}", f"yoked plot {where}"]
    output.result(
        result,
        verdict=f"{verb}: run {result['run']}, {steps:,} steps, {format_count(tokens)} tokens",
        evidence=_evidence(result),
        next_commands=go_on if interrupted else look,
    )
    return INTERRUPTED_STATUS if interrupted else 0


def with_run_name(config: TrainConfig, now: datetime) -> TrainConfig:
    """The configuration with the run named: all ranks must use one folder.

    A resumed run is the one named, or the latest, and must exist; where nothing else is said,
    it gets as many ranks as it had.
    """
    if config.goes_on:
        folder = find_run(config.run, config.runs_dir)
        ranks = config.local_ranks if config.ranks or config.shares else _ranks_before(folder)
        return dataclasses.replace(config, run=folder.name, runs_dir=folder.parent, ranks=ranks)
    if config.run is None:
        return dataclasses.replace(config, run=new_run_name(config.runs_dir, now))
    return config


def _known_to_hosts_alone(config: TrainConfig) -> bool:
    """Whether a run that is resumed was started from another machine: its host has its folder."""
    return bool(config.run and config.goes_on and not (config.runs_dir / config.run).exists())


def _ranks_before(folder: Path) -> int:
    """Ranks that an earlier start of a run had."""
    try:
        recorded = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        return TrainConfig.from_dict(recorded["config"]).local_ranks
    except (OSError, ValueError, TypeError, KeyError):
        # The loop names what is wrong with the folder better than a count of ranks could.
        return 1


def _run_flags(run: str, config: TrainConfig) -> str:
    return f"{shlex.quote(run)}{same_runs(config.runs_dir)}"


def _evidence(result: Result) -> list[str]:
    lines = [f"folder      {result['dir']}"]
    if (loss := result.get("loss")) is not None:
        lines.append(f"loss        {loss:.4f} nats")
    if (val_bpb := result.get("val_bpb")) is not None:
        lines.append(f"validation  {val_bpb:.4f} bits per byte")
    best = result.get("best")
    if best is not None and best["step"] != result["steps"]:
        # The one that is used by default is the last.
        lines.append(
            f"best        {best['val_bpb']:.4f} at step {best['step']:,}: --checkpoint best"
        )
    if (rate := result.get("tokens_per_second")) is not None:
        lines.append(f"speed       {rate:,.0f} tokens/s")
    if (first_step_s := result.get("first_step_s")) is not None:
        lines.append(f"first step  {format_duration(first_step_s)}")
    if result.get("bytes_sent_per_step"):
        lines.append(f"sent        {format_bytes(result['bytes_sent_per_step'])} a step")
    lines += [f"restarted   {line}" for line in result.get("restarts", ())]
    if (plot := result.get("plot")) is not None:
        lines.append(f"loss curve  {plot}")
    return lines
