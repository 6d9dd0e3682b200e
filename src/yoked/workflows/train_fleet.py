"""`yoked train` on a fleet: the same configuration, rows and curve, on other machines."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from yoked.core.fs import scratch_folder
from yoked.core.parallel import at_once
from yoked.errors import JobError, UsageError
from yoked.fleet.model import Fleet
from yoked.launch.attach import JobEnd, View
from yoked.launch.busy import Share
from yoked.launch.datapush import push_data, push_kernels
from yoked.launch.handle import RunHandle
from yoked.launch.hosts import reach_hosts, reconnecting
from yoked.launch.mirror import fetch_json, require_same_run
from yoked.launch.program import Program
from yoked.launch.registry import Record, job_name, newest_training
from yoked.launch.start import JobRequest, NodePlan, OnFault
from yoked.remote.client import host_wrote
from yoked.runs import require_new
from yoked.shape import amount, anything, quantity, require
from yoked.train.config import TrainConfig
from yoked.units import format_bytes
from yoked.workflows.fetching import bring_ended
from yoked.workflows.fleet_job import FleetJob, run_job
from yoked.workflows.need import need_of
from yoked.workflows.planning import strategy_for
from yoked.workflows.room import require_room

CONFIG_NAME = "config.json"
# Where ranks run: <state>/jobs/<run>/work. Runs lie beside the jobs.
RUNS_FROM_WORK = Path("../../../runs")
# They are prepared on every host by itself: nothing needs to travel.
BUILT_IN_DATA = ("sotu", "climbmix")
# What is shown of rank 0's result, and of a dry run's.
_RESULT = {
    "steps": amount,
    "tokens": quantity,
    "state?": str,
    "loss?": (float, None),
    "val_bpb?": (float, None),
    "best?": ({"step": amount, "val_bpb": quantity}, None),
    "tokens_per_second?": (quantity, None),
    "first_step_s?": (quantity, None),
    "bytes_sent_per_step?": (quantity, None),
}
_PLAN = {
    "params": {str: amount},
    "choices?": [{"name": anything, "value": anything, "reason": anything}],
    "data": {
        "name": str,
        "vocab_size": amount,
        "requested_vocab_size": (amount, None),
        "train_tokens": amount,
    },
    "horizon": {"num_iterations": amount, "total_batch_size": amount},
    "outlook": {
        "step_s": (quantity, None),
        "time_s": (quantity, None),
        "epochs": quantity,
        "remark": (str, None),
        "checkpoint_bytes": amount,
        "disk_bytes": amount,
        "free_bytes": amount,
        "memory": [{"host": str, "need_bytes": quantity, "may_use_bytes": (quantity, None)}],
    },
}


def train_fleet(
    config: TrainConfig,
    fleet: Fleet,
    view: View,
    *,
    detach: bool,
    doctor: bool,
    restarts: int,
    on_fault: OnFault,
    nice: int | None,
    share: Share,
    fleet_flag: str,
) -> tuple[FleetJob, Mapping[str, Any] | None]:
    """Train on the hosts of a fleet; the job, and rank 0's result unless nobody waited for it.

    config: with its run named. detach, doctor: as in `run_job`. restarts: after so many failures.
    on_fault: as in JobRequest. nice: of the ranks, instead of yoked.toml's. share: as in `run_job`.
    fleet_flag: what a command line about these hosts ends with. The run's folder is on rank 0's
    host; what is small of it is copied into `--runs-dir` here.
    """
    results: list[Mapping[str, Any]] = []
    with scratch_folder("train") as folder:
        request = train_request(
            config,
            folder,
            ranks=config.ranks,
            restarts=restarts,
            on_fault=on_fault,
            nice=nice,
            file_store=True,
        )

        def before(nodes: list[NodePlan], records: list[Record]) -> JobRequest:
            require_room(config, nodes, view.note)
            if not config.dry_run:
                _require_idle(config, records, fleet_flag)
            if config.goes_on:
                _require_run(config, nodes[0])
            elif not config.dry_run:
                # Once it is brought home, it would meet another of its name.
                require_new(config.runs_dir / (config.run or ""))
            shipped = dataclasses.replace(
                config,
                data=ship_data(config, nodes, view.note),
                planned=strategy_for(config, fleet, {node.host.name: node.ranks for node in nodes}),
            )
            at_once(lambda node: push_kernels(node.client), nodes, leave=True)
            write_config(shipped, folder)
            # A dry run trains nothing, and is not to be taken for the run.
            trains = None if config.dry_run else config.run
            return dataclasses.replace(request, run=_job_name(config, records), trains=trains)

        def after(job: FleetJob) -> None:
            if job.end is not None and not job.end.detached:
                handle = RunHandle.of(job.started, reconnecting(fleet))
                try:
                    results.append(
                        _bring_home(config, fleet.path, fleet_flag, job, job.end, handle, view)
                    )
                except KeyboardInterrupt:
                    line = f"yoked fetch {shlex.quote(config.run or '')}{fleet_flag}"
                    view.note(f"run {config.run} is over; `{line}` brings what it learned")
                    raise
                if config.dry_run:
                    handle.remove()

        job = run_job(
            request,
            # Of a dry run nobody need be told.
            dataclasses.replace(fleet, notify=None) if config.dry_run else fleet,
            view,
            detach=detach,
            doctor=doctor,
            need=need_of(config),
            # A dry run is over in seconds.
            share=None if config.dry_run else share,
            before=before,
            after=after,
        )
    return job, results[0] if results else None


def newest_run(fleet: Fleet, note: Callable[[str], None]) -> str | None:
    """The run of `yoked train` that hosts of a fleet began last, whoever started it; None: none.

    note: told of hosts that do not answer.
    """
    with reach_hosts(fleet, note) as hosts:
        return newest_training(hosts.records())


def train_request(config: TrainConfig, folder: Path, **more: Any) -> JobRequest:
    """A job that trains by the configuration of a folder (`write_config`)."""
    assert config.run is not None
    return JobRequest(
        run=config.run,
        program=Program(
            "module",
            "yoked.train",
            ("--config-file", CONFIG_NAME),
            folder,
            resume_args=("--resume",),
            is_limited=False,
        ),
        device=config.device_type,
        threads=config.thread_count,
        own_threads=True,
        # yoked.train speaks Gloo and NCCL as they are.
        bootstrap=False,
        **more,
    )


def write_config(config: TrainConfig, folder: Path, runs_dir: Path = RUNS_FROM_WORK) -> None:
    """Write the configuration as hosts get it: without what is of this machine alone."""
    shipped = dataclasses.replace(config, ranks=None, runs_dir=runs_dir, tokenizer=None)
    if config.start_from is not None and config.start_from.exists():
        _link_checkpoint(config.start_from.absolute(), folder / "from")
        shipped = dataclasses.replace(shipped, start_from=Path("from"))
    text = json.dumps(shipped.to_dict())
    (folder / CONFIG_NAME).write_text(text, encoding="utf-8")


def _link_checkpoint(source: Path, target: Path) -> None:
    """Have a folder's newest checkpoint travel, with its tokenizer, and none of the others."""
    from yoked.train.checkpoint_files import checkpoint_files, find_model_folder, find_tokenizer

    model = find_model_folder(source)
    target.mkdir()
    for name, path in checkpoint_files(model).items():
        (target / name).symlink_to(path)
    if (tokenizer := find_tokenizer(model)).is_dir():
        (target / "tokenizer").symlink_to(tokenizer)


