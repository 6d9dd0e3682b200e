from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault
from tests.unit.report.legends import require_legends_above

from yoked.errors import YokedError
from yoked.journal import Journal
from yoked.report import loss_plot
from yoked.report.loss_plot import plot_loss, read_curve, smooth


def make_run(folder: Path, steps: int = 40) -> Path:
    folder.mkdir()
    with Journal(folder / "metrics.jsonl") as journal:
        for step in range(1, steps + 1):
            loss = 4 + 6 * math.exp(-step / 10)
            journal.append({"attempt": 1, "step": step, "loss": loss, "tokens": [64, 32]})
            if step % 20 == 0:
                journal.append({"attempt": 1, "step": step, "val_bpb": 2 - step / 100})
    facts = {
        "model": {"n_layer": 4},
        "params": {"total": 36_700_290},
        "data": {"unigram_entropy_nats": 7.1},
    }
    (folder / "run.json").write_text(json.dumps(facts))
    return folder


def test_lines_that_a_restart_superseded_are_not_drawn(tmp_path: Path) -> None:
    with Journal(tmp_path / "metrics.jsonl") as journal:
        for attempt, step, loss in [(1, 1, 9.0), (1, 2, 8.0), (1, 3, 7.0), (2, 3, 6.5), (2, 4, 6)]:
            journal.append({"attempt": attempt, "step": step, "loss": loss, "tokens": [10, 6]})
        journal.append({"attempt": 1, "step": 3, "val_bpb": 3.0})
        journal.append({"attempt": 2, "step": 3, "val_bpb": 2.5})

    curve = read_curve(tmp_path / "metrics.jsonl")

    assert curve.steps == [1, 2, 3, 4]
    assert curve.losses == [9.0, 8.0, 6.5, 6.0]
    assert curve.tokens == [16, 32, 48, 64]
    assert (curve.eval_steps, curve.eval_bpb) == ([3], [2.5])


def test_a_resume_supersedes_also_what_it_did_not_reach_again(tmp_path: Path) -> None:
    with Journal(tmp_path / "metrics.jsonl") as journal:
        for step in range(6):
            journal.append({"attempt": 1, "step": step, "loss": 9.0 - step, "tokens": [8]})
        journal.append({"attempt": 1, "step": 2, "val_bpb": 3.0})
        journal.append({"attempt": 1, "step": 6, "val_bpb": 2.0})
        journal.append({"attempt": 2, "resumed_at": 2})
        journal.append({"attempt": 2, "step": 2, "loss": 7.5, "tokens": [8]})

    curve = read_curve(tmp_path / "metrics.jsonl")

    assert curve.steps == [0, 1, 2]
    assert curve.losses == [9.0, 8.0, 7.5]
    assert (curve.eval_steps, curve.eval_bpb) == ([2], [3.0])


def test_of_restarts_those_are_marked_at_which_the_curve_goes_on(tmp_path: Path) -> None:
    attempts = [(1, 0, 1), (2, 0, 9), (3, 8, 9), (4, 4, 8), (5, 7, 9), (6, 9, 9)]
    with Journal(tmp_path / "metrics.jsonl") as journal:
        for attempt, first, end in attempts:
            if attempt > 1:
                journal.append({"attempt": attempt, "resumed_at": first})
            for step in range(first, end):
                journal.append({"attempt": attempt, "step": step, "loss": 5.0, "tokens": [8]})

    curve = read_curve(tmp_path / "metrics.jsonl")

    # The second began anew, of the third nothing is left, and the sixth has not taken a step yet.
    assert curve.resumed == [4, 7]


def test_each_point_lies_within_its_panel_and_the_legend_outside(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "demo", steps=0)
    with Journal(run / "metrics.jsonl") as journal:
        # The loop counts steps from 0, and evaluates after the last.
        for step in range(20):
            journal.append({"attempt": 1, "step": step, "loss": 3.0 + step, "tokens": [64]})
        journal.append({"attempt": 2, "resumed_at": 12})
        journal.append({"attempt": 2, "step": 12, "loss": 15.0, "tokens": [64]})
        journal.append({"attempt": 2, "step": 13, "val_bpb": 1.5})
    drawn: list[Figure] = []
    monkeypatch.setattr(loss_plot, "save", lambda figure, _: drawn.append(figure))

    plot_loss(run)

    losses, evaluations = drawn[0].axes
    assert losses.get_xlim() == evaluations.get_xlim() == (0, 13)
    assert "resumed (1)" in [line.get_label() for line in losses.lines]
    require_legends_above(drawn[0])


