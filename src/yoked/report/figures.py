"""The figures of a run's report: what `yoked report --json` prints, and what the page draws."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from yoked.diagnosis.words import place
from yoked.report.metrics import RANK_TIMES, Bucket, RankSums
from yoked.report.run_record import RunRecord
from yoked.report.shares import MEANT, mean_shares, shares_of_time
from yoked.report.told import told
from yoked.units import format_count, listed

# Of a step: with less of it, the next gain lies elsewhere.
_NETWORK, _WAITING = 0.2, 0.1
_NAMES = {"compute_s": "computing", "comm_s": "communication", "wait_s": "waiting"}
_UNEQUAL = "yoked plan    says how many rows of a step each host should take"
_NETWORK_FIX = "yoked plan    ranks the ways to send less: --sync int8, a larger --total-batch-size"


def figures_of(record: RunRecord) -> dict[str, Any]:
    """All figures of a run, as plain JSON data (docs/reference/schemas/report.json)."""
    metrics, facts = record.metrics, record.facts
    shares = shares_of_time(record)
    return {
        "run": record.name,
        "dir": str(record.folder),
        "state": record.outcome.state or "unknown",
        "verdict": _verdict(record),
        "why": _why(record, shares),
        "next": _next(record),
        "command": _command(record),
        "started_s": facts.started_s,
        "attempts": facts.attempt,
        "steps": metrics.steps_done,
        "tokens": metrics.tokens,
        "elapsed_s": metrics.elapsed_s,
        "loss": metrics.last.loss if metrics.last is not None else None,
        "val_bpb": metrics.last_val_bpb,
        "best": record.outcome.best
        and {
            "step": record.outcome.best.step,
            "val_bpb": record.outcome.best.val_bpb,
        },
        "step_s": metrics.median_step_s,
        "first_step_s": metrics.first_step_s,
        "tokens_per_second": metrics.tokens_per_second,
        "ranks": [_rank(record, rank, sums) for rank, sums in enumerate(metrics.ranks)],
        "curve": curve_of(metrics.curve.buckets, len(metrics.ranks)),
        "steps_each": metrics.curve.width,
        "shares": shares,
        "evaluations": [
            {"step": step, "val_bpb": value} for step, value in sorted(metrics.evaluations.items())
        ],
        "resumed": metrics.resumed,
        "events": told(record),
        "foreseen": list(_foreseen(record)),
        "choices": [
            {"name": each.name, "value": each.value, "reason": each.reason}
            for each in facts.choices
        ],
        "hosts": [
            {
                "name": each.name,
                "rank": each.rank,
                "device": each.device_name or each.device,
                "dtype": each.dtype,
                "threads": each.threads,
                "torch": each.version("torch"),
                "python": each.version("python"),
            }
            for each in facts.hosts
        ],
        "config": dict(facts.config),
        "model": dict(facts.model),
        "params": dict(facts.params),
    }


def _rank(record: RunRecord, rank: int, sums: RankSums) -> dict[str, Any]:
    """Where a rank's time went, in seconds of all its steps. other_s: none of the three."""
    seconds = {name: getattr(sums, name) for name in RANK_TIMES}
    return {
        "rank": rank,
        "host": record.host_of(rank),
        "tokens": sums.tokens,
        **seconds,
        "head_s": sums.head_s,
        "other_s": max(0.0, record.metrics.elapsed_s - sum(seconds.values())),
        "bytes_sent": sums.bytes_sent,
        "kept_waiting_s": [
            {"rank": other, "wait_s": wait_s}
            for other, wait_s in sorted(sums.kept_waiting_s.items())
        ],
    }


def curve_of(buckets: Sequence[Bucket], ranks: int) -> dict[str, Any]:
    """A point for each bucket of steps, by column. step: the number of steps that are done by its
    end; tokens: of the run so far. Times are means of a step.
    """
    columns: dict[str, list[Any]] = {
        name: []
        for name in ("step", "tokens", "loss", "loss_low", "loss_high", "step_s", "tokens_per_s")
    }
    times = [{name: list[float | None]() for name in RANK_TIMES} for _ in range(ranks)]
    tokens = 0.0
    for each in buckets:
        tokens += each.tokens
        columns["step"].append(each.last_step + 1)
        columns["tokens"].append(tokens)
        columns["loss"].append(each.loss / each.losses if each.losses else None)
        columns["loss_low"].append(each.low if each.losses else None)
        columns["loss_high"].append(each.high if each.losses else None)
        columns["step_s"].append(each.dt_s / each.steps)
        columns["tokens_per_s"].append(each.tokens / each.dt_s if each.dt_s else None)
        for rank, by_name in enumerate(times):
            for at, name in enumerate(RANK_TIMES, start=rank * len(RANK_TIMES)):
                known = at < len(each.by_rank)
                by_name[name].append(each.by_rank[at] / each.steps if known else None)
    return {**columns, "ranks": times}


