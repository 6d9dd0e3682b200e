"""One rank of a probe: `python -m yoked.probe.worker SPEC`, started on all hosts as a job.

SPEC is one JSON object:
profile: {module, args}, or null. The module has `preload()`, which loads its imports, and
`profile(args, of_all)`, which measures a training step; of_all(text): the texts of all ranks.
collectives: {largest_bytes, limit_s, gpus: whether tensors may be on GPUs}, or null.
gate: a file on rank 0's host; nothing is measured before it exists. Or null.

While the gate is closed, the links between the hosts are measured. torch takes seconds to import,
so it is imported in spare time meanwhile.
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
    # At the top of the file it would load torch before the spare time begins.
    from yoked.probe.collective_bench import measure

    return measure(spec)


def _load(spec: dict[str, dict[str, str] | None]) -> None:
    importlib.import_module(MEASURING)
    if spec["profile"] is not None:
        importlib.import_module(spec["profile"]["module"]).preload()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
