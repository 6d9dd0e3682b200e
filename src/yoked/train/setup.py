"""What a run stands on: ranks, device, data, shapes and compute choices, each with its reason."""

from __future__ import annotations

import functools
import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from yoked.agent.facts import memory
from yoked.costmodel.compute_cost import RankCost, RankSpeed, estimated_cost
from yoked.costmodel.memory import USABLE_FRACTION
from yoked.costmodel.model_shape import ModelShape, ParameterCounts
from yoked.costmodel.step_plan import nccl_suits
from yoked.costmodel.work import Network
from yoked.errors import DataError, UsageError
from yoked.ranks.exchange import read_list, read_number, read_table, read_text, read_whole
from yoked.ranks.meeting import meet, tell_if_unproved
from yoked.train import kernels
from yoked.train.balance.initial import InitialShares, initial_shares, level_alike
from yoked.train.balance.text import percents
from yoked.train.comm.communicator import COLLECTIVE_TIMEOUT_S, Communicator
from yoked.train.comm.control import run_on_all_ranks, run_on_ranks
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.data.dataset import Dataset
from yoked.train.data.prepare import prepare
from yoked.train.data.progress import NullProgress, StartProgress
from yoked.train.decisions.compute import (
    RECORDED,
    ComputeChoices,
    choose_compute,
    device_identity,
    why_no_windows,
)
from yoked.train.decisions.decision import Decision
from yoked.train.decisions.device import choose_device
from yoked.train.decisions.network import (
    ASKED_HEAD,
    ASKED_SYNC,
    PlannedStrategy,
    StepRequest,
    Strategy,
    decide_sync_and_head,
    measure_rate,
)
from yoked.train.decisions.threads import read_cores, set_threads
from yoked.train.decisions.working import Working, WorkQuestion
from yoked.train.device import keep_freed_memory, prepare_cuda, usable_gpu_bytes
from yoked.train.resolve import (
    ResolvedConfig,
    TrainSchedule,
    common_device_type,
    resolve,
    resolve_schedule,
    rows_at_once,
)
from yoked.train.speeds import measure_speed, measure_speeds

# Set by yoked.launch.bootstrap.spawn.
MEETING_FILE = "YOKED_MEETING_FILE"
# Bytes. JSON has no infinity.
UNLIMITED = 1e18


@dataclass(frozen=True)
class ModelSetup:
    """A model, its data, its schedule, and the ranks that train it. batch_sizes: the most rows of
    a micro-batch, by rank.
    """

    config: TrainConfig
    rank_info: RankInfo
    comm: Communicator
    device: torch.device
    resolved: ResolvedConfig
    batch_sizes: list[int]
    data: Dataset
    model_config: ModelShape
    schedule: TrainSchedule

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, over all ranks."""
        return self.schedule.total_batch_size // self.resolved.max_seq_len


@dataclass(frozen=True)
class FleetSetup(ModelSetup):
    """What all ranks of a launch know of each other, those too that will sit out. hosts: one entry
    a rank.
    """

    compute: ComputeChoices
    hosts: list[dict[str, Any]]

    @property
    def host_names(self) -> list[str]:
        """By rank."""
        return [host["name"] for host in self.hosts]

    def measure_speeds(self) -> list[RankSpeed]:
        """By rank, as their costs are foreseen from. Collective."""
        libraries = self.compute.libraries
        return level_alike(
            measure_speeds(self.model_config, self.device, self.compute.dtype, libraries, self.comm)
        )

    def measure_speed(self) -> RankSpeed:
        """This rank's, now."""
        return measure_speed(
            self.model_config, self.device, self.compute.dtype, self.compute.libraries
        )

    def costs(self, speeds: Sequence[RankSpeed]) -> list[RankCost]:
        """What a step costs each rank that is so fast. speeds: by rank."""
        return [self.cost(rank, speed) for rank, speed in enumerate(speeds)]

    def cost(self, rank: int, speed: RankSpeed) -> RankCost:
        """What a step costs a rank that is so fast."""
        host = self.hosts[rank]
        return estimated_cost(
            self.model_config,
            host=host["name"],
            device=host["device"],
            dtype=host["dtype"],
            threads=host["threads"],
            speed=speed,
            device_batch_size=self.resolved.device_batch_size,
        )


