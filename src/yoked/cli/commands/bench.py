"""`yoked bench`: training speed of one process, one host, each GPU, and all hosts."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter

from yoked.cli.flags import FleetFlag
from yoked.cli.output import Output
from yoked.errors import UsageError, YokedError
from yoked.runs import stamp
from yoked.train.config import TrainConfig
from yoked.units import doublings

if TYPE_CHECKING:
    from yoked.fleet.model import Fleet
    from yoked.launch.start import NodePlan
    from yoked.report.bench_table import BenchRow, BenchTable
    from yoked.workflows.bench_trials import Trial

STEPS = 20
# Default for processes on one host: four show whether memory bandwidth is the limit.
MAX_PROCESSES = 4
# Time for all-reduces of all sizes together.
ALL_REDUCE_LIMIT_S = 10.0
PLOTS = (".png", ".svg", ".pdf")
# Flags of `yoked train` that a benchmark refuses, and the flag to use instead.
_REFUSED = {
    "num_iterations": "--steps",
    "target_flops": "--steps",
    "target_param_data_ratio": "--steps",
    "ranks": "--processes",
    "run": "",
    "resume": "",
    "resume_from_step": "",
    "start_from": "",
    "dry_run": "",
}
# Flags without effect: their results would be thrown away.
_IGNORED_FLAGS = ("eval_every", "eval_tokens", "save_every", "keep_last", "model_tag", "runs_dir")


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
    --num-iterations, --target-flops, --target-param-data-ratio, --ranks, --run, --resume,
    --resume-from-step, --from and --dry-run. Each host is measured alone, all of them at the same
    time, then together: the same steps of the same rows. Nothing but yoked's own cache stays on
    the hosts; Ctrl-C ends what runs.
    """
    _check(config, steps, processes, markdown, plot)
    strategies = [config.sync, *compare]
    for sync in strategies:
        # Refuse an unknown sync before anything runs.
        _with_sync(config, sync)
    from yoked.fleet.file import open_fleet

    output = Output(json_mode=config.json_output)
    for note in (*config.notes, *_ignored_notes(config)):
        output.note(note)
    table = _measure(config, open_fleet(fleet), steps, processes, strategies, output)
    drawn = None if plot is None else _draw(table, plot, output)
    _report(table, drawn, output, markdown=markdown)
    return 0


def _draw(table: BenchTable, plot: Path, output: Output) -> str | None:
    """Draw the table. A failure is only a note: the measured table is still printed."""
    try:
        from yoked.report.bench_plot import plot_bench

        return str(plot_bench(table, plot))
    except (YokedError, ImportError) as problem:
        output.note(f"no plot: {problem}")
        return None


def _with_sync(config: TrainConfig, sync: str) -> TrainConfig:
    """The configuration with another sync. Raises UsageError for an unknown one."""
    return TrainConfig.from_dict({**config.to_dict(), "sync": sync})


def _check(
    config: TrainConfig, steps: int, processes: int | None, markdown: bool, plot: Path | None
) -> None:
    for name in config.given():
        if name in _REFUSED:
            flag = "--from" if name == "start_from" else _flag(name)
            instead = f"{_REFUSED[name]} says how many" if _REFUSED[name] else f"leave {flag} out"
            raise UsageError(f"{flag} is not for a benchmark, which starts anew", fix=instead)
    if steps < 2:
        raise UsageError(f"--steps {steps}: the first step does not count", fix=f"--steps {STEPS}")
    if processes is not None and processes < 1:
        raise UsageError(f"--processes {processes}: below 1", fix="--processes 2")
    if markdown and config.json_output:
        raise UsageError("--json and --markdown are two forms", fix="give one of the two")
    if plot is not None and plot.suffix not in PLOTS:
        raise UsageError(f"--plot {plot}: its name does not say what", fix="--plot bench.png")
    if plot is not None and not plot.absolute().parent.is_dir():
        raise UsageError(
            f"--plot {plot}: there is no folder {plot.parent}", fix=f"mkdir -p {plot.parent}"
        )


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _ignored_notes(config: TrainConfig) -> list[str]:
    ignored = [_flag(name) for name in _IGNORED_FLAGS if name in config.given()]
    return [f"{flag}: a benchmark neither evaluates nor keeps anything" for flag in ignored]


