"""An error of one rank is that of all, as it was; and no other code runs for its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from yoked.errors import CheckpointError, PeerError, PeerLostError, UsageError, YokedError
from yoked.ranks.exchange import decode, encode, read_whole
from yoked.train.comm.communicator import Communicator
from yoked.train.comm.control import _failure, run_on_all_ranks, run_on_rank0

OnRanks = Callable[..., list[Any]]


@pytest.mark.parametrize("kind", [YokedError, UsageError, CheckpointError, PeerLostError])
def test_an_error_of_one_rank_is_raised_on_all_as_it_was(
    on_ranks: OnRanks, kind: type[YokedError]
) -> None:
    def act(comm: Any) -> YokedError:
        def fail() -> None:
            if comm.rank == 1:
                raise kind("the disk is full", fix=("make room", "go on"))

        with pytest.raises(YokedError) as raised:
            run_on_all_ranks(comm, fail)
        return raised.value

    problems = on_ranks(2, act)

    assert [type(problem) for problem in problems] == [kind, kind]
    assert [problem.what for problem in problems] == ["the disk is full"] * 2
    assert [problem.fix for problem in problems] == [("make room", "go on")] * 2


@pytest.mark.parametrize("kind", ["KeyboardInterrupt", "annotations", "__class__", "no such kind"])
def test_a_kind_that_is_not_ours_is_an_error_without_one(kind: str) -> None:
    told = {"kind": kind, "what": "x", "fix": []}

    assert type(_failure(told)) is YokedError


@pytest.mark.parametrize(
    "told",
    [1, {}, {"kind": 1, "what": "x", "fix": []}, {"kind": "YokedError", "what": "x", "fix": "y"}],
)
def test_what_is_no_error_is_refused(told: object) -> None:
    with pytest.raises(PeerError):
        decode(encode(told), 1, _failure)


def test_rank_0_acts_for_all(on_ranks: OnRanks) -> None:
    assert on_ranks(2, lambda comm: run_on_rank0(comm, lambda: 7 + comm.rank, read_whole)) == [7, 7]


def test_what_rank_0_tells_is_read_as_what_it_must_be(on_ranks: OnRanks) -> None:
    def act(comm: Any) -> str:
        with pytest.raises(PeerError) as raised:
            run_on_rank0(comm, lambda: "seven", read_whole)
        return raised.value.what

    for what in on_ranks(2, act):
        assert what.startswith("rank 0 tells")


def test_the_others_know_whose_error_they_raise(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> tuple[int, ...]:
        def fail() -> None:
            if comm.rank == 1:
                raise CheckpointError("no room")

        with pytest.raises(CheckpointError) as raised:
            run_on_all_ranks(comm, fail)
        return raised.value.of_ranks

    assert on_ranks(3, act) == [(1,), (), (1,)]


def test_a_bug_on_one_rank_is_raised_there_and_told_to_all_others(on_ranks: OnRanks) -> None:
    def act(comm: Communicator) -> str:
        def fail() -> None:
            if comm.rank == 1:
                raise ZeroDivisionError("one by none")

        try:
            run_on_all_ranks(comm, fail)
        except ZeroDivisionError as problem:
            return f"bug: {problem}"
        except YokedError as problem:
            return problem.what
        return "nothing"

    first, second, third = on_ranks(3, act)

    assert second == "bug: one by none"
    assert first == third == "rank 1 ended with a bug in yoked: ZeroDivisionError: one by none"
