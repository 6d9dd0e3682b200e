from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.test_metrics import full_line, write

from yoked.errors import YokedError
from yoked.report.figures import figures_of
from yoked.report.run_record import read_run
from yoked.runs import mark_copy

FACTS = {
    "run": "night",
    "attempt": 2,
    "started_s": 1000.0,
    "config": {"depth": 4, "sync": "auto", "compile": None, "passed": ["depth", "run"]},
    "horizon": {"num_iterations": 60, "total_batch_size": 16},
    "outlook": {"step_s": 0.5, "time_s": 30.0},
    "choices": [{"name": "sync", "value": "bf16", "reason": "the network carries 118 MB/s"}],
    "hosts": [
        {"name": "i9", "rank": 0, "device": "cpu", "device_name": "AMD EPYC", "torch": "2.13.0"},
        {"name": "laptop", "rank": 1, "device": "cpu", "torch": "2.13.0"},
    ],
}
EVENTS: list[dict[str, Any]] = [
    {"time_s": 1000.5, "attempt": 1, "event": "start", "step": 0, "ranks": 2, "rows": [8, 8]},
    {
        "time_s": 1010.0,
        "attempt": 1,
        "event": "shares",
        "step": 20,
        "rows": [10, 6],
        "before": [8, 8],
        "why": "slower",
        "rank": 1,
    },
    {"time_s": 1020.0, "attempt": 2, "event": "start", "step": 30, "ranks": 2, "rows": [10, 6]},
    {"time_s": 1030.0, "attempt": 2, "event": "save_failed", "what": "no space"},
    {"time_s": 1031.0, "attempt": 2, "event": "of another version"},
    {"time_s": "x", "event": "start"},
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A run of two attempts: 40 steps, then from the 30th on to the 50th."""
    chance = random.Random(1)
    lines = [
        full_line(attempt, step, 1.0 + chance.random(), [chance.random() / 2, chance.random() / 2])
        for attempt, steps in ((1, range(40)), (2, range(30, 50)))
        for step in steps
    ]
    lines.insert(40, {"attempt": 2, "resumed_at": 30})
    lines += [
        {"attempt": 2, "step": 50, "val_bpb": 1.5},
        {"attempt": 2, "step": 40, "val_bpb": 1.6},
    ]
    found = tmp_path / "night"
    found.mkdir()
    write(found / "metrics.jsonl", lines)
    write(found / "events.jsonl", EVENTS)
    (found / "run.json").write_text(json.dumps(FACTS))
    return found


def test_every_figure_agrees_with_the_lines(folder: Path) -> None:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    of_step = {line["step"]: line for line in lines if "loss" in line}
    counted = [of_step[step] for step in sorted(of_step)]

    found = figures_of(read_run(folder))

    assert found["steps"] == len(counted) == 50
    assert found["tokens"] == sum(sum(line["tokens"]) for line in counted)
    assert found["elapsed_s"] == pytest.approx(sum(line["dt_s"] for line in counted))
    assert found["loss"] == counted[-1]["loss"]
    assert found["val_bpb"] == 1.5
    assert found["evaluations"] == [{"step": 40, "val_bpb": 1.6}, {"step": 50, "val_bpb": 1.5}]
    assert found["resumed"] == [30]
    for rank, figures in enumerate(found["ranks"]):
        for name in ("compute_s", "comm_s", "wait_s", "head_s", "tokens", "bytes_sent"):
            assert figures[name] == pytest.approx(sum(line[name][rank] for line in counted)), name
        named = figures["compute_s"] + figures["comm_s"] + figures["wait_s"]
        assert figures["other_s"] == pytest.approx(found["elapsed_s"] - named)
    curve = found["curve"]
    assert curve["step"] == [line["step"] + 1 for line in counted]
    assert curve["loss"] == [line["loss"] for line in counted]
    assert curve["step_s"] == [line["dt_s"] for line in counted]
    for rank, times in enumerate(curve["ranks"]):
        assert times["wait_s"] == [line["wait_s"][rank] for line in counted]
    kept = {(0, 1): 0.0, (1, 0): 0.0}
    for line in counted:
        slow = line["wait_s"].index(min(line["wait_s"]))
        kept[slow, 1 - slow] += line["wait_s"][1 - slow]
    for rank in (0, 1):
        told = found["ranks"][rank]["kept_waiting_s"]
        assert told == [{"rank": 1 - rank, "wait_s": pytest.approx(kept[rank, 1 - rank])}]


def test_what_was_told_agrees_with_the_events(folder: Path) -> None:
    found = figures_of(read_run(folder))

    assert [(each["time_s"], each["step"], each["text"]) for each in found["events"]] == [
        (1000.5, 0, "started on 2 ranks, with 8:8 rows of a step"),
        (1010.0, 20, "laptop got slower: 8:8 -> 10:6 rows"),
        (1020.0, 30, "went on after 30 steps on 2 ranks, with 10:6 rows of a step"),
        (1030.0, None, "a checkpoint could not be saved: no space"),
    ]


def test_what_was_foreseen_stands_beside_what_came(folder: Path) -> None:
    found = figures_of(read_run(folder))

    by_name = {each["what"]: (each["foreseen"], each["measured"]) for each in found["foreseen"]}
    assert by_name == {
        "a step": (0.5, found["step_s"]),
        "50 of 60 steps": (25.0, found["elapsed_s"]),
        "speed": (32.0, found["tokens_per_second"]),
    }
    assert found["command"] == "yoked train --depth=4"


def test_a_run_that_failed_says_why_and_what_mends_it(folder: Path) -> None:
    fault = {
        "cause": "host-gone",
        "host": "laptop",
        "hosts": ["laptop"],
        "rank": None,
        "evidence": ["laptop has been silent for 31 s"],
        "fix": ["yoked train --resume"],
    }
    content = {"ok": False, "run": "night", "state": "failed", "faults": [fault]}
    (folder / "result.json").write_text(json.dumps(content))

    found = figures_of(read_run(folder))

    assert found["state"] == "failed"
    assert found["verdict"].startswith("run night failed: 50 steps")
    assert found["why"][0] == "laptop: laptop has been silent for 31 s"
    assert found["next"][0] == "yoked train --resume"


def test_all_steps_are_compared_once_they_are_taken(folder: Path) -> None:
    facts = {**FACTS, "horizon": {"num_iterations": 50}, "outlook": {"step_s": 0.5, "time_s": 31.0}}
    (folder / "run.json").write_text(json.dumps(facts))

    found = ended(folder, "finished")

    by_name = {each["what"]: (each["foreseen"], each["measured"]) for each in found["foreseen"]}
    # What was foreseen for the run has its evaluations too, which are no steps.
    assert by_name["all steps"] == (25.0, found["elapsed_s"])
    assert by_name["steps"] == (50.0, 50.0)


def ended(folder: Path, state: str, *faults: dict[str, Any]) -> dict[str, Any]:
    content = {"ok": not faults, "run": "night", "state": state, "faults": faults}
    (folder / "result.json").write_text(json.dumps(content))
    return figures_of(read_run(folder))


def test_why_names_the_rank_that_failed_and_next_resumes_the_run_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = {"cause": "rank-killed", "host": ".", "hosts": ["."], "rank": 1}
    killed |= {"evidence": ["killed by SIGKILL"], "fix": []}

    found = ended(folder, "failed", killed)

    assert found["why"][0] == "rank 1 on this machine: killed by SIGKILL"
    assert found["next"][0] == f"yoked train --resume --run night --runs-dir {folder.parent}"
    # What mends the cause comes before that.
    assert ended(folder, "failed", {**killed, "fix": ["free -h"]})["next"][0] == "free -h"
    (folder.parent / "runs").mkdir()
    monkeypatch.chdir(folder.parent)
    there = folder.rename("runs/night")
    assert ended(there, "interrupted")["next"][0] == "yoked train --resume --run night"
    assert not any("--resume" in line for line in ended(there, "finished")["next"])


def test_the_line_that_resumes_a_copy_names_the_file_of_its_fleet(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mark_copy(folder, folder.parent / "lan.toml")
    line = f"yoked train --resume --run night --runs-dir {folder.parent}"

    found = ended(folder, "interrupted")["next"][0]

    assert found == f"{line} --fleet {folder.parent / 'lan.toml'}"
    mark_copy(folder, folder.parent / "yoked.toml")
    monkeypatch.chdir(folder.parent)
    assert ended(folder, "interrupted")["next"][0] == line


def test_a_program_and_a_start_that_was_no_run_yet_are_not_resumed(folder: Path) -> None:
    (folder / "run.json").write_text(json.dumps({"trains": False, "program": {"argv": ["p.py"]}}))
    assert not any("--resume" in line for line in ended(folder, "failed")["next"])
    (folder / "run.json").unlink()
    assert not any("--resume" in line for line in ended(folder, "failed")["next"])


def test_the_rank_that_the_others_wait_for_is_named(tmp_path: Path) -> None:
    write(tmp_path / "metrics.jsonl", [full_line(1, step, 1.0, [0.4, 0.0]) for step in range(9)])
    (tmp_path / "run.json").write_text(json.dumps(FACTS))

    found = figures_of(read_run(tmp_path))

    assert found["why"] == [
        "of each step a rank spends 80% computing, 0% communication and 20% waiting",
        "rank 1 on laptop is waited for most: the others stood 3.6 s for it in all",
    ]
    assert any("yoked plan" in line for line in found["next"])


def test_an_empty_folder_has_no_figures_and_no_error(tmp_path: Path) -> None:
    found = figures_of(read_run(tmp_path))

    assert found["verdict"] == (
        f"run {tmp_path.name} has no end on record: it is under way, or nobody saw how it ended"
    )
    assert (found["steps"], found["ranks"], found["curve"]["step"]) == (0, [], [])
    assert json.loads(json.dumps(found)) == found


def test_a_file_that_no_run_writes_is_named(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text(json.dumps({"hosts": [{"name": 5}]}))

    with pytest.raises(YokedError, match=r"run\.json is no file of a run"):
        read_run(tmp_path)
