"""What a run will take, foreseen before its first step: time, epochs, memory, disk.

And what a person is told of it at the start, in three lines.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from yoked.core.faults import fault
from yoked.core.fs import free_bytes
from yoked.costmodel.compute_cost import RankSpeed
from yoked.costmodel.memory import USABLE_FRACTION, checkpoint_bytes
from yoked.costmodel.model_shape import count_parameters
from yoked.costmodel.simulator import simulate_step
from yoked.costmodel.step_plan import (
    EXACT,
    StepPlan,
    plan_memory,
    plan_step,
    rank_work,
    step_traffic,
)
from yoked.costmodel.work import Network, PortRate, delays_of
from yoked.train.decisions.network import LOCAL_LATENCY_S
from yoked.train.resolve import TrainSchedule, evaluation_steps, evaluations
from yoked.train.setup import UNLIMITED, RunSetup
from yoked.train.sync.late import late_steps
from yoked.units import format_bytes, format_count, format_duration, listed, plural

# Up to so many epochs a text is worth nearly as much as new text (Muennighoff et al. 2023,
# arXiv 2305.16264); later ones teach ever less, and a small model learns it by heart.
EPOCHS_WORTH_HAVING = 4.0


@dataclass(frozen=True)
class RankMemory:
    """Bytes that a rank on a CPU needs at most, and those that it may use; None: not known."""

    host: str
    need_bytes: float
    may_use_bytes: float | None


@dataclass(frozen=True)
class Outlook:
    """step_s, time_s: of a step and of the whole run, without its start; None: nothing to foresee
    them from. epoch_tokens: of the corpus, each once. disk_bytes: of the checkpoints that are kept,
    and of the one that is being written meanwhile; free_bytes: on that disk now. memory: of ranks
    on CPUs, one for each host: its neediest. remark: on epochs; None: there is nothing to remark.
    """

    step_s: float | None
    time_s: float | None
    tokens: int
    epoch_tokens: int
    epochs: float
    checkpoint_bytes: int
    disk_bytes: int
    free_bytes: int
    memory: tuple[RankMemory, ...]
    remark: str | None

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON data."""
        return dataclasses.asdict(self)


def foresee(setup: RunSetup, step_s: float | None = None) -> Outlook:
    """What a run will take. step_s: as it was measured; None: it is foreseen."""
    schedule, data = setup.schedule, setup.data
    plan = _step_plan(setup)
    if step_s is None:
        step_s = _foreseen_step_s(setup, plan)
    tokens = schedule.num_iterations * schedule.total_batch_size
    epoch_tokens = data.train.num_rows * setup.resolved.max_seq_len
    late = delays_of(setup.strategy.sync.value)
    one = checkpoint_bytes(count_parameters(setup.model_config), late=late)
    return Outlook(
        step_s=step_s,
        time_s=None if step_s is None else step_s * steps_in_all(schedule),
        tokens=tokens,
        epoch_tokens=epoch_tokens,
        epochs=tokens / epoch_tokens,
        checkpoint_bytes=one,
        disk_bytes=one * _most_at_once(schedule, setup.config.keep_last),
        free_bytes=free_bytes(setup.config.runs_dir),
        memory=_memory(setup, plan),
        remark=epoch_remark(tokens / epoch_tokens, data.info.name),
    )


def steps_in_all(schedule: TrainSchedule) -> float:
    """Steps of a run, with its evaluations as the steps that would take as long."""
    return schedule.num_iterations + evaluation_steps(
        schedule.num_iterations,
        schedule.total_batch_size,
        schedule.eval_every,
        schedule.eval_tokens,
    )


def epoch_remark(epochs: float, name: str) -> str | None:
    """A remark on how often a run reads its text; None: not too often."""
    if epochs <= EPOCHS_WORTH_HAVING:
        return None
    return (
        f"{format_epochs(epochs)} of {name}: expect memorising. After {EPOCHS_WORTH_HAVING:g} the "
        "same text teaches little: give it more text, or fewer steps"
    )


