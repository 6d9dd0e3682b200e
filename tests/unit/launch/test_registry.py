"""What several hosts tell of the same run becomes one record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.schemas import conforms

from yoked.agent.verdict import failed
from yoked.errors import JobError, UsageError
from yoked.launch.attach import JobEnd
from yoked.launch.registry import Record, fault_line, headline, join, newest_starts, pick

NODES = [{"host": "i9", "address": "10.0.0.1", "ranks": 2}, {"host": "pi", "ranks": 3}]


def told(node: int, state: str, run: str = "try", **more: Any) -> dict[str, Any]:
    return {
        "run": run,
        "launch_id": f"id-{run}",
        "state": state,
        "node_rank": node,
        "nodes": NODES,
        "started_s": 100.0 + node,
        "ended_s": None if state in ("running", "prepared") else 200.0 + node,
        "attempt": 0,
        "failure": None,
        "progress": None,
        **more,
    }


def record(*jobs: dict[str, Any]) -> Record:
    (one,) = join({NODES[job["node_rank"]]["host"]: [job] for job in jobs})
    return one


@pytest.mark.parametrize(
    ("states", "together"),
    [
        (("running", "running"), "running"),
        (("finished", "running"), "running"),
        (("finished", "finished"), "finished"),
        (("failed", "stopped"), "failed"),
        (("lost", "finished"), "lost"),
        (("interrupted", "stopped"), "stopped"),
    ],
)
def test_the_state_that_says_most_is_that_of_the_run(
    states: tuple[str, str], together: str
) -> None:
    assert record(*(told(node, state) for node, state in enumerate(states))).state == together


def test_a_run_is_over_when_its_last_host_is() -> None:
    assert record(told(0, "finished"), told(1, "finished")).ended_s == 201.0
    assert record(told(0, "finished"), told(1, "running")).ended_s is None


def test_ranks_are_found_on_their_hosts() -> None:
    both = record(told(0, "running"), told(1, "running"))

    assert [both.host_of(rank) for rank in range(6)] == ["i9", "i9", "pi", "pi", "pi", None]
    assert both.ranks == 5
    assert record(told(1, "running")).host_of(0) is None


def test_the_cause_is_a_ranks_before_a_launchers(snapshot: SnapshotAssertion) -> None:
    vanished = {"host": "i9", "rank": None, "what": "its launcher is gone"}
    killed = {"host": "pi", "rank": 3, "what": "killed by SIGKILL"}

    both = record(told(0, "failed", failure=vanished), told(1, "failed", failure=killed))

    assert both.failure == killed
    assert headline(killed) == snapshot


def test_this_machine_is_no_dot_in_a_sentence() -> None:
    killed = {"host": ".", "rank": 1, "what": "killed by SIGKILL"}
    fault = {"hosts": ["i9", "."], "rank": None, "evidence": ["the link is cut"]}

    assert headline(killed) == "rank 1 on this machine: killed by SIGKILL"
    assert fault_line(fault) == "i9 and this machine: the link is cut"


def test_a_training_that_ended_early_can_go_on_under_its_own_name() -> None:
    resumed = {"run": "night.2", "trains": "night", "can_resume": True}

    states = ("interrupted", "stopped", "finished", "running")
    ways = [record({**told(0, state), **resumed}).go_on(" --fleet f") for state in states]

    go_on = ["yoked train --resume --run night --fleet f"]
    assert ways == [go_on, go_on, [], []]
    assert record(told(0, "interrupted")).go_on("") == []
    # It ended before there was a run; whether it did, only the host of rank 0 tells.
    not_begun = {**resumed, "can_resume": False}
    assert record({**told(0, "stopped"), **not_begun}).go_on("") == []
    assert record({**told(1, "stopped"), **not_begun}).go_on(" --fleet f") == go_on


def attempt(number: int, what: str) -> dict[str, Any]:
    return {"attempt": number, "failure": {"host": "pi", "rank": 3, "what": what}}


def test_a_run_that_was_started_again_says_why() -> None:
    earlier = [attempt(0, "killed by SIGKILL"), attempt(1, "its disk is full")]

    # The other host has not heard of the last one yet.
    goes_on = record(
        told(0, "running", attempt=2, earlier=earlier), told(1, "running", earlier=earlier[:1])
    )
    over = record(told(0, "finished", attempt=2, earlier=earlier))

    assert list(goes_on.earlier) == [0, 1]
    assert goes_on.restarted_line == "attempt 2 failed: rank 3 on pi: its disk is full"
    assert record(told(0, "running")).restarted_line is None
    assert over.restarted_line is None
    assert JobEnd(over).evidence == [
        "attempt 1 failed: rank 3 on pi: killed by SIGKILL",
        "attempt 2 failed: rank 3 on pi: its disk is full",
    ]


def test_an_older_run_of_the_same_name_is_another() -> None:
    found = join(
        {
            "i9": [told(0, "running")],
            "pi": [{**told(1, "failed"), "launch_id": "older", "started_s": 1.0}],
        }
    )

    assert [(one.launch_id, one.state) for one in found] == [
        ("id-try", "running"),
        ("older", "failed"),
    ]


def test_a_folder_in_the_making_is_no_run_yet() -> None:
    assert join({"i9": [{**told(0, "lost"), "nodes": []}]}) == []


def test_the_newest_that_runs_is_meant_when_none_is_named() -> None:
    records = [
        record(told(0, "failed", "newest")),
        record(told(0, "running", "running")),
        record(told(0, "running", "older")),
    ]

    assert pick(records, None).run == "running"
    assert pick(records[:1], None).run == "newest"
    assert pick(records, "older").run == "older"


def test_a_name_that_is_not_there_gets_the_nearest(snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as problem:
        pick([record(told(0, "running", "tuesday"))], "tusday")
    assert str(problem.value) == snapshot
    assert problem.value.fix == snapshot

    with pytest.raises(UsageError) as caught:
        pick([], None)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("state", "code", "said"),
    [
        ("finished", 0, "run try finished"),
        ("failed", 1, "run try failed"),
        ("interrupted", 130, "run try was stopped"),
        ("stopped", 143, "run try was stopped"),
        ("lost", 1, "run try ended, and nobody saw how"),
    ],
)
def test_an_end_is_told_with_its_exit_status(state: str, code: int, said: str) -> None:
    end = JobEnd(record(told(0, state)))

    assert (end.exit_code, end.verdict) == (code, said)


def test_only_a_training_that_took_a_step_has_saved() -> None:
    training = {**told(0, "interrupted", "night"), "trains": "night"}

    before = JobEnd(record({**training, "progress": None}))
    after = JobEnd(record({**training, "progress": {"step": 5, "loss": 3.0}}))

    assert before.verdict == "run night was stopped"
    assert after.verdict == "run night was stopped after it had saved"


def test_a_training_that_could_not_save_when_it_was_stopped_has_failed() -> None:
    failure = {"host": "pi", "rank": 3, "what": "the disk is full", "fix": ["df -h"]}
    training = told(0, "interrupted", "night", trains="night", failure=failure)
    end = JobEnd(record({**training, "progress": {"step": 5, "loss": 3.0}}))

    # Another program may well have ended as it was asked to.
    end.raise_failure(fix="go on", fleet_flag="")
    with pytest.raises(JobError) as caught:
        end.raise_failure(fix="go on", fleet_flag="", of_a_stop=True)

    assert caught.value.what == "run night was stopped, and failed\nrank 3 on pi: the disk is full"
    assert caught.value.fix == ("df -h", "yoked logs night --tail 50", "go on")
    assert caught.value.verdict == end.record.verdict
    assert end.record.verdict is not None
    assert end.record.verdict["state"] == "failed"


def test_a_failure_shows_the_cause_the_last_lines_and_what_to_do(
    snapshot: SnapshotAssertion,
) -> None:
    failure = {
        "host": "pi",
        "rank": 3,
        "what": "out of memory",
        "last_lines": ["step 7"],
        "fix": ["use a smaller batch"],
    }

    end = JobEnd(record(told(0, "failed", failure=failure, attempt=1)))

    assert end.verdict == "run try failed, after 1 restart"
    assert end.evidence == snapshot
    assert end.next_commands("")[0] == snapshot
    # As `yoked diagnose` has it, and result.json.
    more = {"attempts": 2, "refused": None, "warnings": []}
    assert end.to_dict() == {**failed("try", failure), **more}


WARNING = {
    "cause": "ranks-alone",
    "hosts": ["i9", "pi"],
    "rank": None,
    "certainty": "sure",
    "what": "its ranks share nothing: after step 8 each has weights of its own",
    "fix": ["Trainer(devices=1, num_nodes=2)", "a sweep needs nothing"],
}


def test_a_run_whose_ranks_shared_nothing_ends_well_and_says_so() -> None:
    diagnosis = {"attempt": 0, "causes": [], "warnings": [WARNING]}
    hosts = (told(node, "finished", diagnosis=diagnosis) for node in range(2))

    end = JobEnd(record(*hosts))

    assert (end.exit_code, end.state) == (0, "finished")
    assert end.verdict == "run try finished, and its ranks shared nothing"
    assert end.evidence == [
        "warning: its ranks share nothing: after step 8 each has weights of its own",
        "  fix: Trainer(devices=1, num_nodes=2)",
        "  fix: a sweep needs nothing",
    ]
    shown = conforms("attach", end.to_dict())
    assert (shown["ok"], shown["faults"]) == (True, [])
    assert [(one["cause"], one["hosts"]) for one in shown["warnings"]] == [
        ("ranks-alone", ["i9", "pi"])
    ]


def test_a_warning_of_an_earlier_attempt_is_none_of_this_one() -> None:
    diagnosis = {"attempt": 0, "causes": [], "warnings": [WARNING]}

    assert record(told(0, "running", diagnosis=diagnosis, attempt=1)).warnings == []
    assert len(record(told(0, "running", diagnosis=diagnosis)).warnings) == 1


def test_whoever_detached_is_told_how_to_come_back() -> None:
    end = JobEnd(record(told(0, "running")), detached=True)

    assert (end.state, end.exit_code) == ("running", 130)
    assert end.next_commands(" --fleet f") == [
        "yoked attach try --fleet f",
        "yoked stop try --fleet f",
    ]


def starts(*jobs: tuple[str, str, str]) -> list[Record]:
    """Of this machine, the newest first: (job, state, folder of runs); all of the run `night`."""
    return [
        record(told(0, state, job, trains="night", run_dir=f"{runs}/night"))
        for job, state, runs in jobs
    ]


def test_a_run_that_was_resumed_is_one_line_and_known_by_its_own_name() -> None:
    twice = starts(("night.2", "running", "/a/runs"), ("night", "interrupted", "/a/runs"))

    assert [one.run for one in newest_starts(twice)] == ["night.2"]
    assert newest_starts(twice)[0].name == "night"
    assert pick(twice, "night").run == "night.2"


def test_the_start_that_goes_on_is_meant_before_one_that_is_over() -> None:
    both = starts(("night.2", "failed", "/a/runs"), ("night", "running", "/a/runs"))

    assert pick(both, "night").run == "night"
    assert [one.run for one in newest_starts(both)] == ["night"]


def test_of_two_runs_of_one_name_that_of_this_folder_is_meant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    both = starts(("night.2", "running", "/a/runs"), ("night", "interrupted", f"{tmp_path}/runs"))

    assert len(newest_starts(both)) == 2
    assert pick(both, "night").run == "night"
    assert pick(both, "night.2").run == "night.2"


def test_a_run_of_another_folder_goes_on_there(tmp_path: Path) -> None:
    more = {"trains": "night", "run_dir": f"{tmp_path}/night", "can_resume": True}

    there = record(told(0, "interrupted", **more))

    assert there.go_on("") == [f"yoked train --resume --run night --runs-dir {tmp_path}"]


def test_how_a_launcher_died_its_own_host_knows_better_than_the_others() -> None:
    gone = {"host": "pi", "rank": None, "kind": "HostVanished", "what": "its launcher is gone"}
    own = {"host": "pi", "rank": None, "kind": "HostProgramEnded", "what": "killed by SIGKILL"}
    cut = {**gone, "host": "i9", "kind": "HostVanished"}

    assert record(told(0, "failed", failure=gone), told(1, "failed", failure=own)).failure == own
    # It was cut off, and blames the other: nobody's launcher died.
    assert record(told(0, "failed", failure=gone), told(1, "failed", failure=cut)).failure == gone
    assert record(told(0, "failed", failure=gone)).failure == gone
