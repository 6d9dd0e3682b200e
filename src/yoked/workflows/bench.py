"""`yoked bench`: the runs that it takes, one group after the other, and the table of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from datetime import datetime
from itertools import count

from yoked.console import StageProgress
from yoked.core.parallel import at_once
from yoked.errors import YokedError
from yoked.fleet.discover import find_addresses
from yoked.fleet.model import HERE, Fleet
from yoked.launch.busy import note_others
from yoked.launch.datapush import push_kernels
from yoked.launch.hosts import connected
from yoked.launch.start import NodePlan, plan_nodes
from yoked.probe.collectives import PAYLOADS_BYTES, bus_factor
from yoked.probe.store import load_newest
from yoked.report.bench_table import BenchRow, BenchTable, interpolate_time_s
from yoked.runs import stamp
from yoked.train.config import TrainConfig
from yoked.train.resolve import SMALL_DEVICE_BATCH_TOKENS, resolve
from yoked.units import doublings
from yoked.workflows.bench_trials import Trial, measure
from yoked.workflows.fleet_job import require_versions
from yoked.workflows.probe_job import run_worker
from yoked.workflows.train_fleet import ship_data

# Default for processes on one host: four show whether memory bandwidth is the limit.
MAX_PROCESSES = 4
# Time for all-reduces of all sizes together.
ALL_REDUCE_LIMIT_S = 10.0


def run_bench(
    config: TrainConfig,
    fleet: Fleet,
    steps: int,
    processes: int | None,
    strategies: Sequence[str],
    note: Callable[[str], None],
    progress: StageProgress,
) -> BenchTable:
    """Connect, measure one group after the other, and collect the rows.

    steps: of each run. processes: most on the first host. strategies: each --sync to measure on
    all hosts.
    """

    def measured(*group: Trial) -> list[BenchRow]:
        together = ", at the same time" if len(group) > 1 else ""
        note(f"measuring {' and '.join(trial.name for trial in group)}{together}")
        return measure(group, fleet, note, progress)

    with connected(fleet) as clients:
        nodes = plan_nodes(
            fleet,
            clients,
            None,
            lambda: find_addresses(fleet, clients),
            config.device_type,
        )
        require_versions(nodes)
        note_others(clients, note)
        names = run_names()
        shipped = _ship(comparable_config(config, steps), nodes, note)
        first = measured(*(single_host_trial(fleet, node, shipped, names) for node in nodes))
        rows = list(first)
        for group in single_host_groups(fleet, nodes, first, shipped, processes, names):
            rows += measured(*group)
        if len(nodes) > 1:
            for sync in strategies:
                rows += measured(_all_hosts_trial(nodes, config, shipped, sync, names))
            payload_bytes = largest_payload_bytes(rows, nodes)
            timed = time_allreduce(fleet, nodes, payload_bytes, config, note)
            rows = with_allreduce(rows, timed, slowest_link_bytes_per_s(fleet, note), nodes)
    return BenchTable(tuple(rows), {row.hosts[0]: row.tokens_per_second for row in first})


def run_names() -> Iterator[str]:
    """Numbered names for the runs of one benchmark."""
    stem = f"bench-{stamp(datetime.now().astimezone())}"
    return (f"{stem}-{number}" for number in count(1))


def comparable_config(config: TrainConfig, steps: int) -> TrainConfig:
    """Fix all settings that would otherwise fit the device, so that rows are comparable."""
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
        log_to=None,
        keep="all",
        json_output=False,
    )


def _ship(config: TrainConfig, nodes: list[NodePlan], note: Callable[[str], None]) -> TrainConfig:
    """Send data and kernels to every host; returns the configuration that names them there."""
    label = ship_data(config, nodes, note)
    at_once(lambda node: push_kernels(node.client), nodes, leave=True)
    # Shares are by rank of the whole fleet, so a single host cannot use them.
    return dataclasses.replace(config, data=label, tokenizer=None, shares=None)


def single_host_trial(
    fleet: Fleet, node: NodePlan, config: TrainConfig, names: Iterator[str]
) -> Trial:
    """A trial of one host with as many ranks as in the fleet."""
    name = _row_name(node, node.ranks, "GPU" if node.gpus else "")
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
    names: Iterator[str],
    *,
    name: str,
    env: dict[str, str] | None = None,
) -> Trial:
    one = dataclasses.replace(fleet, hosts=(node.host,))
    # The ranks of a single host use its loopback interface.
    nodes = plan_nodes(one, {node.host.name: node.client}, ranks, dict, config.device_type)
    return Trial(
        name=name,
        nodes=tuple(nodes),
        config=dataclasses.replace(config, run=next(names)),
        sync=None if ranks == 1 else config.sync,
        env=env or {},
    )


def _host_label(node: NodePlan) -> str:
    return "this machine" if node.host.name == HERE else node.host.name


def single_host_groups(
    fleet: Fleet,
    nodes: Sequence[NodePlan],
    single_host_rows: Sequence[BenchRow],
    config: TrainConfig,
    processes: int | None,
    names: Iterator[str],
) -> list[list[Trial]]:
    """Further trials on one host: processes on the first host's cores, and each GPU."""
    groups: list[list[Trial]] = []
    first = nodes[0]
    if config.device_type in ("auto", "cpu"):
        on_cpu = dataclasses.replace(config, device_type="cpu")
        most = processes or min(MAX_PROCESSES, int(first.facts["usable_cores"]))
        # Its ranks in the fleet are measured already.
        known = {single_host_rows[0].ranks} if single_host_rows[0].device == "cpu" else set()
        device = "CPU" if first.gpus else ""
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
        groups += gpu_groups(fleet, nodes, config, names)
    return groups


