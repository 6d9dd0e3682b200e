"""Rows move to the faster rank while a run goes on, and what is learned stays the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from yoked import journal
from yoked.train.__main__ import parse

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
# Ranks sum in another order than one process.
ROUNDING_NATS = 1e-4
# A row of the second rank takes far longer, also where a busy machine slows both.
SLOW_SECOND = "0:0.2"
LIVE = ("--shares=1:1", "--balance=on", "--sync=exact")


@pytest.fixture
def slow(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs ranks that sleep for each row, to the end; see slow_rank.py."""

    def slowly(run: str, row_s: str, *flags: str) -> dict[str, Any]:
        environment = {
            **lab.environment({"ROW_S": row_s}),
            "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1] / 'src'}",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        ranks = len(row_s.split(":"))
        config = parse([*flags, f"--run={run}", f"--runs-dir={lab.runs}", f"--ranks={ranks}"])
        found: dict[str, Any] = lab.run_module("slow_rank", config)
        return found

    return slowly


def rows_by_step(folder: Path) -> list[list[int]]:
    """Rows by rank of each step, of rows of 64 tokens."""
    lines = journal.read(folder / "metrics.jsonl")
    return [[count // 64 for count in line["tokens"]] for line in lines if "tokens" in line]


def share_events(folder: Path) -> list[dict[str, Any]]:
    return [e for e in journal.read(folder / "events.jsonl") if e["event"] == "shares"]


def test_rows_leave_a_slow_rank_and_the_loss_curve_is_that_of_one_process(
    slow: Any, lab: Any
) -> None:
    flags = lab.flags(num_iterations=10, eval_every=-1, save_every=-1)
    one = lab.train("one", *flags, "--beside")

    result = slow("two", SLOW_SECOND, *flags, *LIVE)

    (first, *_) = events = share_events(lab.runs / "two")
    assert one.end().status == 0
    assert (first["before"], first["why"]) == ([4, 4], "measured")
    assert sum(events[-1]["rows"]) == 8
    assert events[-1]["rows"][1] < 4
    assert rows_by_step(lab.runs / "two")[first["step"] - 1 :][:2] == [[4, 4], first["rows"]]
    assert rows_by_step(lab.runs / "two")[-1] == events[-1]["rows"]
    assert lab.curve("two").losses == pytest.approx(lab.curve("one").losses, abs=ROUNDING_NATS)
    assert result["state"] == "finished"


@pytest.mark.slow
def test_a_resumed_run_starts_with_the_rows_that_it_had_last(slow: Any, lab: Any) -> None:
    flags = lab.flags(num_iterations=10, eval_every=-1, save_every=-1)
    slow("moved", SLOW_SECOND, *flags, "--balance=on")
    last = rows_by_step(lab.runs / "moved")[-1]

    slow("moved", SLOW_SECOND, "--resume", "--num-iterations=12")

    assert last[1] < last[0]
    assert rows_by_step(lab.runs / "moved")[10] == last


@pytest.mark.slow
def test_a_run_without_live_balance_keeps_its_shares(slow: Any, lab: Any) -> None:
    flags = lab.flags(num_iterations=8, eval_every=-1, save_every=-1)

    slow("fixed", "0:0.05", *flags, "--shares=1:1")

    assert share_events(lab.runs / "fixed") == []
    assert rows_by_step(lab.runs / "fixed") == [[4, 4]] * 8