def _measure(
    config: TrainConfig,
    fleet: Fleet,
    steps: int,
    processes: int | None,
    strategies: Sequence[str],
    output: Output,
) -> BenchTable:
    """Connect, measure one group after the other, and collect the rows."""
    from yoked.console import StageProgress
    from yoked.fleet.discover import find_addresses
    from yoked.launch.hosts import connected
    from yoked.launch.start import plan_nodes
    from yoked.report.bench_table import BenchTable
    from yoked.workflows.bench_trials import measure
    from yoked.workflows.fleet_job import require_versions

    with connected(fleet) as clients:
        nodes = plan_nodes(fleet, clients, None, lambda: find_addresses(fleet, clients))
        require_versions(nodes)
        names, progress = _RunNames(), StageProgress(output.console)
        shipped = _ship(_comparable_config(config, steps), nodes, output)
        group = [_single_host_trial(fleet, node, shipped, names) for node in nodes]
        output.note(_measuring_note(group))
        first = measure(group, fleet, output.note, progress)
        rows = list(first)
        for group in _single_host_groups(fleet, nodes, first, shipped, processes, names):
            output.note(_measuring_note(group))
            rows += measure(group, fleet, output.note, progress)
        if len(nodes) > 1:
            for sync in strategies:
                trial = _all_hosts_trial(nodes, config, shipped, sync, names)
                output.note(_measuring_note([trial]))
                rows += measure([trial], fleet, output.note, progress)
            payload_bytes = _payload_bytes(rows, nodes)
            timed = _time_allreduce(fleet, nodes, payload_bytes, config, output)
            rows = _with_allreduce(rows, timed, _slowest_link_bytes_per_s(fleet, output), nodes)
    single_host_speeds = {row.hosts[0]: row.tokens_per_second for row in first}
    return BenchTable(tuple(rows), single_host_speeds)


class _RunNames:
    """Numbered names for the runs of this benchmark."""

    def __init__(self) -> None:
        self._stem = f"bench-{stamp(datetime.now().astimezone())}"
        self._number = 0

    def __call__(self) -> str:
        self._number += 1
        return f"{self._stem}-{self._number}"


def _measuring_note(trials: Sequence[Trial]) -> str:
    together = ", at the same time" if len(trials) > 1 else ""
    return f"measuring {' and '.join(trial.name for trial in trials)}{together}"


