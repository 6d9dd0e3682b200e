"""The reasons for a plan, as sentences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from dataclasses import dataclass

from yoked.costmodel.model_shape import ModelShape
from yoked.costmodel.step_plan import DELAY_LOSSES, EXACT, MIN_SPEEDUP, OPT_IN, VOCAB_PARALLEL
from yoked.costmodel.work import compression_of, delays_of, is_late
from yoked.plan.search import MIN_HOST_GAIN, Candidate, Plan, PlanRequest, least_lossy
from yoked.units import format_bytes, format_count, format_duration

# Shorter waits are not mentioned. A fraction of the step.
MIN_WAIT_FRACTION = 0.02
# Defaults of `yoked probe` that do not depend on the device.
_PROBE_DEFAULTS = {"--aspect-ratio": 64, "--vocab-size": 32_768}


@dataclass(frozen=True)
class Target:
    """The length of the run, and the price of an hour of each host, in any currency."""

    steps: int
    prices_per_hour: dict[str, float]

    def time_s(self, candidate: Candidate) -> float:
        """Time of the whole run, without evaluation and checkpoints."""
        return self.steps * candidate.forecast.step_s

    def cost(self, candidate: Candidate) -> float | None:
        """Cost of the hosts that take part; None without prices."""
        if not self.prices_per_hour:
            return None
        hourly = sum(self.prices_per_hour.get(host, 0.0) for host in candidate.hosts)
        return hourly * self.time_s(candidate) / 3600


def verdict(plan: Plan) -> str:
    """The predicted speed, in one sentence."""
    chosen, best_single_host = plan.chosen, plan.best_single_host
    rate = f"{format_count(round(chosen.tokens_per_second))} tokens/s"
    if len(plan.single_host) == 1:
        return f"{chosen.hosts[0]} alone: {rate} in {chosen.dtype}"
    if len(chosen.rows) == 1:
        # Candidates have all hosts, and the fastest comes first.
        together = next(each for each in plan.candidates if each.sync in plan.request.safe_syncs)
        everyone = (
            "both hosts" if len(plan.single_host) == 2 else f"all {len(plan.single_host)} hosts"
        )
        return (
            f"train on {best_single_host.hosts[0]} alone: {rate}; {everyone} together "
            f"would reach {format_count(round(together.tokens_per_second))} "
            f"with --sync {together.sync}"
        )
    return (
        f"{len(chosen.rows)} hosts with --sync {chosen.sync}: {rate}, "
        f"{plan.speedup:.2f} times {best_single_host.hosts[0]} alone"
    )


def explanation(plan: Plan, target: Target, added: Collection[str] = ()) -> list[str]:
    """The step's communication, the choice of sync, each host's gain, and the run's time."""
    lines = [_communication(plan.chosen)] if len(plan.chosen.rows) > 1 else []
    lines += _rho_line(plan)
    if plan.chosen.lm_head == VOCAB_PARALLEL:
        why = "hidden states of so few tokens cost less than its gradient"
        lines.append(f"the lm_head is vocab-parallel: {why}")
    lines += _sync_reasons(plan)
    lines += _offers(plan)
    lines += _gain_lines(plan, added)
    lines += [
        f"{_memory_shortage(host, need, plan)}: leave it at home"
        for host, need in plan.insufficient_memory.items()
    ]
    lines += plan.request.memory_notes
    smaller = "--depth" if plan.chosen.device_batch_size == 1 else "--device-batch-size or --depth"
    lines += [
        f"{_memory_shortage(host, need, plan)}: it would not fit; a smaller {smaller} would"
        for host, need in plan.chosen.over_memory.items()
    ]
    lines.append(_target_line(plan.chosen, target))
    probed = [cost.scaled_from for cost in plan.costs.values() if cost.scaled_from is not None]
    if probed:
        flags = _shape_flags(plan.request.shape, probed[0])
        lines.append(
            "computing is scaled by FLOPs from the model that was probed "
            f"(depth {probed[0].n_layer}): `yoked probe {flags}` measures this one"
        )
    return lines


def _offers(plan: Plan) -> list[str]:
    """Faster ways that auto may not choose: of all, and without int4 and late matrices."""
    little = [
        each
        for each in plan.candidates
        if compression_of(each.sync) != OPT_IN and not delays_of(each.sync).matrices
    ]
    lines = list[str]()
    for offered in (least_lossy(plan.candidates), least_lossy(little)):
        faster = offered.tokens_per_second > MIN_SPEEDUP * plan.chosen.tokens_per_second
        if not faster or offered.sync in plan.request.safe_syncs:
            continue
        how = f"--sync {offered.sync} on {len(offered.hosts)} hosts"
        rate = format_count(round(offered.tokens_per_second))
        why = list[str]()
        if is_late(offered.sync):
            why.append(_late_loss(plan.request, offered.sync.partition(":")[0]))
        if compression_of(offered.sync) == OPT_IN:
            why.append(f"look at what {OPT_IN} loses")
        lines.append(f"{how} would reach {rate} tokens/s; it is not chosen: {'; '.join(why)}")
    return list(dict.fromkeys(lines))