def ship_data(config: TrainConfig, nodes: list[NodePlan], note: Callable[[str], None]) -> str:
    """What the hosts' --data is: a built-in name, or the label of rows that were sent there."""
    if config.data in BUILT_IN_DATA and config.tokenizer is None:
        return config.data
    from yoked.train.data.prepare import prepare
    from yoked.train.resolve import common_device_type, resolve

    device = common_device_type([node.device_type for node in nodes])
    data = prepare(
        config.data,
        max_seq_len=resolve(config, device).max_seq_len,
        vocab_size=config.vocab_size,
        tokenizer=config.tokenizer,
        packing=config.packing,
    )
    sent_bytes = at_once(lambda node: push_data(node.client, data.folder), nodes, leave=True)
    for node, sent in zip(nodes, sent_bytes, strict=True):
        if sent:
            note(f"{node.host.name} got {format_bytes(sent)} of {data.folder.name}")
    return data.folder.name


def _require_run(config: TrainConfig, first: NodePlan) -> None:
    """Raise UsageError when the host of rank 0 does not have the run that is to go on."""
    folder = f"{first.facts['state']}/runs/{config.run}"
    if not first.client.call("file_list", folder=folder):
        raise UsageError(
            f"there is no run {config.run!r} on {first.host.name}, the host of rank 0",
            fix="yoked runs    shows those of all hosts",
        )
    require_same_run(first.client, folder, config.runs_dir / (config.run or ""))


