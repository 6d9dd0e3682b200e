"""`yoked diagnose` as people and programs read it, by what hosts tell."""

from __future__ import annotations

from typing import Any

from tests.schemas import conforms

from yoked.cli.commands.diagnose import faults_of, payload, verdict
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


def test_a_run_that_failed_tells_its_first_cause() -> None:
    of = record(told(0, state="failed", failure=FAILURE), told(1, state="failed"))

    found = conforms("diagnose", payload(of, faults_of(of)))

    assert (found["state"], found["faults"][0]["host"]) == ("failed", "alpha")
    assert found["faults"][0]["evidence"] == ["killed by SIGKILL", "step 7"]
