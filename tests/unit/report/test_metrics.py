from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.errors import YokedError
from yoked.report.metrics import (
    EvaluationLine,
    ResumedLine,
    StepLine,
    lines_that_count,
    read_metrics,
)


def step_line(attempt: int, step: int, loss: float = 5.0, **more: Any) -> dict[str, Any]:
    return {"attempt": attempt, "step": step, "loss": loss, "tokens": [8, 4], **more}


def write(path: Path, lines: list[dict[str, Any]]) -> Path:
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def full_line(attempt: int, step: int, dt_s: float, waits: list[float]) -> dict[str, Any]:
    return {
        "attempt": attempt,
        "step": step,
        "loss": 9.0 - step / 100,
        "dt_s": dt_s,
        "tokens": [8] * len(waits),
        "compute_s": [dt_s - wait_s for wait_s in waits],
        "head_s": [0.25] * len(waits),
        "comm_s": [0.0] * len(waits),
        "wait_s": waits,
        "bytes_sent": [100 + step] * len(waits),
    }


def test_an_attempt_that_goes_on_supersedes_what_was_beyond_its_first_step(tmp_path: Path) -> None:
    lines = [step_line(1, step) for step in range(6)]
    lines += [{"attempt": 1, "step": 4, "val_bpb": 3.0}, {"attempt": 1, "step": 3, "val_bpb": 3.1}]
    lines += [{"attempt": 2, "resumed_at": 3}, step_line(2, 3), step_line(2, 4)]

    found = list(lines_that_count(write(tmp_path / "m", lines)))

    steps = [(line.attempt, line.step) for line in found if isinstance(line, StepLine)]
    assert steps == [(1, 0), (1, 1), (1, 2), (2, 3), (2, 4)]
    # After three steps the model was the same in both attempts.
    assert [line.step for line in found if isinstance(line, EvaluationLine)] == [3]
    assert [line.step for line in found if isinstance(line, ResumedLine)] == [3]


def test_a_new_attempt_supersedes_also_without_a_line_that_says_so(tmp_path: Path) -> None:
    lines = [*(step_line(1, step) for step in range(4)), step_line(2, 1), step_line(2, 2)]

    found = list(lines_that_count(write(tmp_path / "m", lines)))

    assert [(line.attempt, line.step) for line in found] == [(1, 0), (2, 1), (2, 2)]


@given(
    st.lists(
        st.tuples(st.integers(min_value=0, max_value=12), st.integers(min_value=0, max_value=8)),
        min_size=1,
        max_size=6,
    )
)
def test_each_step_comes_once_and_from_the_last_attempt_that_took_it(
    attempts: list[tuple[int, int]],
) -> None:
    """attempts: where each goes on, at most where the one before ended, and how many steps."""
    lines: list[dict[str, Any]] = []
    expected: dict[int, int] = {}
    for attempt, (first, count) in enumerate(attempts, start=1):
        begin = min(first, len(expected))
        lines.append({"attempt": attempt, "resumed_at": begin})
        expected = {step: of for step, of in expected.items() if step < begin}
        for step in range(begin, begin + count):
            lines.append(step_line(attempt, step))
            expected[step] = attempt
    with tempfile.TemporaryDirectory() as folder:
        path = write(Path(folder) / "m", lines)
        found = [line for line in lines_that_count(path) if isinstance(line, StepLine)]

    assert [(line.step, line.attempt) for line in found] == sorted(expected.items())


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ({"attempt": 1, "step": -1, "loss": 1.0}, "step is -1"),
        ({"attempt": 1, "step": True, "loss": 1.0}, "step is True"),
        ({"attempt": 1, "step": 1, "loss": "low"}, "loss is 'low'"),
        ({"attempt": "x", "resumed_at": 1}, "attempt is 'x'"),
        ({**step_line(1, 1), "wait_s": [0.1]}, "wait_s is no list of 2 figures"),
        ({**step_line(1, 1), "wait_s": [0.1, "x"]}, "wait_s is no list of 2 figures"),
        ({**step_line(1, 1), "tokens": [1, -1]}, "tokens is no list of 2 figures"),
    ],
)
def test_a_line_that_no_run_writes_is_named(line: dict[str, Any], why: str, tmp_path: Path) -> None:
    path = write(tmp_path / "m", [step_line(1, 0), line])

    with pytest.raises(YokedError, match=f":2 is no line of a run: {why}"):
        read_metrics(path)


