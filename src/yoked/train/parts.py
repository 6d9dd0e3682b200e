"""A run part by part, each with the ranks that are worth having.

Mostly there is one part, of all ranks. Where hosts sit out, and are worth having later, the run
stops at a checkpoint, and goes on from it with them.
"""

from __future__ import annotations

import functools
import gc
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from datetime import timedelta
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from rich.console import Console

from yoked.console import StageProgress
from yoked.costmodel.compute_cost import RankSpeed
from yoked.costmodel.step_plan import safe_syncs
from yoked.errors import DeviceError
from yoked.ranks.exchange import read_flag, read_list, read_text, read_whole
from yoked.ranks.heartbeat import heartbeat
from yoked.ranks.meeting import meet
from yoked.train.comm.communicator import COLLECTIVE_TIMEOUT_S, Communicator
from yoked.train.comm.control import run_on_all_ranks, run_on_rank0
from yoked.train.comm.heartbeat import default_store
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.progress import NullProgress, StartProgress
from yoked.train.decisions.network import measure_network
from yoked.train.decisions.working import (
    Working,
    WorkQuestion,
    choose_working,
    kept_hosts,
    worth_coming_back,
)
from yoked.train.device import device_name
from yoked.train.duration import Pace, fit_duration
from yoked.train.idle import IdleRanks, sit_out
from yoked.train.outlook import foresee
from yoked.train.result import RunResult
from yoked.train.resume import RunOrigin, describe_run, resolve_origin
from yoked.train.run import TrainingRun
from yoked.train.setup import FleetSetup, RunSetup, init_process_group, setup_fleet, setup_run


def train(config: TrainConfig, *, console: Console) -> RunResult | None:
    """Train as one of the ranks that torchrun started, or as the only one.

    Returns when the run is finished, or interrupted and saved; None on a rank that sat out to the
    end. Raises YokedError.
    """
    rank_info = RankInfo.from_environment()
    config.check_world(rank_info.world_size)
    init_process_group(rank_info)
    result = _train(config, rank_info, console)
    # Not after a failure: it waits for collectives in flight, and for a peer that stands still up
    # to their deadline, with the error untold. `__main__` then ends the process.
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    return result


class Start(NamedTuple):
    """Of a part of a run. began_s: when the run's start began, on this rank's monotonic clock."""

    origin: RunOrigin
    progress: StartProgress
    began_s: float


class PartEnd(NamedTuple):
    """How a part of a run ended, on this rank. result: None on a rank that sat out. is_over: the
    run is too, as far as this rank knows. some_sat_out: ranks that did wait for this one.
    """

    result: RunResult | None
    is_over: bool
    some_sat_out: bool


def _train(config: TrainConfig, rank_info: RankInfo, console: Console) -> RunResult | None:
    """Train part by part: each ends where other ranks are worth having."""
    began_s = time.monotonic()
    progress: StartProgress = StageProgress(console) if rank_info.rank == 0 else NullProgress()
    origin = _begin(config, rank_info)
    fleet = setup_fleet(origin.config, rank_info, progress, origin.recorded_ranks)
    for part in itertools.count(1):
        start = Start(origin, progress, began_s)
        result, is_over, some_sat_out = _train_part(fleet, start, f"part {part}", console)
        if not some_sat_out or any(fleet.comm.all_gather_json(is_over, read_flag)):
            break
        gc.collect()  # else two trainers would be in memory
        named = replace(config, run=origin.folder.name, runs_dir=origin.folder.parent)
        origin = _begin(named.going_on(), rank_info)
        fleet = replace(fleet, config=origin.config)
    return result


def _begin(config: TrainConfig, rank_info: RankInfo) -> RunOrigin:
    return run_on_rank0(
        Communicator(),
        lambda: resolve_origin(config, rank_info.world_size).to_dict(),
        RunOrigin.from_dict,
    )


