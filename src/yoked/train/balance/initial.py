"""How a run's rows are shared out at its start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from yoked.train.config import TrainConfig

# A short measurement is off by as much when something else starts on a host; the first steps tell
# better.
ALIKE = 1.35


def level_alike(speeds: Sequence[float]) -> list[float]:
    """Speeds by rank, all their mean where they are about equal."""
    if max(speeds) > ALIKE * min(speeds):
        return list(speeds)
    return [sum(speeds) / len(speeds)] * len(speeds)


@dataclass(frozen=True)
class InitialShares:
    """weights: relative shares of a step's rows, by rank. live: whether rows move between ranks
    while the run goes on.
    """

    weights: tuple[float, ...]
    live: bool
    reason: str


def initial_shares(
    config: TrainConfig,
    hosts: Sequence[str],
    last_rows: Sequence[int],
    measure: Callable[[], list[float]],
) -> InitialShares:
    """How rows are shared out at the start. Collective where `measure` is called.

    hosts: the host of each rank. last_rows: where the run has had rows on the same hosts.
    measure: the ranks' speeds, by `level_alike`; asked for only where the shares rest on them.
    """
    fixed = config.share_weights
    several = len(set(hosts)) > 1 and fixed is None
    live = len(hosts) > 1 and (config.balance == "on" or (config.balance == "auto" and several))
    if fixed is not None:
        return InitialShares(tuple(map(float, fixed)), live, "as asked for with --shares")
    if last_rows and config.balance != "off":  # off: equal parts, also after --resume
        return InitialShares(tuple(map(float, last_rows)), live, "as the run had them last")
    if live:
        speeds = measure()
        if max(speeds) == min(speeds):
            return InitialShares((1.0,) * len(hosts), live, "equal parts, by about equal speeds")
        reason = "by the speed of this model's matrix products"
        return InitialShares(tuple(speeds), live, reason)
    return InitialShares((1.0,) * len(hosts), live, "equal parts")
