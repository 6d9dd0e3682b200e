"""A line of progress in as many columns as there are; nothing in it acts on the terminal."""

from __future__ import annotations

import json

import pyte
import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.liveline import LivePart, LiveText

LINE = LiveText(
    (
        LivePart("step 412/2,000", 9, "412/2,000"),
        LivePart("loss 3.2145 ↓0.12 in 100", 8, "loss 3.2145 ↓"),
        LivePart("12,345 tokens/s", 7, "12.3k tokens/s"),
        LivePart("i9 9.88k, laptop 2.47k", 5, "i9 80% laptop 20%"),
        LivePart("3 h 05 min left", 8),
    ),
    0.206,
    2.0,
)


@pytest.mark.parametrize(
    ("cells", "shown"),
    [
        (
            140,
            "━" * 6 + "─" * 24 + "  step 412/2,000  loss 3.2145 ↓0.12 in 100  12,345 tokens/s  "
            "i9 9.88k, laptop 2.47k  3 h 05 min left",
        ),
        (
            79,
            "412/2,000  loss 3.2145 ↓  12.3k tokens/s  i9 80% laptop 20%  3 h 05 min left",
        ),
        (60, "412/2,000  loss 3.2145 ↓  12.3k tokens/s  3 h 05 min left"),
        (40, "412/2,000  loss 3.2145 ↓  12.3k tokens/s"),
        (30, "412/2,000  loss 3.2145 ↓"),
        (10, "412/2,000"),
        (6, "412/2…"),
    ],
)
def test_what_matters_least_makes_room(cells: int, shown: str) -> None:
    assert LINE.fit(cells) == shown


@given(
    st.lists(st.tuples(st.text(), st.integers(0, 9), st.text()), min_size=1, max_size=6),
    st.one_of(st.none(), st.floats(0, 1)),
    st.integers(10, 200),
    st.floats(0, 1e6),
)
def test_no_text_leaves_its_line_or_acts_on_the_terminal(
    parts: list[tuple[str, int, str]], done: float | None, cells: int, age_s: float
) -> None:
    line = LiveText(tuple(LivePart(*part) for part in parts), done)
    screen = pyte.Screen(cells + 1, 3)

    pyte.Stream(screen).feed(line.fit(cells, age_s=age_s))

    assert screen.cursor.y == 0
    assert not any(row.strip() for row in screen.display[1:])


def test_a_line_comes_back_from_its_file() -> None:
    assert LiveText.decode(LINE.encode()) == LINE


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[",
        b"step 3/60",
        b"[[], null]",
        b'[["step"], null, 1.0]',
        b'[[["step", "9", ""]], null, 1.0]',
        b"[" * 100_000,
    ],
)
def test_what_is_no_line_is_none(content: bytes) -> None:
    assert LiveText.decode(content) is None


def test_a_file_of_endless_parts_is_shown_in_part() -> None:
    content = json.dumps([[["x" * 10_000, 1, ""]] * 1000, 7.5, 1.0]).encode()

    line = LiveText.decode(content)

    assert line is not None
    assert (len(line.parts), len(line.parts[0].text), line.done) == (20, 200, 1.0)


def test_a_line_that_is_done_by_no_number_has_no_bar() -> None:
    line = LiveText.decode(b'[[["step 3", 1, ""]], NaN, NaN]')

    assert line is not None
    assert line.fit(60) == "step 3"


@pytest.mark.parametrize(("age_s", "end"), [(3.0, ""), (4.5, "  (4 s)"), (75.0, "  (1 min 15 s)")])
def test_a_line_that_stays_longer_than_expected_says_so(age_s: float, end: str) -> None:
    line = LiveText((LivePart("step 3/60", 0),), every_s=2.0)

    assert line.fit(60, age_s=age_s) == f"step 3/60{end}"


def test_a_terminal_without_these_characters_gets_others() -> None:
    shown = LINE.fit(140, encoding="ascii")

    assert shown.startswith("######" + "-" * 24 + "  step 412/2,000  loss 3.2145 v0.12")
    assert shown.isascii()
