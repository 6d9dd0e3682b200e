"""A view as lines, and the pieces of which both are made."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from rich.cells import cell_len
from syrupy.assertion import SnapshotAssertion
from tests.unit.watch import views

from yoked.watch.lines import full, lines
from yoked.watch.terminal.charts import Curve, draw, sparks
from yoked.watch.terminal.ink import is_simple, simple, text_of, wrapped
from yoked.watch.terminal.log import moved, plain_line
from yoked.watch.terminal.ranks import ranks


@pytest.fixture(autouse=True)
def by_utc(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()


@pytest.mark.parametrize("name", ["HEALTHY", "FAULT", "OVER", "PROGRAM", "EIGHT", "HOSTILE"])
def test_a_view_is_told_in_lines(name: str, snapshot: SnapshotAssertion) -> None:
    assert "\n".join(lines(getattr(views, name), 100)) == snapshot


@pytest.mark.parametrize("width", [79, 200])
@pytest.mark.parametrize("bars", [False, True])
def test_the_number_of_a_rank_and_its_memory_are_two_numbers(width: int, bars: bool) -> None:
    waits = replace(views.HEALTHY.ranks[1], waits_for=(1,), memory_bytes=238_000_000)
    view = replace(views.HEALTHY, ranks=(waits,), recent=views.recent(2))

    row = text_of(ranks(view, width, rows=9, selected=None, bars=bars)[1])

    assert row.endswith("waits 0.25 s for rank 1  238 MB")


@pytest.mark.parametrize("width", [50, 78])
def test_fixes_and_reasons_are_whole_however_long(width: int) -> None:
    fix = "top    on this machine: end python, or have it give way by renice" + " and more" * 20
    slow = {**views.event(-1, "slow", "warning", "it is slow"), "fix": [fix]}
    why = " ".join(f"word{place}" for place in range(80))
    view = replace(
        views.HEALTHY,
        figures={"events": [slow]},
        silent={"shed": why},
        verdict=replace(views.HEALTHY.verdict, why=(why,)),
    )

    # The header alone is one line, and leaves out what has no room.
    said = "\n".join(lines(view, width)[1:])
    everything = " ".join(text for each in full(view, width) for text in text_of(each).split())

    assert "…" not in said
    assert " ".join(fix.split()) in " ".join(said.split())
    assert " ".join(said.split()).count(why) == 2
    assert "…" not in everything
    assert everything.count(why) == 2


def test_means_of_steps_are_told_apart_from_the_last_step() -> None:
    few = {**views.HEALTHY.figures, "steps_each": 1}

    means = "\n".join(lines(views.HEALTHY, 100))
    each = "\n".join(lines(replace(views.HEALTHY, figures=few), 100))

    assert "loss, means of 6 steps: 10.3466 nats at step 6, 3.0727 at step 1,234" in means
    assert "loss of the last step: 3.1123 nats" in means
    assert "speed, means of 6 steps: 12,360 tokens/s at step 6" in means
    assert "speed of the last steps, by their median: 12,346 tokens/s" in means
    assert "means of" not in each
    assert "loss of the last step" not in each
    assert "speed of the last steps, by their median: 12,346 tokens/s" in each


@pytest.mark.parametrize("width", [20, 40, 79, 200])
def test_lines_keep_to_a_width(width: int) -> None:
    for view in (views.HEALTHY, views.FAULT, views.EIGHT, views.HOSTILE):
        for line in lines(replace(view, run="夜" * 50), width):
            assert cell_len(line) <= width


def test_lines_are_ascii_where_that_is_wanted() -> None:
    assert all(line.isascii() for line in lines(replace(views.FAULT, run="夜ü"), 90, in_ascii=True))


def drawn(curve: Curve, cells: int = 30, rows: int = 6) -> list[str]:
    return [text_of(line) for line in draw(curve, cells, rows)]


def test_a_curve_has_its_values_and_steps_beside_it(snapshot: SnapshotAssertion) -> None:
    steps = range(1, 101)

    assert "\n".join(drawn(Curve(["loss"], steps, [100.0 / step for step in steps], "loss"))) == (
        snapshot
    )


def test_a_curve_has_a_gap_where_nothing_is_known() -> None:
    values: list[float | None] = [1.0] * 100
    values[40:60] = [None] * 20

    rows = drawn(Curve([], range(100), values, ""), cells=47)[1:-1]

    (plot,) = filter(str.split, (row.partition("┤")[2].replace("⠀", " ") for row in rows))
    assert len(plot.split()) == 2
    assert plot.count(" ") == 8


@pytest.mark.parametrize(
    "values",
    [
        [],
        [None],
        [2.0],
        [2.0, 2.0],
        [0.0, 0.0],
        [float("nan"), 1.0],
        [float("inf"), 3.0],
        [-1, 1e9],
    ],
)
def test_odd_values_make_no_odd_curve(values: list[float | None]) -> None:
    for cells, rows in ((30, 6), (5, 3), (1, 1)):
        for line in drawn(Curve(["t"], range(len(values)), values, ""), cells, rows):
            assert "nan" not in line
            assert "inf" not in line


def test_validation_lies_on_the_curve_and_its_axis_has_its_own_unit() -> None:
    steps, losses = [0, 50, 100], [4.0, 3.0, 2.0]

    rows = drawn(Curve([], steps, losses, "", marks=[(50, 1.5)], mark_scale=0.5), 40, 7)

    assert rows[1].startswith("    4 ┤")
    assert rows[1].endswith(" 2")
    assert rows[5].startswith("    2 ┤")
    assert rows[5].endswith(" 1")
    assert "o" in rows[3]


def test_waits_are_drawn_by_the_largest() -> None:
    assert sparks([0.0, 0.1, 0.5, 1.0], 3, 1.0) == "▁▄█"
    assert sparks([0.0, 0.0], 4, 0.0) == "  "


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({"LANG": "C"}, True),
        ({}, True),
        ({"LANG": "de_DE.UTF-8"}, False),
        ({"LANG": "C.UTF-8"}, False),
        ({"LC_ALL": "C", "LANG": "de_DE.UTF-8"}, True),
        ({"LC_CTYPE": "UTF-8"}, False),
        # What Python puts there where the locale is "C".
        ({"LC_CTYPE": "C.UTF-8", "LANG": "C"}, True),
        ({"LC_CTYPE": "C.UTF-8"}, True),
        ({"LANG": "C.UTF-8", "TERM": "linux"}, True),
        ({"LANG": "C.UTF-8", "TERM": "tmux-256color"}, False),
    ],
)
def test_unicode_is_drawn_where_the_locale_has_it(
    environment: dict[str, str], expected: bool
) -> None:
    assert is_simple(environment) == expected


def test_ascii_takes_as_many_cells() -> None:
    for text in ("█▒░·", "⢣⠀⠤⠉", "a → b", "夜ü", "1 µs…"):
        assert simple(text).isascii()
        assert len(simple(text)) == cell_len(text)


def test_what_does_not_fit_ends_with_an_ellipsis() -> None:
    assert wrapped("one two three four", 9) == ["one two", "three", "four"]
    assert wrapped("one two three four", 9, most=2) == ["one two", "three fo…"]


def test_a_line_of_a_log_is_what_was_seen_of_it_at_last() -> None:
    assert plain_line("\x1b[31mred\x1b[0m\ttab") == "red     tab"
    assert plain_line(" 10%\r 50%\r100%") == "100%"
    assert plain_line("\x1b]0;title\x07a\x00b\u202ec") == "abc"


def test_a_line_of_a_log_is_found_where_it_is_now() -> None:
    before = [("out", name) for name in "abcabd"]

    assert moved(before, before[2:], 3) == 1
    assert moved(before, [("err", "x"), *before], 3) == 4
    assert moved(before, [("out", "y")], 3) == 0
