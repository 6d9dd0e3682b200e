"""What a line does to a file that it changes, so that the file comes back as it was.

A shell empties a file before it starts what writes to it. So nothing is written over a file until
a whole copy of it is there, and nothing is put back where there is none: the line never ran.
"""

from __future__ import annotations

from collections.abc import Callable

from yoked.records.examination import Fix
from yoked.records.shell import Line, joined, quoted, shell_line


def keep(file: Line, kept: Line) -> Line:
    """Copy a file, as words of a shell; it fails where the copy's name is taken."""
    # Renamed when it is whole: a full disk leaves no half of a copy to be put back.
    return shell_line(
        "{free} && cp -p {file} {kept}.new && mv {kept}.new {kept}",
        free=is_free(kept),
        file=file,
        kept=kept,
    )


def is_free(kept: Line) -> Line:
    """Whether the name of a copy is free, as words of a shell; says so where it is not."""
    return shell_line("{{ [ ! -e {kept} ] || ! echo {kept} is there already >&2; }}", kept=kept)


def put_back(file: Line, kept: Line) -> Line:
    """Give a file what its copy has, and remove the copy; without one nothing is done."""
    return shell_line(
        "[ ! -e {kept} ] || {{ cat {kept} > {file} && rm {kept}; }}", file=file, kept=kept
    )


def change_file(
    host: str, file: Line, mark: str, change: Callable[[Line], Line], *, root: bool = False
) -> Fix:
    """A line that changes a file, which is kept as `FILE.yoked-MARK`.

    file: as a word of a shell. change: gives the line that prints the new content, from the copy.
    """
    kept = f".yoked-{mark}"
    old = joined("", (file, quoted(kept)))
    line = shell_line(
        "{keep} && {change} > {file}", keep=keep(file, old), change=change(old), file=file
    )
    return Fix(host, line, root=root, undo=put_back(file, old), kept=kept)


def rewrite_file(host: str, file: Line, mark: str, program: Line) -> Fix:
    """A program that writes a file anew by itself; it is kept as `FILE.yoked-MARK`."""
    kept = f".yoked-{mark}"
    old = joined("", (file, quoted(kept)))
    line = joined(" && ", (keep(file, old), program))
    return Fix(host, line, undo=put_back(file, old), kept=kept)
