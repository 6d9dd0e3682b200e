"""Patterns of files below a folder, as a line of .gitignore writes them.

    *.pt        at any depth; so is every pattern without a slash before its end
    out/*.pt    below the folder itself; * and ? stay within one name
    /top.pt     the same with one name
    out/        a folder, with all below it; so is every folder that matches
    a/**/b      any number of folders in between

Some come from a foreign host: each name is matched by itself, so no pattern takes long. Source:
gitignore(5), of which `!`, backslashes and comments are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase

MOST_PATTERNS = 100
_LONGEST = 200
# What has no place in a name; and what .gitignore has that is not understood here.
_ODD = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\\]")


def pattern_flaw(pattern: str) -> str | None:
    """What is wrong with a pattern, as it goes on behind its text; None: nothing."""
    parts = pattern.strip("/").split("/")
    if not pattern.strip("/") or len(pattern) > _LONGEST:
        return f"is no pattern of 1 to {_LONGEST} letters"
    if pattern[0] in "!#~" or _ODD.search(pattern):
        return "has a sign that no pattern here has"
    if ".." in parts or "." in parts or "" in parts:
        return "must name files below the folder, without . or .. as a part"
    return None


def any_matches(patterns: Iterable[str], path: str) -> bool:
    """Whether one of these matches a file, by its path below the folder, with slashes."""
    return any(_matches(pattern, path) for pattern in patterns)


def _matches(pattern: str, path: str) -> bool:
    wanted = pattern.strip("/").split("/")
    if "/" not in pattern.rstrip("/"):
        wanted.insert(0, "**")
    if wanted[-1] == "**":
        # Of what is in a folder, and not the folder's own name.
        wanted[-1] = "*"
    is_folder = pattern.endswith("/")
    # How many of `wanted` the names so far can have matched.
    reached = _past_any_folders({0}, wanted)
    names = path.split("/")
    for number, name in enumerate(names, start=1):
        held = {place for place in reached if place < len(wanted) and wanted[place] == "**"}
        moved = {
            place + 1
            for place in reached
            if place < len(wanted) and wanted[place] != "**" and fnmatchcase(name, wanted[place])
        }
        reached = _past_any_folders(held | moved, wanted)
        if len(wanted) in reached and (number < len(names) or not is_folder):
            return True
    return False


def _past_any_folders(reached: set[int], wanted: list[str]) -> set[int]:
    """The same, with what follows a `**` that stands for no folder at all."""
    found = set(reached)
    for place, part in enumerate(wanted):
        if place in found and part == "**":
            found.add(place + 1)
    return found
