"""`yoked diagnose` as people and programs read it, by what hosts tell."""

from __future__ import annotations

from typing import Any

import pytest
from tests.schemas import conforms

from yoked.cli.commands.diagnose import faults_of, payload, verdict
from yoked.cli.commands.diagnose_shares import (
    busy_lines,
    shares_lines,
    shares_payload,
    starving_fix,
)
from yoked.cli.commands.diagnose_text import stacks_lines, stacks_payload
from yoked.diagnosis.stacks import RankStacks, Thread
from yoked.launch.registry import Record

CAUSE = {
    "cause": "rank-stopped",
    "hosts": ["beta"],
    "rank": 1,
    "certainty": "sure",
    "since_s": 1.2,
    "what": "its process 383 was stopped 1.20 s ago (SIGSTOP, or Ctrl-Z), and the others wait",
    "fix": ["kill -CONT 383    on beta"],
}
FAILURE = {
    "host": "alpha",
    "rank": 0,
    "what": "killed by SIGKILL",
    "fix": [],
    "last_lines": ["step 7"],
}


SHARES: dict[str, Any] = {
    "step_s": 0.84,
    "ranks": [
        {"rank": 0, "computes": 0.41, "waits_for_core": 0.0, "waits": 0.59,
         "loads_data": 0.0, "gpu": False},
        {"rank": 1, "computes": 0.93, "waits_for_core": 0.05, "waits": 0.02,
         "loads_data": 0.0, "gpu": False},
    ],
    "gate": "rank",
    "gating": [1],
    "ahead": 0.57,
    "since_s": 180.0,
    "why": "",
    "fix": [],
}  # fmt: skip


def told(node: int, *causes: dict[str, Any], **changes: Any) -> dict[str, Any]:
    whole = {
        "run": "night",
        "state": "running",
        "node_rank": node,
        "nodes": [{"host": "alpha", "ranks": 1}, {"host": "beta", "ranks": 1}],
        "failure": None,
        "progress": {"step": 41, "loss": 3.2},
        "diagnosis": {"causes": list(causes)},
    }
    return {**whole, **changes}


def record(*hosts: dict[str, Any]) -> Record:
    return Record("night", "x", dict(zip(("alpha", "beta"), hosts, strict=True)))


def test_what_both_hosts_found_is_said_once() -> None:
    of = record(told(0, CAUSE), told(1, {**CAUSE, "since_s": 1.3}))

    found = conforms("diagnose", payload(of, faults_of(of)))

    assert [fault["cause"] for fault in found["faults"]] == ["rank-stopped"]
    assert found["state"] == "hung"
    assert verdict(of, faults_of(of)) == (
        "run night is hung: rank 1 on beta: its process 383 was stopped 1.20 s ago (SIGSTOP, or "
        "Ctrl-Z), and the others wait"
    )


def test_a_run_that_gets_on_is_healthy() -> None:
    of = record(told(0), told(1, diagnosis=None))

    found = conforms("diagnose", payload(of, faults_of(of)))

    assert (found["ok"], found["state"]) == (True, "healthy")
    assert verdict(of, []) == "run night goes on, 41 steps are done: nothing holds it up"


@pytest.mark.parametrize("state", ["finished", "stopped", "interrupted", "lost"])
def test_how_a_run_ended_without_a_fault_is_told(state: str) -> None:
    of = record(told(0, state=state), told(1, state=state))

    assert conforms("diagnose", payload(of, []))["state"] == state
    assert verdict(of, []) == f"run night is over: {state}"


def test_a_run_whose_ranks_share_nothing_is_healthy_and_has_a_warning() -> None:
    alone = {**CAUSE, "cause": "ranks-alone", "hosts": ["alpha", "beta"], "rank": None}
    diagnosis = {"attempt": 0, "causes": [], "warnings": [alone]}
    of = record(*(told(node, diagnosis=diagnosis, attempt=0) for node in (0, 1)))

    found = conforms("diagnose", payload(of, faults_of(of)))

    assert (found["ok"], found["state"]) == (True, "healthy")
    assert [one["cause"] for one in found["warnings"]] == ["ranks-alone"]


