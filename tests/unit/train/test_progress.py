from __future__ import annotations

import io

import pytest
from rich.console import Console
from syrupy.assertion import SnapshotAssertion

from yoked.train import progress as progress_module
from yoked.train.progress import RankPart, TrainProgress


class Clock:
    """A time that stands still until it is moved."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


@pytest.fixture
def clock(monkeypatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(progress_module, "time", clock)
    return clock


def make(
    *, terminal: bool, steps: int = 100, first: int = 0, width: int = 100
) -> tuple[TrainProgress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=width, highlight=False)
    return TrainProgress(console, steps, first), out


def test_a_terminal_has_one_line_that_is_drawn_over(clock):
    progress, out = make(terminal=True)

    for step in range(3):
        progress.step(step, 5.0, 4096, 0.5)
        clock.now_s += 1
    progress.close()

    drawn = out.getvalue()
    assert drawn.count("\r") == drawn.count("\x1b[K") == 3
    assert drawn.count("\n") == 1
    assert drawn.endswith("\n")
    last = drawn.split("\r")[-1]
    assert "step 3/100  loss 5.0000  8,192 tokens/s  48 s left" in last


def test_a_terminal_is_not_drawn_on_at_every_step(clock):
    progress, out = make(terminal=True)

    for step in range(50):
        progress.step(step, 5.0, 4096, 0.01)
        clock.now_s += 0.01

    assert out.getvalue().count("\r") <= 4


def test_a_file_has_a_line_now_and_then_and_no_control_characters(clock):
    progress, out = make(terminal=False)

    for step in range(100):
        progress.step(step, 5.0, 4096, 1.0)
        clock.now_s += 1
    progress.close()

    lines = out.getvalue().splitlines()
    assert len(lines) == 11
    assert [line.split()[1] for line in lines[:3]] == ["1/100", "11/100", "21/100"]
    assert lines[-1].startswith("step 100/100 ")
    assert "\x1b" not in out.getvalue()
    assert "\r" not in out.getvalue()


def test_the_last_step_is_always_shown(clock):
    progress, out = make(terminal=False, steps=2)

    progress.step(0, 5.0, 4096, 1.0)
    progress.step(1, 5.0, 4096, 1.0)

    assert out.getvalue().splitlines()[-1].endswith("0 s left")


def test_the_first_step_says_nothing_of_the_speed_of_the_others(clock):
    progress, out = make(terminal=False, first=10)

    for step, dt_s in ((10, 30.0), (11, 1.0), (12, 1.0)):
        progress.step(step, 5.0, 1000, dt_s)
        clock.now_s += 20

    speeds = [line.split("  ")[2] for line in out.getvalue().splitlines()]
    assert speeds == ["33 tokens/s", "1,000 tokens/s", "1,000 tokens/s"]


def test_the_loss_is_smoothed_without_a_start_at_zero(clock):
    progress, out = make(terminal=False)

    progress.step(0, 8.0, 1000, 1.0)
    clock.now_s += 20
    progress.step(1, 6.0, 1000, 1.0)

    losses = [line.split("loss ")[1].split()[0] for line in out.getvalue().splitlines()]
    smoothed = (0.9 * 0.1 * 8 + 0.1 * 6) / (0.9 * 0.1 + 0.1)
    assert losses == ["8.0000", f"{smoothed:.4f}"]


def test_a_line_never_wraps_on_a_narrow_terminal(clock):
    progress, out = make(terminal=True, width=30)

    progress.step(0, 5.0, 4096, 0.5)

    drawn = out.getvalue().removeprefix("\r").removesuffix("\x1b[K")
    assert drawn == "1/100  loss 5.0000  50 s left"


def test_what_is_said_in_between_ends_the_open_line(clock):
    progress, out = make(terminal=True)
    progress.step(0, 5.0, 4096, 0.5)

    progress.say("saved [step 1]")
    progress.close()

    assert out.getvalue().endswith("\x1b[K\nsaved [step 1]\n")


def test_a_run_that_never_stepped_leaves_no_empty_line():
    progress, out = make(terminal=True)

    progress.close()

    assert out.getvalue() == ""


def fleet(width: int) -> tuple[TrainProgress, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=width, highlight=False)
    hosts = ["i9", "laptop"]
    return TrainProgress(console, 2000, 0, hosts=hosts, names=hosts), out


def last_drawn(out: io.StringIO) -> str:
    return out.getvalue().split("\r")[-1].removesuffix("\x1b[K")


@pytest.mark.parametrize("width", [160, 120, 80, 60, 30])
def test_a_fleets_line_says_speed_by_host_and_who_is_waited_for(
    clock: Clock, width: int, snapshot: SnapshotAssertion
) -> None:
    progress, out = fleet(width)

    for step in range(60):
        clock.now_s += 1
        parts = [RankPart(12_000, 0.25, 0.125), RankPart(4_384, 0.0, 0.1)]
        progress.step(step, 5.0 - step / 100, 16_384, 1.0, parts)

    assert len(last_drawn(out)) < width
    assert last_drawn(out) == snapshot


def test_ranks_that_do_not_wait_are_not_spoken_of(clock: Clock) -> None:
    progress, out = fleet(200)

    for step in range(3):
        clock.now_s += 1
        progress.step(step, 5.0, 16_384, 1.0, [RankPart(8_192, 0.01, 0.02)] * 2)

    assert "waits" not in last_drawn(out)
    assert "network" not in last_drawn(out)


@pytest.mark.parametrize(("change", "arrow"), [(-0.01, "↓"), (0.01, "↑"), (0.0, "→")])
def test_the_loss_has_its_trend_once_there_is_one(clock: Clock, change: float, arrow: str) -> None:
    progress, out = make(terminal=True, width=120)

    for step in range(9):
        clock.now_s += 1
        progress.step(step, 5.0, 1000, 1.0)
    early = last_drawn(out)
    for step in range(9, 60):
        clock.now_s += 1
        progress.step(step, 5.0 + change * step, 1000, 1.0)

    assert not {"↓", "↑", "→"} & set(early)
    assert arrow in last_drawn(out)


def test_what_goes_on_before_the_first_step_makes_room_for_it(clock: Clock) -> None:
    progress, out = make(terminal=True)

    progress.doing("compiling")
    progress.step(0, 5.0, 4096, 0.5)
    progress.close()

    assert out.getvalue().startswith("\rcompiling\x1b[K\r")
    assert out.getvalue().count("\n") == 1