@dataclass(frozen=True)
class RunSetup(FleetSetup):
    """All that is settled before the first weight is drawn, for the ranks that take part: `comm`,
    `rank_info` and `hosts` are theirs. memory_bytes: that each may use of its host's. idle_hosts:
    one entry a rank that sits out. notes: on these.
    """

    strategy: Strategy
    sharing: InitialShares
    memory_bytes: list[float]
    idle_hosts: list[dict[str, Any]]
    notes: tuple[str, ...]

    @property
    def choices(self) -> tuple[Decision, ...]:
        """Everything that was chosen, for people and run.json."""
        choices = (*self.compute.choices, self.strategy.sync)
        if self.rank_info.world_size == 1:
            return choices
        live = ", and moved by speed" if self.sharing.live else ""
        rows = ":".join(map(str, self.sharing.rows)) + " rows"
        parts = ""
        if self.strategy.head_rows is not None:
            parts = f"; {percents(self.strategy.head_rows)} % of the lm_head's vocabulary"
        shares = Decision("shares", rows, self.sharing.reason + live + parts)
        return (*choices, self.strategy.lm_head, shares)


def init_process_group(rank_info: RankInfo) -> None:
    """Start the process group when there is more than one rank, each of which proves the secret.

    Raises MeetingError.
    """
    if rank_info.world_size == 1 or dist.is_initialized():
        return
    tell_if_unproved(
        rank=rank_info.rank,
        world_size=rank_info.world_size,
        local_world_size=rank_info.local_world_size,
    )
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    meet(lambda: dist.init_process_group("gloo", timeout=timeout, **meeting_place(rank_info)))


def meeting_place(rank_info: RankInfo) -> dict[str, Any]:
    """Where the ranks find each other: in a file, where a launch on one host names one.

    Else at MASTER_ADDR, where torchrun's store listens.
    """
    if (path := os.environ.get(MEETING_FILE)) is None:
        return {}
    store = dist.FileStore(path, rank_info.world_size)  # type: ignore[attr-defined]
    return {"store": store, "rank": rank_info.rank, "world_size": rank_info.world_size}


def init_communicator(device: torch.device, sync: str = "auto") -> Communicator:
    """The run's collectives: NCCL where every rank has a CUDA device and a fast network, else Gloo.

    sync: as asked for; compressed, it is Gloo's.
    """
    comm = Communicator()
    if not comm.active:
        return comm
    told = comm.all_gather_json([device.type, socket.gethostname()], read_list(read_text))
    # Its connections are dialled anew, and whoever has a seat there is to prove it anew.
    control_group = meet(
        lambda: dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S)),
        "the signals",
    )
    device_group = None
    if {kind for kind, _ in told} == {"cuda"} and sync in ("auto", "exact"):
        rate = None
        if len({host for _, host in told}) > 1:
            # Each rank measures by its own clock; rank 0's says for all.
            rate = comm.all_gather_json(measure_rate(comm)[0], read_number)[0]
        if sync == "exact" or nccl_suits(rate):
            device_group = dist.new_group(backend="nccl")
    return Communicator(device_group, control_group)


def load_data(
    config: TrainConfig,
    max_seq_len: int,
    comm: Communicator,
    rank_info: RankInfo,
    progress: StartProgress,
) -> Dataset:
    """The packed rows, prepared first where they are missing: once a host, by its first rank."""

    def get() -> Dataset:
        return prepare(
            config.data,
            max_seq_len=max_seq_len,
            vocab_size=config.vocab_size,
            tokenizer=config.tokenizer,
            packing=config.packing,
            progress=progress if comm.rank == 0 else NullProgress(),
            threads=len(read_cores().allowed),
        )

    names = comm.all_gather_json(socket.gethostname(), read_text)

    def waits_for(rank: int) -> None:
        progress.doing(f"waiting for {names[rank]}, which prepares the data")

    first = run_on_ranks(comm, rank_info.local_rank == 0, get, "preparing data", waits_for)
    data = run_on_all_ranks(comm, get) if first is None else run_on_all_ranks(comm, lambda: first)
    # The fingerprint is that of what rows are made from; the row files' hashes are of the rows.
    mine = [data.info.fingerprint, data.info.train.sha256, data.info.val.sha256]
    told = comm.all_gather_json([socket.gethostname(), *mine], read_list(read_text))
    first_host, *expected = told[0]
    other = next((host for host, *prints in told if prints != expected), None)
    if other is not None:
        raise DataError(
            f"{other} holds other data for {config.data!r} than {first_host}",
            fix=f"copy the folder {data.folder} from {first_host} to {other}",
        )
    return data


