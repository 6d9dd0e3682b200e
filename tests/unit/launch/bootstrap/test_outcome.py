"""Which failure is the first cause, and what an attempt came to."""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.core.schema import decode
from yoked.diagnosis.calls import Calls
from yoked.launch.bootstrap.outcome import (
    HOST_LOST,
    Attempt,
    Decision,
    Failure,
    RunOutcome,
    first_cause,
    was_ended,
)

GLOO = "RuntimeError: [/x/gloo/transport/tcp/pair.cc:547] Connection closed by peer [127.0.0.1]:1"


def failure(rank: int | None, time_s: float = 10.0, **more: Any) -> Failure:
    return Failure(host="beta", node=1, rank=rank, time_s=time_s, **{"what": "", **more})


KILLED = failure(1, 13.0, signal="SIGKILL")
GONE = failure(None, 12.0, kind=HOST_LOST)
RAISED = failure(2, 11.0, kind="ValueError", what="ValueError: no such column")
ECHO = failure(3, 10.0, kind="RuntimeError", what=GLOO)


def test_of_one_rank_its_own_words_come_before_those_of_others_and_those_before_a_status() -> None:
    status = failure(2, 10.0, pid=7, exit_code=1)
    heard = failure(2, 11.0, kind="CheckpointError", what="the disk is full")
    own = failure(2, 12.0, pid=7, kind="CheckpointError", what="the disk is full")

    assert first_cause([status, heard]) == heard
    assert first_cause([status, heard, own]) == own


@pytest.mark.parametrize("order", list(itertools.permutations([KILLED, GONE, RAISED, ECHO])))
def test_a_kill_beats_a_lost_host_beats_an_error_beats_its_echo(order: list[Failure]) -> None:
    for rest in (order, [one for one in order if one != KILLED]):
        expected = KILLED if KILLED in rest else GONE
        assert first_cause(rest) == expected
    assert first_cause([one for one in order if one in (RAISED, ECHO)]) == RAISED


def test_of_two_errors_the_earlier_is_the_cause() -> None:
    late, early = failure(0, 11.0, kind="ValueError"), failure(5, 10.5, kind="KeyError")

    assert first_cause([late, early]) == early


@pytest.mark.parametrize(
    "echo",
    [
        failure(3, kind="DistNetworkError", what="failed to recv"),
        failure(3, kind="DataError", what="a peer was lost in the sum of gradients: reset"),
        failure(3, kind="SystemExit", what="exit status 1", last_lines=("Traceback", GLOO)),
        failure(3, exit_code=1, what="ended with exit status 1", last_lines=(GLOO,)),
        failure(3, signal="SIGABRT", last_lines=("[rank3]: NCCL watchdog thread terminated",)),
    ],
    ids=["store", "yoked", "caught and exited", "printed", "aborted"],
)
def test_a_complaint_about_a_peer_is_an_echo_however_the_rank_ended(echo: Failure) -> None:
    assert first_cause([echo, RAISED]) == RAISED


@pytest.mark.parametrize("kind", ["BrokenPipeError", "ConnectionError"])
def test_a_connection_of_the_programs_own_comes_before_the_loss_of_a_peer(kind: str) -> None:
    # The clock of its host is ahead by more than it took the other to complain.
    own = failure(1, 12.0, kind=kind, what=f"{kind}: Broken pipe, or Connection reset by peer")

    assert first_cause([ECHO, own]) == own
    assert first_cause([ECHO, own, RAISED]) == RAISED


def test_an_abort_of_its_own_is_a_cause() -> None:
    abort = failure(4, 12.0, signal="SIGABRT", last_lines=("free(): invalid pointer",))

    assert first_cause([ECHO, RAISED, abort]) == abort


def test_lines_of_a_peer_do_not_hide_an_exception_of_another_kind() -> None:
    own = failure(4, 12.0, kind="ZeroDivisionError", what="by zero", last_lines=(GLOO,))

    assert first_cause([ECHO, own]) == own


def test_a_rank_that_was_ended_is_the_cause_where_its_call_fits_no_others() -> None:
    usual = ("all_reduce of [9] Float", "all_reduce of [2] Float")
    aborted = failure(3, signal="SIGABRT", cause="collective-mismatch", last_lines=(GLOO,))
    skipped = was_ended("alpha", 0, 0, Calls("0", 5, (*usual, *usual, usual[0], usual[0])), 1.0)

    found = first_cause([aborted, ECHO, skipped])

    assert found is not None
    assert (found.rank, found.host, found.cause) == (0, "alpha", "collective-mismatch")
    assert "all_reduce of [9] Float" in found.what


def test_a_rank_that_was_ended_is_no_cause_by_itself() -> None:
    ended = was_ended("alpha", 0, 0, Calls("0", 2, ("all_reduce of [9] Float",) * 2), 1.0)

    assert first_cause([ended, ECHO]) == ECHO
    assert first_cause([ended, KILLED]) == KILLED


def test_the_records_survive_json() -> None:
    full = failure(1, kind="DataError", fix=("do this",), last_lines=("a", "b"), exit_code=1)
    outcome = RunOutcome("failed", (Attempt(0, 1.0, 2.0, full), Attempt(1, 3.0, 4.0, None)))
    decision = Decision(0, "failed", full, again=True)

    content = json.loads(json.dumps(outcome.to_dict()))

    assert content["exit_code"] == 1
    assert decode(RunOutcome, content) == outcome
    assert decode(Decision, json.loads(json.dumps(asdict(decision)))) == decision


def test_the_headline_names_the_place(snapshot: SnapshotAssertion) -> None:
    assert KILLED.headline == "rank 1 on beta: "
    assert failure(None, what="its launcher is gone").headline == snapshot


@pytest.mark.parametrize(
    "time_s", [10**400, -(10**400), 1e13, float("nan"), float("inf"), True, "1"]
)
def test_a_time_that_is_none_is_refused(time_s: object) -> None:
    with pytest.raises(ValueError, match=r"^time_s is .*, not a (number|time)$"):
        decode(Failure, {"host": "beta", "node": 1, "what": "x", "time_s": time_s})
