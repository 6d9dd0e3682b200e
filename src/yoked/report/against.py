"""One run against another: what they were told otherwise, and whether they came to anything else.

A difference is told with an interval of 95%. It is that of two runs' own noise, by stretches of
each: one run of each kind does not say what another seed would change.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from statistics import fmean, median, stdev
from typing import Any

from yoked.report.metrics import Bucket, Buckets, RunMetrics, StepLine, lines_that_count
from yoked.report.run_record import RankFacts, RunRecord
from yoked.units import listed

# Stretches of equally many tokens, over the last half of what both runs have.
_STRETCHES = 20
_FEWEST = 5
# Of a t distribution with about as many degrees of freedom, both tails together 5%.
_T = 2.09
_RESAMPLED = 2_000
_HOSTS = "hosts"
# What says where a run lies, and not what it is.
_NOT_COMPARED = frozenset({
    "run", "runs_dir", "passed", "config_file", "planned", "json_output", "verbose", "resume",
    "resume_from_step",
})  # fmt: skip


def compare(one: RunRecord, other: RunRecord) -> dict[str, Any]:
    """What `--against` says, as plain JSON data. Differences are one less other, ratios one over
    other. not_compared: what could not be compared, and why, a sentence each.
    """
    found = {
        "run": other.name,
        "dir": str(other.folder),
        "differs": _differs(one, other),
        "loss": _loss(one, other),
        "validation": _validation(one.metrics, other.metrics),
        "speed": _speed(one.metrics, other.metrics),
    }
    return {**found, "not_compared": list(_not_compared(one, other, found))}


def in_words(found: dict[str, Any]) -> list[str]:
    """A comparison as lines for a person."""
    run, differs = found["run"], found["differs"]
    lines = [
        f"{each['name']}: {each['this'] or 'none'}, and {each['other'] or 'none'} in {run}"
        for each in differs or ()
    ]
    if differs == []:
        lines = [f"nothing that is on record differs from {run}"]
    if (loss := found["loss"]) is not None:
        low, high = loss["interval"]
        lines.append(
            f"loss at equal tokens: {loss['difference']:+.4f} ({low:+.4f} to {high:+.4f}), "
            f"{_beyond(loss)}"
        )
    if (evaluated := found["validation"]) is not None:
        lines.append(
            f"validation after {evaluated['step']:,} steps: "
            f"{evaluated['difference']:+.4f} bits per byte"
        )
    if (speed := found["speed"]) is not None:
        low, high = speed["interval"]
        lines.append(
            f"speed, slow steps included: {speed['ratio']:.3f} times ({low:.3f} to {high:.3f}), "
            f"{_beyond(speed)}"
        )
    return [*lines, *found["not_compared"]]


def _beyond(found: dict[str, Any]) -> str:
    if found["beyond_noise"]:
        return "more than these runs' own noise"
    return "no more than these runs' own noise"


def _not_compared(one: RunRecord, other: RunRecord, found: Mapping[str, Any]) -> Iterator[str]:
    both = (one, other)
    if untold := [run.name for run in both if not run.facts.config]:
        yield f"of {listed(untold)} it is not on record what it was told"
    if stepless := [run for run in both if run.metrics.last is None]:
        why = {True: "is a program and has no steps", False: "has no steps on record"}
        each = (f"{run.name} {why[run.facts.program is not None]}" for run in stepless)
        yield f"loss, validation and speed cannot be compared: {listed(each)}"
        return
    if found["loss"] is None:
        yield "loss cannot be compared: too few steps of equally many tokens have one in both runs"
    if found["validation"] is None:
        unseen = [run.name for run in both if not run.metrics.evaluations]
        why_not = f"{listed(unseen)} has none on record" if unseen else "none came at equal tokens"
        yield f"validation cannot be compared: {why_not}"
    if found["speed"] is None:
        yield "speed cannot be compared: a run has too few steps"


def _differs(one: RunRecord, other: RunRecord) -> list[dict[str, str]] | None:
    """Flags and choices that are not the same, and the hosts; "" where a run has none of it. None:
    it is not on record of both.
    """
    here, there = _settings(one), _settings(other)
    if not (one.facts.config and other.facts.config):
        return None
    names = [*sorted({*here, *there} - _NOT_COMPARED - {_HOSTS}), _HOSTS]
    pairs = [(name, here.get(name, ""), there.get(name, "")) for name in names]
    return [{"name": name, "this": a, "other": b} for name, a, b in pairs if a != b]


def _settings(run: RunRecord) -> dict[str, str]:
    """What a run trained with: a flag that said "fit the device" as it was chosen."""
    given = {name: _text(value) for name, value in run.facts.config.items()}
    chosen = {each.name: each.value for each in run.facts.choices}
    return {**given, **chosen, _HOSTS: "; ".join(map(_host, run.facts.hosts))}


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _host(facts: RankFacts) -> str:
    told = (facts.name, facts.device_name or facts.device, facts.dtype, facts.torch)
    return " ".join(str(each) for each in told if each)


def _loss(one: RunRecord, other: RunRecord) -> dict[str, Any] | None:
    """Training loss at equal tokens; None: they have too few in common."""
    until = min(one.metrics.tokens, other.metrics.tokens)
    edges = [until * (0.5 + 0.5 * place / _STRETCHES) for place in range(_STRETCHES + 1)]
    both = [_means(_buckets(run, until), edges) for run in (one, other)]
    pairs = [
        (here, there)
        for here, there in zip(*both, strict=True)
        if here is not None and there is not None
    ]
    if len(pairs) < _FEWEST:
        return None
    differences = [here - there for here, there in pairs]
    within = _T * stdev(differences) / math.sqrt(len(differences))
    difference = fmean(differences)
    return {
        "from_tokens": edges[0],
        "to_tokens": edges[-1],
        "this": fmean(here for here, _ in pairs),
        "other": fmean(there for _, there in pairs),
        "difference": difference,
        "interval": [difference - within, difference + within],
        "beyond_noise": abs(difference) > within,
    }


def _buckets(run: RunRecord, until: float) -> Sequence[Bucket]:
    """The run's curve, of its first so many tokens at least.

    Of a run that went on for much longer, a bucket is wider than a stretch: the lines of the part
    in question are read again.
    """
    curve = run.metrics.curve
    if curve.width == 1 or until > run.metrics.tokens / 2:
        return curve.buckets
    part, tokens = Buckets(), 0.0
    for line in lines_that_count(run.folder / "metrics.jsonl"):
        if isinstance(line, StepLine):
            tokens += line.tokens
            if tokens > until:
                break
            part.add(line)
    return part.buckets


def _means(buckets: Sequence[Bucket], edges: Sequence[float]) -> list[float | None]:
    """The mean loss between each two numbers of tokens, by buckets that end there."""
    sums = [0.0] * (len(edges) - 1)
    counts = [0] * (len(edges) - 1)
    tokens = 0.0
    for bucket in buckets:
        tokens += bucket.tokens
        place = bisect_left(edges, tokens) - 1
        if 0 <= place < len(sums):
            sums[place] += bucket.loss
            counts[place] += bucket.losses
    return [total / count if count else None for total, count in zip(sums, counts, strict=True)]


def _validation(one: RunMetrics, other: RunMetrics) -> dict[str, Any] | None:
    """Bits per byte after the last number of steps at which both were evaluated, where a step has
    as many tokens in both; None: there is none.
    """
    if one.last is None or other.last is None or one.last.tokens != other.last.tokens:
        return None
    common = one.evaluations.keys() & other.evaluations.keys()
    if not common:
        return None
    step = max(common)
    here, there = one.evaluations[step], other.evaluations[step]
    return {"step": step, "this": here, "other": there, "difference": here - there}


def _speed(one: RunMetrics, other: RunMetrics) -> dict[str, Any] | None:
    """Tokens a second, as the ratio of medians over stretches; None: a run is too short.

    A stretch has its slow steps in it: so it has less than the run's tokens_per_second, which is
    that of its median step.
    """
    here, there = (_speeds(run.curve.buckets) for run in (one, other))
    if min(len(here), len(there)) < _FEWEST:
        return None
    # Always the same: the report of a run does not change by itself.
    chance = random.Random(0)
    ratios = sorted(
        median(chance.choices(here, k=len(here))) / median(chance.choices(there, k=len(there)))
        for _ in range(_RESAMPLED)
    )
    low, high = ratios[round(0.025 * _RESAMPLED)], ratios[round(0.975 * _RESAMPLED) - 1]
    return {
        "this": median(here),
        "other": median(there),
        "ratio": median(here) / median(there),
        "interval": [low, high],
        "beyond_noise": not low <= 1 <= high,
    }


def _speeds(buckets: Sequence[Bucket]) -> list[float]:
    """Tokens a second of stretches of equally many buckets, without the first step, which compiles
    and warms up. Neighbouring steps are alike: so a stretch has a twentieth of the run.
    """
    timed = [each for each in buckets[1:] if each.dt_s]
    each = max(1, len(timed) // _STRETCHES)
    parts = [timed[place : place + each] for place in range(0, len(timed) - each + 1, each)]
    return [sum(b.tokens for b in part) / sum(b.dt_s for b in part) for part in parts]
