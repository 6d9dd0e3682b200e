"""Lines for a shell: words that stand in this program, and values that are always quoted.

A `Fix` takes nothing else. So no value gets into a line without its quotes, whoever it comes from:
mypy refuses a plain text, and a test the words that are no literal.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable

from yoked.records.rules import CONTROL


class Line(str):
    """A line for a shell, or a part of one, in which every value is quoted."""

    __slots__ = ()


def shell_line(words: str, /, **values: object) -> Line:
    """A line. words: a literal, with a `{name}` for each value; braces of the shell's are doubled.

    values: quoted, but for parts that are a Line already.
    """
    return Line(words.format(**{name: quoted(value) for name, value in values.items()}))


def quoted(value: object) -> Line:
    """One word of a shell. Control characters are left out: nothing that is named here has any,
    and one line stays one.
    """
    return value if isinstance(value, Line) else Line(shlex.quote(CONTROL.sub("", str(value))))


def path_word(path: str) -> Line:
    """A path as one word of a shell, which has the ~ at its beginning stand for the home folder."""
    # Within quotes, ~ would be a folder of that name.
    return joined("", (Line("~"), path[1:])) if path.startswith("~/") else quoted(path)


def joined(between: str, parts: Iterable[object]) -> Line:
    """Words or lines behind each other. between: a literal."""
    return Line(between.join(map(quoted, parts)))


def command_line(*words: object) -> Line:
    """A program and its arguments."""
    return joined(" ", words)


def as_made(line: str) -> Line:
    """A line that was put together with its quotes elsewhere, as this program's errors do it;
    or one of foreign words in which nothing means anything to a shell.
    """
    return Line(CONTROL.sub("", line))


def renamed(line: Line, old: str, new: str) -> Line:
    """A line with another name in all places of one. Both: a path's ending, plain words."""
    return Line(line.replace(old, new))


def listed_words(words: Iterable[object]) -> Line:
    """`a`, `a and b`, `a, b and c`, for prose that has words to paste in it."""
    *first, last = [quoted(word) for word in words] or [Line("")]
    return Line(f"{', '.join(first)} and {last}") if first else last