def format_epochs(epochs: float) -> str:
    """Such as `4.3 epochs`, `0.012 epochs` or `120 epochs`."""
    return f"{epochs:,.0f} epochs" if epochs >= 9.95 else f"{epochs:.2g} epochs"


def require_disk(outlook: Outlook, setup: RunSetup) -> None:
    """Raise YokedError where not even the run's first checkpoint fits on the disk."""
    if outlook.free_bytes < outlook.checkpoint_bytes:
        runs_dir = setup.config.runs_dir
        # On a fleet's host it is named from the job's folder, where no person is.
        place = runs_dir.resolve() if ".." in runs_dir.parts else runs_dir
        raise fault(
            "disk-full-here",
            here=f"the disk of {place} has no room for a checkpoint",
            needed=format_bytes(outlook.checkpoint_bytes - outlook.free_bytes),
            free=format_bytes(outlook.free_bytes),
        )


def disk_remark(outlook: Outlook, keep_last: int, there_bytes: int) -> str | None:
    """A remark on a disk that takes the first checkpoints of a run, and not all; None: it does.

    there_bytes: of checkpoints that an earlier start of the run has left there.
    """
    missing = outlook.disk_bytes - there_bytes - outlook.free_bytes
    if missing <= 0:
        return None
    fewer = keep_last + -missing // outlook.checkpoint_bytes
    keep = f", or give --keep-last {fewer}" if fewer >= 1 else ""
    return (
        f"remark: checkpoints will take {format_bytes(outlook.disk_bytes)}, and their disk has "
        f"{format_bytes(outlook.free_bytes)} free: later ones will not be saved. Free "
        f"{format_bytes(missing)}{keep}"
    )


def start_lines(setup: RunSetup, outlook: Outlook) -> list[str]:
    """Three lines: the model; how it computes; data, batch and time. And the remark, if any."""
    counts, schedule = count_parameters(setup.model_config), setup.schedule
    vocabulary = setup.data.info.vocab_size
    model = (
        f"model: depth {setup.resolved.depth}, {format_count(counts.total)} parameters, "
        f"vocabulary {vocabulary:,}, rows of {setup.resolved.max_seq_len:,} tokens"
    )
    training = (
        f"training: {schedule.num_iterations:,} steps of {schedule.total_batch_size:,} tokens, "
        f"{format_epochs(outlook.epochs)} of {setup.data.info.name}"
    )
    if outlook.time_s is not None:
        training += f", about {format_duration(outlook.time_s)}"
    remark = [] if outlook.remark is None else [f"remark: {outlook.remark}"]
    return [model, _compute_line(setup), training, *remark]


def _compute_line(setup: RunSetup) -> str:
    """Such as `compute: 2 ranks on i9 (cuda) and nas (cpu), bfloat16, int8 sync`."""
    hosts = setup.hosts
    kinds = {host["name"]: str(host["device"]).partition(":")[0] for host in hosts}
    if len(kinds) == 1:
        where = f"{plural(len(hosts), 'rank')} on {next(iter(kinds.values()))}"
    elif len(set(kinds.values())) == 1:
        where = f"{len(hosts)} ranks on {listed(kinds)} ({hosts[0]['device'].partition(':')[0]})"
    else:
        where = f"{len(hosts)} ranks on {listed(f'{name} ({kinds[name]})' for name in kinds)}"
    threads = {host["threads"] for host in hosts}
    parts = [where, listed(dict.fromkeys(host["dtype"] for host in hosts))]
    if set(kinds.values()) == {"cpu"} and len(threads) == 1:
        each = " each" if len(hosts) > 1 else ""
        parts.append(f"{plural(threads.pop(), 'thread')}{each}")
    chosen = {choice.name: choice.value for choice in setup.compute.choices}
    compiled = chosen["compile"]
    parts += [f"{chosen['attention']} attention", "eager" if compiled == "off" else compiled]
    if len(kinds) > 1 or setup.strategy.sync.value != EXACT:
        parts.append(f"{setup.strategy.sync.value} sync{_late_steps(setup)}")
    if setup.resolved.tables == "host":
        parts.append("tables in host memory")
    return f"compute: {', '.join(parts)}"


