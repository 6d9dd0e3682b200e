"""How fast a run gets on, and where a step's time goes: as usual, and now. Pure.

Steps are compared by their medians: an evaluation, a save or a stop in a debugger makes one step
long, and a slow processor or link all of them. A rank's own time in a step is the time in which it
used a core or waited for one. What is left of a step it waits for others, for the network or for a
disk. Source: Documentation/scheduler/sched-stats.rst (schedstat).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Sequence

from yoked.diagnosis.history import (
    HostHistory,
    LinkPace,
    Pace,
    RankHistory,
    RankPace,
    RunHistory,
    Step,
)
from yoked.diagnosis.vitals import LinkVitals, Machine, Vitals

# The newest steps: those of so many seconds, and at least so many.
_NOW_S, _NOW_STEPS = 2.0, 5
# What is usual is learned from those before them, once there are so many after the first compile.
_LEARN_S, _LEARN_STEPS, _FIRST_STEPS = 20.0, 6, 2
# Links are looked at for so long, and for so many steps.
_LINK_S, _LINK_STEPS = 3.0, 4.0
_LOOKS = 3
# A step takes so many times the usual one before anybody is told.
SLOWER = 1.3
# The steps themselves are longer where each rank computes so much of what they take longer.
_MORE = 0.5
# So many quick steps in a row: it was not slow before them.
_QUICK = 3
# The median of so many of the newest steps, and by what it may be above that of all of them.
_LAST, _SETTLED = 3, 1.25
# One that took so many times as long as slow ones do had an evaluation or a save in it.
_MUCH = 4.0
# One that took this long besides had a debugger or a sleeping host in it, or a long evaluation.
_PAUSE_S = 5.0


def learn(history: RunHistory, now: Pace) -> None:
    """Take the steps before the newest ones for usual, unless those are slower by much."""
    if times_slower(history.usual, now) is not None:
        return
    until_s = _known_until_s(history)
    before = [_before_now(rank, until_s) for rank in history.ranks.values()]
    if min((len(steps) for steps in before), default=0) >= _LEARN_STEPS:
        # A link that is slow now is known by the next step alone, and not to be taken for usual.
        known_s = max(steps[-1].ended_s for steps in before)
        history.usual = _pace(history, before, _LEARN_S, known_s)


def learn_longer(history: RunHistory, now: Pace) -> None:
    """Take longer steps for usual, where the program itself does more in them."""
    if history.usual is not None and all_do_more(history.usual, now):
        history.usual = now


def pace_now(history: RunHistory) -> Pace:
    """How it gets on now. Where steps are too few, or not seen, its links' are known alone."""
    span_s = max(_LINK_S, _LINK_STEPS * (history.step_s or 0.0))
    until_s = _known_until_s(history)
    return _pace(history, [_newest(rank, until_s) for rank in history.ranks.values()], span_s)


def times_slower(usual: Pace | None, now: Pace) -> float | None:
    """By what a step takes longer than usual; None: by little, or too little is known."""
    if usual is None or now.step_s is None or usual.step_s is None:
        return None
    # Of a run whose steps differ much, many are long.
    slow_s = max(SLOWER * usual.step_s, usual.long_s)
    return now.step_s / usual.step_s if now.step_s >= slow_s else None


def has_settled(history: RunHistory, now: Pace) -> bool:
    """Whether a step takes as long as the median of the newest. While a run begins to be slow that
    median is a step of which a part was slow, and the medians of its parts are of other steps.
    """
    last_s = [
        statistics.median(step.took_s for step in list(rank.taken)[-_LAST:])
        for rank in history.ranks.values()
        if rank.taken
    ]
    return now.step_s is not None and max(last_s, default=0.0) <= _SETTLED * now.step_s


def slow_for_s(history: RunHistory) -> float:
    """Seconds since steps became slower than usual; asked of a run that is slower now."""
    if history.slow_since_s is None:
        limit_s = SLOWER * ((history.usual and history.usual.step_s) or 0.0)
        began = [_slow_since_s(rank, limit_s) for rank in history.ranks.values()]
        history.slow_since_s = min((at_s for at_s in began if at_s), default=history.now_s)
    return max(0.0, history.now_s - history.slow_since_s)


def _slow_since_s(rank: RankHistory, limit_s: float) -> float | None:
    """When the first of a rank's slow steps began."""
    began_s, quick = None, 0
    most_s = _MUCH * statistics.median(step.took_s for step in list(rank.taken)[-_NOW_STEPS:])
    for step in reversed(rank.taken):
        if limit_s <= step.took_s < most_s:
            began_s, quick = step.ended_s - step.took_s, 0
        elif step.took_s < limit_s:
            quick += 1
        if quick >= _QUICK:
            break
    return began_s


def all_do_more(usual: Pace, now: Pace) -> bool:
    """Whether steps are longer as each rank computes more in them: longer texts, or more layers.
    What slows a processor down does so on its own host, and what slows a link leaves the ranks'
    own work as it is.
    """
    if usual.step_s is None or now.step_s is None or len(now.ranks) < 2:
        return False
    more_s = [
        (pace.cpu_s - usual.ranks[rank].cpu_s) / max(1.0, usual.cores(rank))
        for rank, pace in now.ranks.items()
        if rank in usual.ranks
    ]
    longer_s = now.step_s - usual.step_s
    return longer_s > 0 and min(more_s, default=0.0) >= _MORE * longer_s


