"""What the bootstrap changes under a program is said once, with the reason."""

from __future__ import annotations

import os
import sys

_told: set[str] = set()


def log_substitution(what: str, because: str, *, on_each_host: bool = False) -> None:
    """Write `yoked: WHAT, because WHY` to stderr: on rank 0, the first time only.

    on_each_host: by the first rank of every host, for what is one host's own.
    """
    speaker = os.environ.get("LOCAL_RANK" if on_each_host else "RANK", "0")
    if what in _told or speaker != "0":
        return
    _told.add(what)
    sys.stderr.write(f"yoked: {what}, because {because}\n")
    sys.stderr.flush()
