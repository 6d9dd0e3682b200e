"""How fast a run gets on, and where a step's time goes: as usual, and now. Pure.

A rank's own time in a step is the time in which it used a core or waited for one. What is left
of a step it waits for others, for the network or for a disk. Source: Documentation/scheduler/
sched-stats.rst (schedstat).
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from yoked.diagnosis.activity import PATIENT, activity_of
from yoked.diagnosis.history import LinkPace, Pace, RankHistory, RankPace, RunHistory
from yoked.diagnosis.vitals import RankVitals, Recorded, Vitals

# What is looked back at: long enough for a few looks, and for a few steps.
_WINDOW_S, _WINDOW_STEPS = 3.0, 4.0
# What is usual is learned from so many steps, and the first compile.
_USUAL_STEPS, _FIRST_STEPS = 6, 3
LEARN_S = 20.0
# A step takes so many times the usual one before anybody is told.
SLOWER = 1.3
# The steps themselves are longer where each rank computes more of them by so much, and none by more
# than twice what another does.
_MORE, _OTHERS_TOO = 0.15, 0.5

# Of a core: what the main thread has less than, while others have more, is computed by those.
_IDLE, _OTHERS_COMPUTE = 0.02, 0.5


def window_s(history: RunHistory) -> float:
    """How far is looked back to tell how fast it is now."""
    usual = history.usual
    step_s = (usual.step_s or 0.0) if usual else (history.step_s or 0.0)
    return max(_WINDOW_S, _WINDOW_STEPS * step_s)


def learn(history: RunHistory) -> None:
    """Take what is now for usual, unless it is slower than that by much."""
    steps = min((rank.steps for rank in history.ranks.values()), default=0)
    # One step more than are needed: the mean of a stretch may be above the median.
    first_s = (_USUAL_STEPS + 1) * (history.step_s or 0.0)
    span_s = max(LEARN_S if history.usual else first_s, window_s(history))
    now = pace_of(history, span_s)
    if steps < _FIRST_STEPS or now is None or now.step_s is None:
        return
    usual = history.usual
    if usual is None or usual.step_s is None:
        if span_s >= _USUAL_STEPS * now.step_s:
            history.usual = now
    elif now.step_s < SLOWER * usual.step_s and _is_as_usual(history, usual):
        history.usual = now


def learn_longer(history: RunHistory) -> None:
    """Take longer steps for usual, where the program itself does more in them."""
    now = pace_of(history, LEARN_S)
    if history.usual is not None and now is not None and all_do_more(history.usual, now):
        history.usual = now


def _is_as_usual(history: RunHistory, usual: Pace) -> bool:
    """Whether steps take no longer now, either, as far as is known."""
    now = pace_of(history, window_s(history))
    known = now is not None and now.step_s is not None
    return known and times_slower(usual, now) is None


def times_slower(usual: Pace | None, now: Pace | None) -> float | None:
    """By what a step takes longer than usual; None: by little, or too little is known."""
    if now is None or usual is None or now.step_s is None or usual.step_s is None:
        return None
    return now.step_s / usual.step_s if now.step_s >= SLOWER * usual.step_s else None


def slow_for_s(history: RunHistory) -> float:
    """Seconds since steps became slower than usual; asked of a run that is slower now."""
    if history.slow_since_s is None:
        limit_s = SLOWER * ((history.usual and history.usual.step_s) or 0.0)
        began = [_slow_since_s(rank, limit_s) for rank in history.ranks.values() if rank.ends]
        # Steps on both sides of an evaluation are not told by the seconds between them.
        history.slow_since_s = max(min(began, default=history.now_s), _patient_s(history))
    return max(0.0, history.now_s - history.slow_since_s)


def _slow_since_s(rank: RankHistory, limit_s: float) -> float:
    """When a rank's slow steps began: where the most time beyond the limit adds up since, so that
    no single quick step among slow ones counts as the end of them.
    """
    ends = list(rank.ends)
    began_s = ends[-1][0]
    beyond_s = most_s = 0.0
    for (before_s, _), (ended_s, took_s) in zip(ends[-2::-1], ends[:0:-1], strict=True):
        beyond_s += (ended_s - before_s) * (1 - limit_s / max(took_s, 1e-6))
        if beyond_s > most_s:
            most_s, began_s = beyond_s, before_s
    return began_s


def _patient_s(history: RunHistory) -> float:
    """When a rank was last seen at something else than training; 0: never, as far as is kept."""
    seen = [
        at_s
        for host in history.hosts
        for at_s, vitals in host.looks
        if any(activity_of(rank) in PATIENT for rank in vitals.ranks)
    ]
    return max(seen, default=0.0)


def all_do_more(usual: Pace, now: Pace) -> bool:
    """Whether each rank computes longer in a step than it did: longer texts, or more layers. What
    slows a processor down does so on its own host.
    """
    more = [
        pace.cpu_s / usual.ranks[rank].cpu_s - 1
        for rank, pace in now.ranks.items()
        if rank in usual.ranks and usual.ranks[rank].cpu_s > 0
    ]
    return len(more) > 1 and min(more) >= max(_MORE, _OTHERS_TOO * max(more))


def pace_of(history: RunHistory, span_s: float) -> Pace | None:
    """The last seconds of a run; None: too little is known of it, or it did something else than
    train meanwhile.
    """
    ranks: dict[int, RankPace] = {}
    links: dict[tuple[int, int], LinkPace] = {}
    step_s: list[float] = []
    for node, host in enumerate(history.hosts):
        looks = [(at_s, one) for at_s, one in host.looks if history.now_s - at_s <= span_s]
        if len(looks) < 3 or looks[-1][0] - looks[0][0] < 0.6 * span_s:
            return None
        took_s = looks[-1][0] - looks[0][0]
        first, last = looks[0][1], looks[-1][1]
        for rank in last.ranks:
            seen = [each for _, look in looks for each in look.ranks if each.rank == rank.rank]
            told = _rank_pace(seen, took_s)
            if told is None or len(seen) < len(looks):
                return None
            ranks[rank.rank], per_step_s = told
            if per_step_s is not None:
                step_s.append(per_step_s)
        links.update(_link_paces(node, first, last, [look for _, look in looks], took_s))
    if len(ranks) < len(history.ranks):
        return None
    whole = len(step_s) == len(ranks)
    return Pace(sum(step_s) / len(step_s) if whole else None, ranks, links)


def _rank_pace(seen: list[RankVitals], took_s: float) -> tuple[RankPace, float | None] | None:
    """Of the looks at one rank; with seconds a step, where one ended."""
    first, last = seen[0], seen[-1]
    if first.pid != last.pid or first.recorded is None or last.recorded is None:
        return None
    doing = [activity_of(each) for each in seen]
    if any(each in PATIENT for each in doing):
        return None
    steps = last.recorded.steps - first.recorded.steps
    # From the end of a step to the end of another: a stretch of 4 steps shows 3 ends or 4.
    between_s = took_s + _since_step_s(first.recorded) - _since_step_s(last.recorded)
    step_s = between_s / steps if steps else None
    # Where no step has ended, the stretch is one.
    share = 1.0 if step_s is None else step_s / took_s
    pace = RankPace(
        (last.cpu_s - first.cpu_s) * share,
        (last.delayed_s - first.delayed_s) * share,
        sum(each == "loading data" for each in doing) / len(doing),
        _computes(first, last, took_s),
        min(1.0, (last.main_delayed_s - first.main_delayed_s) / took_s),
        last.gpu,
    )
    return pace, step_s


def _computes(first: RankVitals, last: RankVitals, took_s: float) -> float | None:
    """Share of the time in which a rank's main thread was on a core; None: that says nothing."""
    if first.main_cpu_s is None or last.main_cpu_s is None or last.gpu:
        # While a GPU computes, a thread may wait on a core.
        return None
    share = (last.main_cpu_s - first.main_cpu_s) / took_s
    others = (last.cpu_s - first.cpu_s) / took_s - share
    return None if share < _IDLE and others > _OTHERS_COMPUTE else min(1.0, share)


def _since_step_s(recorded: Recorded) -> float:
    return recorded.age_s + recorded.stepped_age_s


def _link_paces(
    node: int, first: Vitals, last: Vitals, looks: list[Vitals], took_s: float
) -> Iterator[tuple[tuple[int, int], LinkPace]]:
    before = {link.node: link for link in first.links}
    for link in last.links:
        then = before.get(link.node)
        if then is None or then.connections != link.connections:
            continue
        sent = max(1, link.segments - then.segments)
        seen = [each for look in looks for each in look.links if each.node == link.node]
        yield (
            (node, link.node),
            LinkPace(
                (link.sent_bytes - then.sent_bytes) / took_s,
                (link.retransmitted - then.retransmitted) / sent,
                sum(each.unsent_bytes > 0 for each in seen) / len(seen),
                statistics.median_high(each.rtt_s for each in seen),
            ),
        )