def _verdict(record: RunRecord) -> str:
    metrics, state = record.metrics, record.outcome.state
    became = {
        None: "has no end on record: it is under way, or nobody saw how it ended",
        "finished": "finished",
        "interrupted": "was stopped",
        "failed": "failed",
        "lost": "ended, and nobody saw how",
    }.get(state, state)
    parts = [f"run {record.name} {became}"]
    if metrics.last is not None:
        parts.append(f"{metrics.steps_done:,} steps, {format_count(metrics.tokens)} tokens")
        if metrics.last.loss is not None:
            parts.append(f"loss {metrics.last.loss:.4f}")
    if metrics.last_val_bpb is not None:
        parts.append(f"validation {metrics.last_val_bpb:.4f} bits per byte")
    if metrics.tokens_per_second is not None:
        parts.append(f"{metrics.tokens_per_second:,.0f} tokens/s")
    return parts[0] if len(parts) == 1 else f"{parts[0]}: {', '.join(parts[1:])}"


def shares_of(record: RunRecord) -> dict[str, float] | None:
    """Of a step, the part that a rank spends at each of RANK_TIMES, as the mean of all ranks."""
    metrics = record.metrics
    if not metrics.ranks or not metrics.elapsed_s:
        return None
    whole_s = metrics.elapsed_s * len(metrics.ranks)
    return {
        name: sum(getattr(rank, name) for rank in metrics.ranks) / whole_s for name in RANK_TIMES
    }


def slowest_rank(record: RunRecord) -> int | None:
    """The rank for which the others waited longest, in all; None: nobody waits."""
    kept = [sum(rank.kept_waiting_s.values()) for rank in record.metrics.ranks]
    return kept.index(max(kept)) if any(kept) else None


def _why(record: RunRecord, seen: Mapping[str, Any] | None) -> list[str]:
    """What ended it, where it failed; where its time went, with the part that counts most.

    seen: of its time, by its hosts.
    """
    lines = [
        f"{place(fault.hosts or (fault.host,), fault.rank)}: "
        f"{'; '.join(fault.evidence) or fault.cause}"
        for fault in record.outcome.faults
    ]
    shares, ranks = shares_of(record), record.metrics.ranks
    if shares is None:
        means = {} if seen is None else mean_shares(seen)
        parts = [f"{share:.0%} {MEANT[name]}" for name, share in means.items()]
        return [*lines, f"of the time a rank spends {listed(parts)}"] if parts else lines
    split = listed(f"{share:.0%} {_NAMES[name]}" for name, share in shares.items())
    lines.append(f"of each step a rank spends {split}")
    slowest = slowest_rank(record)
    if len(ranks) > 1 and shares["wait_s"] >= _WAITING and slowest is not None:
        waited_s = sum(ranks[slowest].kept_waiting_s.values())
        name = _named(record, slowest)
        lines.append(f"{name} is waited for most: the others stood {waited_s:.1f} s for it in all")
    return lines


def _named(record: RunRecord, rank: int) -> str:
    host = record.host_of(rank)
    return f"rank {rank} on {host}" if host else f"rank {rank}"


def _next(record: RunRecord) -> list[str]:
    """What to do now, the most useful first."""
    # As `yoked diagnose` has it: a cause is mended before the run goes on into it again.
    lines = [fix for fault in record.outcome.faults for fix in fault.fix]
    lines += [line for line in record.go_on if line not in lines]
    shares = shares_of(record)
    if shares is not None and len(record.metrics.ranks) > 1:
        if shares["comm_s"] >= _NETWORK:
            lines.append(_NETWORK_FIX)
        if shares["wait_s"] >= _WAITING:
            lines.append(_UNEQUAL)
    return lines


def _command(record: RunRecord) -> str | None:
    """The command line that repeats the run, by the flags that were given; None: not on record."""
    if record.facts.program is not None:
        return shlex.join(["yoked", "run", "--", *record.facts.program.argv])
    config = record.facts.config
    passed = config.get("passed")
    if not isinstance(passed, list):
        return None
    words = ["yoked", "train"]
    for name in passed:
        value = config.get(name) if isinstance(name, str) else None
        if value is None or name == "run":
            continue
        flag = name.replace("_", "-")
        switched = f"--{flag}" if value else f"--no-{flag}"
        words.append(switched if isinstance(value, bool) else f"--{flag}={value}")
    return shlex.join(words)


def _foreseen(record: RunRecord) -> Iterator[dict[str, Any]]:
    """Forecast and measurement of the steps that were taken."""
    outlook, horizon, metrics = record.facts.outlook, record.facts.horizon, record.metrics
    planned, taken = horizon.num_iterations, metrics.steps
    # Not the run's foreseen time, in which its evaluations are.
    taken_s = None if outlook.step_s is None else outlook.step_s * taken
    if planned is not None and metrics.steps_done >= planned:
        whose = "all steps"
    else:
        whose = f"{taken:,} steps" if planned is None else f"{taken:,} of {planned:,} steps"
    pairs: list[tuple[str, str, float | None, float | None]] = [
        ("a step", "s", outlook.step_s, metrics.median_step_s),
        (whose, "s", taken_s, metrics.elapsed_s if taken else None),
    ]
    if outlook.step_s and horizon.total_batch_size:
        speed = horizon.total_batch_size / outlook.step_s
        pairs.append(("speed", "tokens/s", speed, metrics.tokens_per_second))
    # While it goes on, nobody knows how many there will be.
    if planned is not None and record.outcome.state is not None:
        pairs.append(("steps", "", float(planned), float(metrics.steps_done)))
    for what, unit, foreseen, measured in pairs:
        if foreseen is not None and measured is not None:
            yield {"what": what, "unit": unit, "foreseen": foreseen, "measured": measured}
