"""The output of `yoked plan`: JSON for programs, lines for people."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from yoked.cli.flags import same_fleet
from yoked.core.names import path_word
from yoked.costmodel.model_shape import count_parameters, flops_per_token
from yoked.costmodel.step_plan import MIN_SPEEDUP
from yoked.plan.bandwidth_table import LINE_RATES_BIT_PER_S, transfer_times
from yoked.plan.explain import explanation
from yoked.probe.summary import beyond_wire
from yoked.table import table
from yoked.units import (
    format_bit_per_s,
    format_bytes,
    format_count,
    format_duration,
    listed,
)

if TYPE_CHECKING:
    from yoked.plan.explain import Target
    from yoked.plan.search import Candidate, Plan
    from yoked.records.measurement import Measurement

_MOST_SHARES = 8


def plan_payload(
    plan: Plan,
    measurement: Measurement,
    target: Target,
    added: Collection[str],
    *,
    simulated: bool,
) -> dict[str, Any]:
    """The object that `yoked plan --json` prints. Its keys are promised."""
    counts = count_parameters(plan.request.shape)
    return {
        "fleet": measurement.fleet,
        "simulated": simulated,
        "measured_s": None if simulated else measurement.taken_s,
        "busy_cores": measurement.busy_cores,
        "params": {**vars(counts), "total": counts.total},
        "flops_per_token": flops_per_token(plan.request.shape),
        "tokens_per_step": plan.request.tokens_per_step,
        "candidates": [_candidate(each, target) for each in plan.candidates],
        "chosen": _candidate(plan.chosen, target),
        "speedup": plan.speedup,
        "efficiency": plan.efficiency,
        "alone": {host: _candidate(each, target) for host, each in plan.single_host.items()},
        "gains": [
            {
                "host": gain.host,
                "tokens_per_second_with": gain.with_host,
                "tokens_per_second_without": gain.without_host,
                "gain": gain.gain,
            }
            for gain in plan.host_gains
        ],
        "leave_at_home": list(plan.excluded),
        "too_small": plan.chosen.over_memory,
        "target": {
            "steps": target.steps,
            "tokens": target.steps * plan.request.tokens_per_step,
            "time_s": target.time_s(plan.chosen),
            "cost": target.cost(plan.chosen),
        },
        "arithmetic": transfer_times(plan.request.shape, *_ranks_and_tokens(plan)),
        "explanation": explanation(plan, target, added),
    }


def _candidate(candidate: Candidate, target: Target) -> dict[str, Any]:
    forecast = candidate.forecast
    return {
        "sync": candidate.sync,
        "lm_head": candidate.lm_head,
        "dtype": candidate.dtype,
        "device_batch_size": candidate.device_batch_size,
        "accumulation": candidate.accumulation,
        "shares": candidate.rows,
        "ranks": candidate.ranks,
        "memory_bytes": candidate.memory_bytes,
        "time_s": target.time_s(candidate),
        "rho": candidate.rho,
        "predicted": {
            "step_s": forecast.step_s,
            "tokens_per_second": candidate.tokens_per_second,
            "compute_s": forecast.compute_s,
            "comm_s": forecast.in_flight_s,
            "exposed_comm_s": forecast.exposed_comm_s,
            "wait_s": {host: step.wait_s for host, step in forecast.hosts.items()},
            "bytes_per_step": forecast.sent_bytes,
        },
    }


def plan_lines(
    plan: Plan,
    measurement: Measurement,
    target: Target,
    added: Collection[str],
    larger: Plan | None,
    *,
    simulated: str | None,
) -> list[str]:
    """The evidence: the source of the figures, reasons, candidates, bandwidth table."""
    taken = datetime.fromtimestamp(measurement.taken_s).astimezone()
    source = f"from the probe of {taken:%Y-%m-%d %H:%M}"
    if measurement.busy_cores:
        source += f", while other programs ran on {listed(measurement.busy_cores)}"
    if (beyond := beyond_wire(measurement)) is not None:
        link, _ = beyond
        source += f"; {link.from_host} to {link.to_host} is faster than was measured there"
    if simulated is not None:
        source = f"simulated, {measurement.fleet}: stated peaks times stated utilisation"
    lines = [source, *explanation(plan, target, added)]
    if larger is not None and larger.speedup > MIN_SPEEDUP * plan.speedup:
        lines.append(
            f"{larger.chosen.tokens_per_step:,} tokens a step would reach "
            f"{larger.speedup:.2f} times the fastest alone (--sync {larger.chosen.sync}): "
            "fewer, larger steps, so another run"
        )
    lines += ["", *_candidate_table(plan), "", *_bandwidth_lines(plan)]
    return lines


def train_commands(
    plan: Plan, flags: Sequence[str], fleet: Path | None, ssh_config: Path | None = None
) -> list[str]:
    """The lines that train as planned. flags: of the model, as `yoked train` takes them.

    fleet: its file, where the line has to name it. ssh_config: what another file of fewer hosts
    has to name.
    """
    words = ["yoked train", *flags, f"--device-batch-size {plan.chosen.device_batch_size}"]
    commands = []
    if len(plan.chosen.rows) > 1:
        words.append(f"--sync {plan.chosen.sync}")
    if plan.excluded:
        fleet = Path("fewer.toml")
        config = "" if ssh_config is None else f" --ssh-config {path_word(ssh_config)}"
        commands.append(f"yoked init {shlex.join(plan.chosen.hosts)} --fleet {fleet}{config}")
    return [*commands, f"{' '.join(words)}{same_fleet(fleet)}"]


def _candidate_table(plan: Plan) -> list[str]:
    columns = ("sync", "dtype", "rows", "step", "computing", "exposed", "sent", "tokens/s", "")
    shown = [*plan.candidates]
    shown += [] if plan.chosen in shown else [plan.chosen]
    if len(plan.single_host) > 1 and plan.best_single_host not in shown:
        shown.append(plan.best_single_host)
    return table(columns, [_row(each, plan) for each in shown])


def _row(candidate: Candidate, plan: Plan) -> list[str]:
    forecast = candidate.forecast
    rows = [str(each) for each in candidate.rows.values()]
    more = ":..." if len(rows) > _MOST_SHARES else ""
    return [
        candidate.sync if len(candidate.rows) > 1 else f"{candidate.hosts[0]} alone",
        candidate.dtype,
        ":".join(rows[:_MOST_SHARES]) + more,  # by host: 26:6
        format_duration(forecast.step_s),
        format_duration(forecast.compute_s),
        format_duration(forecast.exposed_comm_s),
        format_bytes(forecast.sent_bytes),
        format_count(round(candidate.tokens_per_second)),
        "<- chosen" if candidate is plan.chosen else "",
    ]


def _ranks_and_tokens(plan: Plan) -> tuple[int, float]:
    """Ranks of the bandwidth table, and tokens of each: those of the fleet; for one, of two."""
    ranks = max(2, sum(plan.candidates[0].ranks.values()))
    return ranks, plan.request.tokens_per_step / ranks


def _bandwidth_lines(plan: Plan) -> list[str]:
    ranks, tokens = _ranks_and_tokens(plan)
    rates = [format_bit_per_s(rate) for rate in LINE_RATES_BIT_PER_S]
    rows = [
        [
            each["what"],
            format_bytes(each["bytes_per_step"]),
            *map(format_duration, each["time_s"].values()),
        ]
        for each in transfer_times(plan.request.shape, ranks, tokens)
    ]
    title = f"nothing hidden, {ranks} ranks: 2(N-1)/N of the gradients through each network card"
    return [title, *table(["what is sent", "a step and rank", *rates], rows)]
