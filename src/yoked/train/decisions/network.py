"""Measures the network; decides `--sync auto` and `--lm-head auto` by the step they predict.

The network is measured with all ranks on it, and each rank's speed in the model's own products.
`yoked.costmodel.step_plan` predicts steps from them, as it does for `yoked plan`. Where the fleet
was probed, the plan was made from measured steps: it decides, if the network is still as fast.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch

from yoked.costmodel.assignment import level_head_work
from yoked.costmodel.compute_cost import RankCost, head_time_fraction
from yoked.costmodel.dtypes import dtype_name
from yoked.costmodel.messages import ring_bytes
from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import (
    EXACT,
    MIN_SPEEDUP,
    REPLICATED,
    VOCAB_PARALLEL,
    faster_head,
    fits_memory,
    plan_step,
    predict_heads,
    safe_syncs,
    why_not_vocab_parallel,
)
from yoked.costmodel.work import Network, PortRate
from yoked.errors import UsageError
from yoked.ranks.exchange import read_list, read_number, read_table, read_table_of, read_text
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.control import run_on_rank0
from yoked.train.decisions.decision import Decision
from yoked.units import format_bytes_per_s, format_duration

MEASURE_S = 0.15
FIRST_BYTES, LAST_BYTES = 1 << 18, 1 << 26
# Between processes of one host, from the moment when a message is ready to its first byte.
LOCAL_LATENCY_S = 5e-5
PLANNED = "as `yoked plan` has it, from the fleet's last probe"
# A plan is for another network than this one, where their rates differ by more: Wi-Fi varies.
SAME_NETWORK = 1.5
ASKED_SYNC, ASKED_HEAD = "as asked for with --sync", "as asked for with --lm-head"


@dataclass(frozen=True)
class PlannedStrategy:
    """The strategy that `yoked plan` chooses for this run, from steps that the probe measured.

    bytes_per_s: of the slowest port, as the probe saw it.
    """

    sync: str
    lm_head: str
    dtype: str
    bytes_per_s: float

    def holds(self, dtype: str, rate: float) -> bool:
        """Whether the run is in that dtype, on a network that is about as fast."""
        slower, faster = sorted((rate, self.bytes_per_s))
        return dtype == self.dtype and faster < SAME_NETWORK * slower


@dataclass(frozen=True)
class StepRequest:
    """What the decision rests on. ranks: of one host each; rows: of a step, by rank.

    shares: that rows were divided by, as the ranks' speeds. sync, lm_head: what is settled already,
    else None. memory_bytes: that each rank may use. planned: None where no plan was made; then the
    step is predicted from FLOP/s alone.
    """

    shape: ModelShape
    ranks: Sequence[RankCost]
    rows: Sequence[int]
    shares: Sequence[float]
    device_batch_size: int
    memory_bytes: Sequence[float]
    sync: Decision | None = None
    lm_head: Decision | None = None
    planned: PlannedStrategy | None = None


class Strategy(NamedTuple):
    """sync: the payload dtype. lm_head: which ranks have it. head_rows: its work by rank, in rows,
    as the run starts; None: each rank has that of its own rows.
    """

    sync: Decision
    lm_head: Decision
    head_rows: tuple[float, ...] | None


def decide_sync_and_head(
    comm: Communicator, request: StepRequest, measured: Network | None = None
) -> Strategy:
    """How gradients travel and who computes the lm_head. Rank 0 decides; collective.

    measured: the network, where it need not be measured. Raises UsageError where something was
    asked for that cannot be.
    """
    hosts = [cost.host for cost in request.ranks]
    open_questions = request.sync is None or request.lm_head is None
    network = Network({}, LOCAL_LATENCY_S)
    if open_questions and len(set(hosts)) > 1 and comm.device_group is None:
        network = measured or measure_network(comm, hosts)
    nccl = comm.device_group is not None

    def act() -> dict[str, Any]:
        sync, lm_head = decide(request, network, nccl=nccl)
        head_rows = list(_head_rows(request)) if lm_head.value == VOCAB_PARALLEL else None
        return {"sync": asdict(sync), "lm_head": asdict(lm_head), "head_rows": head_rows}

    return run_on_rank0(comm, act, _read_strategy)


def _head_rows(request: StepRequest) -> tuple[float, ...]:
    """Parts of a vocab-parallel lm_head that make up for what whole rows leave uneven.

    By the shares: speeds that are measured anew would give a resumed run other parts, and so other
    bits.
    """
    row_s = [1 / share if share else 0.0 for share in request.shares]
    step_s = [count * each for count, each in zip(request.rows, row_s, strict=True)]
    of_a_row = head_time_fraction(request.shape)
    return level_head_work(request.rows, step_s, [of_a_row * each for each in row_s])


def _read_strategy(value: Any) -> Strategy:
    told = read_table(value)
    rows = told["head_rows"]
    head_rows = None if rows is None else tuple(read_list(read_number)(rows))
    return Strategy(_read_choice(told["sync"]), _read_choice(told["lm_head"]), head_rows)


def _read_choice(value: Any) -> Decision:
    told = read_table(value)
    measured = read_table_of(read_number)(told["measured"])
    name, chosen, reason = (read_text(told[key]) for key in ("name", "value", "reason"))
    return Decision(name, chosen, reason, measured)


def measure_network(comm: Communicator, hosts: Sequence[str]) -> Network:
    """As `measure_rate` has it, the same at all hosts' ports. hosts: by rank. Collective."""
    rate, latency_s = measure_rate(comm)
    return Network({host: PortRate(rate, rate) for host in hosts}, latency_s)