def test_the_rank_that_gates_a_healthy_run_is_named() -> None:
    of = record(told(0, diagnosis={"causes": [], "shares": SHARES}), told(1))

    found = conforms("diagnose", payload(of, []))

    assert found["state"] == "healthy"
    assert found["shares"]["ahead_s"] == pytest.approx(0.4788)
    assert [rank["host"] for rank in found["shares"]["ranks"]] == ["alpha", "beta"]
    *rows, gate = shares_lines(found["shares"])
    assert rows == [
        "rank  host   computes  waits for a core  waits for others",
        "0     alpha  41%       0%                59%",
        "1     beta   93%       5%                2%",
    ]
    assert gate == (
        "rank 1 on beta gates the run, for 3 min 00 s: it is busy for 0.48 s in each step of "
        "0.84 s while all others wait"
    )


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"gate": "network", "gating": []}, "what the ranks exchange takes most of each step"),
        ({"gate": "nobody", "gating": []}, "nobody waits for one rank"),
        ({"gate": "data", "gating": [0]}, "rank 0 on alpha loads data in much of each step"),
        ({"why": "it runs on its battery"}, "while all others wait: it runs on its battery"),
        ({"step_s": None}, "it is busy for 57% of the time while"),
        ({"gate": None, "gating": [], "ahead": None}, "who gates the run is not known"),
        (
            {"gate": None, "ahead": None, "ranks": [{**SHARES["ranks"][0], "computes": None,
             "waits": None, "gpu": True}]},
            "a GPU computes, whose time the kernel does not tell",
        ),
    ],
)  # fmt: skip
def test_what_sets_the_pace_is_said(changes: dict[str, Any], said: str) -> None:
    of = record(told(0, diagnosis={"causes": [], "shares": {**SHARES, **changes}}), told(1))

    shown = conforms("diagnose", payload(of, []))["shares"]

    assert said in list(shares_lines(shown))[-1]


def test_a_rank_that_saves_while_the_others_wait_is_told_by_its_own_host() -> None:
    saves = {"rank": 1, "doing": "saving", "for_s": 41.25, "at": "/w/train.py:7 in keep"}
    stale = {**saves, "for_s": 3.0}
    of = record(
        {**told(0, diagnosis={"causes": [], "busy": [stale], "time_s": 100.0}), "now_s": 100.0},
        {**told(1, diagnosis={"causes": [], "busy": [saves], "time_s": 100.0}), "now_s": 104.0},
    )

    found = conforms("diagnose", payload(of, []))["busy"]

    assert found == [{**saves, "host": "beta", "for_s": 45.2}]
    assert list(busy_lines(found)) == [
        "rank 1 on beta has been saving for 45.2 s, at /w/train.py:7 in keep"
    ]


def test_a_rank_without_a_core_is_in_the_first_line_and_has_a_next_one() -> None:
    ranks = [
        {**each, "waits_for_core": 0.89 * each["rank"], "waits": 0.9} for each in SHARES["ranks"]
    ]
    shares = {**SHARES, "ranks": ranks, "gate": "rank", "gating": [1], "why": "", "fix": []}
    of = record(told(0, diagnosis={"causes": [], "shares": shares}), told(1))
    shown = payload(of, [])["shares"]

    assert verdict(of, []).endswith("and slowly: rank 1 on beta has no core in much of the time")
    assert "for 89% of the time it could compute, and has no core" in list(shares_lines(shown))[-1]
    assert [line.partition("    ")[0] for line in starving_fix(shown)] == [
        "top",
        "cat /sys/fs/cgroup/cpu.stat",
    ]


def test_a_rank_that_saves_in_a_sleep_is_said_to_sleep() -> None:
    saves = {
        "rank": 0,
        "doing": "saving",
        "for_s": 138.0,
        "at": "",
        "waits_in": "hrtimer_nanosleep",
    }
    of = record(told(0, diagnosis={"causes": [], "busy": [saves]}), told(1))

    assert verdict(of, []).startswith("run night goes on")
    assert verdict(of, []).endswith(": rank 0 on alpha is saving")
    assert list(busy_lines(of.busy)) == [
        "rank 0 on alpha has been saving for 2 min 18 s; now it waits in a sleep"
    ]


def test_a_run_in_which_no_step_ends_is_not_said_to_be_held_up_by_nothing() -> None:
    works = {"rank": 0, "doing": "at work", "for_s": 14.0, "at": "/w/train.py:5 in clean"}
    of = record(told(0, diagnosis={"causes": [], "busy": [works]}), told(1))

    assert verdict(of, []) == "run night goes on, and no step has ended for 14.0 s"


def test_of_a_run_that_stands_no_shares_are_shown() -> None:
    of = record(told(0, diagnosis={"causes": [CAUSE], "shares": SHARES}), told(1))

    assert payload(of, faults_of(of))["shares"] is None


