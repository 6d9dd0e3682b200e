"""Numbers with units, written for people and read back.

Bytes count in powers of 1000 (kB, MB) or 1024 (KiB, MiB), bits in powers of 1000 (kbit, Mbit);
a link is given in bit/s, a payload in bytes, and nothing is ever a bare "M".
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from yoked.errors import UsageError

_DECIMAL = ("", "k", "M", "G", "T", "P")
_SCALE = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12, "p": 10**15}
_SCALE.update({f"{letter}i": 1024**power for power, letter in enumerate("kmgtp", start=1)})
_QUANTITY = re.compile(
    r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtp]?i?)(b|byte|bytes|bit|bits)\s*(/s)?\s*", re.I
)
# The names of the field for lines: 1gbit (tc), 2.5GbE, 400G, 10 Gbps.
_LINK = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgt])(?:be|bit|bps|bit/s)?\s*", re.I)
_COUNT = re.compile(r"\s*((?:\d+(?:\.\d*)?|\.\d+)(?:e\d{1,2})?)\s*([kmbt]?)\s*", re.I)
_DURATION = re.compile(r"(?:(\d+)d)?\s*(?:(\d+)h)?\s*(?:(\d+)min)?\s*(?:(\d+(?:\.\d*)?)s)?")


def _scaled(value: float, unit: str) -> str:
    """Three significant digits with a decimal prefix; whole numbers stay whole below 1000."""
    magnitude, power = abs(value), 0
    # 999.5 would be printed as "1000 k".
    while magnitude >= 999.5 and power < len(_DECIMAL) - 1:
        magnitude, power = magnitude / 1000, power + 1
    digits = 0 if power == 0 and float(value).is_integer() else _digits(magnitude)
    sign = "-" if value < 0 else ""
    return f"{sign}{magnitude:.{digits}f} {_DECIMAL[power]}{unit}".rstrip()


def _digits(magnitude: float) -> int:
    """Decimals that make three significant digits, at most two."""
    return 0 if magnitude >= 99.95 else 1 if magnitude >= 9.995 else 2


def format_bytes(size_bytes: float) -> str:
    """A size, such as `46.1 MB` (10^6 bytes)."""
    return _scaled(size_bytes, "B")


def format_bit_per_s(rate_bit_per_s: float) -> str:
    """A link's speed, such as `950 Mbit/s`."""
    return _scaled(rate_bit_per_s, "bit/s")


def format_bytes_per_s(rate_bytes_per_s: float) -> str:
    """A rate of payload, such as `118 MB/s`."""
    return _scaled(rate_bytes_per_s, "B/s")


def format_count(count: float) -> str:
    """A number of things, such as `36.7M`; below 10,000 it is written in full."""
    if abs(count) < 10_000:
        return f"{count:,.0f}" if float(count).is_integer() else f"{count:,.2f}"
    return _scaled(count, "").replace(" ", "").replace("G", "B")


def format_duration(time_s: float) -> str:
    """A time, such as `0.43 s`, `2 min 05 s` or `3 h 12 min`."""
    if not math.isfinite(time_s):
        return "unknown"
    if time_s == 0:
        return "0 s"
    if time_s < 1e-3:
        return f"{time_s * 1e6:.0f} µs"
    if time_s < 0.1:
        return f"{time_s * 1e3:.{_digits(time_s * 1e3)}f} ms"
    if time_s < 59.5:
        return f"{time_s:.{_digits(time_s)}f} s"
    seconds = round(time_s)
    if seconds < 3600:
        return f"{seconds // 60} min {seconds % 60:02d} s"
    minutes = round(time_s / 60)
    if minutes < 24 * 60:
        return f"{minutes // 60} h {minutes % 60:02d} min"
    hours = round(time_s / 3600)
    return f"{hours // 24} d {hours % 24:02d} h"


