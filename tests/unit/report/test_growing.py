"""A run's journal while it grows: as if it had been read in full, and a sample of a long one."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.report.figures import curve_of
from yoked.report.growing import GrowingMetrics, LocalLines, Reading
from yoked.report.metrics import RunMetrics, read_metrics

# So much that a few hundred steps are a long journal.
LITTLE = Reading(whole_bytes=20_000, sample=100, evaluations=20, tail_bytes=8_000)


def step(attempt: int, number: int) -> dict[str, Any]:
    dt_s = 0.1 + 0.01 * (number % 7)
    return {
        "attempt": attempt,
        "step": number,
        "loss": 9.0 / (1 + number / 100),
        "dt_s": dt_s,
        "tokens": [64, 64],
        "compute_s": [dt_s, dt_s - 0.02],
        "comm_s": [0.0, 0.0],
        "wait_s": [0.0, 0.02],
        "bytes_sent": [100, 100],
    }


def run_of(steps: int, eval_every: int = 50) -> list[dict[str, Any]]:
    lines = list[dict[str, Any]]()
    for number in range(steps):
        lines.append(step(0, number))
        if (number + 1) % eval_every == 0:
            lines.append({"attempt": 0, "step": number + 1, "val_bpb": 3.0 - number / 10_000})
    return lines


def text(lines: Sequence[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(line, separators=(",", ":")).encode() + b"\n" for line in lines)


def shown(metrics: RunMetrics) -> object:
    return (
        curve_of(metrics.curve.buckets, len(metrics.ranks)),
        metrics.ranks,
        metrics.evaluations,
        metrics.resumed,
        metrics.steps,
        metrics.tokens_per_second,
    )


@given(
    attempts=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 9), st.booleans()), min_size=1, max_size=5
    ),
    cuts=st.lists(st.integers(0, 6_000), max_size=6),
)
def test_a_journal_that_grows_is_known_as_one_that_is_read_at_once(
    tmp_path_factory: pytest.TempPathFactory,
    attempts: list[tuple[int, int, bool]],
    cuts: list[int],
) -> None:
    lines = list[dict[str, Any]]()
    done = 0
    for attempt, (first, count, says) in enumerate(attempts):
        # An attempt goes on from what an earlier one came to, or from before that.
        begin = min(first, done)
        if says and attempt:
            lines.append({"attempt": attempt, "resumed_at": begin})
        lines += [step(attempt, number) for number in range(begin, begin + count)]
        lines.append({"attempt": attempt, "step": begin + count, "val_bpb": 2.5})
        done = begin + count if count or says else done
    whole = text(lines)
    path = tmp_path_factory.getbasetemp() / "growing.jsonl"
    path.write_bytes(b"")
    growing = GrowingMetrics(LocalLines(path))
    for cut in [*sorted(cuts), len(whole)]:
        # In the middle of a line, too.
        path.write_bytes(whole[:cut])
        growing.update()
    assert shown(growing.metrics) == shown(read_metrics(path))
    assert not growing.sampled


def test_nothing_is_new_where_nothing_was_added(tmp_path: Path) -> None:
    path = tmp_path / "m"
    growing = GrowingMetrics(LocalLines(path))
    assert not growing.update()
    path.write_bytes(text(run_of(3)) + b'{"attempt":0,"st')
    assert growing.update()
    assert not growing.update()
    assert [each.step for each in growing.recent] == [0, 1, 2]


def test_of_a_long_journal_a_sample_stands_for_all_steps_and_the_last_are_read(
    tmp_path: Path,
) -> None:
    path = tmp_path / "m"
    path.write_bytes(text(run_of(3_000)))
    whole = read_metrics(path)
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.eval_every = 50
    growing.update()
    found = growing.metrics
    assert growing.sampled
    assert found.steps == whole.steps == 3_000
    assert found.tokens == whole.tokens
    assert found.elapsed_s == pytest.approx(whole.elapsed_s, rel=0.05)
    assert found.ranks[1].wait_s == pytest.approx(whole.ranks[1].wait_s, rel=0.01)
    assert found.last == whole.last
    assert found.last_val_bpb == whole.last_val_bpb
    assert found.evaluations.items() <= whole.evaluations.items()
    assert len(found.evaluations) >= LITTLE.evaluations
    # Read one by one, with none left out.
    recent = [each.step for each in growing.recent]
    assert recent == list(range(recent[0], 3_000))
    assert len(recent) >= 20
    curve = curve_of(found.curve.buckets, 2)
    assert curve["step"] == sorted(set(curve["step"]))
    exact = {number + 1: 9.0 / (1 + number / 100) for number in range(3_000)}
    for number, loss, low in zip(curve["step"], curve["loss"], curve["loss_low"], strict=True):
        assert exact[number] * 0.999 <= loss <= low * 2, number


def test_what_is_added_to_a_long_journal_is_taken_in(tmp_path: Path) -> None:
    path = tmp_path / "m"
    lines = run_of(3_000)
    path.write_bytes(text(lines[:2_900]))
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.update()
    path.write_bytes(text(lines))
    while growing.update():
        pass
    assert growing.metrics.steps == 3_000
    assert growing.metrics.last == read_metrics(path).last


def test_a_long_journal_that_went_on_from_before_its_end_has_each_step_once(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(text(run_of(3_000)))
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.update()
    with path.open("ab") as file:
        file.write(text([{"attempt": 1, "resumed_at": 2_000}]))
        file.write(text([step(1, number) for number in range(2_000, 2_010)]))
    growing.update()
    assert growing.metrics.steps_done == 2_010
    steps = curve_of(growing.metrics.curve.buckets, 2)["step"]
    assert steps == sorted(set(steps))
    assert steps[-1] == 2_010


@pytest.mark.parametrize(("first", "last"), [(0, 20), (1_490, 1_530), (2_990, 2_999)])
def test_some_steps_of_a_long_journal_are_read_in_full(
    tmp_path: Path, first: int, last: int
) -> None:
    path = tmp_path / "m"
    path.write_bytes(text(run_of(3_000)))
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.update()
    found = growing.between(first, last, 100)
    curve = curve_of(found.curve.buckets, 2)
    assert curve["step"] == [number + 1 for number in range(first, last + 1)]
    assert curve["loss"] == [9.0 / (1 + number / 100) for number in range(first, last + 1)]


def test_of_many_steps_a_sample_is_read(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(text(run_of(3_000)))
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.update()
    found = growing.between(500, 2_499, 50)
    assert found.steps == 2_000
    assert len(found.curve.buckets) <= 50


def test_what_no_run_writes_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "m"
    odd = b'no json\n[1]\n{"step":-1,"loss":1}\n{"attempt":0,"step":"1","loss":2}\n'
    path.write_bytes(text([step(0, 0)]) + odd + text([step(0, 1)]))
    growing = GrowingMetrics(LocalLines(path))
    growing.update()
    assert [each.step for each in growing.recent] == [0, 1]
    assert (growing.damaged, growing.first_damaged) == (4, 2)
    with path.open("ab") as file:
        # Of another kind, and taken again from step 1 on by a later attempt: neither is damaged.
        file.write(
            b'{"attempt":0,"step":2,"other":1}\n' + text([step(1, 1), step(1, 2)]) + b"odd\n"
        )
    growing.update()
    assert [each.step for each in growing.recent] == [0, 1, 2]
    assert (growing.damaged, growing.first_damaged) == (5, 2)


def test_of_a_sample_it_is_not_known_which_line_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(text([step(0, number) for number in range(5_000)]) + b"odd\n")
    growing = GrowingMetrics(LocalLines(path), LITTLE)
    growing.update()
    assert growing.sampled
    assert (growing.damaged, growing.first_damaged) == (1, None)


def test_a_long_journal_takes_little_memory(tmp_path: Path) -> None:
    path = tmp_path / "m"
    with path.open("wb") as file:
        for begin in range(0, 60_000, 1_000):
            file.write(text([step(0, number) for number in range(begin, begin + 1_000)]))
    assert path.stat().st_size > 8 << 20
    growing = GrowingMetrics(LocalLines(path))
    tracemalloc.start()
    try:
        growing.update()
        _, most_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert growing.sampled
    assert most_bytes < 8 << 20
