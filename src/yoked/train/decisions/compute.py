"""How a rank computes: threads, dtype, libraries, attention; measured, each with its reason."""

from __future__ import annotations

import os
import platform
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from yoked.agent.processors import cpu_model
from yoked.costmodel.model_shape import ModelShape
from yoked.ranks.exchange import read_number, read_table_of
from yoked.train import choose
from yoked.train.choose import Decision
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.control import run_on_all_ranks
from yoked.train.comm.rank_info import RankInfo
from yoked.train.config import TrainConfig
from yoked.train.model.attention import AttentionPath
from yoked.train.model.linear import MatmulBackends
from yoked.train.threads import plan_threads, read_cores

RECORDED = "as recorded with the run"


@dataclass(frozen=True)
class ComputeChoices:
    """How this rank computes. choices: everything that was chosen, for people and run.json."""

    dtype: str
    layers: MatmulBackends
    head: MatmulBackends
    attention: AttentionPath
    compile_blocks: bool
    threads: int
    choices: tuple[Decision, ...]


def set_threads(config: TrainConfig, rank_info: RankInfo) -> tuple[int, Decision]:
    """Set the number of threads of this rank, and pin it where that helps."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    outside = int(text) if text.isdecimal() and int(text) > 0 else None
    # torchrun sets 1 when nobody said anything: that is not a choice.
    if outside == 1 and rank_info.local_world_size > 1:
        outside = None
    plan = plan_threads(
        read_cores(),
        rank_info.local_rank,
        rank_info.local_world_size,
        config.thread_count,
        chosen_outside=outside,
    )
    if plan.cores is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, plan.cores)
    torch.set_num_threads(plan.threads)
    pinned = f", pinned to CPUs {', '.join(map(str, plan.cores))}" if plan.cores else ""
    return plan.threads, Decision("threads", str(plan.threads), plan.reason + pinned)


def choose_compute(
    config: TrainConfig,
    model_config: ModelShape,
    device: torch.device,
    comm: Communicator,
    threads: tuple[int, Decision],
    recorded: Sequence[dict[str, Any]],
) -> ComputeChoices:
    """Choose on this rank, by measuring unless an earlier attempt of the run did. Collective.

    The dtype is one for all ranks.
    """
    asked = str(recorded[0]["dtype"]) if recorded else config.dtype
    earlier = _earlier_compute(recorded, comm, device, config)
    measured = run_on_all_ranks(
        comm,
        lambda: (
            None
            if earlier is not None
            else choose.measure_dtypes(model_config, device, dtype=asked, matmul=config.matmul)
        ),
    )
    best_s = comm.all_gather_json(
        {} if measured is None else measured.best_s, read_table_of(read_number)
    )
    dtype = Decision("dtype", asked, RECORDED) if recorded else choose.choose_dtype(best_s, asked)

    def rest() -> ComputeChoices:
        if measured is not None:
            return measured_compute(config, model_config, device, dtype, measured, threads)
        assert earlier is not None
        layers, head = MatmulBackends(**earlier["layers"]), MatmulBackends(**earlier["head"])
        path: AttentionPath = earlier["attention"]
        return _computing(
            (layers, head, Decision("matmul", choose.products_name(layers, head), RECORDED)),
            (path, Decision("attention", path, RECORDED)),
            dtype,
            threads,
            choose.choose_compile(config.compile, device),
        )

    return run_on_all_ranks(comm, rest)


def measured_compute(
    config: TrainConfig,
    model_config: ModelShape,
    device: torch.device,
    dtype: Decision,
    measured: choose.ProductChoice,
    threads: tuple[int, Decision],
) -> ComputeChoices:
    """How this rank computes in that dtype, by what its products took."""
    # First: it says whether the passes that attention is timed with are compiled.
    compiled = choose.choose_compile(config.compile, device)
    times = measured.times.get(dtype.value)
    if times is None:
        # Too slow here to be looked at, and yet the best for the slowest of all ranks.
        times = choose.measure_dtypes(
            model_config, device, dtype=dtype.value, matmul=config.matmul
        ).times[dtype.value]
    return _computing(
        choose.choose_products(times, config.matmul),
        choose.choose_attention(
            model_config,
            device,
            choose.DTYPES[dtype.value],
            model_config.sequence_len,
            config.attention,
        ),
        dtype,
        threads,
        compiled,
    )


def _computing(
    backends: tuple[MatmulBackends, MatmulBackends, Decision],
    attention: tuple[AttentionPath, Decision],
    dtype: Decision,
    threads: tuple[int, Decision],
    compiled: Decision,
) -> ComputeChoices:
    return ComputeChoices(
        dtype=dtype.value,
        layers=backends[0],
        head=backends[1],
        attention=attention[0],
        compile_blocks=compiled.value == "blocks",
        threads=threads[0],
        choices=(dtype, backends[2], threads[1], attention[1], compiled),
    )


def _earlier_compute(
    recorded: Sequence[dict[str, Any]],
    comm: Communicator,
    device: torch.device,
    config: TrainConfig,
) -> dict[str, Any] | None:
    """What this rank chose in an earlier attempt, where host, device and PyTorch are the same.

    config: what is asked for now; another wish than then means to choose anew.

    Taken over, a resumed run computes the very bits that it would have without the stop, with
    exact sync.
    """
    if len(recorded) != comm.world_size:
        return None
    entry = recorded[comm.rank]
    same = all(entry.get(key) == value for key, value in device_identity(device).items())
    compute: dict[str, Any] = entry.get("compute", {})
    wishes = compute.get("asked_matmul"), compute.get("asked_attention", "auto")
    return compute if same and wishes == (config.matmul, config.attention) else None


def device_identity(device: torch.device) -> dict[str, Any]:
    """What must be the same for an earlier choice to hold: host, device, PyTorch."""
    return {
        "name": socket.gethostname(),
        "device": str(device),
        "device_name": _device_name(device),
        "torch": torch.__version__,
    }


def _device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return str(torch.cuda.get_device_name(device))
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        return cpu_model(cpuinfo.read_text(encoding="utf-8"))
    return platform.processor() or platform.machine()