def _parse(text: str) -> tuple[float, bool, bool]:
    """(value in base units, is it bits, is it per second) of `1.5 Gbit/s` or `64 MiB`."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise UsageError(
            f"{text!r} is not a quantity with a unit",
            fix="write a number and B, kB, MB, GiB, kbit, Mbit or Gbit, with /s for a rate",
        )
    number, prefix, unit, per_second = match.groups()
    # "Mb" is bits to some and bytes to others, so a small b alone is refused.
    if unit == "b":
        raise UsageError(
            f"{text!r} could mean bits or bytes",
            fix="write B for bytes and bit for bits",
        )
    is_bit = unit.lower().startswith("bit")
    return _finite(float(number) * _SCALE[prefix.lower()], text), is_bit, per_second is not None


def _finite(value: float, text: str) -> float:
    if not math.isfinite(value):
        raise UsageError(
            f"{text:.20}... is larger than any number of use", fix="write fewer digits"
        )
    return value


def parse_bytes(text: str) -> int:
    """Bytes in `64 MiB` or `1.5 GB`; eight bits make one. Raises UsageError."""
    value, is_bit, is_rate = _parse(text)
    if is_rate:
        raise UsageError(f"{text!r} is a rate, not a size", fix="leave out /s")
    return round(value / 8 if is_bit else value)


def parse_bit_per_s(text: str) -> float:
    """bit/s in `1 Gbit/s` or `118 MB/s`. Raises UsageError."""
    value, is_bit, is_rate = _parse(text)
    if not is_rate:
        raise UsageError(f"{text!r} is a size, not a rate", fix="add /s")
    return value if is_bit else 8 * value


def parse_link_bit_per_s(text: str, flag: str = "") -> float:
    """bit/s of a line by its usual names: `1gbit`, `2.5GbE`, `400G`; or `118 MB/s`.

    Raises UsageError, for a line of nothing too.
    """
    match = _LINK.fullmatch(text)
    try:
        rate = (
            _finite(float(match[1]) * _SCALE[match[2].lower()], text)
            if match is not None
            else parse_bit_per_s(text)
        )
    except UsageError as problem:
        raise UsageError(
            f"{flag} {text!r} is not the rate of a line".lstrip(),
            fix="write it as in 1gbit, 2.5GbE or 100 Mbit/s",
        ) from problem
    if rate <= 0:
        raise UsageError(
            f"{flag} {text!r}: such a line carries nothing".lstrip(), fix="write it as in 1gbit"
        )
    return rate


def parse_count(text: str) -> float:
    """A number of things in `760M`, `1.5B` (10^9), `1e9` or `124,000,000`. Raises UsageError."""
    match = _COUNT.fullmatch(re.sub(r"(?<=\d)[,_](?=\d{3})", "", text))
    if match is None:
        raise UsageError(f"{text!r} is not a number", fix="write it as in 760M, 1.5B or 124000000")
    return _finite(float(match[1]) * _SCALE[match[2].lower().replace("b", "g")], text)


def parse_duration_s(text: str, flag: str = "") -> float:
    """Seconds in `90 s`, `2 min 5 s`, `3h` or `1 d 2 h`. Raises UsageError.

    flag: whose value it is, for the message.
    """
    match = _DURATION.fullmatch(re.sub(r"\s+", "", text))
    if match is None or not any(match.groups()):
        raise UsageError(
            f"{flag} {text!r} is not a duration".lstrip(),
            fix="write it as in 90 s, 10 min, 2 min 5 s or 3 h",
        )
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return _finite(((days * 24 + hours) * 60 + minutes) * 60 + seconds, text)


def doublings(most: int) -> list[int]:
    """1, 2, 4, … below most, and most itself (at least 1)."""
    return [1 << power for power in range((most - 1).bit_length())] + [most]


def plural(count: int, word: str) -> str:
    """`1 rank`, `2 ranks`."""
    return f"{count:,} {word}{'s' * (count != 1)}"


def first_listed(words: Iterable[str], others: int = 0) -> str:
    """The first three words as `listed` has them, and how many more there are. others: those that
    are counted alone.
    """
    known = list(words)
    others += max(0, len(known) - 3)
    return listed([*known[:3], *([plural(others, "other")] if others else [])])


def listed(words: Iterable[str]) -> str:
    """`a`, `a and b`, `a, b and c`."""
    *first, last = list(words) or [""]
    return f"{', '.join(first)} and {last}" if first else last
