"""What hosts and files tell of a run, as a view."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.watch.jobs import job

from yoked.launch.registry import Record
from yoked.report.growing import Reading
from yoked.watch.files import FolderFiles
from yoked.watch.lines import lines
from yoked.watch.running import WatchedRun
from yoked.watch.view import View

NODES = [{"host": "alpha", "ranks": 1}, {"host": "beta", "ranks": 1}]
CAUSE = {
    "cause": "rank-stopped",
    "hosts": ["beta"],
    "rank": 1,
    "certainty": "sure",
    "since_s": 12.0,
    "what": "its process 383 was stopped, and the others wait",
    "fix": ["kill -CONT 383    on beta"],
}
FACTS = {
    "run": "night",
    "started_s": 100.0,
    "horizon": {"num_iterations": 50, "total_batch_size": 128},
    "hosts": [{"name": "alpha", "rank": 0}, {"name": "beta", "rank": 1}],
}


def folder(path: Path, steps: int = 30, **files: Any) -> Path:
    """A run whose rank 0 waits for rank 1 in half of each step of a tenth of a second."""
    path.mkdir(parents=True)
    lines = [
        {
            "attempt": 0,
            "step": step,
            "loss": 5.0 - step / 100,
            "dt_s": 0.1,
            "tokens": [64, 64],
            "compute_s": [0.03, 0.08],
            "comm_s": [0.02, 0.02],
            "wait_s": [0.05, 0.0],
        }
        for step in range(steps)
    ]
    (path / "metrics.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name, content in {"run": FACTS, **files}.items():
        (path / f"{name}.json").write_text(json.dumps(content))
    return path


def told(node: int, *causes: Any, **changes: Any) -> dict[str, Any]:
    diagnosis = {"attempt": 0, "time_s": 190.0, "causes": list(causes)}
    return {**job("night", node, NODES, diagnosis=diagnosis), **changes}


def record(*hosts: dict[str, Any]) -> Record:
    return Record("night", "x", dict(zip(("alpha", "beta"), hosts, strict=False)))


def look(path: Path, of: Record | None, silent: dict[str, str] | None = None, **more: Any) -> View:
    run = WatchedRun("night", FolderFiles(path), Reading(), most_bytes=1 << 20, **more)
    run.update(active=of is not None and of.active)
    return run.view(of, silent or {})


def test_a_run_that_gets_on_shows_who_waits_for_whom(tmp_path: Path) -> None:
    view = look(folder(tmp_path / "night"), record(told(0), told(1)))
    assert (view.state, view.active, view.verdict.level) == ("running", True, "good")
    assert view.verdict.text == "run night gets on"
    first, second = view.ranks
    assert (first.host, second.host) == ("alpha", "beta")
    assert first.parts == {
        "computes": pytest.approx(0.3),
        "sends": pytest.approx(0.2),
        "waits": pytest.approx(0.5),
    }
    assert (first.waits_for, second.waits_for) == ((1,), ())
    assert view.recent.step == tuple(range(30))
    assert view.recent.wait_s == ((0.05,) * 30, (0.0,) * 30)
    assert (view.progress.step, view.progress.steps) == (30, 50)
    assert view.progress.left_s == pytest.approx(2.0)
    assert view.progress.tokens_per_s == pytest.approx(1280.0)
    assert view.figures["curve"]["step"][-1] == 30
    assert view.figures["verdict"] == view.verdict.text


def test_shares_of_a_rank_are_of_its_own_steps_where_they_are_longer(tmp_path: Path) -> None:
    path = folder(tmp_path / "night")
    # Rank 1 waits for what rank 0 does between its steps of a tenth of a second, too.
    text = (path / "metrics.jsonl").read_text().replace("[0.05, 0.0]", "[0.05, 0.025]")
    (path / "metrics.jsonl").write_text(text)
    first, second = look(path, record(told(0), told(1))).ranks
    assert sum(first.parts.values()) == pytest.approx(1.0)
    assert second.parts == {
        "computes": pytest.approx(0.08 / 0.125),
        "sends": pytest.approx(0.02 / 0.125),
        "waits": pytest.approx(0.025 / 0.125),
    }


def test_what_holds_it_up_stands_on_top_and_at_its_rank(tmp_path: Path) -> None:
    view = look(folder(tmp_path / "night"), record(told(0, CAUSE), told(1, CAUSE)))
    assert view.verdict.level == "bad"
    assert view.verdict.text.startswith("rank 1 on beta: its process 383 was stopped")
    assert view.verdict.next == ("kill -CONT 383    on beta",)
    assert [(each.level, each.doing) for each in view.ranks] == [
        ("plain", ""),
        ("bad", "stopped"),
    ]
    assert (view.progress.tokens_per_s, view.progress.left_s) == (None, None)
    assert view.progress.loss is not None
    assert not [each for each in lines(view, 200)[:1] if "tokens/s" in each or "left" in each]


@pytest.mark.parametrize(("busy", "says"), [("at work", "stopped"), ("saving", "stopped, saving")])
def test_what_is_the_matter_with_a_rank_comes_before_what_it_was_at(
    tmp_path: Path, busy: str, says: str
) -> None:
    doing = {"rank": 1, "doing": busy, "for_s": 5.0, "at": "", "waits_in": ""}
    diagnosis = {"attempt": 0, "time_s": 190.0, "causes": [CAUSE], "busy": [doing]}
    path = folder(tmp_path / "night")
    # Rank 1 was the one that waited, before it was stopped.
    text = (path / "metrics.jsonl").read_text().replace("[0.05, 0.0]", "[0.0, 0.05]")
    (path / "metrics.jsonl").write_text(text)
    rank = look(path, record(told(0), told(1, diagnosis=diagnosis))).ranks[1]
    assert (rank.doing, rank.waits_for) == (says, ())


def test_no_speed_is_told_where_no_step_has_ended_for_long(tmp_path: Path) -> None:
    doing = {"rank": 1, "doing": "at work", "for_s": 50.0, "at": "", "waits_in": ""}
    diagnosis = {"attempt": 0, "time_s": 190.0, "causes": [], "busy": [doing]}
    view = look(folder(tmp_path / "night"), record(told(0), told(1, diagnosis=diagnosis)))
    assert (view.progress.tokens_per_s, view.progress.left_s) == (None, None)


@pytest.mark.parametrize("change", [{"cause": "cpu-slow"}, {"certainty": "likely"}])
def test_what_only_slows_it_down_or_is_likely_is_a_warning(
    tmp_path: Path, change: dict[str, Any]
) -> None:
    cause = {**CAUSE, **change}
    view = look(folder(tmp_path / "night"), record(told(0, cause), told(1)))
    assert view.verdict.level == "warning"
    # Steps end where it is only slow.
    assert (view.progress.tokens_per_s is not None) == ("cause" in change)


def test_a_host_that_does_not_answer_is_told(tmp_path: Path) -> None:
    view = look(folder(tmp_path / "night"), record(told(0)), {"beta": "no answer in 5 s"})
    assert view.verdict.level == "warning"
    assert view.verdict.text.startswith("beta does not answer")
    assert view.verdict.why == ("no answer in 5 s",)
    assert view.silent == {"beta": "no answer in 5 s"}


def test_links_have_the_names_of_their_hosts_and_what_was_probed(tmp_path: Path) -> None:
    links = [
        {"sender": 0, "receiver": 1, "bytes_per_s": 1e6, "lost": 0.01, "rtt_s": 0.002},
        # Of a host that the run does not have.
        {"sender": 0, "receiver": 7, "bytes_per_s": 1e6, "lost": 0.0, "rtt_s": 0.002},
    ]
    diagnosis = {"time_s": 1.0, "causes": [], "links": links, "memory": [{"rank": 1, "bytes": 9}]}
    view = look(
        folder(tmp_path / "night"),
        record(told(0, diagnosis=diagnosis), told(1)),
        wire={("alpha", "beta"): 1e9},
    )
    # The newest word counts, of whichever host.
    assert view.links == ()
    view = look(
        folder(tmp_path / "again"),
        record(told(0, diagnosis={**diagnosis, "time_s": 191.0}), told(1)),
        wire={("alpha", "beta"): 1e9},
    )
    (link,) = view.links
    assert (link.sender, link.receiver, link.bits_per_s) == ("alpha", "beta", 8e6)
    assert (link.wire_bits_per_s, link.resent) == (1e9, 0.01)
    assert [each.memory_bytes for each in view.ranks] == [None, 9]


@pytest.mark.parametrize(
    ("doing", "says"),
    [
        ("importing torch", "importing torch on alpha and beta"),
        ("training", "running without a line or a step yet on alpha and beta"),
    ],
)
def test_before_its_first_step_it_tells_what_is_waited_for(
    tmp_path: Path, doing: str, says: str
) -> None:
    stage = {
        "attempt": 0,
        "begun": False,
        "since_s": 150.0,
        "hosts": [],
        "ranks": [{"rank": 0, "doing": doing, "since_s": 150.0}],
    }
    path = tmp_path / "night"
    view = look(path, record(told(0, stage=stage), told(1, stage=stage)))
    assert view.verdict.level == "plain"
    assert view.verdict.text == f"run night has taken no step yet: {says}"
    assert view.progress.stage == says
    # It is said once.
    assert says not in "\n".join(lines(view, 200))
    # Its folder is not there yet; its ranks are known.
    assert [each.host for each in view.ranks] == ["alpha", "beta"]


@pytest.mark.parametrize(
    ("result", "state", "level"),
    [
        ({"state": "finished"}, "finished", "good"),
        ({"state": "interrupted"}, "interrupted", "warning"),
        ({"state": "failed"}, "failed", "bad"),
        (None, "unknown", "plain"),
    ],
)
def test_a_run_of_which_only_the_folder_is_known(
    tmp_path: Path, result: dict[str, Any] | None, state: str, level: str
) -> None:
    files = {} if result is None else {"result": result}
    view = look(folder(tmp_path / "night", **files), None)
    assert (view.state, view.active, view.verdict.level) == (state, False, level)
    assert [each.host for each in view.ranks] == ["alpha", "beta"]
    # In its last steps.
    assert view.ranks[0].waits_for == (1,)
    assert view.verdict.text == view.figures["verdict"]


def test_a_run_that_failed_has_its_first_cause(tmp_path: Path) -> None:
    failure = {"host": "beta", "rank": 1, "what": "killed by SIGKILL", "fix": ["free -h"]}
    of = record(
        told(0, state="failed", ended_s=180.0, can_resume=True),
        told(1, state="failed", ended_s=180.0, failure=failure),
    )
    view = look(folder(tmp_path / "night"), of)
    assert (view.state, view.verdict.level) == ("failed", "bad")
    assert view.verdict.why[0] == "rank 1 on beta: killed by SIGKILL"
    assert view.verdict.next[0].startswith("yoked train --resume --run night")


def test_a_stopped_run_of_which_only_the_folder_is_known_can_be_resumed(tmp_path: Path) -> None:
    view = look(folder(tmp_path / "night", result={"state": "interrupted"}), None)
    assert view.verdict.next[0] == f"yoked train --resume --run night --runs-dir {tmp_path}"


def test_files_that_cannot_be_read_are_told_and_what_was_known_stays(tmp_path: Path) -> None:
    path = folder(tmp_path / "night")
    run = WatchedRun("night", FolderFiles(path), Reading(), most_bytes=1 << 20)
    run.update(active=True)
    (path / "events.jsonl").mkdir()
    run.update(active=True)
    view = run.view(record(told(0), told(1)), {})
    assert view.verdict.level == "warning"
    assert view.verdict.text == "its files cannot be read now"
    assert view.progress.step == 30


def test_this_machine_has_one_name_in_all_that_is_said(tmp_path: Path) -> None:
    facts = {**FACTS, "hosts": [{"name": "i9", "rank": 0}, {"name": "i9", "rank": 1}]}
    path = folder(tmp_path / "night", run=facts, result={"state": "finished"})
    begin = {"time_s": 1.0, "attempt": 0, "event": "begin", "launch_id": "x", "host": "."}
    (path / "diagnosis.jsonl").write_text(f"{json.dumps(begin)}\n")
    both = [{"host": ".", "ranks": 2}]
    stopped = {**CAUSE, "hosts": ["."]}

    live = look(path, Record("night", "x", {".": told(0, stopped, nodes=both)}))
    over = look(path, None)

    assert live.verdict.text.startswith("rank 1 on this machine: ")
    for view in (live, over):
        assert {each.host for each in view.ranks} == {"this machine"}
        assert {each["host"] for each in view.figures["ranks"]} == {"this machine"}
    assert "rank 1 on this machine is waited for most" in over.verdict.why[1]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (
            lambda number, line: line.replace("0.1,", "Infinity,") if number >= 6 else line,
            "25 lines of metrics.jsonl are no lines of a run, and left out; the first is line 6",
        ),
        (
            lambda number, line: "no json" if number == 7 else line,
            "1 line of metrics.jsonl is no line of a run, and left out: line 7",
        ),
    ],
)
@pytest.mark.parametrize("goes_on", [True, False])
def test_lines_that_are_left_out_are_told(
    tmp_path: Path, damage: Callable[[int, str], str], says: str, goes_on: bool
) -> None:
    path = folder(tmp_path / "night", result={"state": "finished"})
    metrics = path / "metrics.jsonl"
    whole = metrics.read_text().splitlines()
    metrics.write_text("".join(f"{damage(at, line)}\n" for at, line in enumerate(whole, start=1)))
    view = look(path, record(told(0), told(1)) if goes_on else None)
    assert view.verdict.level == "warning"
    assert view.verdict.why[0] == says
    assert says in "\n".join(lines(view, 120))


def test_what_is_in_the_place_of_a_file_is_told_and_the_others_are_read(tmp_path: Path) -> None:
    path = folder(tmp_path / "night", result={"state": "finished"})
    (path / "metrics.jsonl").unlink()
    (path / "metrics.jsonl").mkdir()
    view = look(path, None)
    assert view.state == "finished"
    assert "has no end on record" not in view.verdict.text
    assert view.silent == {"files of the run": f"{path / 'metrics.jsonl'} is a directory"}


def test_steps_are_shown_closer(tmp_path: Path) -> None:
    run = WatchedRun("night", FolderFiles(folder(tmp_path / "n")), Reading(), most_bytes=1 << 20)
    run.update(active=False)
    assert run.curve(10, 12, 100)["step"] == [11, 12, 13]
