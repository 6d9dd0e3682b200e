"""One rank of a probe: `python -m yoked.probe.worker SPEC`, started on all hosts as a job.

SPEC is one JSON object: rehearsal {module, args} or null; collectives {largest_bytes, limit_s,
gpus: whether tensors may lie there} or null; gate: a file on rank 0's host, before which nothing
is measured, or null. The rehearsal is another part's, which the command names: a module with a
`report(args)`.

Until the gate opens, links between the hosts may be measured. So torch, which takes seconds, is
imported by a thread that leaves the processor to whatever else wants it.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import threading
from collections.abc import Sequence

MEASURING = "yoked.probe.ranks"
_NICE = 10


def main(argv: list[str]) -> int:
    """Measure as one rank; returns the exit status."""
    spec = json.loads(argv[0])
    modules = [MEASURING]
    if spec["rehearsal"] is not None:
        modules.append(spec["rehearsal"]["module"])
    import_modestly(modules)
    status: int = importlib.import_module(MEASURING).measure(spec)
    return status


def import_modestly(modules: Sequence[str]) -> None:
    """Import modules in a thread of low priority, where there is such; raises as they do."""
    problems: list[BaseException] = []

    def load() -> None:
        if sys.platform == "linux":
            # There a nice value is of one thread (setpriority(2)); it could not be taken back.
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICE)
        try:
            for module in modules:
                importlib.import_module(module)
        except BaseException as problem:  # noqa: BLE001 - raised again below
            problems.append(problem)

    thread = threading.Thread(target=load, name="import")
    thread.start()
    thread.join()
    if problems:
        raise problems[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
