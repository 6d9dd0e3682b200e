"""The last proof: a real world of ranks over the chosen interfaces."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from yoked.doctor.check import Match, check
from yoked.doctor.checks.link_groups import described
from yoked.doctor.checks.path import Cause, Symptom, cause_of
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Dial, Examination
from yoked.units import format_duration, listed

_ACTED_UPON = re.compile("(TORCH|GLOO|NCCL|PYTHON|PYTORCH|OMP|KMP|MKL|LD|CUDA|OPENSSL|SSL)_?")
# Of a rank that waits for another: the trouble is elsewhere, if another one has any of its own.
_WAITS = re.compile(
    r"^it (was|said|came)|wait timeout|waiting|[Cc]onnection (closed|reset) by peer|"
    r"closed the connection|[Tt]imed out"
)
# Of a rank that did not come as far as to another host.
_AT_HOME = re.compile(r"\b127\.\d+\.\d+\.\d+|::1\b|\[Errno (?!104|110|111|113)\d+\]|localhost")


@check(
    "world-failed",
    question="Does a real world of ranks come about?",
    reads=("world",),
    severity="error",
    saw="{reason}{took}; {listed}; {passed} of {len} connections passed before{rest}{unlike}",
    why="the ranks of a run do the same, and would fail the same way",
    symptom="What the ranks themselves said is in the finding.",
    cause="None of the other checks found it: a cause that nobody has listed. The finding "
    "has all evidence there is, and is about the host whose rank failed by itself; about all where "
    "each waited for another.",
    fix="None is known. The bundle has what is needed to find it.",
    on_cluster="nccl-tests' all_reduce_perf over two nodes is the same proof on a cluster.",
)
def world_failed(seen: Examination) -> Iterator[Match]:
    world = seen.world
    # One that was not tried is no proof of anything, unless ranks said why.
    if world is None or world.ok or (world.ok is None and not world.said):
        return
    # Whose host was lost on the way says nothing of the others.
    if world.said.keys() & {host.name for host in seen.hosts if not host.up}:
        return
    said = [f"{host}: {words}" for host, words in world.said.items()]
    took = f" in {format_duration(world.took_s)}" if world.took_s is not None else ""
    dials = [each for each in seen.dials if each.chosen]
    passed = sum(each.ok for each in dials)
    failed = [described(each) for each in dials if not each.ok]
    rest = f"; {listed(failed)}" if failed else ""
    here = [host.name for host in seen.up if host.name in world.said]
    named, at_home = _named_by(world.said, here)
    # Connections passed before, and no rank had a trouble at home: what is in the way of data?
    cause = Cause() if at_home else _one_cause(seen, dials)
    bundle = by_hand(
        "", "yoked doctor --bundle doctor.zip    has all that was seen, for a bug report"
    )
    yield Match(
        [cause.host] if cause.host else named or here or [host.name for host in seen.up],
        *(cause.fix or (bundle,)),
        reason=world.reason or "a world of ranks did not come about",
        took=took,
        listed=listed(said) or "no rank said a word",
        passed=passed,
        len=len(dials),
        rest=f"{rest}{cause.words}",
        unlike=_unlike(seen),
    )


def _one_cause(seen: Examination, dials: Sequence[Dial]) -> Cause:
    """What one host alone has that can do it, by the first symptom that tells any."""
    symptoms: tuple[Symptom, ...] = ("breaks", "stalls", "loses")
    for symptom in symptoms:
        causes = {cause.host: cause for dial in dials
                  for cause in [cause_of(seen, dial, symptom)] if cause.host}  # fmt: skip
        if len(causes) == 1:
            return next(iter(causes.values()))
    return Cause()


def _unlike(seen: Examination) -> str:
    """Variables of torch and Python that some hosts have otherwise than others: one may be why."""
    told = {host.name: mapping(part(host, "environment")) for host in seen.up}
    names = sorted({name for own in told.values() for name in own if _ACTED_UPON.match(name)})
    odd = [
        f"{name} ({', '.join(host for host, own in told.items() if own.get(name))})"
        for name in names
        if len({own.get(name) for own in told.values()}) > 1
    ]
    return f"; not alike on all hosts: {listed(odd)}, one of which may be why" if odd else ""


def _named_by(said: Mapping[str, str], hosts: list[str]) -> tuple[list[str], bool]:
    """(the hosts whose own words name a trouble that is theirs, none where each waits; whether it
    is one without another host).
    """
    at_home = [name for name in hosts if _AT_HOME.search(said[name])]
    return at_home or [name for name in hosts if not _WAITS.search(said[name])], bool(at_home)


CHECKS = (world_failed,)