def _late_steps(setup: RunSetup) -> str:
    delays = delays_of(setup.strategy.sync.value)
    if not any(delays):
        return ""
    steps = setup.schedule.num_iterations
    late = late_steps(steps, setup.config.warmup_steps, matrices=delays.matrices)
    if late.end <= late.first:
        return " (too few steps for a delay)"
    return f" (delayed from step {late.first + 1} to {late.end})"


def _most_at_once(schedule: TrainSchedule, keep_last: int) -> int:
    """How many checkpoints a run has at most: the newest, the best one beside them, and one that
    is being written before an old one goes.
    """
    saves, best = 1, 0
    if schedule.save_every is not None:
        saves += (schedule.num_iterations - 1) // schedule.save_every
        if schedule.eval_every is not None:
            saves += evaluations(schedule.num_iterations, schedule.eval_every) - 1
            best = 1
    kept = min(keep_last + best, saves)
    return kept + (saves > kept)


def _step_plan(setup: RunSetup) -> StepPlan:
    return plan_step(
        setup.model_config,
        setup.costs(_speeds(setup) or [RankSpeed(1.0)] * len(setup.hosts)),
        sync=setup.strategy.sync.value,
        lm_head=setup.strategy.lm_head.value,
        rows=setup.sharing.rows,
        device_batch_size=setup.resolved.device_batch_size,
    )


def _speeds(setup: RunSetup) -> list[RankSpeed] | None:
    """By rank, from what its products took as its dtype was chosen; None: not known of all."""
    product_s = [host["compute"].get("product_s_per_token") for host in setup.hosts]
    flops = 6 * count_parameters(setup.model_config).dense  # forward, and twice that backward
    if not all(isinstance(each, float) and each > 0 for each in product_s):
        return None
    return [RankSpeed(flops / each) for each in product_s]


def _foreseen_step_s(setup: RunSetup, plan: StepPlan) -> float | None:
    """From a measured network and products, or as the choice of sync or lm_head foresaw it."""
    sync, lm_head = setup.strategy.sync, setup.strategy.lm_head
    for choice in (lm_head, sync):
        if (known := choice.measured.get(f"{choice.value.replace('-', '_')}_step_s")) is not None:
            return known
    speeds, names = _speeds(setup), {host["name"] for host in setup.hosts}
    rate = sync.measured.get("wire_bytes_per_s")
    if speeds is None or (len(names) > 1 and rate is None):
        return None
    ports = {} if rate is None else {name: PortRate(rate, rate) for name in names}
    works = [
        rank_work(plan, setup.model_config, rank, cost)
        for rank, cost in enumerate(setup.costs(speeds))
    ]
    traffic = step_traffic(plan, setup.model_config)
    return simulate_step(works, traffic, Network(ports, LOCAL_LATENCY_S)).step_s


def _memory(setup: RunSetup, plan: StepPlan) -> tuple[RankMemory, ...]:
    neediest: dict[str, RankMemory] = {}
    needs = plan_memory(plan, setup.model_config)
    for host, need_bytes, may_use in zip(setup.hosts, needs, setup.memory_bytes, strict=True):
        known = neediest.get(host["name"])
        if host["device"] == "cpu" and (known is None or known.need_bytes < need_bytes):
            limit = may_use if may_use < USABLE_FRACTION * UNLIMITED / len(needs) else None
            neediest[host["name"]] = RankMemory(host["name"], need_bytes, limit)
    return tuple(neediest.values())
