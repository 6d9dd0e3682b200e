"""A cause: what is said of a run, by whichever rule. Standard library alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

Code = Literal[
    "rank-stopped",
    "rank-stands",
    "rank-late",
    "rank-ended-early",
    "disk-stands",
    "host-asleep",
    "host-unheard",
    "link-stands",
    "collective-mismatch",
    "cannot-tell",
    "cpu-slow",
    "data-slow",
    "link-slow",
    "packets-lost",
]
# Of a run that gets on, and less fast than it did.
SLOW: tuple[Code, ...] = ("cpu-slow", "data-slow", "link-slow", "packets-lost")
Certainty = Literal["sure", "likely"]

# What to do, said of a run that stands and of one that ended.
SAME_CALLS = "have all ranks make the same calls, with tensors of one shape"
SAME_GROUPS = "make that call on all ranks of its group, in the same step"
SAME_STEPS = "give each rank the same number of steps"


@dataclass(frozen=True)
class Cause:
    """Something that holds a run up. nodes: to blame, the first the first; a link has both its
    hosts. since_s: how long it has been so. params: names and figures of its sentences.
    """

    code: Code
    nodes: tuple[int, ...]
    since_s: float
    certainty: Certainty = "sure"
    rank: int | None = None
    link: tuple[int, int] | None = None
    params: Mapping[str, object] = field(default_factory=dict)