def _train_part(fleet: FleetSetup, start: Start, name: str, console: Console) -> PartEnd:
    """Train with the ranks that are worth having. name: of this part, the same on all ranks."""
    origin, progress = start.origin, start.progress
    progress.doing("measuring the speed of ranks and network")
    working, question = ask_who_works(fleet)
    idle = [rank for rank in range(len(fleet.hosts)) if rank not in working.ranks]
    comm = part_of(fleet.comm, working.ranks, name)
    if comm is None:
        if not fleet.config.dry_run:
            sit_out(name, fleet.rank_info.rank, fleet.measure_speed)
        return PartEnd(None, is_over=False, some_sat_out=True)
    setup = setup_run(fleet, comm, working, question, origin.recorded, origin.last_rows)
    with told_out_of_memory(setup):
        setup, step_s = fit_duration(setup, start.began_s, progress)
    outlook = foresee(setup, step_s)
    progress.close()
    if fleet.config.dry_run:
        return PartEnd(describe_run(setup, outlook), is_over=True, some_sat_out=bool(idle))

    def worth_it(speeds: Mapping[int, RankSpeed]) -> str | None:
        assert question is not None, "it was asked who works"
        now = [fleet.cost(rank, speed) for rank, speed in speeds.items()]
        return worth_coming_back(question, working.ranks, now)

    with told_out_of_memory(setup), ExitStack() as stack:
        asked, steps = origin.config.duration, setup.schedule.num_iterations
        if asked is not None and step_s is not None:
            fixed = replace(origin.config, num_iterations=steps, duration=None)
            origin = replace(origin, config=fixed)
        run = TrainingRun(setup, origin, outlook, console)
        if asked is not None and step_s is not None:
            run.pace = Pace(step_s, steps, asked)
        if idle and run.is_first:
            stack.enter_context(heartbeat(default_store(), name))
            run.idle = IdleRanks(default_store(), name, idle, worth_it)
        result = run.run()
    return PartEnd(result, is_over=not run.makes_room, some_sat_out=bool(idle))


def ask_who_works(fleet: FleetSetup) -> tuple[Working, WorkQuestion | None]:
    """Which ranks take part, and what that rests on, as rank 0 has it; collective.

    All, and None, where that is not asked: within one host, by --shares, and over NCCL's networks.
    """
    config, comm, hosts = fleet.config, fleet.comm, fleet.host_names
    keep = run_on_all_ranks(comm, lambda: kept_hosts(config.keep, hosts))
    every = Working(tuple(range(len(hosts))))
    if len(set(hosts)) == 1 or config.share_weights is not None or comm.device_group is not None:
        return every, None
    tokens = fleet.rows_per_step * fleet.model_config.sequence_len
    question = WorkQuestion(
        shape=fleet.model_config,
        ranks=fleet.costs(fleet.measure_speeds()),
        network=measure_network(comm, hosts),
        syncs=(safe_syncs(fleet.model_config, tokens) if config.sync == "auto" else (config.sync,)),
        rows=fleet.rows_per_step,
        device_batch_size=fleet.resolved.device_batch_size,
        keep=keep,
    )

    def act() -> list[list[Any]]:
        working = choose_working(question)
        return [list(working.ranks), list(working.notes)]

    ranks, notes = run_on_rank0(comm, act, read_list(read_list(lambda value: value)))
    return Working(tuple(map(read_whole, ranks)), tuple(map(read_text, notes))), question


def part_of(comm: Communicator, ranks: Sequence[int], name: str) -> Communicator | None:
    """The collectives of some ranks; None on the others. Collective over all of `comm`.

    name: tells the group from others of these ranks. Where all take part it is `comm` itself.
    """
    if len(ranks) == comm.world_size:
        return comm
    takes_part = comm.rank in ranks
    groups = []
    for what in (name, f"{name}: the signals"):
        timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
        connect = functools.partial(dist.new_group, list(ranks), timeout, "gloo")
        groups.append(meet(connect, what) if takes_part else connect())
    return Communicator(control_group=groups[1], group=groups[0]) if takes_part else None


@contextmanager
def told_out_of_memory(setup: RunSetup) -> Iterator[None]:
    """Raise DeviceError, with what needs less, where the memory of a GPU is at its end."""
    try:
        yield
    except torch.OutOfMemoryError as problem:
        resolved, device = setup.resolved, setup.device
        rows, depth = setup.batch_sizes[setup.comm.rank], resolved.depth
        less = f"--depth {max(depth - 2, 1)}"
        if rows > 1:
            less = f"--device-batch-size {rows // 2}"
        elif resolved.tables == "device":
            less = "--tables host"
        raise DeviceError(
            f"the memory of {device_name(device)} is at its end, at depth {depth} with {rows} "
            f"row{'s' * (rows != 1)} of {resolved.max_seq_len:,} tokens at once",
            fix=f"{less}, or end what else is on that GPU (nvidia-smi shows it)",
        ) from problem
