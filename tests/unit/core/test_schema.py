"""Foreign JSON becomes a dataclass, or an error that names the place."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

import pytest

from yoked.core.schema import Constraint, decode

Count = Annotated[int, Constraint("at least 0", lambda count: count >= 0)]


@dataclass(frozen=True)
class Node:
    host: str
    ranks: Count
    speed: float = 1.0


@dataclass(frozen=True)
class Plan:
    nodes: tuple[Node, ...]
    folder: Path
    kind: Literal["module", "script"]
    port: Optional[Count] = None  # noqa: UP045 - as what travels to Python 3.9 writes it
    user: str | None = None
    sizes: Mapping[str, int] | None = None
    pair: tuple[int, str] | None = None


GOOD: dict[str, Any] = {
    "nodes": [{"host": "attic", "ranks": 2, "speed": 3}],
    "folder": "/jobs",
    "kind": "module",
}


def test_a_record_comes_back_from_json_and_keys_of_a_later_version_are_passed_over() -> None:
    plan = Plan((Node("attic", 2, 3.0),), Path("/jobs"), "module", 80, "ann", {"a": 1}, (1, "b"))
    text = json.dumps({**asdict(plan), "later": True}, default=str)

    assert decode(Plan, json.loads(text)) == plan
    assert decode(Plan, GOOD) == Plan((Node("attic", 2, 3.0),), Path("/jobs"), "module")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": 1}, "nodes is 1, not a list"),
        ({"nodes": [{"host": "attic"}]}, "nodes[0].ranks missing"),
        ({"nodes": [{"host": 1, "ranks": 1}]}, "nodes[0].host is 1, not a text"),
        ({"nodes": [{"host": "a", "ranks": True}]}, "nodes[0].ranks is True, not a whole number"),
        ({"nodes": [{"host": "a", "ranks": -1}]}, "nodes[0].ranks is -1, not at least 0"),
        ({"nodes": [{**GOOD["nodes"][0], "speed": 1e30}]}, "nodes[0].speed is 1e+30, not a number"),
        ({"folder": 3}, "folder is 3, not a path"),
        ({"kind": ["module"]}, "kind is ['module'], not one of module, script"),
        ({"port": -1}, "port is -1, not at least 0"),
        ({"sizes": {"a": "1"}}, "sizes.a is '1', not a whole number"),
        ({"pair": [1]}, "pair is [1], not a list of 2"),
    ],
)
def test_what_does_not_fit_is_named_by_its_place(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(words)}$"):
        decode(Plan, {**GOOD, **changes})
