from __future__ import annotations

import io

from rich.console import Console

from yoked.console import StageProgress


def test_progress_is_quiet_where_there_is_no_terminal() -> None:
    stream = io.StringIO()
    progress = StageProgress(Console(file=stream))

    progress.update("packing", 5, 10, "rows")
    progress.close()

    assert stream.getvalue() == ""


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
