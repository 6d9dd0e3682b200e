"""The last proof: a real world of ranks over the chosen interfaces."""

from __future__ import annotations

from collections.abc import Iterator

from yoked.doctor.check import Check, page
from yoked.doctor.checks.groups import described
from yoked.doctor.checks.reading import by_hand, finding, listed
from yoked.records.examination import Examination, Finding
from yoked.units import format_duration


def _world(seen: Examination) -> Iterator[Finding]:
    world = seen.world
    # One that was not tried is no proof of anything, unless ranks said why.
    if world is None or world.ok or (world.ok is None and not world.said):
        return
    said = [f"{host}: {words}" for host, words in world.said.items()]
    took = f" in {format_duration(world.took_s)}" if world.took_s is not None else ""
    dials = [each for each in seen.dials if each.chosen]
    passed = sum(each.ok for each in dials)
    failed = [described(each) for each in dials if not each.ok]
    rest = f"; {listed(failed)}" if failed else ""
    yield finding(
        "world-failed",
        "error",
        [host.name for host in seen.up if host.name in world.said] or
        [host.name for host in seen.up],
        f"{world.reason or 'a world of ranks did not come about'}{took}; "
        f"{listed(said) or 'no rank said a word'}; {passed} of {len(dials)} connections passed "
        f"before{rest}",
        "the ranks of a run do the same, and would fail the same way",
        by_hand("", "yoked doctor --bundle doctor.zip    has all that was seen, for a bug report"),
    )  # fmt: skip


CHECKS = (
    Check(
        "world-failed",
        "Does a real world of ranks come about?",
        ("world",),
        "error",
        page(
            symptom="What the ranks themselves said is in the finding.",
            cause="None of the other checks found it: a cause that nobody has listed. The finding "
            "has all evidence there is.",
            fix="None is known. The bundle has what is needed to find it.",
            elsewhere="nccl-tests' all_reduce_perf over two nodes is the same proof on a cluster.",
        ),
        _world,
    ),
)
