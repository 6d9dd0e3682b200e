"""Time of `yoked --help`, as a person waits for it: the whole process, median of many.

usage: python benchmarks/help_startup/bench.py [RUNS]
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from pathlib import Path

COMMAND = [str(Path(sys.executable).with_name("yoked")), "--help"]
GOAL_S = 0.3


def once_s() -> float:
    """Seconds of one process, from start to end."""
    started_s = time.perf_counter()
    subprocess.run(COMMAND, check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - started_s


def main() -> int:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    once_s()  # writes the bytecode files
    times_s = [once_s() for _ in range(runs)]
    median_s = statistics.median(times_s)
    print(
        f"yoked --help: median {median_s:.3f} s of {runs} runs "
        f"(fastest {min(times_s):.3f} s, slowest {max(times_s):.3f} s; goal {GOAL_S} s)"
    )
    return 0 if median_s < GOAL_S else 1


if __name__ == "__main__":
    sys.exit(main())
