"""One rank of a probe: measure a training step, then collectives with the other ranks.

All ranks measure the step at the same time, because they also train at the same time. Rank 0 writes
JSON lines to standard output: progress, and at last the result. `yoked.probe.worker` calls this.
"""

from __future__ import annotations

import importlib
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from yoked.probe.collectives import (
    OPS,
    PAYLOADS_BYTES,
    element_count,
    is_skipped,
    iterations,
    repetitions,
    time_budget_s,
)
from yoked.ranks.exchange import gather_json, read_flag, read_table
from yoked.ranks.heartbeat import heartbeat, wait_for_heartbeat
from yoked.ranks.meeting import meet
from yoked.units import format_bytes

# For the last rank to start: a slow disk takes long to import torch.
START_TIMEOUT_S = 180
# A collective that takes longer has lost a rank.
COLLECTIVE_TIMEOUT_S = 60

Tell = Callable[[dict[str, Any]], None]


def measure(spec: Mapping[str, Any]) -> int:
    """Measure as one rank. spec: that of `yoked.probe.worker`. Returns the exit status."""
    store, rank, world = next(iter(rendezvous("env://")))

    def tell(message: dict[str, Any]) -> None:
        if rank == 0:
            sys.stdout.write(json.dumps(message) + "\n")
            # The controller follows this output while the job runs: no line may stay in the buffer.
            sys.stdout.flush()

    turns = itertools.count()

    def of_all(text: str) -> list[str]:
        """The texts of all ranks, in order, through the store: there is no process group yet."""
        # Each time at keys of its own: a rank that is ahead must not overwrite what others read.
        turn = f"probe/said/{next(turns)}"
        store.set(f"{turn}/{rank}", text)
        return [bytes(store.get(f"{turn}/{each}")).decode() for each in range(world)]

    # Wait for all ranks: the first one must not compute alone. `add` is atomic: only the last rank
    # sees the full number.
    if store.add("probe/here", 1) == world:
        store.set("probe/all", "")
    store.wait(["probe/all"], timedelta(seconds=START_TIMEOUT_S))
    profiled: dict[str, Any] | None = None
    if (profile := spec["profile"]) is not None:
        tell({"doing": "a training step on every host"})
        with heartbeat(store, f"probe/profile/{rank}"):
            # A step depends on the devices of all ranks.
            profiled = importlib.import_module(profile["module"]).profile(profile["args"], of_all)
        # A GPU compiles for minutes what a CPU has rehearsed in seconds: past the group's deadline.
        for each in range(world):
            wait_for_heartbeat(store, f"probe/profile/{each}", f"rank {each}", "a training step")
    meet(
        lambda: dist.init_process_group(
            "gloo",
            store=PrefixStore("probe", store),
            rank=rank,
            world_size=world,
            timeout=timedelta(seconds=COLLECTIVE_TIMEOUT_S),
        )
    )
    # The command validates their contents.
    by_rank = gather_json(profiled, lambda value: None if value is None else read_table(value))
    timed: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    if spec["collectives"] is not None and world > 1:
        timed, left_out = measure_collectives(tell=tell, **spec["collectives"])
    dist.destroy_process_group()
    result = {"profiles": by_rank, "collectives": timed, "left_out": left_out}
    tell({"result": result})
    return 0


