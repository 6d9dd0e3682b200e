from __future__ import annotations

import io
import time
from pathlib import Path

import pytest
from rich.console import Console

from yoked.console import HostsProgress, LiveLine, StageProgress, stderr_console
from yoked.liveline import LiveText
from yoked.paths import LIVE_NAME


def test_progress_is_quiet_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream))

    progress.update("packing", 5, 10, "rows")
    progress.close()

    assert stream.getvalue() == ""


@pytest.mark.parametrize("variable", ["FORCE_COLOR", "TTY_COMPATIBLE"])
def test_what_a_shell_says_of_its_terminal_does_not_make_a_log_one(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], variable: str
) -> None:
    monkeypatch.setenv(variable, "1")
    progress = StageProgress(stderr_console())

    progress.update("packing", 5, 10, "rows")
    progress.close()

    assert capfd.readouterr().err == ""


def test_in_a_pipe_long_work_says_now_and_then_how_far_it_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now_s)
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream, width=80))
    for done in range(100):
        now_s += 1.0
        # Stages that alternate, as those of two hosts.
        progress.update(f"fetching wheel {done % 2}", done, 100, "B")
    progress.close()

    lines = stream.getvalue().splitlines()
    assert [line.partition(",")[0] for line in lines] == [
        "fetching wheel 0: 14 B of 100 B",
        "fetching wheel 1: 29 B of 100 B",
        "fetching wheel 0: 44 B of 100 B",
        "fetching wheel 1: 59 B of 100 B",
        "fetching wheel 0: 74 B of 100 B",
        "fetching wheel 1: 89 B of 100 B",
    ]


def test_progress_says_stage_amount_and_share_on_a_terminal() -> None:
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream, force_terminal=True, width=100))

    progress.update("tokenising", 0, 4_000_000, "bytes")
    progress.update("tokenising", 4_000_000, 4_000_000, "bytes")
    progress.update("packing", 7, None, "rows")
    progress.close()

    assert "tokenising: 4.00 MB of 4.00 MB, 100%" in stream.getvalue()
    assert stream.getvalue().count("\n") == 2
    assert "packing: 7 rows" in stream.getvalue()


def test_a_line_never_wraps() -> None:
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream, force_terminal=True, width=20))

    progress.update("a stage with a very long name", 1, 2, "documents")

    drawn = stream.getvalue().removeprefix("\r").removesuffix("\x1b[K")
    assert len(drawn) <= 19


def test_rank_0_of_a_run_leaves_its_live_line_for_those_who_look_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))
    stream = io.StringIO()
    live = LiveLine(Console(file=stream))

    live.draw(LiveText.of("step 3/60"))
    live.pause()
    while_drawn = (tmp_path / LIVE_NAME).read_bytes()
    live.close()

    assert live.is_seen
    assert LiveText.decode(while_drawn) == LiveText.of("step 3/60")
    assert list(tmp_path.iterdir()) == []
    assert stream.getvalue() == ""


def test_another_rank_leaves_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path))
    monkeypatch.setenv("RANK", "1")

    assert not LiveLine(Console(file=io.StringIO())).is_seen


def test_a_live_line_that_cannot_be_left_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("YOKED_LAUNCH_DIR", str(tmp_path / "gone"))

    LiveLine(Console(file=io.StringIO())).draw(LiveText.of("step 3/60"))


def test_hosts_at_one_stage_are_summed_and_the_last_stage_is_shown() -> None:
    stream = io.StringIO()
    progress = HostsProgress(Console(file=stream, force_terminal=True, width=100))

    progress.update("alpha", "sending to alpha", 300, 300, "bytes")
    progress.update("beta", "sending to beta", 300, 300, "bytes")
    progress.update("alpha", "unpacking", 0, None, "bytes")
    progress.update("beta", "sending to beta", 300, 300, "bytes")
    progress.close()

    lines = stream.getvalue().replace("\r", "\n").split("\n")
    assert "sending, alpha, beta: 600 B of 600 B, 100%,\x1b[K" in lines
    assert lines[-2].startswith("unpacking, alpha: 0 B")


def test_what_goes_on_leaves_no_line_behind() -> None:
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream, force_terminal=True, width=60))

    progress.doing("measuring")
    progress.doing("loading data")
    progress.update("packing", 7, None, "rows")
    progress.close()

    assert stream.getvalue() == (
        "\rmeasuring\x1b[K\r\x1b[K\rloading data\x1b[K\r\x1b[K\rpacking: 7 rows\x1b[K\n"
    )
