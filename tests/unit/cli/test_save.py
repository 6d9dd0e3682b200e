"""What `yoked save` and `yoked trace` say where no checkpoint and no step comes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.cli.test_diagnose import CAUSE, record, told

from yoked.cli.commands.save import _not_saved
from yoked.cli.commands.trace import _no_step
from yoked.cli.main import main
from yoked.launch.registry import Record


@pytest.mark.parametrize("seconds", ["nan", "inf", "-inf", "-1"])
@pytest.mark.parametrize(("command", "fix"), [("save", "120"), ("stop", "60"), ("trace", "120")])
def test_seconds_that_nobody_can_wait_are_refused(
    command: str, fix: str, seconds: str, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main([command, "night", "--wait", seconds])

    said = capsys.readouterr().err
    assert status == 2
    assert "--wait" in said
    assert f"--wait {fix}" in said or command == "trace"


def of(*causes: dict[str, Any], **changes: Any) -> Record:
    return record(*(told(node, *causes, trains="night", **changes) for node in (0, 1)))


def test_a_save_that_did_not_come_says_which_rank_is_stopped() -> None:
    error = _not_saved(of(CAUSE), 3.0, "")

    assert error.what.startswith("run night has saved none within 3 s of being asked: rank ")
    assert CAUSE["what"] in error.what
    assert error.fix == ("yoked diagnose night", "yoked save night    once it goes on")


def test_a_save_before_the_first_step_says_so() -> None:
    error = _not_saved(of(progress=None), 3.0, " --fleet f.toml")

    assert error.what.endswith("of being asked: its first step is not done yet")
    assert error.fix == (
        "yoked attach night --fleet f.toml    shows its start",
        "yoked save night --fleet f.toml    after its first step",
    )


def test_a_save_that_takes_long_says_what_a_rank_is_at() -> None:
    busy = {"rank": 0, "doing": "saving", "for_s": 8.0, "at": "", "waits_in": ""}
    diagnosis = {"causes": [], "busy": [busy], "time_s": 100.0}

    saves = _not_saved(of(diagnosis=diagnosis, now_s=100.0), 3.0, "")
    unknown = _not_saved(of(), 3.0, "")

    assert saves.what.endswith("rank 0 on alpha is saving for 8.00 s")
    assert unknown.what.endswith("a step, or the disk, takes longer")
    assert unknown.fix[0] == "yoked save night --wait 9"


def test_a_slow_run_is_not_said_to_hang() -> None:
    slow = {**CAUSE, "cause": "link-slow"}

    assert of(CAUSE).hung
    assert not of(slow).hung
    assert of(slow).no_step_because == of(slow).held_up_line


def test_a_run_that_fails_while_it_is_asked_to_save_says_why() -> None:
    failure = {"host": "beta", "rank": 1, "what": "its process 7 was stopped", "fix": []}

    failed = _not_saved(of(state="failed", failure=failure), 3.0, "")
    ended = _not_saved(of(state="finished"), 3.0, "")

    said = "run night is failed meanwhile: rank 1 on beta: its process 7 was stopped"
    assert failed.what == said
    assert ended.what == "run night is finished meanwhile"
    assert failed.fix == ("yoked attach night",)


def test_a_trace_without_a_step_says_why_and_what_to_do() -> None:
    failure = {"host": "beta", "rank": 1, "what": "killed by SIGKILL", "fix": []}

    hung, slow = _no_step(of(CAUSE), 3, ""), _no_step(of(), 3, "")
    failed = _no_step(of(state="failed", failure=failure), 3, "")

    assert hung.fix == ("yoked diagnose night", "yoked trace night    once it goes on")
    assert CAUSE["what"] in hung.what
    assert slow.fix == ("yoked diagnose night", "yoked trace night --wait 9")
    said = "no step of run night ended within 3 s: rank 1 on beta: killed by SIGKILL"
    assert (failed.what, failed.fix[0]) == (said, "yoked diagnose night")
    assert not any("trace" in line for line in failed.fix)
