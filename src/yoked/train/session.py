"""What a run stands on: ranks, device, data, shapes and compute choices, each with its reason."""

from __future__ import annotations

import dataclasses
import functools
import os
import platform
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, get_args

import torch
import torch.distributed as dist

from yoked.errors import DataError, UsageError
from yoked.ranks.exchange import read_list, read_table, read_text, read_whole
from yoked.ranks.meeting import meet, tell_if_unproved
from yoked.timeline.fastest import OneHead
from yoked.train import choose, kernels
from yoked.train.choose import Choice
from yoked.train.compute import (
    RECORDED,
    ComputeChoices,
    choose_compute,
    device_identity,
    settle_threads,
)
from yoked.train.config import LmHead, TrainConfig
from yoked.train.data.dataset import Dataset
from yoked.train.data.prepare import prepare
from yoked.train.data.progress import ProgressSink, Silent
from yoked.train.model.gpt import ModelConfig, ParameterCounts, count_parameters, flops_per_token
from yoked.train.resolve import (
    REFERENCE_DEPTH,
    Horizon,
    ModelSize,
    ResolvedConfig,
    common_device_type,
    fix_horizon,
    resolve,
)
from yoked.train.shares import Shares, settle_shares, split_rows
from yoked.train.speeds import measure_speeds
from yoked.train.sync.choice import RankPlace, choose_sync
from yoked.train.sync.headchoice import HeadAsked, choose_lm_head, one_head
from yoked.train.sync.threads import batch_network_threads
from yoked.train.sync.together import on_every, on_some
from yoked.train.sync.wire import Wire
from yoked.train.threads import read_cores
from yoked.train.vcpus import choose_waiting

# Long enough for a rank that compiles or saves; what passes it is a fault, and is named.
COLLECTIVE_TIMEOUT_S = 600
# Set by yoked.launch.bootstrap.spawn.
MEETING_FILE = "YOKED_MEETING_FILE"


@dataclass(frozen=True)
class Place:
    """Where this process stands among the ranks, as torchrun tells it."""

    rank: int
    local_rank: int
    world_size: int
    local_world_size: int

    @classmethod
    def from_environment(cls) -> Place:
        """As torchrun's variables have it; without them, the only rank."""
        read = {
            name: int(os.environ.get(name, default))
            for name, default in (
                ("RANK", "0"),
                ("LOCAL_RANK", "0"),
                ("WORLD_SIZE", "1"),
                ("LOCAL_WORLD_SIZE", "1"),
            )
        }
        return cls(read["RANK"], read["LOCAL_RANK"], read["WORLD_SIZE"], read["LOCAL_WORLD_SIZE"])


@dataclass(frozen=True)
class Session:
    """All that is settled before the first weight is drawn."""

    config: TrainConfig
    place: Place
    wire: Wire
    device: torch.device
    data: Dataset
    resolved: ResolvedConfig
    model_config: ModelConfig
    horizon: Horizon
    compute: ComputeChoices
    sync: Choice
    lm_head: Choice
    waiting: Choice
    hosts: list[dict[str, Any]]
    sharing: Shares
    about_head: HeadAsked

    @property
    def rows_per_step(self) -> int:
        """Rows of a step, over all ranks."""
        return self.horizon.total_batch_size // self.resolved.max_seq_len

    @property
    def shares(self) -> list[float]:
        """Relative share of a step's work by rank, as the run starts."""
        return list(self.sharing.weights)

    @property
    def one_head(self) -> OneHead | None:
        """Who has the lm_head, where only one rank has it."""
        return one_head(self.lm_head, self.model_config)

    @property
    def row_shares(self) -> list[float]:
        """Relative share of a step's rows by rank, as the run starts."""
        return self.sharing.of_rows(self.one_head)

    @property
    def first_rows(self) -> list[int]:
        """Rows of the first step by rank."""
        return [len(rows) for rows in split_rows(self.rows_per_step, self.row_shares)]

    @property
    def choices(self) -> tuple[Choice, ...]:
        """Everything that was chosen, for people and run.json."""
        choices = (*self.compute.choices, self.sync)
        if self.place.world_size == 1:
            return choices
        live = ", and moved by speed" if self.sharing.live else ""
        rows = ":".join(map(str, self.first_rows)) + " rows"
        shares = Choice("shares", rows, self.sharing.reason + live)
        return (*choices, self.lm_head, shares, self.waiting)


def join_ranks(place: Place) -> None:
    """Start the process group when there is more than one rank, each of which proves the secret.

    Raises MeetingError.
    """
    if place.world_size == 1 or dist.is_initialized():
        return
    tell_if_unproved(
        rank=place.rank, world_size=place.world_size, local_world_size=place.local_world_size
    )
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    meet(lambda: dist.init_process_group("gloo", timeout=timeout, **meeting_place(place)))