def measure_collectives(
    *, largest_bytes: int, limit_s: float, gpus: bool, tell: Tell
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Time each operation at each size that fits its part of limit_s.

    Returns the times, each with op, backend, payload_bytes and time_s of the slowest rank, and the
    sizes that would take too long, each with op, payload_bytes and expected_s.
    Collective: all ranks call this. They take the same decisions, because every time is the maximum
    over ranks.
    """
    payloads = [size for size in PAYLOADS_BYTES if size <= largest_bytes]
    num_sizes = len(OPS) * len(payloads)
    bench = _CollectiveBench(payloads[-1], gpus=gpus)
    timed: list[dict[str, Any]] = []
    left_out: list[dict[str, Any]] = []
    for op in OPS:
        op_limit_s = op_left_s = time_budget_s(op, limit_s)
        s_per_byte = 0.0  # of the size that was timed last; the smallest one is never skipped
        for number, size in enumerate(payloads):
            expected_s = s_per_byte * size
            if is_skipped(expected_s, op_left_s):
                left_out.append({"op": op, "payload_bytes": size, "expected_s": expected_s})
                continue
            done = OPS.index(op) * len(payloads) + number
            tell({"doing": f"{op} of {format_bytes(size)} ({done} of {num_sizes} done)"})
            best_s, spent_s = bench.time_s(op, size, op_limit_s, op_left_s)
            timed.append(
                {
                    "op": op,
                    "backend": bench.backend,
                    "payload_bytes": 4 * element_count(size, bench.world),
                    "time_s": best_s,
                }
            )
            op_left_s -= spent_s
            s_per_byte = best_s / size
        limit_s -= op_limit_s - op_left_s  # later operations get what this one left
    return timed, left_out


class _CollectiveBench:
    """The collectives' tensors, and a timer with the same result on all ranks."""

    def __init__(self, largest_bytes: int, *, gpus: bool) -> None:
        self.world = dist.get_world_size()
        self.device, self.group = _device_and_group(gpus=gpus)
        self.backend = "gloo" if self.group is None else "nccl"
        numbers = element_count(largest_bytes, self.world)
        self.full = torch.zeros(numbers, device=self.device)  # (numbers,) fp32
        self.part = torch.zeros(numbers // self.world, device=self.device)  # (numbers / N,)

    def time_s(
        self, op: str, payload_bytes: int, limit_s: float, left_s: float
    ) -> tuple[float, float]:
        """Return (seconds of the fastest repetition, seconds spent), equal on all ranks."""
        numbers = element_count(payload_bytes, self.world)
        run = self._operation(op, self.full[:numbers], self.part[: numbers // self.world])
        first_s = self._time_iterations(run, 1)  # the warm-up; it decides how often to repeat
        in_a_row = iterations(first_s)
        again = repetitions(first_s, limit_s, left_s - first_s)
        times_s = [self._time_iterations(run, in_a_row) for _ in range(again)]
        return min(times_s, default=first_s), first_s + in_a_row * sum(times_s)

    def _operation(self, op: str, full: Tensor, part: Tensor) -> Callable[[], object]:
        group = self.group
        if op == "all_reduce":
            return lambda: dist.all_reduce(full, group=group)
        if op == "all_gather":
            return lambda: dist.all_gather_single(full, part, group=group)
        return lambda: dist.reduce_scatter_single(part, full, group=group)

    def _time_iterations(self, run: Callable[[], object], times: int) -> float:
        """Mean seconds of several iterations, on the slowest rank. Collective."""
        # Otherwise a time would include the wait for a rank that is late.
        dist.barrier()
        self._synchronize()
        began_s = time.perf_counter()
        for _ in range(times):
            run()
        self._synchronize()
        # In host memory: the default group is Gloo, also where NCCL is timed.
        took_s = torch.tensor((time.perf_counter() - began_s) / times, dtype=torch.float64)
        dist.all_reduce(took_s, op=dist.ReduceOp.MAX)
        return float(took_s)

    def _synchronize(self) -> None:
        # A call returns before the GPU has done the work.
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)


def _device_and_group(*, gpus: bool) -> tuple[torch.device, dist.ProcessGroup | None]:
    """A GPU and a NCCL group if every rank has a GPU; else the CPU and None, Gloo's group."""
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    has_gpu = gpus and torch.cuda.is_available() and torch.cuda.device_count() > local_rank
    if not all(gather_json(has_gpu, read_flag)):
        return torch.device("cpu"), None
    torch.cuda.set_device(local_rank)
    timeout = timedelta(seconds=COLLECTIVE_TIMEOUT_S)
    return torch.device("cuda", local_rank), dist.new_group(backend="nccl", timeout=timeout)