def _require_idle(config: TrainConfig, records: list[Record], fleet_flag: str) -> None:
    """Raise UsageError where the run goes on already: two starts would write into one folder."""
    # One of this machine alone has a folder of its own, though it may have the same name.
    on_fleets = (record for record in records if record.active and record.run_dir is None)
    if any(record.trains == config.run for record in on_fleets):
        run = shlex.quote(config.run or "")
        raise UsageError(
            f"run {config.run} goes on already on these hosts",
            fix=(
                f"yoked attach {run}{fleet_flag}    shows it",
                *(("--run NAME with another name starts a run of its own",) * (not config.goes_on)),
            ),
        )


def _job_name(config: TrainConfig, records: list[Record]) -> str:
    """The run's name; where that may have had a start already, with a number that no job has."""
    assert config.run is not None
    if not (config.goes_on or config.dry_run):
        return config.run
    taken = {record.run for record in records}
    return job_name("dry-run" if config.dry_run else config.run, taken.__contains__)


def _bring_home(
    config: TrainConfig,
    fleet_file: Path,
    fleet_flag: str,
    job: FleetJob,
    end: JobEnd,
    handle: RunHandle,
    view: View,
) -> Mapping[str, Any]:
    """Copy the run's folder here; its result, or the error that ended it."""
    first = job.started.nodes[0]
    host = first.host.name
    assert config.run is not None
    folder = f"{first.job_root}/{job.started.run}"
    if not config.dry_run:
        folder_there = f"{first.facts['state']}/runs/{config.run}"
        here = config.runs_dir / config.run
        bring_ended(handle, host, folder_there, here, end, fleet_file=fleet_file, note=view.note)
    go_on = next(iter(end.record.go_on(fleet_flag)), "the same command again, once that is mended")
    end.raise_failure(fix=go_on, fleet_flag=fleet_flag)
    with handle.reach(host) as client, host_wrote(host, "the run's result"):
        result = fetch_json(client, f"{folder}/errors/{end.attempt}/result.json")
        require(result, (_PLAN if config.dry_run else _RESULT, None))
    if result is None:
        # One that was to save and stop may have failed at that.
        end.raise_failure(fix=go_on, fleet_flag=fleet_flag, of_a_stop=True)
        raise JobError(
            f"{end.verdict}, without a result",
            fix=(*end.record.go_on(fleet_flag), f"yoked logs {job.started.run}{fleet_flag}"),
        )
    result |= {"run": config.run, "dir": str(config.runs_dir / config.run)}
    restarts = {"restarts": end.restarts} if end.restarts else {}
    return {**result, **restarts, "start_s": dict(job.started.took_s)}
