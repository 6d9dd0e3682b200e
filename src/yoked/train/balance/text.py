"""Messages about work that moves between ranks."""

from __future__ import annotations

from collections.abc import Sequence

from yoked.train.balance.balancer import Reassignment


def rank_names(hosts: Sequence[str]) -> list[str]:
    """The host of each rank, with the rank where the host has several."""
    return [
        host if hosts.count(host) == 1 else f"{host} (rank {rank})"
        for rank, host in enumerate(hosts)
    ]


def describe_change(change: Reassignment, names: Sequence[str]) -> str:
    """One line, such as `laptop slows: 26:6 -> 29:3 rows`."""
    why = "by the steps measured"
    if change.rank is not None:
        verb = "slows" if change.why == "slower" else "is faster"
        why = f"{names[change.rank]} {verb}"
    if change.now.rows != change.before.rows:
        return f"{why}: {_ratio(change.before.rows)} -> {_ratio(change.now.rows)} rows"
    before, now = (percents(each.lm_head) for each in (change.before, change.now))
    return f"{why}: {before} -> {now} % of the lm_head's vocabulary"


def _ratio(counts: Sequence[int]) -> str:
    return ":".join(map(str, counts))


def percents(parts: Sequence[float]) -> str:
    """Each part of their sum, such as `60:40`."""
    return ":".join(f"{100 * part / sum(parts):.0f}" for part in parts)


def idle_note(rows: Sequence[int], shares: Sequence[float], names: Sequence[str]) -> str | None:
    """What to say at the start of ranks without rows; None where all have some.

    shares: what was asked for, or the speeds, by rank.
    """
    idle = [rank for rank, count in enumerate(rows) if not count]
    if not idle:
        return None
    step = "1 row" if sum(rows) == 1 else f"{sum(rows)} rows"
    if len(set(shares)) == 1:
        many = f"rank {idle[0]} has" if len(idle) == 1 else f"{len(idle)} ranks have"
        return (
            f"a step has {step} for {len(rows)} ranks: {many} none "
            "(a larger --total-batch-size would give them work)"
        )
    who = ", ".join(names[rank] for rank in idle)
    return f"by these shares {who} computes none of a step's {step}"
