"""What was seen of real faults is judged as it was: tests/golden/diagnosis."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from tests.unit.diagnosis.made_up import Told, rank
from tests.unit.diagnosis.test_rules import alive, waits

from yoked.diagnosis.replay import replay, seen_of
from yoked.diagnosis.rules import causes

GOLDEN = Path(__file__).parents[2] / "golden" / "diagnosis"
FAULTS = sorted(GOLDEN.glob("*.json.gz"))


def read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return content


@pytest.mark.parametrize("path", [pytest.param(path, id=path.name) for path in FAULTS])
def test_a_real_fault_is_told_again(path: Path) -> None:
    # rank-stopped.rank1.json.gz, link-stands.hosts0-1.json.gz: the cause, and where.
    code, where = path.name.split(".")[:2]

    told = [found for _, found in replay(read(path)) if found]

    assert told, "nothing was told"
    last = told[-1][0]
    assert last.code == code
    assert where in (
        f"rank{last.rank}",
        f"node{last.nodes[0]}",
        f"link{'-'.join(map(str, last.nodes))}",
    )
    # And nothing else on the way.
    assert {found[0].code for found in told} == {code}


def test_what_is_kept_is_judged_as_it_was() -> None:
    told = Told().steps()
    for look in range(8):
        told.look(waits(0, look / 2), alive(rank(1, state="T")))

    kept = json.loads(json.dumps(seen_of(told.history)))

    assert list(replay(kept))[-1][1] == causes(told.history)


def test_what_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="places"):
        list(replay({"looks": []}))