def _comparable_config(config: TrainConfig, steps: int) -> TrainConfig:
    """Fix all settings that would otherwise fit the device, so that rows are comparable."""
    from yoked.train.resolve import SMALL_DEVICE_BATCH_TOKENS, resolve

    device = config.device_type if config.device_type != "auto" else "cpu"
    resolved = resolve(config, device)
    row = resolved.max_seq_len
    batch = config.total_batch_size
    if batch is None and device != "cuda":
        batch = -(-SMALL_DEVICE_BATCH_TOKENS // row) * row
    return dataclasses.replace(
        config,
        depth=resolved.depth,
        head_dim=resolved.head_dim,
        max_seq_len=row,
        window_pattern=resolved.window_pattern,
        device_batch_size=resolved.device_batch_size,
        total_batch_size=batch,
        num_iterations=steps,
        eval_every=-1,
        save_every=-1,
        json_output=False,
    )


def _ship(config: TrainConfig, nodes: list[NodePlan], output: Output) -> TrainConfig:
    """Send data and kernels to every host; returns the configuration that names them there."""
    from yoked.core.parallel import at_once
    from yoked.launch.datapush import push_kernels
    from yoked.workflows.train_fleet import ship_data

    label = ship_data(config, nodes, output.note)
    at_once(lambda node: push_kernels(node.client), nodes, leave=True)
    # Shares are by rank of the whole fleet, so a single host cannot use them.
    return dataclasses.replace(config, data=label, tokenizer=None, shares=None)


def _single_host_trial(
    fleet: Fleet, node: NodePlan, config: TrainConfig, names: _RunNames
) -> Trial:
    """A trial of one host with as many ranks as in the fleet."""
    on_gpu = bool(_gpus(node)) and config.device_type != "cpu"
    name = _row_name(node, node.ranks, "GPU" if on_gpu else "")
    return _trial_on_host(fleet, node, node.ranks, config, names, name=name)


def _row_name(node: NodePlan, ranks: int, device: str = "") -> str:
    """A row's name, such as `2 processes on i9, CPU`."""
    where = f"{_host_label(node)}, {device}" if device else _host_label(node)
    return f"{ranks} process{'es' * (ranks != 1)} on {where}"


def _trial_on_host(
    fleet: Fleet,
    node: NodePlan,
    ranks: int,
    config: TrainConfig,
    names: _RunNames,
    *,
    name: str,
    env: dict[str, str] | None = None,
) -> Trial:
    from yoked.launch.start import plan_nodes
    from yoked.workflows.bench_trials import Trial

    one = dataclasses.replace(fleet, hosts=(node.host,))
    # The ranks of a single host use its loopback interface.
    nodes = plan_nodes(one, {node.host.name: node.client}, ranks, dict)
    return Trial(
        name=name,
        nodes=tuple(nodes),
        config=dataclasses.replace(config, run=names()),
        sync=None if ranks == 1 else config.sync,
        env=env or {},
    )


def _host_label(node: NodePlan) -> str:
    from yoked.fleet.model import HERE

    return "this machine" if node.host.name == HERE else node.host.name


def _single_host_groups(
    fleet: Fleet,
    nodes: Sequence[NodePlan],
    single_host_rows: Sequence[BenchRow],
    config: TrainConfig,
    processes: int | None,
    names: _RunNames,
) -> list[list[Trial]]:
    """Further trials on one host: processes on the first host's cores, and each GPU."""
    groups: list[list[Trial]] = []
    first = nodes[0]
    if config.device_type in ("auto", "cpu"):
        on_cpu = dataclasses.replace(config, device_type="cpu")
        most = processes or min(MAX_PROCESSES, int(first.facts["usable_cores"]))
        # Its ranks in the fleet are measured already.
        known = {single_host_rows[0].ranks} if single_host_rows[0].device == "cpu" else set()
        device = "CPU" if _gpus(first) else ""
        groups += [
            [
                _trial_on_host(
                    fleet, first, ranks, on_cpu, names, name=_row_name(first, ranks, device)
                )
            ]
            for ranks in doublings(most)
            if ranks not in known
        ]
    if config.device_type in ("auto", "cuda"):
        groups += _gpu_groups(fleet, nodes, config, names)
    return groups


def _gpu_groups(
    fleet: Fleet, nodes: Sequence[NodePlan], config: TrainConfig, names: _RunNames
) -> list[list[Trial]]:
    """Each GPU by itself, on all hosts at once. A host's only GPU is measured already."""
    on_gpu = dataclasses.replace(config, device_type="cuda")

    def on(node: NodePlan, number: int) -> Trial:
        only = {"CUDA_VISIBLE_DEVICES": str(number)}
        name = f"GPU {number} of {_host_label(node)}"
        return _trial_on_host(fleet, node, 1, on_gpu, names, name=name, env=only)

    most = max(len(_gpus(node)) for node in nodes)
    groups = [
        [on(node, number) for node in nodes if len(_gpus(node)) > max(number, 1)]
        for number in range(most)
    ]
    return [group for group in groups if group]


def _gpus(node: NodePlan) -> Sequence[Any]:
    from yoked.fleet.model import usable_gpus

    if node.host.device not in ("auto", "cuda"):
        return ()
    return usable_gpus(node.facts)


def _all_hosts_trial(
    nodes: Sequence[NodePlan],
    config: TrainConfig,
    shipped: TrainConfig,
    sync: str,
    names: _RunNames,
) -> Trial:
    from yoked.workflows.bench_trials import Trial

    ranks = sum(node.ranks for node in nodes)
    named = dataclasses.replace(_with_sync(shipped, sync), run=names(), shares=config.shares)
    return Trial(f"{len(nodes)} hosts, {ranks} ranks, {sync}", tuple(nodes), named, sync)


def _bus_factor(nodes: Sequence[NodePlan]) -> float:
    """Bytes that a rank sends in an all-reduce, over the payload."""
    from yoked.probe.collectives import bus_factor

    return bus_factor("all_reduce", sum(node.ranks for node in nodes))


def _payload_bytes(rows: Sequence[BenchRow], nodes: Sequence[NodePlan]) -> float:
    """Payload of an all-reduce that sends as many bytes as the largest step on all hosts."""
    together = [row.bytes_sent_per_step for row in rows if len(row.hosts) > 1]
    return max(together) / _bus_factor(nodes)


def _time_allreduce(
    fleet: Fleet,
    nodes: Sequence[NodePlan],
    payload_bytes: float,
    config: TrainConfig,
    output: Output,
) -> list[tuple[float, float]]:
    """Measure all-reduces over the fleet's ranks, without computation; (bytes, seconds) of each.

    Sizes go up to payload_bytes, and to the next larger one if it does not take too long.
    """
    from yoked.probe.collectives import PAYLOADS_BYTES
    from yoked.workflows.probe_job import run_worker

    output.note("measuring all-reduces by themselves")
    largest = next((each for each in PAYLOADS_BYTES if each >= payload_bytes), PAYLOADS_BYTES[-1])
    collectives = {
        "largest_bytes": largest,
        "limit_s": ALL_REDUCE_LIMIT_S,
        "gpus": config.device_type in ("auto", "cuda"),
    }
    spec = {"profile": None, "collectives": collectives}
    try:
        result = run_worker(fleet, nodes, spec, lambda _: None)
    except YokedError as problem:
        # The rows, which took long, are measured already and must not be lost.
        output.note(f"no all-reduce by itself: {problem}")
        return []
    timed = [each for each in result["collectives"] if each["op"] == "all_reduce"]
    return [(each["payload_bytes"], each["time_s"]) for each in timed]


def _with_allreduce(
    rows: Sequence[BenchRow],
    timed: Sequence[tuple[float, float]],
    link_bytes_per_s: float | None,
    nodes: Sequence[NodePlan],
) -> list[BenchRow]:
    """Add measured and predicted all-reduce times to the rows of all hosts."""
    from yoked.report.bench_table import interpolate_time_s

    def complete(row: BenchRow) -> BenchRow:
        sent = row.bytes_sent_per_step
        return dataclasses.replace(
            row,
            allreduce_s=interpolate_time_s(timed, sent / _bus_factor(nodes)),
            predicted_allreduce_s=None if link_bytes_per_s is None else sent / link_bytes_per_s,
        )

    return [complete(row) if len(row.hosts) > 1 else row for row in rows]


def _slowest_link_bytes_per_s(fleet: Fleet, output: Output) -> float | None:
    """Rate of the slowest link of the fleet with both directions in use; None: unknown."""
    from yoked.probe.store import load_newest

    try:
        measured = load_newest(fleet)
    except YokedError as problem:
        output.note(f"no prediction: {problem}")
        return None
    if measured is None or not measured.links:
        output.note("no prediction: the fleet was not probed; `yoked probe` does it")
        return None
    return min(link.both_ways_bytes_per_s for link in measured.links)


def _report(table: BenchTable, drawn: str | None, output: Output, *, markdown: bool) -> None:
    from yoked.report.bench_table import COLUMNS, to_markdown
    from yoked.table import table as aligned

    if markdown:
        output.text(to_markdown(table))
        return
    plots = [] if drawn is None else [f"plot  {drawn}"]
    output.result(
        {**table.to_dict(), "plot": drawn},
        verdict=table.verdict(),
        evidence=[*aligned(COLUMNS, table.cells()), *table.notes(), *plots],
        next_commands=["yoked plan"] if len(table.single_host) > 1 else [],
    )
