"""Two minutes of hostile bytes for each decoder: each decodes, or refuses in its own words."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path

import pytest
from tests.fuzz.decoders import DECODERS, fuzz

BUDGET_S = float(os.environ.get("YOKED_FUZZ_S", "120"))
ROUND = 500
MOST_KB = 1 << 20


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore:Generating overly large repr")
@pytest.mark.parametrize("name", DECODERS)
def test_hostile_bytes_are_decoded_or_refused(name: str, tmp_path: Path) -> None:
    first = int(os.environ.get("YOKED_FUZZ_SEED", "0"))
    began_kb, until_s, rounds = memory_kb(), time.monotonic() + BUDGET_S, 0

    while time.monotonic() < until_s:
        fuzz(name, tmp_path / str(rounds) / "folder", examples=ROUND, first=first + rounds)
        rounds += 1

    assert memory_kb() - began_kb < MOST_KB
    print(f"{name}: {rounds * ROUND:,} examples")


def memory_kb() -> int:
    """The most that this process has ever had."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