def test_before_anything_is_known_it_is_said_when_it_will_be() -> None:
    assert shares_payload(record(told(0), told(1))) is None
    assert list(shares_lines(None)) == [
        "where the ranks' time goes is told after some 20 s of training"
    ]


def test_a_run_that_failed_tells_its_first_cause() -> None:
    of = record(told(0, state="failed", failure=FAILURE), told(1, state="failed"))

    found = conforms("diagnose", payload(of, faults_of(of)))

    assert (found["state"], found["faults"][0]["host"]) == ("failed", "alpha")
    assert found["faults"][0]["evidence"] == ["killed by SIGKILL", "step 7"]
    # A failed training prints the same, and leaves it as its result.
    assert of.verdict is not None
    assert found == {**of.verdict, "shares": None, "busy": [], "warnings": []}


def test_a_run_that_goes_on_or_ended_well_has_no_verdict_of_a_failure() -> None:
    assert record(told(0), told(1)).verdict is None
    assert record(told(0, state="finished"), told(1, state="finished")).verdict is None


def test_the_network_of_nccl_is_evidence_where_a_link_is_blamed_or_it_is_not_the_planned_one() -> (
    None
):
    link = {"cause": "link-stands", "hosts": ["alpha", "beta"], "what": "the link stands"}
    planned, other = (
        {"what": f"NCCL uses eth{number}", "as_planned": number == 0} for number in (0, 1)
    )

    def evidence(cause: dict[str, Any], *nccl: dict[str, Any] | None) -> list[str]:
        hosts = (
            told(node, cause, diagnosis={"causes": [cause], "nccl": each})
            for node, each in enumerate(nccl)
        )
        (fault,) = faults_of(record(*hosts))
        return fault["evidence"][1:]

    assert evidence(link, planned, None) == ["alpha: NCCL uses eth0"]
    assert evidence(CAUSE, planned, planned) == []
    assert evidence(CAUSE, planned, other) == ["beta: NCCL uses eth1"]


IN_TORCH = ("/v/torch/distributed/distributed_c10d.py", 3252, "all_reduce")
IN_PROGRAM = ("/home/me/train.py", 41, "main")
STARTERS = (("/c/yoked/launch/bootstrap/rank.py", 297, "main"), ("<frozen runpy>", 88, "_run_code"))
WAITS = Thread("MainThread", True, (IN_TORCH, IN_PROGRAM, *STARTERS))
LOADS = Thread("loader", False, (("/home/me/data.py", 7, "load\x1b[2J"),))


def rank(number: int, *threads: Thread, **changes: Any) -> RankStacks:
    whole: dict[str, Any] = {
        "rank": number,
        "pid": 100 + number,
        "state": "S",
        "waits_in": "futex_wait_queue",
        "age_s": 0.1,
        "at_line_s": 12.0 + number,
        "threads": threads,
    }
    return RankStacks(**{**whole, **changes})


def test_equal_stacks_are_shown_once_with_the_innermost_line_last() -> None:
    stopped = rank(1, WAITS, state="T", waits_in="", age_s=8.0)

    lines = list(
        stacks_lines({"alpha": [rank(0, WAITS, LOADS)], "beta": [stopped, rank(2, WAITS)]})
    )

    waits = [
        '  File "/home/me/train.py", line 41, in main',
        '  File "/v/torch/distributed/distributed_c10d.py", line 3252, in all_reduce',
    ]
    assert lines == [
        "ranks 0 and 2, at this line for 12.0 s:",
        *waits,
        "rank 1 on beta, stopped (state T), as it was 8.00 s ago:",
        *waits,
        "rank 0 on alpha, thread loader:",
        '  File "/home/me/data.py", line 7, in load\\x1b[2J',
    ]


def test_a_rank_without_a_record_is_said_to_have_none() -> None:
    unknown = rank(0, pid=None, state="", waits_in="", age_s=None, at_line_s=None)

    assert list(stacks_lines({"alpha": [unknown]})) == [
        "rank 0 on alpha:",
        "  it has recorded nothing: it has not begun, or its disk is full",
    ]


def test_programs_read_the_stacks_by_rank() -> None:
    of = record(told(0), told(1))
    found = {"alpha": [rank(0, WAITS)], "beta": [rank(1, WAITS, LOADS)]}

    shown = conforms("diagnose", {**payload(of, []), "stacks": stacks_payload(found)})

    assert [(one["rank"], one["host"], len(one["threads"])) for one in shown["stacks"]] == [
        (0, "alpha", 1),
        (1, "beta", 2),
    ]
    assert shown["stacks"][0]["threads"][0]["frames"][-1]["function"] == "all_reduce"
