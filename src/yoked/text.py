"""Foreign text on its way to a terminal: nothing in it may act on it, or show as what it is not.

Escape sequences can clear the screen, change the title, fill the clipboard or make the terminal
type an answer (DCS, OSC, CSI: ECMA-48; XTerm Control Sequences). Bidirectional overrides show text
in another order than that in which a shell reads it (Unicode UAX #9).
"""

from __future__ import annotations

import re
from collections.abc import Iterable

# C0 without line feed and tab, DEL, C1, line and paragraph separators, bidirectional controls, and
# what UTF-8 cannot carry.
_CONTROLS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)

_LONGEST_STRING = 4096
_LONGEST_PARAMETERS = 64
# One escape sequence, or the beginning of one at the end of a piece. A string (OSC, DCS, SOS, PM,
# APC) that nobody ends is over with its line: what follows is shown.
_SEQUENCE = re.compile(
    rf"""
    (?: \x1b\[ | \x9b ) (?P<parameters> [0-?]{{0,{_LONGEST_PARAMETERS}}} [\x20-/]{{0,8}} )
        (?P<final> [@-~] )?
    | (?: \x1b[]PX^_] | [\x90\x98\x9d-\x9f] )
        (?P<string> [^\x07\x18\x1a\x1b\x9c\n]{{0,{_LONGEST_STRING}}} )
        (?P<end> \x07 | \x1b\\ | \x9c )?
    | \x1b [\x20-/]{{0,8}} (?P<other> [0-~] )?
    """,
    re.VERBOSE,
)
# Colours, and "erase this line", which a progress bar needs.
_KEPT = re.compile(r"([0-9;:]*)m|[0-2]?K")


def plain(text: str) -> str:
    """A message, name or finding with its control characters as visible escapes.

    Line feeds and tabs stay.
    """
    return _CONTROLS.sub(_visible, text.replace("\r\n", "\n"))


def one_line(text: str) -> str:
    """As `plain`, for what is one line: a line feed or tab of it is shown as an escape too."""
    return plain(text).replace("\n", "\\n").replace("\t", "\\t")


# What ends a Python before it has an exception to show, or a program before it has begun.
_TELLING = re.compile(
    r"Fatal Python error: |Error processing line \d+ of |.*error while loading shared libraries: "
    r"|.*symbol lookup error: |.*cannot be preloaded"
)
_MOST_TELLING = 4


def shortened(text: str) -> str:
    """A text of at most 60 characters; one that is cut ends with three dots."""
    return text if len(text) <= 60 else f"{text[:57]}..."


def paragraphs(*sections: Iterable[str]) -> list[str]:
    """The lines of all sections, with an empty one between each two that have any."""
    lines: list[str] = []
    for section in map(list, sections):
        lines += [*([""] if lines and section else []), *section]
    return lines


def telling(said: str) -> str:
    """The lines that tell why a program ended, as one; empty: it said nothing.

    Of Python these are its verdict (`Fatal Python error: ...`), the .pth file that it was at, and
    the exceptions, of which the first in a chain is the cause. The last line is often none of them.
    """
    lines = [line for line in said.splitlines() if line.strip()]
    found = []
    depth: int | None = None
    for place, line in enumerate(lines):
        indent = len(line) - len(line.lstrip())
        if line.strip() == "Traceback (most recent call last):":
            depth = indent
        elif line.startswith("Python runtime state: "):
            # An exception that no frame has follows at once, if there is one.
            depth = 0
        elif depth is not None and indent <= depth:
            depth = None
            if line.startswith("Current thread "):
                continue
            # Some messages begin with an empty line.
            more = lines[place + 1 : place + 2] if line.rstrip().endswith(":") else []
            found.append(" ".join(each.strip() for each in (line, *more)))
        elif _TELLING.match(line):
            found.append(line.strip().removesuffix(":"))
    kept = list(dict.fromkeys(found)) or [line.strip() for line in lines[-1:]]
    if len(kept) > _MOST_TELLING:
        kept = [*kept[: _MOST_TELLING // 2], *kept[-_MOST_TELLING // 2 :]]
    return "; ".join(kept)


def _visible(found: re.Match[str]) -> str:
    code = ord(found[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


class Followed:
    """A filter for one stream of output that is followed, in pieces.

    Text, line feeds, tabs, carriage returns, colours and "erase line" pass; all else that could
    act on a terminal is dropped.
    """

    def __init__(self) -> None:
        self._begun = ""
        self._coloured = False

    def feed(self, text: str) -> str:
        """The next piece, filtered; the beginning of a sequence at its end waits for the rest."""
        text, self._begun = self._begun + text, ""
        shown, place = [], 0
        for found in _SEQUENCE.finditer(text):
            shown.append(self._text(text[place : found.start()]))
            place = found.end()
            if place == len(text) and _is_unfinished(found):
                self._begun = found[0]
            else:
                shown.append(self._sequence(found))
        shown.append(self._text(text[place:]))
        return "".join(shown)

    def close(self) -> str:
        """What ends the stream's colours, if it left any on."""
        coloured, self._coloured = self._coloured, False
        return "\x1b[0m" if coloured else ""

    @staticmethod
    def _text(text: str) -> str:
        return _CONTROLS.sub(lambda found: "\r" * (found[0] == "\r"), text)

    def _sequence(self, found: re.Match[str]) -> str:
        said = f"{found['parameters'] or ''}{found['final'] or ''}"
        kept = _KEPT.fullmatch(said)
        if kept is None:
            return ""
        if kept[1] is not None:
            self._coloured = kept[1].strip("0;:") != ""
        return f"\x1b[{said}"


def _is_unfinished(found: re.Match[str]) -> bool:
    """Whether a sequence that reaches to the end of a piece may go on in the next one."""
    if found["parameters"] is not None:
        return found["final"] is None and len(found["parameters"]) < _LONGEST_PARAMETERS
    if found["string"] is not None:
        return found["end"] is None and len(found["string"]) < _LONGEST_STRING
    return found["other"] is None and len(found[0]) < 8
