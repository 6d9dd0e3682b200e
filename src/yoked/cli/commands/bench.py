"""`yoked bench`: training speed of one process, one host, each GPU, and all hosts."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated, get_args

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag, same_fleet
from yoked.cli.interrupt import ends_as_interrupt
from yoked.cli.outfile import named_file
from yoked.cli.output import Output
from yoked.console import StageProgress
from yoked.errors import UsageError, YokedError
from yoked.fleet.file import open_fleet
from yoked.report.bench_table import COLUMNS, BenchTable, to_markdown
from yoked.table import table as aligned
from yoked.text import plain
from yoked.train.config import TrainConfig
from yoked.train.limits import Sync, require_known

STEPS = 20
PLOTS = (".png", ".svg", ".pdf")
# Flags of `yoked train` that a benchmark refuses, and the flag to use instead.
_REFUSED = {
    "num_iterations": "--steps",
    "target_flops": "--steps",
    "target_param_data_ratio": "--steps",
    "duration": "--steps",
    "config_file": "",
    "ranks": "--processes",
    "run": "",
    "resume": "",
    "resume_from_step": "",
    "start_from": "",
    "dry_run": "",
}
_NAMED = {"start_from": "--from", "duration": "--for", "config_file": "--config"}
# Flags without effect: their results would be thrown away.
_IGNORED_FLAGS = (
    "eval_every", "eval_tokens", "save_every", "keep_last", "model_tag", "log_to", "runs_dir",
)  # fmt: skip


def command(
    *,
    config: Annotated[TrainConfig, Parameter(name="*")] = TrainConfig(),  # noqa: B008
    fleet: FleetFlag = None,
    steps: Annotated[int, Parameter(help="Steps of each run.")] = STEPS,
    processes: Annotated[
        int | None,
        Parameter(
            help="Measure 1, 2, 4, … processes on the first host, up to so many; 1: no others. "
            "Default: one for each core, at most 4."
        ),
    ] = None,
    compare: Annotated[
        tuple[str, ...],
        Parameter(help="Another --sync to measure on all hosts; may be repeated.", negative=""),
    ] = (),
    markdown: Annotated[bool, Parameter(help="Print Markdown.", negative="")] = False,
    plot: Annotated[Path | None, Parameter(help="Draw it: a .png, .svg or .pdf.")] = None,
) -> int:
    """Measure what training gives: one process, several on one host, each GPU, all hosts.

    Takes the flags of `yoked train`, but for those that a benchmark decides: it refuses
    --num-iterations, --target-flops, --target-param-data-ratio, --for, --ranks, --run, --config,
    --resume, --resume-from-step, --from and --dry-run. Each host is measured alone, all of them at
    the same time, then together: the same steps of the same rows. Nothing but yoked's own cache
    stays on the hosts; Ctrl-C ends what runs.
    """
    from yoked.workflows.bench import run_bench

    _check(config, steps, processes, markdown, plot)
    strategies = [config.sync, *compare]
    for sync in compare:
        require_known("--compare", sync, get_args(Sync))
    output = Output(json_mode=config.json_output)
    for note in config.notes:
        output.note(note)
    for name in _IGNORED_FLAGS:
        if name in config.given():
            output.note(f"{_flag(name)}: a benchmark neither evaluates nor keeps anything")
    progress = StageProgress(output.console)
    # Nobody waits for the figures any more: what was started for them ends too.
    with ends_as_interrupt(signal.SIGTERM, signal.SIGHUP):
        table = run_bench(
            config, open_fleet(fleet), steps, processes, strategies, output.note, progress
        )
    drawn = None if plot is None else _draw(table, plot, output)
    if markdown:
        # Which sync `auto` chose is what a host says.
        output.text(plain(to_markdown(table)))
        return 0
    plots = [] if drawn is None else [f"plot  {drawn}"]
    output.result(
        {**table.to_dict(), "plot": drawn},
        verdict=table.verdict(),
        evidence=[*aligned(COLUMNS, table.cells()), *table.notes(), *plots],
        next_commands=[f"yoked plan{same_fleet(fleet)}"] if len(table.single_host) > 1 else [],
    )
    return 0


def _draw(table: BenchTable, plot: Path, output: Output) -> str | None:
    """Draw the table. A failure is only a note: the measured table is still printed."""
    try:
        from yoked.report.bench_plot import plot_bench

        return str(plot_bench(table, plot))
    except (YokedError, ImportError) as problem:
        output.note(f"no plot: {problem}")
        return None


def _check(
    config: TrainConfig, steps: int, processes: int | None, markdown: bool, plot: Path | None
) -> None:
    for name in config.given():
        if name in _REFUSED:
            flag = _flag(name)
            instead = f"{_REFUSED[name]} says how many" if _REFUSED[name] else f"leave {flag} out"
            raise UsageError(f"{flag} is not for a benchmark, which starts anew", fix=instead)
    if steps < 2:
        raise UsageError(f"--steps {steps}: the first step does not count", fix=f"--steps {STEPS}")
    if processes is not None and processes < 1:
        raise UsageError(f"--processes {processes}: below 1", fix="--processes 2")
    if markdown and config.json_output:
        raise UsageError("--json and --markdown are two forms", fix="give one of the two")
    if plot is not None and plot.suffix not in PLOTS:
        why = f"{plot.suffix} is no file type of a plot" if plot.suffix else "no file type"
        raise UsageError(f"--plot {plot}: {why}", fix="end the name in .png, .svg or .pdf")
    if plot is not None:
        named_file("--plot", plot, plot.name)


def _flag(name: str) -> str:
    return _NAMED.get(name, "--" + name.replace("_", "-"))
