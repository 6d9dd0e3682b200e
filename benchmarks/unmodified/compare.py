"""Are the weights of all ranks equal after every step?

usage: python benchmarks/unmodified/compare.py 0.jsonl 1.jsonl ...   (see checksums/)

Prints the verdict; exit status 1 when ranks differ, or when a rank has no steps.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Comparison:
    """The weights of some ranks. changed: how many different ones a rank had."""

    equal: bool
    verdict: str
    steps: int
    changed: int


def checksums(text: str) -> list[str]:
    """A rank's checksums by step, out of its file."""
    return [json.loads(line)["sha256"] for line in text.splitlines()]


def compare(ranks: Sequence[list[str]]) -> Comparison:
    """Compare the checksums of two or more ranks. Raises SystemExit without any."""
    if len(ranks) < 2 or not all(ranks):
        raise SystemExit("two or more files with a line for each step are needed")
    steps, changed = len(ranks[0]), len(set(ranks[0]))
    if len({len(sums) for sums in ranks}) > 1:
        unlike = f"ranks made unlike numbers of steps: {[len(sums) for sums in ranks]}"
        return Comparison(False, unlike, steps, changed)
    apart = [step for step, sums in enumerate(zip(*ranks, strict=True), 1) if len(set(sums)) > 1]
    if apart:
        verdict = f"weights differ from step {apart[0]} on ({len(apart)} of {steps} steps)"
    else:
        verdict = f"weights equal on {len(ranks)} ranks after each of {steps} steps"
        verdict += f", {changed} unlike"
    return Comparison(not apart, verdict, steps, changed)


def main() -> int:
    found = compare([checksums(Path(path).read_text()) for path in sys.argv[1:]])
    print(found.verdict)
    return 0 if found.equal else 1


if __name__ == "__main__":
    sys.exit(main())
