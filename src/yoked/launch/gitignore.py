"""Which files of a folder git would leave alone.

The patterns of a folder's own .gitignore come before those of the folders above it, up to the
repository's, and the last pattern of a file that says anything decides. What is below an ignored
folder cannot be had back. Source: gitignore(5).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from pathspec import GitIgnoreSpec

NAME = ".gitignore"
_ANYTHING = re.compile(r"(!?)(?:/?(?:\*\*/)*\*\*|(?:/?(?:\*\*/)+)?\*)(/?)")
_ALL_BELOW = re.compile(r"(.+)/\*\*(/?)")


@dataclass(frozen=True)
class Pattern:
    """What a path is when the whole of it matches. expression: of paths, folders with a slash."""

    ignores: bool
    expression: re.Pattern[str]


@dataclass(frozen=True)
class Rules:
    """The patterns that hold in one folder.

    specs: (folder of the patterns, patterns), the nearest first, and of those the last.
    """

    specs: tuple[tuple[Path, tuple[Pattern, ...]], ...]

    @classmethod
    def at(cls, folder: Path) -> Rules:
        """What holds in `folder` because of itself, of its repository, and of what lies between."""
        chain = [folder, *folder.parents]
        root = next((each for each in chain if (each / ".git").exists()), folder)
        rules = cls(tuple(_read(root, root / ".git" / "info" / "exclude")))
        for each in reversed(chain[: chain.index(root) + 1]):
            rules = rules.below(each)
        return rules

    def below(self, folder: Path) -> Rules:
        """These, and those of `folder`'s own .gitignore."""
        return Rules((*_read(folder, folder / NAME), *self.specs))

    def ignores(self, path: Path, *, is_folder: bool) -> bool:
        """Whether a file or folder right in the folder of these rules is ignored."""
        for base, patterns in self.specs:
            name = path.relative_to(base).as_posix() + "/" * is_folder
            for pattern in patterns:
                # Only as a whole: what matches a folder above has been decided there, and would
                # have back here what a rule between the two ignores.
                if pattern.expression.fullmatch(name):
                    return pattern.ignores
        return False


def _read(base: Path, file: Path) -> Iterator[tuple[Path, tuple[Pattern, ...]]]:
    """The patterns of a file, the last first; nothing where there is no such file."""
    try:
        text = file.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return
    spec = GitIgnoreSpec.from_lines([_plain(line) for line in text.splitlines()])
    patterns = [
        Pattern(each.include, each.regex)
        for each in spec.patterns
        # An empty line and a comment have neither.
        if each.include is not None and each.regex is not None
    ]
    yield base, tuple(reversed(patterns))


def _plain(line: str) -> str:
    """A pattern with the same meaning to git, whose expression matches the whole of a path.

    Of `*` and `x/**` pathspec makes expressions that match where a path begins.
    """
    bare = line.rstrip()
    if found := _ANYTHING.fullmatch(bare):
        return f"{found[1]}?*{found[2]}"
    if found := _ALL_BELOW.fullmatch(bare):
        return f"{found[1]}/**/*{found[2]}"
    return line