# ---- a stretch


def _known_until_s(history: RunHistory) -> float:
    """When the last step ended that is known of every rank: the same steps are compared."""
    ends = [rank.taken[-1].ended_s for rank in history.ranks.values() if rank.taken]
    # Ranks do not end a step at one moment.
    return min(ends, default=0.0) + 0.5 * (history.step_s or 0.0)


def _newest(rank: RankHistory, until_s: float) -> list[Step]:
    """A rank's last steps of those; empty: too few are known."""
    steps = _since_pause([step for step in rank.taken if step.ended_s <= until_s])
    if len(steps) < _NOW_STEPS:
        return []
    newest = [step for step in steps if steps[-1].ended_s - step.ended_s < _NOW_S]
    return newest if len(newest) >= _NOW_STEPS else steps[-_NOW_STEPS:]


def _since_pause(steps: list[Step]) -> list[Step]:
    """Those after the last stop of the whole run: how it got on before that says nothing of now."""
    if not steps:
        return []
    least_s = max(_PAUSE_S, _MUCH * statistics.median(step.took_s for step in steps))
    paused = [at for at, step in enumerate(steps) if step.took_s >= least_s]
    return steps[paused[-1] + 1 :] if paused else steps


def _before_now(rank: RankHistory, until_s: float) -> list[Step]:
    """Those before them, for as long as counts as usual."""
    newest = _newest(rank, until_s)
    if not newest:
        return []
    missed = max(0, rank.steps - len(rank.taken))
    steps = list(rank.taken)[max(0, _FIRST_STEPS - missed) :]
    steps = [step for step in steps if step.ended_s < newest[0].ended_s]
    lately = [step for step in steps if newest[0].ended_s - step.ended_s < _LEARN_S]
    return lately if len(lately) >= _LEARN_STEPS else steps[-_LEARN_STEPS:]


def _pace(
    history: RunHistory, by_rank: Sequence[Sequence[Step]], span_s: float, until_s: float = math.inf
) -> Pace:
    """Of these steps of each rank, and of what else was seen in the last seconds.

    until_s: what was seen after it is left out, where enough was seen before it.
    """
    ranks: dict[int, RankPace] = {}
    links: dict[tuple[int, int], LinkPace] = {}
    machines: dict[int, Machine] = {}
    looks = [_looks(history, host, span_s, until_s) for host in history.hosts]
    for rank, steps in zip(history.ranks, by_rank, strict=True):
        if steps:
            ranks[rank] = RankPace(
                statistics.median(step.cpu_s for step in steps),
                statistics.median(step.delayed_s for step in steps),
                _loading(history.ranks[rank], looks[history.node_of(rank)]),
            )
    for node, seen in enumerate(looks):
        links.update(_link_paces(node, seen))
        for _, look in seen:
            # The first: what slows a run down begins before it shows in the steps.
            if look.machine is not None:
                machines.setdefault(node, look.machine)
    if not by_rank or not all(by_rank):
        return Pace(None, 0.0, ranks, links, machines)
    took_s = [[step.took_s for step in steps] for steps in by_rank]
    return Pace(
        statistics.fmean(statistics.median(each) for each in took_s),
        max(sorted(each)[int(0.9 * len(each))] for each in took_s),
        ranks,
        links,
        machines,
    )


def _looks(
    history: RunHistory, host: HostHistory, span_s: float, until_s: float
) -> list[tuple[float, Vitals]]:
    age_s = max(0.0, history.now_s - until_s)
    looks = host.since(history.now_s, age_s + span_s)
    known = [(at_s, look) for at_s, look in looks if at_s <= until_s]
    return known if len(known) >= _LOOKS else looks


def _loading(rank: RankHistory, looks: Sequence[tuple[float, Vitals]]) -> float:
    """Share of these looks at a rank in which it loaded data."""
    if not looks:
        return 0.0
    doing = rank.did(looks[0][0], looks[-1][0])
    return doing.count("loading data") / len(doing) if doing else 0.0


def _link_paces(
    node: int, looks: Sequence[tuple[float, Vitals]]
) -> Iterator[tuple[tuple[int, int], LinkPace]]:
    """Of a host's links in these looks."""
    last_s, last = looks[-1] if looks else (0.0, None)
    for link in last.links if last is not None else ():
        # A program connects its ranks as it needs it; before that there is nothing to compare.
        seen = list[tuple[float, LinkVitals]]()
        for at_s, look in reversed(looks):
            then = next((each for each in look.links if each.node == link.node), None)
            if then is None or then.connections != link.connections:
                break
            seen.append((at_s, then))
        if len(seen) < _LOOKS:
            continue
        first_s, first = seen[-1]
        sent = max(1, link.segments - first.segments)
        yield (
            (node, link.node),
            LinkPace(
                (link.sent_bytes - first.sent_bytes) / (last_s - first_s),
                (link.retransmitted - first.retransmitted) / sent,
                sum(each.unsent_bytes > 0 for _, each in seen) / len(seen),
                statistics.median_high(each.rtt_s for _, each in seen),
            ),
        )
