"""The classes of faults, and what the diagnosis must say of each: the one place that knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Program = Literal["trainer", "ddp", "nanochat"]
# nanochat is not among them: it is there only where somebody names a checkout.
PROGRAMS: tuple[Program, ...] = ("trainer", "ddp")
Clock = Literal["injection", "stamp", "death"]
# How a verdict names the place: the rank and its host; the host alone; a link, by a host of it.
Names = Literal["rank", "host", "link"]

# Of a run that gets on. Where it stands they are no verdict, right or wrong: they end nothing, and
# on a machine that others use they may be so.
SLOW_CODES = frozenset(("cpu-slow", "data-slow", "link-slow", "packets-lost"))
# Causes that have two hosts: of a link, or where nothing tells a host from its link.
OF_TWO_HOSTS = frozenset(
    ("host-gone", "host-unheard", "link-stands", "link-slow", "packets-lost", "cannot-tell")
)
_HOST_LOST = ("host-gone", "host-unheard")
_LINK_CUT = ("host-unheard", "link-stands")


@dataclass(frozen=True)
class FaultClass:
    """A class of faults.

    codes: of causes that are right. names: what the verdict must name. programs: which can have it.
    act: what the program does at the trigger, or "". clock: from when the seconds to the verdict
    count: the injection, the program's own stamp where its call fails or blocks, or the rank's
    death. lost: the host with the fault cannot speak any more.
    slows: the run goes on, and must be told of within SLOW_STEPS. rank: the only rank that can have
    it in yoked's trainer.
    """

    name: str
    codes: tuple[str, ...]
    names: Names
    programs: tuple[Program, ...] = PROGRAMS
    act: str = ""
    clock: Clock = "injection"
    lost: bool = False
    slows: bool = False
    rank: int | None = None


SLOW_STEPS = 10
# What is looked at on three hosts too.
ON_THREE_HOSTS = ("rank-killed", "rank-stopped", "link-cut", "exception", "deadlock")
# What can be done to nanochat, which stays as it is.
OF_NANOCHAT = ("rank-killed", "rank-stopped", "link-cut", "out-of-memory")
_DDP: tuple[Program, ...] = ("ddp",)

CLASSES: tuple[FaultClass, ...] = (
    FaultClass("rank-killed", ("rank-killed",), "rank"),
    FaultClass("host-killed", _HOST_LOST, "link", lost=True),
    FaultClass("rank-stopped", ("rank-stopped",), "rank"),
    FaultClass("host-suspended", ("host-asleep",), "host", lost=True),
    FaultClass("link-cut", _LINK_CUT, "link"),
    FaultClass("one-way", _LINK_CUT, "link"),
    FaultClass("firewall", ("link-stands",), "link"),
    FaultClass("link-slow", ("link-slow",), "link", slows=True),
    FaultClass("packets-lost", ("packets-lost",), "link", slows=True),
    FaultClass("cpu-slow", ("cpu-slow",), "host", slows=True),
    FaultClass("out-of-memory", ("out-of-memory",), "rank", act="leak", clock="death"),
    # Rank 0 alone saves in yoked's trainer.
    FaultClass("disk-full", ("disk-full",), "rank", clock="stamp", rank=0),
    FaultClass("exception", ("exception",), "rank", act="raise", clock="stamp"),
    FaultClass(
        "skipped-unequal", ("collective-mismatch",), "rank", _DDP, act="skip", clock="stamp"
    ),
    # The ranks part, and nothing stands before one of them is through.
    FaultClass(
        "skipped-equal", ("rank-ended-early",), "rank", _DDP, act="skip-equal", clock="stamp"
    ),
    FaultClass("shapes", ("collective-mismatch",), "rank", _DDP, act="shapes", clock="stamp"),
    FaultClass("data-ran-out", ("rank-ended-early",), "rank", _DDP, act="out", clock="stamp"),
    FaultClass("disk-stands", ("disk-stands",), "rank", act="read", clock="stamp"),
    FaultClass("deadlock", ("rank-stands",), "rank", act="lock", clock="stamp"),
)


def class_named(name: str) -> FaultClass:
    return next(each for each in CLASSES if each.name == name)


def is_right_place(injected: str, code: str, told: list[str]) -> bool:
    """Whether the hosts told are the right ones: the host of the fault, or a link that it has."""
    if injected not in told:
        return False
    return len(told) == 1 or (len(told) == 2 and code in OF_TWO_HOSTS)


def is_right_rank(one: FaultClass, injected: int, told: int | None) -> bool:
    """Whether the rank told is right; a link has none, and that of a host may be told."""
    if one.names == "host":
        return told in (None, injected)
    return told == injected if one.names == "rank" else told is None
