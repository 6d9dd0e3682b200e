"""Some lines of a long file, and what was added to it."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from yoked.core.lines import lines_at, read_part


def test_of_each_offset_the_first_whole_line_comes_once(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"one\ntwo\nthree\ntorn")
    assert lines_at(path, [0, 1, 4, 5, 8, 9, 14, 99]) == (
        18,
        [(0, b"one\n"), (4, b"two\n"), (8, b"three\n")],
    )


def test_a_line_that_is_longer_than_a_block_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "m"
    long = b"x" * 50_000 + b"\n"
    path.write_bytes(b"one\n" + long + b"end\n")
    assert lines_at(path, [2, 5])[1] == [(4, long), (4 + len(long), b"end\n")]


def test_a_line_without_an_end_is_none_however_long_it_is(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"one\n" + b"x" * 3_000_000)
    assert lines_at(path, [1])[1] == []


def test_a_file_that_is_not_there_has_nothing(tmp_path: Path) -> None:
    assert lines_at(tmp_path / "m", [0]) == (0, [])
    assert read_part(tmp_path / "m", 0, 10) == b""


@given(
    lines=st.lists(st.binary(max_size=9).map(lambda line: line.replace(b"\n", b"") + b"\n")),
    offsets=st.lists(st.integers(0, 120)),
)
def test_lines_are_those_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], offsets: list[int]
) -> None:
    path = tmp_path_factory.getbasetemp() / "lines"
    whole = b"".join(lines)
    path.write_bytes(whole)
    begins = [len(b"".join(lines[:place])) for place in range(len(lines))]
    wanted = {next((b for b in begins if b >= offset), None) for offset in offsets} - {None}
    size, found = lines_at(path, offsets)
    assert size == len(whole)
    assert {begin for begin, _ in found} == wanted
    assert all(whole[begin : begin + len(line)] == line for begin, line in found)


def test_a_part_ends_at_what_was_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "m"
    path.write_bytes(b"0123456789")
    assert read_part(path, 3, 4) == b"3456"
    assert read_part(path, 8, 4) == b"89"
    assert read_part(path, 12, 4) == b""
