"""Warnings that torch prints where nothing is wrong: logs keep them, a screen does not show them.

torch asks for the name of each address that its store's connections have. Where no name server
answers, each connection of each start prints a line, and a rank that dies at once has no other.
Source: c10d/socket.cpp of torch 2.13.
"""

from __future__ import annotations

import re

_WARNING = r"(?:\[rank\d+\]:)?\[W[\d :.]*socket\.cpp:\d+\] \[c10d\] "
_HARMLESS = (
    # It goes on with the address itself.
    r"The (?:hostname|remote address) of the client socket cannot be retrieved\. err=-?\d+",
    # It goes on with IPv4.
    r"The (?:local )?IPv6 network addresses (?:of \(.*\) )?cannot be retrieved \(gai error: .*\)\.",
    r"The (?:client|server) socket cannot be initialized .*\(errno: 97 - .*\)\.",
)
_NOISE = re.compile(rf"{_WARNING}(?:{'|'.join(_HARMLESS)})\s*")


def is_noise(line: str) -> bool:
    """Whether a line, with or without its end, is such a warning and nothing else."""
    return _NOISE.fullmatch(line) is not None


def without_noise(text: str) -> str:
    """The lines of a text that are none."""
    if "socket.cpp" not in text:
        return text
    return "".join(line for line in text.splitlines(keepends=True) if not is_noise(line))