def setup_fleet(
    config: TrainConfig,
    rank_info: RankInfo,
    progress: StartProgress,
    recorded: Sequence[dict[str, Any]] = (),
) -> FleetSetup:
    """Settle what does not depend on who takes part; collective. Raises YokedError on all ranks
    when one cannot.

    recorded: run.json's entry of each rank, where the run goes on from an earlier attempt.
    """
    progress.doing("choosing devices")
    device, why_there, comm, threads = setup_devices(config, rank_info, recorded)
    progress.doing("loading data")
    model = setup_model(config, rank_info, comm, device, progress)
    run_on_all_ranks(comm, lambda: require_enough_rows(model.data, model.rows_per_step))
    progress.doing("measuring dtypes, libraries and attention")
    compute = choose_compute(config, model.model_config, device, comm, threads, recorded)
    if why_there is not None:
        compute = replace(compute, choices=(*compute.choices, why_there))
    hosts = comm.all_gather_json(_describe(model, compute), _described)
    return FleetSetup(**vars(model), compute=compute, hosts=hosts)


def setup_run(
    fleet: FleetSetup,
    comm: Communicator,
    working: Working,
    question: WorkQuestion | None = None,
    recorded: Sequence[dict[str, Any]] = (),
    last_rows: Sequence[int] = (),
) -> RunSetup:
    """Settle everything between the ranks that take part; collective over these.

    comm: theirs. question: what `working` rests on, which need not be measured again. recorded:
    run.json's entry of each of them, where the run goes on from an earlier attempt. last_rows: by
    rank, those of that attempt's last step.
    """
    hosts = [dict(fleet.hosts[rank]) for rank in working.ranks]
    idle = [host for rank, host in enumerate(fleet.hosts) if rank not in working.ranks]
    if [host["name"] for host in hosts] != [host["name"] for host in recorded]:
        recorded, last_rows = (), ()  # what suited other hosts is decided anew
    info = replace(fleet.rank_info, rank=comm.rank, world_size=len(hosts))
    # The plan is for all hosts.
    config = replace(fleet.config, planned=None) if idle else fleet.config
    sizes = [fleet.batch_sizes[rank] for rank in working.ranks]
    part = replace(fleet, comm=comm, rank_info=info, hosts=hosts, config=config, batch_sizes=sizes)
    costs = None if question is None else [question.ranks[rank] for rank in working.ranks]
    # Between all ranks the network was measured as it is between those that take part.
    network = None if question is None or idle else question.network
    memory_bytes = comm.all_gather_json(_memory_bytes(hosts), read_number)
    sharing, strategy = _decide(part, costs, network, memory_bytes, recorded, last_rows)
    for host in hosts:
        host["sync"], host["lm_head"] = strategy.sync.value, strategy.lm_head.value
    return RunSetup(
        **vars(part),
        strategy=strategy,
        sharing=sharing,
        memory_bytes=memory_bytes,
        idle_hosts=idle,
        notes=working.notes,
    )


def setup_devices(
    config: TrainConfig, rank_info: RankInfo, recorded: Sequence[dict[str, Any]]
) -> tuple[torch.device, Decision | None, Communicator, Decision]:
    """This rank's device, why it is that one where there was a choice, the connections to the other
    ranks, and the threads.
    """
    device, why_there = run_on_all_ranks(
        Communicator(), lambda: choose_device(config, rank_info, recorded)
    )
    if device.type == "cuda":
        prepare_cuda(device)
    comm = init_communicator(device, config.sync)
    if device.type == "cpu":
        keep_freed_memory()
    threads = run_on_all_ranks(comm, lambda: set_threads(config, rank_info))
    return device, why_there, comm, threads


def setup_model(
    config: TrainConfig,
    rank_info: RankInfo,
    comm: Communicator,
    device: torch.device,
    progress: StartProgress,
) -> ModelSetup:
    """The configuration that fits all devices, the data, and the model that reads it."""
    kinds = set(comm.all_gather_json(device.type, read_text))
    run_on_all_ranks(comm, lambda: _require_other_memory(config.tables, kinds))
    kind = common_device_type(kinds)
    gpu_bytes = comm.all_gather_json(usable_gpu_bytes(device) or UNLIMITED, read_number)
    lacking = comm.all_gather_json(why_no_windows(config, device) or "", read_text)
    no_windows = next(filter(None, lacking), None)
    resolved = run_on_all_ranks(comm, lambda: resolve(config, kind, min(gpu_bytes), no_windows))
    own = run_on_all_ranks(comm, lambda: rows_at_once(resolved, device.type, gpu_bytes[comm.rank]))
    batch_sizes = comm.all_gather_json(own, read_whole)
    data = load_data(config, resolved.max_seq_len, comm, rank_info, progress)
    schedule = run_on_all_ranks(comm, lambda: resolve_schedule(resolved, data.info.vocab_size))
    shape = resolved.model_shape(data.info.vocab_size)
    return ModelSetup(config, rank_info, comm, device, resolved, batch_sizes, data, shape, schedule)


