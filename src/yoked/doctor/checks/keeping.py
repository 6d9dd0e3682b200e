"""What a line does to a file that it changes, so that the file comes back as it was.

A shell empties a file before it starts what writes to it. So nothing is written over a file until
a whole copy of it is there, and nothing is put back where there is none: the line never ran.
"""

from __future__ import annotations

from yoked.records.examination import Fix


def keep(file: str, kept: str) -> str:
    """Copy a file, as words of a shell; it fails where the copy's name is taken."""
    # Renamed when it is whole: a full disk leaves no half of a copy to be put back.
    return f"{is_free(kept)} && cp -p {file} {kept}.new && mv {kept}.new {kept}"


def is_free(kept: str) -> str:
    """Whether the name of a copy is free, as words of a shell; says so where it is not."""
    return f"{{ [ ! -e {kept} ] || ! echo {kept} is there already >&2; }}"


def put_back(file: str, kept: str) -> str:
    """Give a file what its copy has, and remove the copy; without one nothing is done."""
    return f"[ ! -e {kept} ] || {{ cat {kept} > {file} && rm {kept}; }}"


def change_file(host: str, file: str, mark: str, change: str, *, root: bool = False) -> Fix:
    """A line that changes a file, which is kept as `FILE.yoked-MARK`.

    file: as a word of a shell. change: what prints the new content; `{old}` is the copy.
    """
    kept = f".yoked-{mark}"
    old = f"{file}{kept}"
    line = f"{keep(file, old)} && {change.replace('{old}', old)} > {file}"
    return Fix(host, line, root=root, undo=put_back(file, old), kept=kept)


def rewrite_file(host: str, file: str, mark: str, program: str) -> Fix:
    """A program that writes a file anew by itself; it is kept as `FILE.yoked-MARK`."""
    kept = f".yoked-{mark}"
    old = f"{file}{kept}"
    return Fix(host, f"{keep(file, old)} && {program}", undo=put_back(file, old), kept=kept)