def gpu_groups(
    fleet: Fleet, nodes: Sequence[NodePlan], config: TrainConfig, names: Iterator[str]
) -> list[list[Trial]]:
    """Each GPU by itself, on all hosts at once. A host's only GPU is measured already."""
    on_gpu = dataclasses.replace(config, device_type="cuda")

    def on(node: NodePlan, number: int) -> Trial:
        only = {"CUDA_VISIBLE_DEVICES": str(number)}
        name = f"GPU {number} of {_host_label(node)}"
        return _trial_on_host(fleet, node, 1, on_gpu, names, name=name, env=only)

    most = max(len(node.gpus) for node in nodes)
    groups = [
        [on(node, number) for node in nodes if len(node.gpus) > max(number, 1)]
        for number in range(most)
    ]
    return [group for group in groups if group]


def _all_hosts_trial(
    nodes: Sequence[NodePlan],
    config: TrainConfig,
    shipped: TrainConfig,
    sync: str,
    names: Iterator[str],
) -> Trial:
    ranks = sum(node.ranks for node in nodes)
    of_trial = {"sync": sync, "run": next(names), "shares": config.shares}
    named = TrainConfig.from_dict({**shipped.to_dict(), **of_trial})
    return Trial(f"{len(nodes)} hosts, {ranks} ranks, {sync}", tuple(nodes), named, sync)


def _bus_factor(nodes: Sequence[NodePlan]) -> float:
    """Bytes that a rank sends in an all-reduce, over the payload."""
    return bus_factor("all_reduce", sum(node.ranks for node in nodes))


def largest_payload_bytes(rows: Sequence[BenchRow], nodes: Sequence[NodePlan]) -> float:
    """Payload of an all-reduce that sends as many bytes as the largest step on all hosts."""
    together = [row.bytes_sent_per_step for row in rows if len(row.hosts) > 1]
    return max(together) / _bus_factor(nodes)


def time_allreduce(
    fleet: Fleet,
    nodes: Sequence[NodePlan],
    payload_bytes: float,
    config: TrainConfig,
    note: Callable[[str], None],
) -> list[tuple[float, float]]:
    """Measure all-reduces over the fleet's ranks, without computation; (bytes, seconds) of each.

    Sizes go up to payload_bytes, and to the next larger one if it does not take too long.
    """
    note("measuring all-reduces by themselves")
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
        note(f"no all-reduce by itself: {problem}")
        return []
    timed = [each for each in result["collectives"] if each["op"] == "all_reduce"]
    return [(each["payload_bytes"], each["time_s"]) for each in timed]


def with_allreduce(
    rows: Sequence[BenchRow],
    timed: Sequence[tuple[float, float]],
    link_bytes_per_s: float | None,
    nodes: Sequence[NodePlan],
) -> list[BenchRow]:
    """Add measured and predicted all-reduce times to the rows of all hosts."""

    def complete(row: BenchRow) -> BenchRow:
        sent = row.bytes_sent_per_step
        return dataclasses.replace(
            row,
            allreduce_s=interpolate_time_s(timed, sent / _bus_factor(nodes)),
            predicted_allreduce_s=None if link_bytes_per_s is None else sent / link_bytes_per_s,
        )

    return [complete(row) if len(row.hosts) > 1 else row for row in rows]


def slowest_link_bytes_per_s(fleet: Fleet, note: Callable[[str], None]) -> float | None:
    """Rate of the slowest link of the fleet with both directions in use; None: unknown."""
    try:
        measured = load_newest(fleet)
    except YokedError as problem:
        note(f"no prediction: {problem}")
        return None
    if measured is None or not measured.links:
        note("no prediction: the fleet was not probed; `yoked probe` does it")
        return None
    return min(link.both_ways_bytes_per_s for link in measured.links)