def measure_rate(comm: Communicator) -> tuple[float, float]:
    """Bytes a second that each rank sends in a large all-reduce, and seconds from ready to the
    first byte at another rank: a small one is 2(N-1) such messages.

    Collective; takes about MEASURE_S, or one message of FIRST_BYTES on a slow network.
    """
    small = torch.zeros(1)
    comm.all_reduce(small, "measuring the network").wait()
    latency_s = min(_time_s(comm, small) for _ in range(5))
    size, took_s = FIRST_BYTES, 0.0
    while True:
        payload = torch.zeros(size // 4)
        # The first of a size may find the shaper's bucket full, or TCP's window small.
        took_s = max(_time_s(comm, payload), _time_s(comm, payload))
        # Clocks differ: rank 0's says for all whether to go on.
        if comm.all_gather_json(took_s, read_number)[0] > MEASURE_S or size >= LAST_BYTES:
            hops = 2 * (comm.world_size - 1)
            return ring_bytes(size, comm.world_size) / took_s, latency_s / hops
        size *= 4


def _time_s(comm: Communicator, payload: torch.Tensor) -> float:
    started = time.perf_counter()
    comm.all_reduce(payload, "measuring the network").wait()
    return time.perf_counter() - started


def decide(
    request: StepRequest, network: Network, *, nccl: bool = False
) -> tuple[Decision, Decision]:
    """Pure. network: without ports, there is none between the ranks."""
    impossible = why_not_vocab_parallel(request.ranks)
    if request.lm_head is not None and request.lm_head.value == VOCAB_PARALLEL and impossible:
        raise UsageError(
            f"--lm-head {VOCAB_PARALLEL}: {impossible}",
            fix="leave --lm-head out: auto does so where it can be done",
        )
    rate = min((port.out_bytes_per_s for port in network.ports.values()), default=None)
    sync = request.sync
    if sync is None and nccl:
        sync = Decision("sync", EXACT, "NCCL between the GPUs")
    if sync is None and rate is None:
        sync = Decision("sync", EXACT, "no network between the ranks")
    if sync is not None and (request.lm_head is not None or impossible):
        return sync, request.lm_head or Decision("lm_head", REPLICATED, str(impossible))
    planned = _valid_plan(request, rate)
    if planned is not None:
        sync = sync or Decision("sync", planned.sync, PLANNED)
        return sync, request.lm_head or Decision("lm_head", planned.lm_head, PLANNED)
    tokens = sum(request.rows) * request.shape.sequence_len
    names = safe_syncs(request.shape, tokens) if sync is None else (sync.value,)
    found = {
        name: predict_heads(
            request.shape,
            request.ranks,
            network,
            sync=name,
            rows=request.rows,
            device_batch_size=request.device_batch_size,
            lm_head=None if request.lm_head is None else request.lm_head.value,
        )
        for name in names
    }
    heads = {
        name: faster_head(each, request.shape, request.memory_bytes) for name, each in found.items()
    }
    if sync is None:
        assert rate is not None
        step_s = {name: each[heads[name]][1].step_s for name, each in found.items()}
        sync = _choose_sync(step_s, rate)
    if request.lm_head is not None:
        return sync, request.lm_head
    if impossible:
        return sync, Decision("lm_head", REPLICATED, impossible)
    by_head = {name: forecast.step_s for name, (_, forecast) in found[sync.value].items()}
    return sync, _explain_head(heads[sync.value], by_head)


def _valid_plan(request: StepRequest, rate: float | None) -> PlannedStrategy | None:
    """The plan, where it is for this dtype and network, and ranks now have the memory for it."""
    planned = request.planned
    dtype = dtype_name([cost.dtype for cost in request.ranks])
    if planned is None or rate is None or not planned.holds(dtype, rate):
        return None
    plan = plan_step(
        request.shape,
        request.ranks,
        sync=planned.sync,
        lm_head=planned.lm_head,
        rows=request.rows,
        device_batch_size=request.device_batch_size,
    )
    return planned if fits_memory(plan, request.shape, request.memory_bytes) else None


def _choose_sync(step_s: dict[str, float], rate: float) -> Decision:
    """What loses least of those within MIN_SPEEDUP of the fastest."""
    fastest_s = min(step_s.values())
    chosen = next(name for name in step_s if step_s[name] <= MIN_SPEEDUP * fastest_s)
    figures = {
        f"{name.replace('-', '_').replace(':', '_')}_step_s": took_s
        for name, took_s in step_s.items()
    }
    figures["wire_bytes_per_s"] = rate
    carries = f"the network carries {format_bytes_per_s(rate)}"
    if chosen == EXACT:
        return Decision("sync", chosen, f"{carries}: nothing much would be faster", figures)
    times = f"a step is foreseen to take {format_duration(step_s[chosen])}, "
    exact = format_duration(step_s[EXACT])
    return Decision("sync", chosen, f"{carries}: {times}exact {exact}", figures)


def _explain_head(chosen: str, step_s: dict[str, float]) -> Decision:
    """The choice with what the other strategy would take. step_s: by strategy."""
    figures = {f"{name.replace('-', '_')}_step_s": took_s for name, took_s in step_s.items()}
    parallel_s, replicated_s = step_s[VOCAB_PARALLEL], step_s[REPLICATED]
    took = f"a step is foreseen to take {format_duration(step_s[chosen])}"
    if chosen == VOCAB_PARALLEL:
        why = f"{took}, replicated {format_duration(replicated_s)}"
    elif parallel_s * MIN_SPEEDUP <= replicated_s:
        why = "vocab-parallel would be faster, but needs more memory than a rank has"
    else:
        why = f"{took}, vocab-parallel {format_duration(parallel_s)}"
    return Decision("lm_head", chosen, why, figures)
