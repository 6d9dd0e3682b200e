from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked import journal
from yoked.costmodel.model_shape import ModelShape
from yoked.train.balance.balancer import Assignment
from yoked.train.balance.controller import BalanceController
from yoked.train.runfolder import RunFolder
from yoked.train.trainer import StepStats


class Followed:
    """What live balance did on one rank in 40 steps of 8 rows of 10 tokens."""

    def __init__(
        self, comm: Any, path: Path, row_s: Sequence[float], *, vocab_parallel: bool, head: float
    ) -> None:
        """head: of a row's time, what the lm_head takes; 0: not known."""
        self.rows, self.lm_head, self.head = [4, 4], [4.0, 4.0], head
        trainer: Any = SimpleNamespace(comm=comm)
        trainer.model = SimpleNamespace(config=ModelShape.from_depth(2, sequence_len=10))
        trainer.buffers = SimpleNamespace(owners={"a matrix": 0})
        trainer.lm_head = SimpleNamespace(grouped=vocab_parallel)
        trainer.assign = self.assign
        self.said: list[str] = []
        folder = RunFolder(path)
        if comm.rank == 0:
            folder.open({}, attempt=1)
        now = Assignment((4, 4), (4.0, 4.0))
        live = BalanceController(trainer, folder, ["desk", "laptop"], [1.0, 1.0], now)
        self.by_step: list[list[int]] = []
        for step in range(40):
            live.apply()
            self.by_step.append(self.rows)
            live.follow([self.stats(rank, each) for rank, each in enumerate(row_s)], step + 1,
                        self.said.append)  # fmt: skip
        live.apply()
        folder.close()

    def assign(self, rows: list[int], lm_head: list[float]) -> None:
        self.rows, self.lm_head = rows, lm_head

    def stats(self, rank: int, row_s: float) -> StepStats:
        """Of a step without any part of the lm_head that is not its own rows'."""
        rows = self.rows[rank]
        return StepStats(
            nats=1.0,
            tokens=10 * rows,
            compute_s=0.1 + rows * row_s,
            comm_s=0.2,
            wait_s=0.0,
            bytes_sent=0,
            fixed_s=0.1,
            head_s=self.head * rows * row_s,
        )


@pytest.fixture
def follow(on_ranks: Callable[..., list[Any]], tmp_path: Path) -> Callable[..., list[Followed]]:
    """Two ranks, a desk and a laptop, each with four rows at first."""

    def followed(
        row_s: Sequence[float], *, vocab_parallel: bool = False, head: float = 0.0
    ) -> list[Followed]:
        return on_ranks(
            2,
            lambda comm: Followed(comm, tmp_path, row_s, vocab_parallel=vocab_parallel, head=head),
        )

    return followed


def test_a_change_reaches_the_trainer_the_journal_and_people(
    follow: Callable[..., list[Followed]], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    desk, laptop = follow((1.0, 100.0))

    (event,) = journal.read(tmp_path / "events.jsonl")
    assert desk.rows == laptop.rows == [8, 0]
    assert (event["event"], event["before"], event["rows"]) == ("shares", [4, 4], [8, 0])
    assert event["row_s"] == [pytest.approx(1.0), pytest.approx(100.0)]
    # The laptop owns no matrix: each step it waits for them.
    assert event["fixed_s"] == [pytest.approx(0.1), pytest.approx(0.3)]
    assert desk.said == snapshot
    assert laptop.said == []


def test_all_ranks_obey_from_the_same_step_on(follow: Callable[..., list[Followed]]) -> None:
    desk, laptop = follow((1.0, 3.0))

    assert desk.by_step == laptop.by_step
    assert desk.by_step[-1] == [6, 2]


def test_a_vocab_parallel_lm_head_is_assigned_with_the_rows(
    follow: Callable[..., list[Followed]], tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    desk, laptop = follow((1.0, 1.15), vocab_parallel=True)

    first, *_ = journal.read(tmp_path / "events.jsonl")
    assert desk.lm_head == laptop.lm_head
    assert first["rows"] == [4, 4]
    assert first["lm_head"][0] > 4.2
    assert sum(first["lm_head"]) == pytest.approx(8)
    assert desk.said[0] == snapshot


def test_what_the_lm_head_takes_of_a_row_is_measured(
    follow: Callable[..., list[Followed]], tmp_path: Path
) -> None:
    follow((1.0, 1.15), vocab_parallel=True, head=0.8)

    first, *_ = journal.read(tmp_path / "events.jsonl")
    # 0.1 + 4 + 0.8 x = 0.3 + 1.15 (4 - 0.8 x): the desk takes x rows' lm_head.
    assert first["lm_head"][0] == pytest.approx(4 + 0.8 / (0.8 * 2.15), rel=0.001)


def test_the_last_rows_of_a_run_are_those_of_its_last_change(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    assert folder.last_rows() == ()
    folder.open({}, attempt=1)

    for event in (
        {"kind": "start", "rows": [4, 4]},
        {"kind": "shares", "rows": [8, 0], "why": "measured"},
        {"kind": "saved", "step": 3},
    ):
        folder.event(**event)  # type: ignore[arg-type]
    folder.close()

    assert folder.last_rows() == (8, 0)
