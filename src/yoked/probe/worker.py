"""One rank of a probe: `python -m yoked.probe.worker SPEC`, started on all hosts as a job.

SPEC is one JSON object: rehearsal {module, args} or null; collectives {largest_bytes, limit_s,
gpus: whether tensors may lie there} or null; gate: a file on rank 0's host, before which nothing
is measured, or null. The rehearsal is another part's, which the command names: a module with
`report(args, of_all)`, where of_all gives the words of all ranks for this one's, and `prepare()`,
which loads what a report would have to.

Until the gate opens, links between the hosts are measured. So torch, which takes seconds, is
imported in spare time.
"""

from __future__ import annotations

import importlib
import json
import sys

from yoked.spare import in_spare_time, without_collector

MEASURING = "yoked.probe.collective_bench"


def main(argv: list[str]) -> int:
    """Measure as one rank; returns the exit status."""
    spec = json.loads(argv[0])
    with without_collector():
        if spec["gate"] is not None:
            in_spare_time(lambda: _load(spec))
        else:
            _load(spec)
    from yoked.probe.collective_bench import measure

    return measure(spec)


def _load(spec: dict[str, dict[str, str] | None]) -> None:
    importlib.import_module(MEASURING)
    if spec["rehearsal"] is not None:
        importlib.import_module(spec["rehearsal"]["module"]).prepare()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
