"""Are the weights of all ranks equal after every step?

usage: python benchmarks/unmodified/compare.py 0.jsonl 1.jsonl ...   (see checksums/)

Prints the verdict; exit status 1 when ranks differ, or when a rank has no steps.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def checksums(path: Path) -> list[str]:
    """A rank's checksums by step."""
    return [json.loads(line)["sha256"] for line in path.read_text().splitlines()]


def main() -> int:
    ranks = [checksums(Path(path)) for path in sys.argv[1:]]
    if len(ranks) < 2 or not all(ranks):
        raise SystemExit("two or more files with a line for each step are needed")
    if len({len(steps) for steps in ranks}) > 1:
        print(f"ranks made unlike numbers of steps: {[len(steps) for steps in ranks]}")
        return 1
    apart = [step for step, sums in enumerate(zip(*ranks, strict=True), 1) if len(set(sums)) > 1]
    changed = len(set(ranks[0]))
    if apart:
        print(f"weights differ from step {apart[0]} on ({len(apart)} of {len(ranks[0])} steps)")
        return 1
    print(
        f"weights equal on {len(ranks)} ranks after each of {len(ranks[0])} steps, {changed} unlike"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
