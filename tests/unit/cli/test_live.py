from __future__ import annotations

import io
import sys
from types import SimpleNamespace

import pytest

from yoked.cli import live
from yoked.cli.live import LiveView
from yoked.cli.output import Output
from yoked.liveline import LiveText


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def a_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    # Not in a fixture: pytest takes its place again before the test.
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    return stream


def view() -> LiveView:
    return LiveView(Output(json_mode=False, stdout=io.StringIO()))


def test_a_terminal_has_the_live_line_below_what_the_rank_prints(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, shown = a_terminal(monkeypatch), view()
    assert shown.live is not None

    shown.live(LiveText.of("step 3/60"))
    shown.rank_output("err", "saved\n")
    shown.live(LiveText.of("step 4/60"))
    shown.live(LiveText())

    assert terminal.getvalue() == "step 3/60\r\x1b[Ksaved\nstep 4/60\r\x1b[K"


def test_lines_of_progress_are_not_shown_beside_the_live_line_but_the_last_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, shown = a_terminal(monkeypatch), view()

    shown.rank_output(
        "err", "step 1/60  loss 5.1\nstep 1,160/1,160  loss 4.2\nstep 6: validation\n"
    )

    assert terminal.getvalue() == "step 1,160/1,160  loss 4.2\nstep 6: validation\n"


@pytest.mark.parametrize("raw", [False, True])
def test_warnings_of_torch_that_mean_nothing_are_shown_in_raw_output_alone(
    monkeypatch: pytest.MonkeyPatch, raw: bool
) -> None:
    terminal = a_terminal(monkeypatch)
    noise = "[W1126 08:02:59.33 socket.cpp:207] [c10d] The hostname of the client socket cannot be "
    noise += "retrieved. err=-3\n"

    LiveView(Output(json_mode=False, raw=raw)).rank_output("err", f"loading\n{noise}saved\n")

    assert terminal.getvalue() == f"loading\n{noise if raw else ''}saved\n"


def test_without_a_terminal_there_is_no_live_line_and_all_lines_are_shown(
    capsys: pytest.CaptureFixture[str],
) -> None:
    shown = view()

    shown.rank_output("err", "step 1/60  loss 5.1\n")

    assert shown.live is None
    assert capsys.readouterr().err == "step 1/60  loss 5.1\n"


def test_a_live_line_moves_no_cursor_and_never_wraps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    terminal, shown = a_terminal(monkeypatch), view()
    assert shown.live is not None

    shown.live(LiveText.of("\x1b[2J\x1b]0;title\x07" + "x" * 500))

    assert "\x1b" not in terminal.getvalue()
    assert len(terminal.getvalue()) == 99


def test_a_line_that_stays_says_for_how_long(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, shown = a_terminal(monkeypatch), view()
    now_s = [100.0]
    monkeypatch.setattr(live, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    assert shown.live is not None

    for _ in range(5):
        shown.live(LiveText.of("waiting for beta"))
        now_s[0] += 1.0

    drawn = terminal.getvalue().split("\r")
    assert drawn[0] == "waiting for beta"
    assert drawn[-1] == "waiting for beta  (4 s)\x1b[K"