def test_the_plot_has_both_panels_and_the_same_bytes_each_time(tmp_path: Path) -> None:
    run = make_run(tmp_path / "demo")

    png, svg = plot_loss(run)
    first = svg.read_bytes()
    plot_loss(run)

    assert png.read_bytes().startswith(b"\x89PNG")
    assert svg.read_bytes() == first
    text = first.decode()
    for words in ("run demo", "depth 4", "36.7M parameters", "bits per byte", "unigram entropy"):
        assert words in text
    assert sorted(path.name for path in run.iterdir()) == [
        "loss.png",
        "loss.svg",
        "metrics.jsonl",
        "run.json",
    ]


def test_a_run_without_evaluations_or_facts_is_drawn_all_the_same(tmp_path: Path) -> None:
    run = make_run(tmp_path / "young", steps=1)
    (run / "run.json").unlink()

    _, svg = plot_loss(run)

    assert "bits per byte" not in svg.read_text()


def test_a_name_with_dollars_is_no_formula(tmp_path: Path) -> None:
    assert plot_loss(make_run(tmp_path / "5 $^$ 6"))[0].is_file()


def test_a_run_without_a_step_says_that_there_is_nothing_to_draw(
    tmp_path: Path, snapshot: SnapshotAssertion
) -> None:
    with raises_fault("no-metrics"):
        plot_loss(tmp_path)
    (tmp_path / "metrics.jsonl").write_text("")
    with pytest.raises(YokedError) as caught:
        plot_loss(tmp_path)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    "line",
    [
        {"step": "first", "loss": 3.0},
        {"step": 5, "loss": "low"},
        {"step": 5, "loss": 3.0, "tokens": ["many"]},
        {"resumed_at": "here"},
        {"loss": 3.0},
        {"step": 5, "val_bpb": [1.0]},
        {"step": 5, "loss": 3.0, "attempt": None},
    ],
)
def test_a_line_that_no_run_writes_is_named(tmp_path: Path, line: dict[str, object]) -> None:
    run = make_run(tmp_path / "r", steps=4)
    with (run / "metrics.jsonl").open("a") as metrics:
        metrics.write(json.dumps(line) + "\n")

    with pytest.raises(YokedError, match=r"metrics\.jsonl:5 is no line of a run"):
        plot_loss(run)


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [
        (errno.ENOSPC, "disk-full", "loss.png: the disk is full"),
        (errno.EACCES, "write-failed", "loss.png cannot be written: Permission denied"),
    ],
)
def test_a_picture_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, code: str, what: str
) -> None:
    def refuse(path: Path, content: bytes) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("yoked.report.drawing.write_bytes", refuse)

    with pytest.raises(YokedError) as told:
        plot_loss(make_run(tmp_path / "r"))

    assert told.value.code == code
    assert what in told.value.what


@given(
    st.lists(st.floats(0, 20), min_size=1, max_size=60),
    st.floats(0.5, 20),
)
def test_smoothing_stays_within_what_it_smooths(values: list[float], span: float) -> None:
    smoothed = smooth(values, span)

    assert len(smoothed) == len(values)
    assert all(min(values) - 1e-9 <= value <= max(values) + 1e-9 for value in smoothed)


def test_smoothing_a_falling_line_does_not_draw_it_late() -> None:
    line = [100.0 - step for step in range(100)]

    smoothed = smooth(line, 3.0)

    assert all(abs(a - b) < 1e-9 for a, b in zip(line[10:90], smoothed[10:90], strict=True))


def test_settings_of_the_folder_where_a_person_stands_are_not_obeyed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "matplotlibrc").write_text("text.usetex: True\nlines.linewidth: 30\n")
    monkeypatch.chdir(tmp_path)
    program = (
        "import sys; from pathlib import Path; from yoked.report.loss_plot import plot_loss;"
        "plot_loss(Path(sys.argv[1]))"
    )

    # A process of its own: matplotlib reads the file when it is imported.
    subprocess.run([sys.executable, "-c", program, str(run)], check=True)
    here = (run / "loss.svg").read_bytes()
    plot_loss(run)

    assert (run / "loss.svg").read_bytes() == here


def test_a_link_that_waits_for_a_picture_is_not_drawn_through(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (tmp_path / "mine").write_text("precious")
    (run / "loss.svg").symlink_to(tmp_path / "mine")

    plot_loss(run)

    assert (tmp_path / "mine").read_text() == "precious"
