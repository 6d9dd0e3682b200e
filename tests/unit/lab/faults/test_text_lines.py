"""What a fault wrote into a text file is taken back; what a person wrote since stays."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from yoked.lab.faults.textfiles import restored

LINES = st.lists(st.text("abc ", min_size=1, max_size=4), max_size=6, unique=True)


def text(lines: list[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


@given(LINES, LINES)
@settings(max_examples=50, deadline=None)
def test_an_untouched_file_gets_its_text_back_exactly(before: list[str], after: list[str]) -> None:
    assert restored(text(after), text(before), text(after)) == text(before)


def test_lines_that_a_person_added_stay() -> None:
    now = "exit 1\nalias ll='ls -l'\nexport A=1\n"

    assert restored(now, "alias ll='ls -l'\n", "exit 1\nalias ll='ls -l'\n") == (
        "alias ll='ls -l'\nexport A=1\n"
    )


def test_what_a_person_mended_is_not_written_twice() -> None:
    before, after = "root:/bin/bash\nada:/bin/sh\n", "root:/usr/sbin/nologin\nada:/bin/sh\n"

    assert restored(before, before, after) == before


def test_undoing_keeps_what_others_changed_since() -> None:
    before = "127.0.0.1 localhost\n10.0.0.1 alpha\n"
    after = "127.0.0.1 localhost\n127.0.1.1\talpha\n"

    lines = restored(f"{after}10.0.0.9 nas\n", before, after).splitlines()

    assert lines == ["127.0.0.1 localhost", "10.0.0.9 nas", "10.0.0.1 alpha"]


def test_undoing_twice_or_after_a_repair_by_hand_changes_nothing_more() -> None:
    # A person parts words by a tab.
    now = "127.0.0.1 localhost\n10.0.0.1\talpha\n"

    assert restored(now, "10.0.0.1 alpha\n", "127.0.1.1 alpha\n") == now


def test_an_indented_line_of_a_person_is_not_the_one_that_a_fault_added() -> None:
    now = "exit 1\nif true; then\n  exit 1\nfi\n"

    assert restored(now, "", "exit 1\n") == "if true; then\n  exit 1\nfi\n"