def meeting_place(place: Place) -> dict[str, Any]:
    """Where the ranks find each other: in a file, where a launch on one host names one.

    Else at MASTER_ADDR, where torchrun's store listens.
    """
    if (path := os.environ.get(MEETING_FILE)) is None:
        return {}
    store = dist.FileStore(path, place.world_size)  # type: ignore[attr-defined]
    return {"store": store, "rank": place.rank, "world_size": place.world_size}


def wire_for(device: torch.device) -> Wire:
    """The run's collectives: NCCL where every rank has a CUDA device, else Gloo."""
    wire = Wire()
    if not wire.active:
        return wire
    kinds = wire.gather_values(device.type, read_text)
    # Its connections are dialled anew, and whoever has a seat there is to prove it anew.
    signals = meet(
        lambda: dist.new_group(backend="gloo", timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S)),
        "the signals",
    )
    device_group = dist.new_group(backend="nccl") if set(kinds) == {"cuda"} else None
    batch_network_threads()
    return Wire(device_group, signals)


def load_data(
    config: TrainConfig, max_seq_len: int, wire: Wire, place: Place, progress: ProgressSink
) -> Dataset:
    """The packed rows, prepared first where they are missing: once a host, by its first rank."""

    def get() -> Dataset:
        return prepare(
            config.data,
            max_seq_len=max_seq_len,
            vocab_size=config.vocab_size,
            tokenizer=config.tokenizer,
            packing=config.packing,
            progress=progress if wire.rank == 0 else Silent(),
            threads=len(read_cores().allowed),
        )

    first = on_some(wire, place.local_rank == 0, get, "preparing data")
    data = on_every(wire, get) if first is None else on_every(wire, lambda: first)
    # The fingerprint is that of what rows are made from; the row files' hashes are of the rows.
    mine = [data.fingerprint, data.info.train.sha256, data.info.val.sha256]
    told = wire.gather_values([socket.gethostname(), *mine], read_list(read_text))
    first_host, *expected = told[0]
    other = next((host for host, *prints in told if prints != expected), None)
    if other is not None:
        raise DataError(
            f"{other} holds other data for {config.data!r} than {first_host}",
            fix=f"copy the folder {data.folder} from {first_host} to {other}",
        )
    return data


def build_session(
    config: TrainConfig,
    place: Place,
    progress: ProgressSink,
    recorded: Sequence[dict[str, Any]] = (),
    last_rows: Sequence[int] = (),
) -> Session:
    """Settle everything; collective. Raises YokedError on all ranks when one cannot.

    recorded: run.json's entry of each rank, where the run goes on from an earlier attempt.
    last_rows: by rank, those of that attempt's last step.
    """
    device = on_every(Wire(), lambda: choose.pick_device(config.device_type, place.local_rank))
    wire = wire_for(device)
    if device.type == "cpu":
        choose.release_freed_memory_slowly()
    threads = on_every(wire, lambda: settle_threads(config, place))
    kinds = set(wire.gather_values(device.type, read_text))
    kind = common_device_type(kinds)
    resolved = on_every(wire, lambda: resolve(config, kind))
    data = load_data(config, resolved.max_seq_len, wire, place, progress)
    model_config = _model_config(resolved, resolved.depth, data.vocab_size)
    reference = _model_config(resolved, REFERENCE_DEPTH, data.vocab_size)
    size = ModelSize(
        scaling=count_parameters(model_config).scaling,
        reference=count_parameters(reference).scaling,
        flops_per_token=flops_per_token(model_config),
    )
    horizon = on_every(wire, lambda: fix_horizon(resolved, size))
    compute = choose_compute(config, model_config, device, wire, threads, recorded)
    hosts = wire.gather_values(_describe(config, place, device, compute), _described)
    names = [host["name"] for host in hosts]
    same_hosts = names == [host["name"] for host in recorded]
    libraries = (compute.layers.forward, compute.head.forward)
    speeds = functools.cache(
        lambda: measure_speeds(model_config, device, compute.dtype, libraries, wire)
    )
    sharing = settle_shares(config, names, last_rows if same_hosts else (), speeds)
    about = HeadAsked(
        model_config,
        horizon.total_batch_size,
        resolved.device_batch_size,
        wire.world_size,
        on_cpus=kinds == {"cpu"},
        by_gloo=wire.device_group is None,
    )
    lm_head = settle_lm_head(config, recorded if same_hosts else (), about, sharing, speeds, wire)
    has_head = one_head(lm_head, model_config)
    if has_head is not None:
        sharing = sharing.by_work(has_head)
    rows_per_step = horizon.total_batch_size // resolved.max_seq_len
    rows = split_rows(rows_per_step, sharing.of_rows(has_head))
    sync = settle_sync(
        config,
        recorded,
        len(set(names)) > 1,
        lambda: choose_sync(
            wire,
            [
                RankPlace(
                    host["name"],
                    len(own),
                    speed,
                    host["threads"] if host["device"] == "cpu" else 0,
                )
                for host, own, speed in zip(hosts, rows, speeds(), strict=True)
            ],
            model_config,
            resolved.device_batch_size,
            lm_head=lm_head,
        ),
    )
    for host in hosts:
        host["sync"], host["lm_head"] = sync.value, lm_head.value
        if has_head is not None:
            host["head_rank"] = has_head.rank
    return Session(
        config,
        place,
        wire,
        device,
        data,
        resolved,
        model_config,
        horizon,
        compute,
        sync,
        lm_head,
        choose_waiting(config.waiting, ranks=place.world_size, on_cpu=device.type == "cpu"),
        hosts,
        sharing,
        about,
    )


