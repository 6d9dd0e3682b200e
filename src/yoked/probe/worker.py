"""One rank of a probe: `python -m yoked.probe.worker SPEC`, started on all hosts as a job.

SPEC is one JSON object:
profile: {module, args}, or null. The module has `profile(args, of_all)`, which measures a training
step; of_all(text): the texts of all ranks.
collectives: {largest_bytes, limit_s, gpus: whether tensors may be on GPUs}, or null.
"""

from __future__ import annotations

import importlib
import json
import sys

from yoked.collector import without_collector


def main(argv: list[str]) -> int:
    """Measure as one rank; returns the exit status."""
    spec = json.loads(argv[0])
    with without_collector():
        from yoked.probe.collective_bench import measure

        if spec["profile"] is not None:
            importlib.import_module(spec["profile"]["module"])
    return measure(spec)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
