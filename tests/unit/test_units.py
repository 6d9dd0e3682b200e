from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from syrupy.assertion import SnapshotAssertion

from yoked import units
from yoked.errors import UsageError


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.00 kB"), (46_100_000, "46.1 MB"), (999_600, "1.00 MB")],
)
def test_a_size_is_written_in_decimal_bytes(size_bytes: int, text: str) -> None:
    assert units.format_bytes(size_bytes) == text


def test_bits_and_bytes_are_never_mixed_up() -> None:
    assert units.format_bit_per_s(950e6) == "950 Mbit/s"
    assert units.format_bytes_per_s(118.8e6) == "119 MB/s"
    assert units.parse_bit_per_s("118.75 MB/s") == units.parse_bit_per_s("950 Mbit/s")
    assert units.parse_bytes("8 kbit") == units.parse_bytes("1 kB") == 1000


@pytest.mark.parametrize(
    ("count", "text"),
    [(34, "34"), (9_999, "9,999"), (36_700_290, "36.7M"), (2.5, "2.50"), (1.2e9, "1.20B")],
)
def test_a_count_is_short_above_ten_thousand(count: float, text: str) -> None:
    assert units.format_count(count) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0, "0 s"),
        (0.0000042, "4 µs"),
        (0.0123, "12.3 ms"),
        (0.43, "0.43 s"),
        (59.4, "59.4 s"),
        (59.7, "1 min 00 s"),
        (125, "2 min 05 s"),
        (3 * 3600 + 719, "3 h 12 min"),
        (86_399, "1 d 00 h"),
        (float("inf"), "unknown"),
    ],
)
def test_a_duration_is_written_for_people(time_s: float, text: str) -> None:
    assert units.format_duration(time_s) == text


@given(st.integers(min_value=0, max_value=10**15))
def test_a_size_survives_writing_and_reading_to_three_digits(size_bytes: int) -> None:
    read_back = units.parse_bytes(units.format_bytes(size_bytes))
    assert abs(read_back - size_bytes) <= 0.0051 * size_bytes


@given(st.integers(0, 9), st.integers(0, 23), st.integers(0, 59), st.integers(1, 59))
def test_a_duration_is_read_from_its_parts(d: int, h: int, m: int, s: int) -> None:
    parsed_s = units.parse_duration_s(f"{d} d {h} h {m} min {s} s")
    assert parsed_s == ((d * 24 + h) * 60 + m) * 60 + s


@pytest.mark.parametrize("text", ["12", "12 Mb", "x MB", "-1 MB", "1 MB/s"])
def test_a_size_that_could_be_read_two_ways_is_refused(
    text: str, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_bytes(text)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize("text", ["", "5", "5 weeks", "3 m"])
def test_a_duration_without_a_unit_is_refused(text: str, snapshot: SnapshotAssertion) -> None:
    with pytest.raises(UsageError) as caught:
        units.parse_duration_s(text)
    assert str(caught.value) == snapshot


@pytest.mark.parametrize(
    ("most", "counts"), [(1, [1]), (2, [1, 2]), (4, [1, 2, 4]), (6, [1, 2, 4, 6])]
)
def test_numbers_double_up_to_the_most(most: int, counts: list[int]) -> None:
    assert units.doublings(most) == counts


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("1gbit", 1e9),
        ("2.5GbE", 2.5e9),
        ("400G", 4e11),
        ("10 Gbps", 1e10),
        ("100 Mbit/s", 1e8),
        ("118 MB/s", 9.44e8),
    ],
)
def test_a_line_is_read_by_its_usual_names(text: str, rate: float) -> None:
    assert units.parse_link_bit_per_s(text) == pytest.approx(rate)


@pytest.mark.parametrize("text", ["fast", "", "1", "100 Mb", "0gbit", "1 GB"])
def test_what_is_no_rate_of_a_line_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_link_bit_per_s(text)


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("760M", 760e6),
        ("1e9", 1e9),
        ("1.5B", 1.5e9),
        ("124,000,000", 124e6),
        ("2k", 2000),
        ("7", 7),
    ],
)
def test_a_count_is_read_as_people_write_it(text: str, count: float) -> None:
    assert units.parse_count(text) == count


@pytest.mark.parametrize("text", ["760Q", "", "M", "-3", "1.5 GB"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        units.parse_count(text)


@pytest.mark.parametrize(
    ("parse", "unit"),
    [
        (units.parse_bytes, "GB"),
        (units.parse_bit_per_s, "Gbit/s"),
        (units.parse_link_bit_per_s, "gbit"),
        (units.parse_count, "M"),
        (units.parse_duration_s, "d"),
    ],
)
def test_a_number_that_no_computer_has_is_refused(parse: Any, unit: str) -> None:
    with pytest.raises(UsageError):
        parse(f"{'9' * 400} {unit}")
