"""How a run's rows are shared out at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean

from yoked.costmodel.assignment import split_by_weight
from yoked.costmodel.compute_cost import RankCost, RankSpeed
from yoked.costmodel.step_plan import best_rows
from yoked.train.config import TrainConfig

# A short measurement is off by as much when something else starts on a host; the first steps tell
# better.
ALIKE = 1.35


def level_alike(speeds: Sequence[RankSpeed]) -> list[RankSpeed]:
    """By rank, all their mean where FLOP/s are about equal."""
    flops_per_s = [speed.flops_per_s for speed in speeds]
    if max(flops_per_s) > ALIKE * min(flops_per_s):
        return list(speeds)
    own_cores = fmean(speed.own_cores for speed in speeds)
    copy_bytes_per_s = fmean(speed.copy_bytes_per_s for speed in speeds)
    return [RankSpeed(fmean(flops_per_s), own_cores, copy_bytes_per_s)] * len(speeds)


@dataclass(frozen=True)
class InitialShares:
    """rows: of the first step, by rank. weights: the ranks' relative speeds, as rows tell them or
    as they were measured. live: whether rows move between ranks while the run goes on.
    """

    rows: tuple[int, ...]
    weights: tuple[float, ...]
    live: bool
    reason: str


def initial_shares(
    config: TrainConfig,
    hosts: Sequence[str],
    rows: int,
    device_batch_size: int,
    last_rows: Sequence[int],
    measure: Callable[[], Sequence[RankCost]],
) -> InitialShares:
    """How a step's rows are shared out at the start. Collective where `measure` is called.

    hosts: the host of each rank. last_rows: where the run has had rows on the same hosts.
    measure: the ranks' costs; asked for only where the shares rest on them.
    """
    fixed = config.share_weights
    several = len(set(hosts)) > 1 and fixed is None
    live = len(hosts) > 1 and (config.balance == "on" or (config.balance == "auto" and several))
    if fixed is not None:
        weights, reason = tuple(map(float, fixed)), "as asked for with --shares"
    # Of another number where a full disk kept the newest start's line; off: equal parts.
    elif len(last_rows) == len(hosts) and any(last_rows) and config.balance != "off":
        weights, reason = tuple(map(float, last_rows)), "as the run had them last"
    elif live:
        costs = measure()
        weights = tuple(cost.rows_per_s for cost in costs)
        if max(weights) > min(weights):
            best = best_rows(rows, costs, device_batch_size)
            reason = "by the speed of this model's matrix products"
            return InitialShares(best, weights, live, reason)
        weights, reason = (1.0,) * len(hosts), "equal parts, by about equal speeds"
    else:
        weights, reason = (1.0,) * len(hosts), "equal parts"
    by_weight = tuple(len(own) for own in split_by_weight(rows, weights))
    return InitialShares(by_weight, weights, live, reason)