def _late_loss(request: PlanRequest, way: str) -> str:
    """The measured cost of a delay, and whether it was measured for this size."""
    known = DELAY_LOSSES[way]
    tokens = f"{known.least_tokens:,}"
    if known.most_tokens > known.least_tokens:
        tokens += f" to {known.most_tokens:,}"
    where = f"at depth {known.depth} and {tokens} tokens a step"
    said = f"{where} the delay costs {known.cost} of the loss"
    if known.was_measured(request.shape, request.tokens_per_step):
        return said
    return f"{said}; here it was not measured"


def _memory_shortage(host: str, need: float, plan: Plan) -> str:
    return f"{host} needs {format_bytes(need)} and has {format_bytes(plan.memory_bytes[host])}"


def _shape_flags(shape: ModelShape, probed: ModelShape) -> str:
    """Flags that make `yoked probe` measure this model; device-independent defaults are omitted.

    probed: the model that it measured last.
    """
    flags: dict[str, object] = {
        "--depth": shape.n_layer,
        # Perhaps not what was given: it rounds up to the same whole heads, so to this width.
        "--aspect-ratio": shape.n_embd // shape.n_layer,
        "--head-dim": shape.n_embd // shape.n_head,
        "--max-seq-len": shape.sequence_len,
        "--vocab-size": shape.vocab_size,
    }
    # Where it is as probed, the probe's default gives it again.
    if shape.window_pattern != probed.window_pattern:
        flags["--window-pattern"] = shape.window_pattern
    return " ".join(
        f"{flag} {value}" for flag, value in flags.items() if _PROBE_DEFAULTS.get(flag) != value
    )


def _communication(chosen: Candidate) -> str:
    forecast = chosen.forecast
    line = (
        f"communication {format_duration(forecast.in_flight_s)} of a step of "
        f"{format_duration(forecast.step_s)}, {format_duration(forecast.hidden_comm_s)} of it "
        f"hidden behind computing; {format_bytes(forecast.sent_bytes)} a step and host"
    )
    waits = {host: step.wait_s / forecast.step_s for host, step in forecast.hosts.items()}
    idlest = max(waits, key=lambda host: waits[host])
    if waits[idlest] >= MIN_WAIT_FRACTION:
        line += f"; {idlest} waits {waits[idlest]:.0%}"
    return line


def _rho_line(plan: Plan) -> list[str]:
    """How slow the network is for these hosts; of all, where one is chosen alone."""
    together = plan.chosen if plan.chosen.rho is not None else plan.candidates[0]
    if together.gradient_s is None or together.rho is None:
        return []
    line = (
        f"rho {together.rho:.2g}: the whole float32 gradient takes "
        f"{format_duration(together.gradient_s)} on the slowest link, a host's part of a step "
        f"{format_duration(together.forecast.compute_s)} of computing"
    )
    return [line]


def _sync_reasons(plan: Plan) -> list[str]:
    """Why the fastest sync, or exact, was not chosen."""
    chosen = plan.chosen
    if len(chosen.rows) == 1:
        return []
    # Empty if a host is left at home: candidates have all hosts.
    same = [each for each in plan.candidates if each.hosts == chosen.hosts]
    exact = [each for each in same if each.sync == EXACT]
    fastest = next((each for each in same if each.sync in plan.request.safe_syncs), chosen)
    if chosen.sync == EXACT and fastest.sync != EXACT:
        more = fastest.tokens_per_second / chosen.tokens_per_second - 1
        much = f"{more:.0%}" if more >= 0.005 else "less than 1%"
        why = f"{fastest.sync} would be {much} faster: too little to lose exactness for"
        return [why]
    if chosen.sync != EXACT and exact:
        more = chosen.tokens_per_second / exact[0].tokens_per_second - 1
        why = "--sync exact keeps the loss curve of one process"
        return [f"{chosen.sync} is {more:.0%} faster than exact; {why}"]
    return []


def _gain_lines(plan: Plan, added: Collection[str]) -> list[str]:
    """What each host adds; one line for each group of identical hosts."""
    # Identical hosts are predicted once, so their rates are equal to the bit.
    counts = Counter((gain.with_host, gain.without_host) for gain in plan.host_gains)
    lines: dict[tuple[float, float, bool], str] = {}
    for gain in plan.host_gains:
        rates = gain.with_host, gain.without_host
        count, is_added = counts[rates], gain.host in added
        if (*rates, is_added) in lines:
            continue
        who = gain.host if count == 1 else f"each of {count} hosts like {gain.host}"
        said = f"{who} adds {gain.gain:.0%}"
        if gain.with_host < gain.without_host * MIN_HOST_GAIN:
            said = f"{who}: {'will not help' if is_added else 'leave it at home'}"
        lines[*rates, is_added] = (
            f"{said} ({format_count(round(gain.without_host))} tokens/s without, "
            f"{format_count(round(gain.with_host))} with)"
        )
    return list(lines.values())


def _target_line(chosen: Candidate, target: Target) -> str:
    tokens = format_count(target.steps * chosen.tokens_per_step)
    line = (
        f"{target.steps:,} steps of {chosen.tokens_per_step:,} tokens, {tokens} in all: "
        f"{format_duration(target.time_s(chosen))}"
    )
    cost = target.cost(chosen)
    return line if cost is None else f"{line}, at the given prices {cost:.2f}"