def settle_lm_head(
    config: TrainConfig,
    recorded: Sequence[dict[str, Any]],
    about: HeadAsked,
    sharing: Shares,
    speeds: Callable[[], list[float]],
    wire: Wire,
) -> Choice:
    """Which ranks have it; a run on the same hosts keeps what it began with. Collective.

    speeds: asked for only where they are needed and `sharing` does not have them. Fixed shares are
    taken for speeds where the fastest rank is to have it.
    """
    kept = str(recorded[0].get("lm_head")) if recorded else None
    if kept is not None and config.lm_head in ("auto", kept) and kept in get_args(LmHead):
        found = {"rank": float(recorded[0]["head_rank"])} if "head_rank" in recorded[0] else {}
        return Choice("lm_head", kept, RECORDED, found)
    known: Sequence[float] = sharing.weights if sharing.measured else ()
    if config.lm_head == "fastest" and not known:
        known = speeds() if config.share_weights is None else sharing.weights
    return on_every(wire, lambda: choose_lm_head(config.lm_head, about, known))


def settle_sync(
    config: TrainConfig,
    recorded: Sequence[dict[str, Any]],
    several_hosts: bool,
    measure: Callable[[], Choice],
) -> Choice:
    """How gradients travel; a run keeps what it began with. Collective where it measures."""
    if config.sync != "auto":
        return Choice("sync", config.sync, "as asked for with --sync")
    if recorded and "sync" in recorded[0]:
        return Choice("sync", str(recorded[0]["sync"]), RECORDED)
    if not several_hosts:
        return Choice("sync", "exact", "no network between the ranks")
    return measure()


def _model_config(resolved: ResolvedConfig, depth: int, vocab_size: int) -> ModelConfig:
    return ModelConfig.from_depth(
        depth,
        aspect_ratio=resolved.aspect_ratio,
        head_dim=resolved.head_dim,
        sequence_len=resolved.max_seq_len,
        vocab_size=vocab_size,
        window_pattern=resolved.window_pattern,
    )


def _describe(
    config: TrainConfig, place: Place, device: torch.device, compute: ComputeChoices
) -> dict[str, Any]:
    """One rank, as run.json and the result have it."""
    return {
        **device_identity(device),
        "rank": place.rank,
        "dtype": compute.dtype,
        "threads": compute.threads,
        "python": platform.python_version(),
        "compute": {
            "layers": dataclasses.asdict(compute.layers),
            "head": dataclasses.asdict(compute.head),
            "attention": compute.attention,
            "asked_matmul": config.matmul,
            "asked_attention": config.attention,
        },
        "choices": [dataclasses.asdict(choice) for choice in compute.choices],
        "kernels": kernels.kernels().reason,
    }


def _described(value: Any) -> dict[str, Any]:
    """A rank's entry, with all that is read of it in its place."""
    told = read_table(value)
    for name in ("name", "device", "device_name", "torch", "dtype", "python", "kernels"):
        read_text(told[name])
    for name in ("rank", "threads"):
        read_whole(told[name])
    read_table(told["compute"])
    read_list(read_table)(told["choices"])
    return told


def parameter_table(counts: ParameterCounts) -> dict[str, int]:
    """Counts by group, and their total, in the order in which people read them."""
    return {**dataclasses.asdict(counts), "total": counts.total}


def require_enough_rows(data: Dataset, rows_per_step: int) -> None:
    """Raise UsageError when a step is larger than an epoch."""
    if data.train.num_rows < rows_per_step:
        raise UsageError(
            f"a step has {rows_per_step} rows, but {data.name} has only {data.train.num_rows}",
            fix="a smaller --total-batch-size, or more text",
        )
