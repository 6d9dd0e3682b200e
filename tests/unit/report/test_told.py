"""What a report says was told: of the diagnosis, of the doctor, and of where ranks' time went."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.schemas import conforms
from tests.unit.report.test_metrics import write

from yoked.report.figures import figures_of
from yoked.report.run_record import read_run

PROGRAM = {
    "run": "night",
    "trains": False,
    "attempt": 1,
    "program": {"argv": ["prog.py", "--lr", "0.1"], "folder": "work"},
    "hosts": [
        {
            "rank": rank,
            "name": name,
            "python": "/opt/py",
            "versions": {"torch": "2.13", "python": "3.11"},
        }
        for rank, name in enumerate(("alpha", "beta"))
    ],
}


def shares(time_s: float, computes: float) -> dict[str, Any]:
    ranks = [
        {"rank": rank, "computes": computes, "waits_for_core": 0.1, "waits": 0.9 - computes}
        for rank in (0, 1)
    ]
    return {"time_s": time_s, "attempt": 0, "event": "shares", "ranks": ranks}


def cause(time_s: float, certainty: str, code: str = "rank-stopped") -> dict[str, Any]:
    return {
        "time_s": time_s,
        "attempt": 0,
        "event": "cause",
        "cause": code,
        "hosts": ["beta"],
        "rank": 1,
        "certainty": certainty,
        "since_s": 1.0,
        "what": "its process was stopped",
        "fix": ["kill -CONT 7    on beta"],
    }


def over(time_s: float, lasted_s: float, code: str = "rank-stopped") -> dict[str, Any]:
    told = {"time_s": time_s, "attempt": 0, "event": "over", "cause": code}
    return {**told, "hosts": ["beta"], "rank": 1, "lasted_s": lasted_s}


TIMELINE: list[dict[str, Any]] = [
    {"time_s": 1000.0, "attempt": 0, "event": "begin", "launch_id": "a", "host": "alpha"},
    shares(1025.0, 0.5),
    cause(1030.0, "likely"),
    cause(1032.0, "sure"),
    shares(1045.0, 0.0),
    over(1040.0, 11.0),
    shares(1070.0, 0.6),
    cause(1080.0, "likely", "cpu-slow"),
    over(1090.0, 11.0, "cpu-slow"),
    shares(1095.0, 0.3),
    {"time_s": 1100.0, "attempt": 0, "event": "end", "finished": True, "failure": None},
]
DOCTOR = {
    "launch_id": "a",
    "time_s": 999.0,
    "asked": True,
    "why": None,
    "findings": [
        {
            "check": "slow-port",
            "severity": "warning",
            "hosts": ["beta"],
            "saw": "eth0 runs at 100 Mbit/s",
            "fix": [{"host": "beta", "command": "another cable"}],
        }
    ],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "night"
    found.mkdir()
    (found / "run.json").write_text(json.dumps(PROGRAM))
    write(found / "diagnosis.jsonl", TIMELINE)
    (found / "doctor.json").write_text(json.dumps(DOCTOR))
    return found


def test_what_diagnosis_and_doctor_said_is_told_once_each_in_its_order(folder: Path) -> None:
    found = figures_of(read_run(folder))["events"]

    assert [(each["time_s"], each["kind"], each["level"], each["text"]) for each in found] == [
        (999.0, "doctor", "warning", "beta: eth0 runs at 100 Mbit/s (slow-port)"),
        (1032.0, "cause", "bad", "rank 1 on beta: its process was stopped (rank-stopped)"),
        (1040.0, "over", "good", "rank 1 on beta: rank-stopped is over, after 11.0 s"),
        (1080.0, "cause", "warning", "rank 1 on beta: its process was stopped (cpu-slow)"),
        (1090.0, "over", "good", "rank 1 on beta: cpu-slow is over, after 11.0 s"),
        (1100.0, "end", "good", "all ranks ended well"),
    ]
    assert found[0]["fix"] == ["another cable"]
    assert found[1]["fix"] == ["kill -CONT 7    on beta"]


def test_time_of_a_program_is_that_in_which_nothing_held_it_up(folder: Path) -> None:
    found = figures_of(read_run(folder))

    # That of 1045 lies in the stop; a slow-down is no stop.
    assert found["shares"]["time_s"] == [25.0, 70.0, 95.0]
    assert [rank["host"] for rank in found["shares"]["ranks"]] == ["alpha", "beta"]
    assert found["shares"]["ranks"][1]["computes"] == [0.5, 0.6, 0.3]
    assert found["why"] == [
        "of the time a rank spends 47% computing, 10% waiting for a core and 43% waiting"
    ]
    assert found["command"] == "yoked run -- prog.py --lr 0.1"
    assert (found["hosts"][0]["torch"], found["hosts"][0]["python"]) == ("2.13", "3.11")
    conforms("report", {**found, "page": "x"})


def test_time_in_which_a_cause_held_until_the_end_is_left_out(folder: Path) -> None:
    ending = [cause(1105.0, "likely"), shares(1135.0, 0.0), shares(1155.0, 0.0)]
    end = {**TIMELINE[-1], "time_s": 1160.0, "finished": False}
    begin = {**TIMELINE[0], "time_s": 1170.0}
    again = shares(1195.0, 0.4)

    for lines in ([*ending, end, begin, again], [*ending, begin, again]):
        write(folder / "diagnosis.jsonl", [*TIMELINE[:-1], *lines])
        found = figures_of(read_run(folder))["shares"]
        assert found["time_s"] == [25.0, 70.0, 95.0, 195.0]
    # It holds yet.
    write(folder / "diagnosis.jsonl", [*TIMELINE[:-1], *ending])
    assert figures_of(read_run(folder))["shares"]["time_s"] == [25.0, 70.0, 95.0]


def test_what_ended_a_run_is_told(folder: Path) -> None:
    failure = {
        "cause": "rank-failed",
        "hosts": ["beta"],
        "rank": 1,
        "what": "KeyError: 'x'",
    }
    end = {"time_s": 1100.0, "attempt": 0, "event": "end", "finished": False, "failure": failure}
    write(folder / "diagnosis.jsonl", [*TIMELINE[:-1], end])

    found = figures_of(read_run(folder))["events"]

    assert (found[-1]["level"], found[-1]["text"]) == ("bad", "rank 1 on beta: KeyError: 'x'")


@pytest.mark.parametrize(
    ("said", "text"),
    [
        ({**DOCTOR, "findings": []}, "nothing was in the way"),
        ({**DOCTOR, "asked": False, "why": "--no-doctor"}, "the doctor was not asked: --no-doctor"),
    ],
)
def test_a_doctor_that_found_nothing_or_was_not_asked_is_told(
    folder: Path, said: dict[str, Any], text: str
) -> None:
    (folder / "doctor.json").write_text(json.dumps(said))

    found = figures_of(read_run(folder))["events"]

    assert found[0]["text"] == text


@pytest.mark.parametrize(
    "line",
    [
        {"event": "cause"},
        {**cause(1.0, "sure"), "hosts": "beta"},
        {**cause(1.0, "sure"), "what": None},
        {**over(1.0, 2.0), "lasted_s": "long"},
        {**shares(1.0, 0.5), "ranks": [{"rank": -1}]},
        {"event": "end", "time_s": 1.0, "finished": "yes"},
        {"event": "of another version", "time_s": 1.0},
    ],
)
def test_lines_that_no_diagnosis_writes_are_passed_over(folder: Path, line: dict[str, Any]) -> None:
    before = figures_of(read_run(folder))
    write(folder / "diagnosis.jsonl", [*TIMELINE, line])

    assert figures_of(read_run(folder)) == before


@pytest.mark.parametrize("said", [{}, {"asked": "no"}, {**DOCTOR, "findings": [{"check": 5}]}])
def test_a_doctors_file_that_nobody_wrote_is_passed_over(
    folder: Path, said: dict[str, Any]
) -> None:
    (folder / "doctor.json").write_text(json.dumps(said))

    found = figures_of(read_run(folder))["events"]

    assert all(each["kind"] != "doctor" for each in found)


def test_this_machine_is_no_dot_in_a_sentence(tmp_path: Path) -> None:
    write(tmp_path / "diagnosis.jsonl", [{**cause(1.0, "sure"), "hosts": ["."]}])
    (told,) = figures_of(read_run(tmp_path))["events"]
    assert told["text"] == "rank 1 on this machine: its process was stopped (rank-stopped)"


def test_a_host_of_a_fleet_keeps_its_name(folder: Path) -> None:
    begin = {**TIMELINE[0], "host": "."}
    write(folder / "diagnosis.jsonl", [begin, *TIMELINE[1:]])

    found = figures_of(read_run(folder))

    assert [rank["host"] for rank in found["shares"]["ranks"]] == ["alpha", "beta"]
