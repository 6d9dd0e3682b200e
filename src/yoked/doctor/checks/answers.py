"""Whether hosts answered what they were asked: what could not be looked at is no good news."""

from __future__ import annotations

import re
from collections.abc import Iterator

from yoked.doctor.check import Match, check
from yoked.doctor.checks.query import mapping, part
from yoked.doctor.repairs.base import by_hand
from yoked.records.examination import Examination
from yoked.text import one_line

# What every examination asks of each host, and parts of its health that a run cannot do without.
_CALLS = ("facts", "interfaces", "environment", "health", "trial")
_NEEDED = ("folders", "limits")
_LATE = re.compile("no answer|fell silent")


@check(
    "agent-failed",
    question="Did every host answer what it was asked?",
    reads=("health.untold",),
    severity="error",
    saw="what {host} was asked for failed: {failed:list}",
    why={
        "": "a launch asks the same, and what could not be looked at may be in its way",
        "late": "what was not looked at may be in the way of a run; a busy host answers later",
    },
    symptom="`This is a bug in yoked`, `the ssh connection ended`, or `gave no answer`.",
    cause="The agent met what nobody foresaw (a file in the place of a folder), its answer was "
    "none, or something ends ssh's sessions. It is a warning where an answer only took too long.",
    fix="By hand.",
)
def agent_failed(seen: Examination) -> Iterator[Match]:
    for host in seen.up:
        untold = mapping(part(host, "untold"))
        failed = {
            name: str(why)
            for name, why in untold.items()
            if name in _CALLS or (name in _NEEDED and not _LATE.search(str(why)))
        }
        if not failed:
            continue
        is_late = all(_LATE.search(why) for why in failed.values())
        yield Match(
            host.name,
            by_hand(
                host.name,
                "look again; where it stays so, `yoked doctor --bundle doctor.zip` has what a bug "
                "report needs",
            ),
            severity="warning" if is_late else "error",
            how="late" if is_late else "",
            failed=[f"{name} ({one_line(why)})" for name, why in failed.items()],
        )


CHECKS = (agent_failed,)
