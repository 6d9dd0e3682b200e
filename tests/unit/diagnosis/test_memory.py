"""How a rank's memory went: a leak, a jump, or a need that was there from the first steps on."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from tests.unit.diagnosis.made_up import Told, rank, recorded

from yoked.diagnosis.memory import MemoryTrace, MemoryTrend, Sample
from yoked.diagnosis.vitals import Vitals

GB = 10**9
LOOK_S = 0.5
START_S = 1000.0


def trend_of(used: Iterable[tuple[int, float]]) -> MemoryTrend | None:
    """Of looks twice a second; used: steps so far, and GB."""
    trace = MemoryTrace()
    for look, (steps, used_gb) in enumerate(used):
        trace.take(Sample(START_S + look * LOOK_S, steps, int(used_gb * GB)))
    return trace.trend


def stretch(
    looks: int, used_gb: Callable[[int], float], steps: Callable[[int], int] = lambda look: look
) -> list[tuple[int, float]]:
    return [(steps(look), used_gb(look)) for look in range(looks)]


def test_a_leak_grows_from_step_to_step() -> None:
    trend = trend_of([(0, 0.3), *stretch(80, lambda look: 1.2 + look * 6.7 / 79)])

    assert trend is not None
    assert trend.gradual
    assert trend.words.startswith("its memory grew from 1.")
    assert " to 7.90 GB in its last 3" in trend.words
    assert "steps" in trend.words
    assert "loss.item()" in trend.fix[0]


def test_what_a_batch_needs_is_there_from_the_first_steps_on() -> None:
    loading = [(0, 0.3), (0, 2.0), (1, 5.0)]
    trend = trend_of([*loading, *stretch(300, lambda look: 7.9 - look % 3 * 0.3, lambda n: n + 2)])

    assert trend is not None
    assert (trend.from_bytes, trend.gradual, trend.fix) == (None, False, ())
    assert trend.words == "it needed 7.90 GB from its first steps on"


def test_a_jump_in_the_last_moment_is_no_leak() -> None:
    # An evaluation with other rows, say. Steps are short: many lie between two looks.
    trend = trend_of(
        [*stretch(400, lambda _: 1.2, lambda look: 50 * look), (20_050, 7.9), (20_050, 8.0)]
    )

    assert trend is not None
    assert not trend.gradual
    assert trend.words == "its memory grew from 1.20 GB to 8.00 GB in its last 1.00 s"


def test_a_jump_that_lasted_is_told_with_when_it_was() -> None:
    trend = trend_of([*stretch(100, lambda _: 1.2), *stretch(41, lambda _: 7.9, lambda n: 100 + n)])

    assert trend is not None
    assert not trend.gradual
    assert trend.words == "its memory grew from 1.20 GB to 7.90 GB in 0.50 s, 20.0 s before its end"


def test_what_grew_for_a_while_and_came_to_rest_is_no_leak() -> None:
    grows = stretch(40, lambda look: 1.2 + look * 6.7 / 39)
    trend = trend_of([*grows, *stretch(200, lambda _: 7.9, lambda look: 40 + look)])

    assert trend is not None
    assert "before its end" in trend.words
    assert trend.fix == ()


def test_a_leak_of_hours_is_seen_by_the_few_looks_that_are_kept() -> None:
    hours = 8 * 3600 * 2
    trace = MemoryTrace()
    for look in range(hours):
        used = 2.0 + 5.0 * look / hours
        trace.take(Sample(START_S + look * LOOK_S, look, int(used * GB)))

    trend = trace.trend
    assert trend is not None
    assert trend.gradual
    assert trend.lasted_s == 0
    assert 6.5 * 3600 < trend.took_s < 8 * 3600
    assert len(trace._coarse) <= 64


def test_a_program_of_which_no_steps_are_known_is_told_by_time_alone() -> None:
    trend = trend_of(stretch(24, lambda look: 0.2 + look / 3, lambda _: 0))

    assert trend is not None
    assert not trend.gradual
    assert trend.words == "its memory grew from 867 MB to 7.87 GB in its last 10.5 s"
    assert "step" not in trend.words


def test_the_last_look_may_find_a_process_half_gone() -> None:
    for gone in (0.1, 0.0):
        trend = trend_of([*stretch(80, lambda look: 1.2 + look / 10), (80, gone)])

        assert trend is not None
        assert trend.used_bytes == pytest.approx(9.1 * GB)
        assert trend.gradual


@pytest.mark.parametrize("used", [[], [(0, 0.0)], [(0, 3.0)], [(0, 3.0), (0, 3.1)]])
def test_nothing_is_said_where_nothing_is_known(used: list[tuple[int, float]]) -> None:
    assert trend_of(used) is None


def test_what_hosts_tell_makes_the_trace_of_each_rank() -> None:
    told = Told()
    for look in range(30):
        took = recorded(steps=look)
        needs = rank(0, recorded=took, memory_bytes=4 * GB)
        grows = rank(1, recorded=took, memory_bytes=(1 + look) * GB)
        told.look(*(Vitals(0, 0, (one,)) for one in (needs, grows)))

    words = [told.history.ranks[number].memory.trend for number in (0, 1)]

    assert [trend is not None and trend.gradual for trend in words] == [False, True]
