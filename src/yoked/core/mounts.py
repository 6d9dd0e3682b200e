"""Which mount a folder is on."""

from __future__ import annotations

from pathlib import Path


def mount_of(folder: Path, mounts: str) -> dict[str, str] | None:
    """place, filesystem, source and options of the mount that a folder is on; None: it is on none.

    mounts: as in proc_pid_mountinfo(5).
    """
    real = folder.resolve()
    best, found = Path(), None
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        # Blanks in names are written in octal.
        words = [each.encode().decode("unicode_escape") for each in before.split()]
        place = Path(words[4])
        # A later mount at the same place covers an earlier one.
        if place in (real, *real.parents) and len(place.parts) >= len(best.parts):
            kind, source, own = [*after.split(maxsplit=2), "", ""][:3]
            options = ",".join(dict.fromkeys((*words[5].split(","), *own.split(","))))
            best = place
            found = {"place": words[4], "filesystem": kind, "source": source, "options": options}
    return found
