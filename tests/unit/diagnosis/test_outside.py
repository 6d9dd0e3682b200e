"""Causes in a program that yoked did not start, by what one machine's kernel tells of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tests.schemas import conforms
from tests.unit.diagnosis.made_up import link, rank

from yoked.cli.commands.diagnose_outside import outside_payload, outside_verdict
from yoked.diagnosis.history import Place, RunHistory
from yoked.diagnosis.outside import Outside, Peer, Process, causes_outside, evidence
from yoked.diagnosis.vitals import RankVitals, Vitals

PID = 99


def idle(place: int, **changes: Any) -> RankVitals:
    whole = {"recorded": None, "cpu_s": 5.0, "waits_in": "futex_wait_queue"}
    return rank(place, **{**whole, **changes})


def process(vitals: RankVitals, *peers: Peer, **changes: Any) -> Process:
    whole = {
        "command": "python train.py",
        "rank": vitals.rank,
        "world_size": 2,
        "meets_at": "10.0.0.1:29500",
        "worker": False,
        "cores": 0.0,
        "resident_bytes": 10**9,
    }
    return Process(vitals=vitals, peers=peers, **{**whole, **changes})


def seen(*processes: Process, **changes: Any) -> Outside:
    history = RunHistory([Place("attic", tuple(range(len(processes))))], 0)
    for number in range(10):
        ranks = tuple(one.vitals for one in processes)
        history.take(0, Vitals(0, number + 1, ranks), 100 + 0.25 * number)
    return Outside("attic", processes, history, **changes)


def told(of: Outside) -> tuple[str, str]:
    """The codes, and the verdict."""
    found = causes_outside(of)
    conforms("diagnose", outside_payload(PID, of, found))
    return " ".join(cause.code for cause in found), outside_verdict(PID, of, found)


def test_a_stopped_rank_is_told_by_its_rank_and_its_process() -> None:
    of = seen(process(idle(0)), process(idle(1, state="T", waits_in="")))

    codes, verdict = told(of)

    assert codes == "rank-stopped"
    assert verdict == (
        "process 99 is hung: rank 1 (process 101): it is stopped (SIGSTOP, or Ctrl-Z), and all "
        "that wait for it wait"
    )


def test_a_stopped_worker_is_told_as_its_rank_s() -> None:
    of = seen(process(idle(0)), process(idle(1, state="T", waits_in=""), rank=0, worker=True))

    codes, verdict = told(of)

    assert codes == "rank-stopped"
    assert "process 101, a worker of rank 0: it is stopped" in verdict
    assert list(evidence(of))[-1] == "  process 101, a worker of rank 0: is stopped (state T)"


def test_a_mount_that_does_not_answer_is_told_with_where_the_kernel_waits() -> None:
    of = seen(process(idle(0, state="D", waits_in="rpc_wait_bit_killable")))

    codes, verdict = told(of)

    assert codes == "disk-stands"
    assert "in rpc_wait_bit_killable, and uses no CPU" in verdict


def test_a_peer_that_does_not_acknowledge_is_told_by_its_address() -> None:
    far = Peer("10.0.0.2", link(0, backoff=5, unsent_bytes=70_000, acked_age_s=12.0))

    of = seen(process(idle(0), far))

    codes, verdict = told(of)

    assert codes == "link-stands"
    assert verdict == (
        "process 99 is hung: rank 0 (process 100): 10.0.0.2 has acknowledged nothing for 12.0 s, "
        "and 70,000 bytes are sent again and again: it is off or asleep, or a firewall or a cut "
        "link is between"
    )
    assert "  10.0.0.2: 2 connections, 70,000 bytes not acknowledged for 12.0 s" in evidence(of)


def test_an_address_that_never_answered_is_a_likely_firewall() -> None:
    once = Peer("10.0.0.2", link(0, connections=1, unsent_bytes=1), connecting=True)
    again = Peer("10.0.0.2", link(0, connections=1, unsent_bytes=1, backoff=2), connecting=True)

    (cause,) = causes_outside(seen(process(idle(0), again)))

    assert (cause.code, cause.certainty) == ("link-stands", "likely")
    assert causes_outside(seen(process(idle(0), once)))[0].code == "cannot-tell"
    # It computes: that may be a server that is no rank.
    assert causes_outside(seen(process(idle(0), again, cores=0.9))) == []


def test_all_that_wait_name_the_peer_that_is_silent_for_longest() -> None:
    near = Peer("10.0.0.3", link(0, heard_age_s=2.0))
    far = Peer("10.0.0.2", link(0, heard_age_s=30.0))

    codes, verdict = told(seen(process(idle(0), near, far)))

    assert codes == "cannot-tell"
    assert "rank 0 (process 100) waits in a connection for peer 10.0.0.2" in verdict


def test_a_rank_that_waits_for_no_rank_while_others_do_is_likely_what_they_wait_for() -> None:
    sleeps = process(idle(1, waits_in="hrtimer_nanosleep"))

    codes, verdict = told(seen(process(idle(0)), sleeps))

    assert codes == "rank-stands"
    assert verdict == (
        "process 99 is hung: rank 1 (process 101): it waits in a sleep and uses no CPU, and the "
        "other ranks wait"
    )
    # Where all do, they may do so in turns.
    assert told(seen(sleeps))[0] == "cannot-tell"


def test_a_rank_that_ended_before_the_first_look_is_not_what_the_others_wait_for() -> None:
    of = seen(process(idle(0)), process(idle(1, state="Z", waits_in="")))

    assert told(replace(of, history=seen(process(idle(0))).history))[0] == "cannot-tell"


def test_a_peer_that_does_not_read_is_no_link_that_stands() -> None:
    far = Peer("10.0.0.2", link(0, unsent_bytes=2_500_000), window_shut=True)

    codes, verdict = told(seen(process(idle(0), far)))

    assert codes == "cannot-tell"
    assert "has no room left: the program there does not read" in verdict


def test_a_program_that_computes_or_sends_is_held_up_by_nothing() -> None:
    sends = Peer("10.0.0.2", link(0, heard_age_s=30.0), bytes_per_s=1e6)

    assert told(seen(process(idle(0), cores=0.9), process(idle(1))))[0] == ""
    assert told(seen(process(idle(0), sends))) == (
        "",
        "process 99 goes on: nothing holds it up that this machine can see",
    )


def test_foreign_words_are_shown_as_they_are() -> None:
    of = seen(process(idle(0, waits_in="\x1b[2Jx"), meets_at="\x1b]0;x:1"))

    assert all("\x1b" not in line for line in evidence(of))
