"""In every rank of a host, by a .pth file: leaves the recorder out, or tells which thread it is.

Python 3.11 gives the kernel no names of threads, so the recorder's is told from within.
"""

from __future__ import annotations

import os
import sys
import threading

FOLDER = "/run/bench"
_RANK_PROGRAM, _THREAD = "yoked.launch.bootstrap.rank", "yoked-recorder"
# What the daemon sets for it: the file that it writes, and torch's own recorder of collectives.
_VARIABLES = ("YOKED_RECORDER_FILE", "TORCH_FR_BUFFER_SIZE")


def _leave_out() -> None:
    """It starts only where it is given a file."""
    for name in _VARIABLES:
        os.environ.pop(name, None)


def _have_told() -> None:
    run = threading.Thread.run

    def run_and_tell(thread: threading.Thread) -> None:
        if thread.name == _THREAD:
            with open(f"{FOLDER}/thread", "w") as file:
                file.write(str(threading.get_native_id()))
        run(thread)

    threading.Thread.run = run_and_tell  # type: ignore[method-assign]


if _RANK_PROGRAM in sys.orig_argv:
    if os.path.exists(f"{FOLDER}/without"):
        _leave_out()
    else:
        _have_told()
