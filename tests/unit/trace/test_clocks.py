from __future__ import annotations

from dataclasses import replace
from statistics import median

import pytest
from tests.unit.trace.recordings import MS, TrueClock, collective, recorded

from yoked.trace.clocks import align, meetings_of
from yoked.trace.recorded import RankTrace

APART = [TrueClock(), TrueClock(ahead_s=7.25, drift=60e-6), TrueClock(-1834.5, drift=-200e-6)]


def worst_error_s(ranks: list[RankTrace], true: list[TrueClock]) -> float:
    """How wrong the clocks are, at the begin and the end of what was recorded."""
    clocks = align(ranks).clocks
    found = []
    for trace, clock in zip(ranks, true, strict=True):
        for true_ns in (100e9, 110e9):
            shown_ns = clock.shows(true_ns)
            by_first = true[0].shows(true_ns)
            found.append(abs(clocks[trace.host].common_ns(shown_ns) - by_first) / 1e9)
    return max(found)


def test_clocks_with_offset_and_drift_are_brought_onto_one() -> None:
    ranks = recorded(APART)

    alignment = align(ranks)

    assert worst_error_s(ranks, APART) < 0.0005
    assert alignment.by_time_of_day == []
    # Of one kind every other collective is left out, to judge by.
    assert (alignment.used, len(alignment.apart_s)) == (20, 20)
    assert max(alignment.apart_s) < 0.001


def test_a_rank_that_is_always_last_does_not_bend_the_clocks() -> None:
    assert worst_error_s(recorded(APART, late_rank=1), APART) < 0.0005


@pytest.mark.parametrize("seed", range(5))
def test_ends_of_which_a_crowded_host_hears_late_do_not_bend_the_clocks(seed: int) -> None:
    ranks = recorded(APART, wakes_late=0.2, seed=seed)

    assert worst_error_s(ranks, APART) < 0.002
    # What was heard late is not hidden: it lies apart, and is told.
    assert max(align(ranks).apart_s) > 0.005
    assert median(align(ranks).apart_s) < 0.005


def test_no_rank_is_done_before_all_have_begun_by_the_clocks_that_are_found() -> None:
    ranks = recorded(APART[:2], wakes_late=0.5)

    clocks = align(ranks).clocks

    host_of = {trace.rank: trace.host for trace in ranks}
    for each in meetings_of(ranks)[::2]:
        begun = max(clocks[host_of[r]].common_ns(at) for r, at in each.began_ns.items())
        ended = min(clocks[host_of[r]].common_ns(at) for r, at in each.ended_ns.items())
        assert ended >= begun - 0.001 * MS


def test_ranks_of_one_host_have_one_clock() -> None:
    true = [TrueClock(), TrueClock(), TrueClock(3.0), TrueClock(3.0)]
    ranks = recorded(true, hosts=["a", "a", "b", "b"])

    alignment = align(ranks)

    assert set(alignment.clocks) == {"a", "b"}
    assert alignment.clocks["a"].common_ns(5) == 5
    assert worst_error_s(ranks, true) < 0.0005


def test_a_host_is_reached_by_way_of_another() -> None:
    """Stages of a pipeline: the first shares a group with the second, that with the third."""
    true = [TrueClock(), TrueClock(2.0, 50e-6), TrueClock(-4.0, -50e-6)]
    pairs = recorded(true[:2]), recorded(true[1:], seed=2)
    second = [
        replace(s, exchange=replace(s.exchange, group="1")) if s.exchange else s
        for s in pairs[1][0].spans
    ]
    third = [
        replace(s, exchange=replace(s.exchange, group="1")) if s.exchange else s
        for s in pairs[1][1].spans
    ]
    ranks = [
        pairs[0][0],
        replace(pairs[0][1], spans=(*pairs[0][1].spans, *second)),
        replace(pairs[1][1], rank=2, host="host2", spans=tuple(third)),
    ]

    assert align(ranks).by_time_of_day == []
    assert worst_error_s(ranks, true) < 0.001


def test_hosts_that_share_no_collective_are_laid_side_by_side_by_the_time_of_day() -> None:
    ranks = [replace(each, spans=()) for each in recorded(APART[:2])]
    ranks = [replace(ranks[0], epoch_ns=1000), replace(ranks[1], epoch_ns=400)]

    alignment = align(ranks)

    assert alignment.by_time_of_day == ["host1"]
    assert alignment.clocks["host1"].common_ns(1600) == 1000
    assert (alignment.used, alignment.apart_s) == (0, ())


def test_collectives_of_which_ranks_tell_unlike_things_are_not_used() -> None:
    same = collective(1, 0, 9, size=2)
    assert same.exchange is not None
    other_size = replace(same, exchange=replace(same.exchange, bytes=8))
    not_done = replace(same, exchange=replace(same.exchange, done=False))
    first, second = recorded([TrueClock(), TrueClock()], count=0)

    for odd in (other_size, not_done):
        assert meetings_of([replace(first, spans=(same,)), replace(second, spans=(odd,))]) == []
    assert meetings_of([replace(first, spans=(same,))]) == []
    assert len(meetings_of([replace(each, spans=(same,)) for each in (first, second)])) == 1


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_a_few_collectives_are_enough(count: int) -> None:
    ranks = recorded([TrueClock(), TrueClock(-12.0)], count=count)

    assert worst_error_s(ranks, [TrueClock(), TrueClock(-12.0)]) < 0.001