def _require_other_memory(tables: str, kinds: set[str]) -> None:
    """Refuse tables in host memory where no rank's device has a memory of its own."""
    if tables == "host" and kinds <= {"cpu", "mps"}:
        device = "an Apple GPU" if "mps" in kinds else "a CPU"
        raise UsageError(
            f"--tables host: {device} computes in the host's memory, where the tables are anyway",
            fix="leave it out",
        )


def _decide(
    part: FleetSetup,
    known_costs: Sequence[RankCost] | None,
    network: Network | None,
    memory_bytes: Sequence[float],
    recorded: Sequence[dict[str, Any]],
    last_rows: Sequence[int],
) -> tuple[InitialShares, Strategy]:
    """Who has which rows, how gradients travel, and which ranks have the lm_head."""
    config, comm, batch = part.config, part.comm, part.resolved.device_batch_size

    @functools.cache
    def costs() -> Sequence[RankCost]:
        return known_costs or part.costs(part.measure_speeds())

    sharing = initial_shares(config, part.host_names, part.rows_per_step, batch, last_rows, costs)
    sync = settled("sync", config.sync, ASKED_SYNC, recorded)
    lm_head = settled("lm_head", config.lm_head, ASKED_HEAD, recorded)
    is_open = comm.active and (sync is None or lm_head is None)
    # Where nothing is to be decided, speeds need not be measured.
    request = StepRequest(
        shape=part.model_config,
        ranks=costs() if is_open else part.costs([RankSpeed(1.0)] * len(part.hosts)),
        rows=sharing.rows,
        shares=sharing.weights,
        device_batch_size=batch,
        memory_bytes=memory_bytes,
        sync=sync,
        lm_head=lm_head,
        planned=None if config.planned is None else PlannedStrategy(**config.planned),
    )
    return sharing, decide_sync_and_head(comm, request, network)


def settled(
    name: str, asked: str, reason: str, recorded: Sequence[dict[str, Any]]
) -> Decision | None:
    """What was asked for, or what a run on the same hosts began with; None: it is to be decided."""
    if asked != "auto":
        return Decision(name, asked, reason)
    kept = recorded[0].get(name) if recorded else None
    return None if kept is None else Decision(name, str(kept), RECORDED)


def _memory_bytes(hosts: Sequence[dict[str, Any]]) -> float:
    """That this rank may use, if it and the others on its host take equal parts."""
    available = memory()["memory_available_bytes"]
    known = UNLIMITED if available is None else float(available)
    here = [host["name"] for host in hosts].count(socket.gethostname())
    return USABLE_FRACTION * known / max(1, here)


def _describe(model: ModelSetup, compute: ComputeChoices) -> dict[str, Any]:
    """This rank, as run.json and the result have it."""
    return {
        **device_identity(model.device),
        "rank": model.rank_info.rank,
        "dtype": compute.dtype,
        "tables_dtype": compute.tables_dtype,
        "threads": compute.threads,
        "nice": os.nice(0),
        "python": platform.python_version(),
        "compute": {
            "layers": asdict(compute.layers),
            "head": asdict(compute.head),
            "attention": compute.attention,
            "asked_matmul": model.config.matmul,
            "asked_attention": model.config.attention,
            "product_s_per_token": compute.product_s_per_token,
        },
        "choices": [asdict(choice) for choice in compute.choices],
        "kernels": kernels.kernels().reason,
    }


def _described(value: Any) -> dict[str, Any]:
    """A rank's entry, with all that is read of it in its place."""
    told = read_table(value)
    texts = ("name", "device", "device_name", "torch", "dtype", "tables_dtype", "python", "kernels")
    for name in texts:
        read_text(told[name])
    for name in ("rank", "threads"):
        read_whole(told[name])
    read_table(told["compute"])
    read_list(read_table)(told["choices"])
    return told


def parameter_table(counts: ParameterCounts) -> dict[str, int]:
    """Counts by group, and their total, in the order in which people read them."""
    return {**asdict(counts), "total": counts.total}


def require_enough_rows(data: Dataset, rows_per_step: int) -> None:
    """Raise UsageError when a step is larger than an epoch."""
    if data.train.num_rows < rows_per_step:
        raise UsageError(
            f"a step has {rows_per_step} rows, but {data.info.name} has only {data.train.num_rows}",
            fix="a smaller --total-batch-size, or more text",
        )
