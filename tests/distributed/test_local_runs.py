"""A run on this machine is lived with as one of a fleet: looked at, left, found again, resumed."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from typing import Any

import pyte
import pytest
from tests.distributed.conftest import DEADLINE_S, UNDRAWN, YOKED, until
from tests.schemas import conforms

pytestmark = pytest.mark.distributed

WITHOUT_PROC = "from yoked.launch import here; here.has_proc = lambda: False; "


def yoked(lab: Any, *words: str) -> Any:
    return lab.start(["-c", YOKED, *words]).end()


def the_run(lab: Any) -> dict[str, Any]:
    (row,) = conforms("runs", yoked(lab, "runs", "--json").json)["runs"]
    found: dict[str, Any] = row
    return found


def test_a_run_is_seen_left_found_again_saved_stopped_and_resumed_under_its_own_name(
    lab: Any,
) -> None:
    started = lab.train("night", *lab.flags(num_iterations=5000, save_every=-1), ranks=2)
    until(lambda: lab.lines("night") >= 3, started)

    while_it_runs = the_run(lab)
    started.process.kill()
    started.end()
    attached = lab.start(["-c", YOKED, "attach", "night"])
    until(lambda: lab.lines("night") >= while_it_runs["step"] + 3, attached)
    saved = yoked(lab, "save", "--json")
    lines = lab.lines("night")
    until(lambda: lab.lines("night") >= lines + 3, attached)
    stopped = yoked(lab, "stop", "night", "--json")
    over = yoked(lab, "save", "night")
    seen = attached.end()
    said = yoked(lab, "logs", "night", "--rank", "0").stdout
    told = conforms("logs", yoked(lab, "logs", "night", "--tail", "3", "--json").json)
    resumed = lab.train("night", "--resume", "--detach", ranks=2).end()
    until(lambda: the_run(lab)["state"] == "running" and lab.lines("night"))
    going_on = the_run(lab)
    again = yoked(lab, "stop", "night", "--json")
    cleaned = yoked(lab, "clean", "night", "--yes", "--json")

    assert (while_it_runs["run"], while_it_runs["state"]) == ("night", "running")
    assert (while_it_runs["ranks"], while_it_runs["loss"] > 0) == (2, True)
    told_saved = conforms("save", saved.json)
    assert (told_saved["run"], told_saved["host"]) == ("night", ".")
    # Both ranks were asked, and not at the same step.
    assert seen.stderr.count("saving, as asked") == 1
    names = {path.name for path in lab.checkpoints("night").rglob("model_*.pt")}
    assert f"model_{told_saved['step']:06d}.pt" in names
    assert over.status == 1
    assert "run night is interrupted: nothing of it trains" in over.stderr
    assert conforms("stop", stopped.json)["state"] == "interrupted"
    assert seen.status == 130
    assert "model: " in said
    assert {line["text"] for line in told["lines"]} & set(said.splitlines())
    assert resumed.status == 0, resumed.stderr
    assert (going_on["run"], going_on["job"]) == ("night", "night.2")
    assert (again.json["run"], again.json["state"]) == ("night", "interrupted")
    assert len(cleaned.json["runs"]["."]) == 2
    # Who looked on to the end has left it there.
    assert (lab.runs / "night" / "diagnosis.jsonl").read_text().count('"begin"') == 1
    assert lab.checkpoints("night").is_dir(), "what was learned stays"


def test_a_terminal_that_follows_has_one_line_that_is_drawn_over(lab: Any) -> None:
    flags = lab.flags(num_iterations=60, save_every=-1, eval_every=-1)
    argv = ["-c", UNDRAWN + YOKED, "train", f"--runs-dir={lab.runs}", "--run=seen", *flags]
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [sys.executable, *argv],
        env=lab.environment(),
        cwd=lab.root,
        stdout=subprocess.DEVNULL,
        stderr=theirs,
        start_new_session=True,
    ) as follower:
        os.close(theirs)
        shown = read_all(ours)
    os.close(ours)

    log = (lab.root / "state" / "jobs" / "seen" / "logs" / "0.0.err").read_text()
    assert follower.returncode == 0, shown
    screen, lines = on_a_screen(shown)
    assert [line for line in screen if line.startswith("step ")] == [
        line for line in log.splitlines() if line.startswith("step 60/60  loss")
    ], "of the live line nothing stays, and of the log's lines the last one"
    assert "the first step: compiling and warming up" in lines
    live = next(line for line in lines if "/60  loss" in line)
    assert re.fullmatch(r"[━─]* *(step )?\d+/60  loss \d\.\d{4}.*  [\d.k,]+ tokens/s.* left", live)
    assert "\r" not in log, "a log can be read"
    assert "step 60/60  loss" in log


def read_all(terminal: int) -> str:
    content = b""
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:
            # EIO: nobody has its other end any more.
            return content.decode()
        content += piece


@pytest.mark.parametrize("ranks", [1, 2])
def test_without_proc_a_run_trains_and_says_what_does_not_work_there(lab: Any, ranks: int) -> None:
    flags = lab.flags(num_iterations=6, save_every=-1)
    argv = ["-c", WITHOUT_PROC + UNDRAWN + YOKED, "train", "--json", f"--ranks={ranks}"]

    ended = lab.start([*argv, f"--runs-dir={lab.runs}", "--run=apple", *flags]).end()

    assert ended.status == 0, ended.stderr
    assert (ended.json["state"], ended.json["steps"]) == ("finished", 6)
    assert {"attach,", "--detach", "--restarts"} <= set(ended.stderr.split())
    assert "step 6/6" in ended.stderr
    assert not list((lab.root / "state" / "jobs").glob("*")), "there is no job"


def test_without_proc_a_rank_that_fails_speaks_for_itself(lab: Any) -> None:
    flags = lab.flags(num_iterations=6, data=lab.root / "nowhere")
    argv = ["-c", WITHOUT_PROC + YOKED, "train", "--json", "--ranks=2", "--run=apple"]

    ended = lab.start([*argv, f"--runs-dir={lab.runs}", *flags]).end(DEADLINE_S)

    assert ended.status in (1, 2), ended.stderr
    assert "nowhere" in ended.json["error"]["what"]


def on_a_screen(shown: str) -> tuple[list[str], set[str]]:
    """What a terminal of 80 columns shows at the end, and each line on which its cursor stood."""
    screen = pyte.Screen(80, 100)
    stream, lines = pyte.Stream(screen), set()
    for piece in re.split(r"(?=[\r\n])", shown):
        stream.feed(piece)
        lines.add(screen.display[screen.cursor.y].rstrip())
    return [line.rstrip() for line in screen.display if line.strip()], lines


def test_a_dry_run_says_what_the_run_will_take_and_leaves_nothing(lab: Any) -> None:
    plan = lab.train("none", *lab.flags(num_iterations=400), "--dry-run").end().json

    assert plan["state"] == "planned"
    assert plan["outlook"]["time_s"] > 0
    assert plan["outlook"]["epochs"] == 400 * 512 / plan["outlook"]["epoch_tokens"]
    assert plan["data"]["requested_vocab_size"] == 512
    assert not (lab.runs / "none").exists()


def test_a_run_is_repeated_from_its_record_to_the_bit(lab: Any) -> None:
    lab.train("first", *lab.flags(matrix_lr=0.01), ranks=2).end()
    record = lab.runs / "first" / "run.json"

    again = lab.start(
        ["-c", YOKED, "train", f"--config={record}", f"--runs-dir={lab.runs}", "--run=again"]
    ).end()

    assert again.status == 0, again.stderr
    assert lab.curve("again").losses == lab.curve("first").losses
    first, second = (json.loads((lab.runs / run / "run.json").read_text()) for run in RUNS)
    chosen = [[(each["name"], each["value"]) for each in run["choices"]] for run in (first, second)]
    assert chosen[0] == chosen[1]
    assert second["rows"] == first["rows"]


RUNS = ("first", "again")


def test_steps_that_were_fixed_by_time_stay_when_the_run_goes_on(lab: Any) -> None:
    flags = lab.flags(num_iterations=None, eval_every=-1, save_every=-1)
    started = lab.train("timed", *flags, "--for=2h", ranks=2)
    until(lambda: lab.lines("timed") >= 2, started)
    stopped = yoked(lab, "stop", "timed", "--json")
    started.end()
    record = json.loads((lab.runs / "timed" / "run.json").read_text())

    plan = lab.train("timed", "--resume", "--dry-run").end().json

    assert stopped.json["state"] == "interrupted"
    assert record["config"]["num_iterations"] == record["horizon"]["num_iterations"] > 500
    assert record["config"]["duration"] is None
    assert record["outlook"]["time_s"] < 7200
    assert plan["horizon"]["num_iterations"] == record["horizon"]["num_iterations"]