def test_a_loss_that_was_no_number_is_none(tmp_path: Path) -> None:
    found = read_metrics(write(tmp_path / "m", [{**step_line(1, 0), "loss": None}]))

    assert found.last is not None
    assert found.last.loss is None
    assert found.curve.buckets[0].losses == 0


def test_sums_of_ranks_are_those_of_the_lines(tmp_path: Path) -> None:
    lines = [full_line(1, step, 2.0, [0.5, 0.1, 0.0]) for step in range(3)]
    lines.append(full_line(1, 3, 2.0, [0.0, 0.2, 0.3]))

    found = read_metrics(write(tmp_path / "m", lines))

    assert [rank.wait_s for rank in found.ranks] == pytest.approx([1.5, 0.5, 0.3])
    assert [rank.compute_s for rank in found.ranks] == pytest.approx([6.5, 7.5, 7.7])
    assert [rank.bytes_sent for rank in found.ranks] == [406, 406, 406]
    assert found.ranks[2].kept_waiting_s == pytest.approx({0: 1.5, 1: 0.3})
    assert found.ranks[0].kept_waiting_s == pytest.approx({1: 0.2, 2: 0.3})
    assert found.ranks[1].kept_waiting_s == {}
    assert (found.tokens, found.elapsed_s) == (96, 8.0)


def test_the_first_step_of_each_start_is_no_usual_step(tmp_path: Path) -> None:
    lines = [full_line(1, step, 1.0 if step else 9.0, [0.0]) for step in range(4)]
    lines += [{"attempt": 2, "resumed_at": 4}, full_line(2, 4, 7.0, [0.0])]

    found = read_metrics(write(tmp_path / "m", lines))

    assert list(found.step_s) == [1.0, 1.0, 1.0]
    assert (found.median_step_s, found.first_step_s) == (1.0, 9.0)
    assert found.tokens_per_second == 8.0


@pytest.mark.parametrize("steps", [1, 7, 8, 9, 100, 257])
def test_buckets_are_few_and_lose_nothing(steps: int, tmp_path: Path) -> None:
    lines = [full_line(1, step, 1.0 + step, [0.5, 0.25]) for step in range(steps)]

    found = read_metrics(write(tmp_path / "m", lines), most_points=8)

    buckets = found.curve.buckets
    assert len(buckets) <= 8
    assert len(buckets) > 4 or found.curve.width == 1
    assert {each.steps for each in buckets[:-1]} <= {found.curve.width}
    assert sum(each.steps for each in buckets) == steps
    assert sum(each.dt_s for each in buckets) == pytest.approx(found.elapsed_s)
    assert buckets[-1].last_step == steps - 1
    assert sum(each.by_rank[2] for each in buckets) == pytest.approx(found.ranks[0].wait_s)
    assert min(each.low for each in buckets) == pytest.approx(9.0 - (steps - 1) / 100)


def test_a_start_on_more_hosts_has_more_ranks(tmp_path: Path) -> None:
    lines = [full_line(1, 0, 1.0, [0.0]), {"attempt": 2, "resumed_at": 1}]
    lines += [full_line(2, step, 1.0, [0.0, 0.5]) for step in (1, 2)]

    found = read_metrics(write(tmp_path / "m", lines), most_points=2)

    assert [rank.wait_s for rank in found.ranks] == [0.0, 1.0]
    first, second = found.curve.buckets
    assert first.by_rank == [2.0, 0.0, 0.0, 0.5, 0.0, 0.5]
    assert second.by_rank == [1.0, 0.0, 0.0, 0.5, 0.0, 0.5]
