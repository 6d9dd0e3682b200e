"""From symptoms to causes: one finding for one broken thing, what to mend first coming first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from yoked.doctor.catalog import CHECKS
from yoked.doctor.check import Check
from yoked.records.examination import Examination, Finding


def findings_of(examination: Examination, checks: Sequence[Check] = CHECKS) -> tuple[Finding, ...]:
    """What is wrong, errors first, each in the order of the checks and then of the hosts.

    What another finding explains is among its `follows`, and not listed beside it.
    """
    hosts = {host.name: number for number, host in enumerate(examination.hosts)}
    places = {check.code: number for number, check in enumerate(checks)}

    def order(each: Finding) -> tuple[bool, int, int]:
        host = hosts.get(each.hosts[0], 0) if each.hosts else 0
        return each.severity == "warning", places[each.check], host

    found = sorted((each for check in checks for each in check.run(examination)), key=order)
    return tuple(_merge(found, {check.code: check for check in checks}))


def _merge(found: Sequence[Finding], checks: dict[str, Check]) -> list[Finding]:
    """Attach each finding to the cause that explains it, if one does; roots stay."""
    cause: dict[int, int] = {}
    # Of two that explain each other, the first is the cause.
    for later in (False, True):
        for number, symptom in enumerate(found):
            others = range(number + 1, len(found)) if later else range(number)
            for other in others if number not in cause else ():
                explained = _explains(found[other], symptom, checks[found[other].check])
                if explained and _root(other, cause) != number:
                    cause[number] = other
                    break
    follows: dict[int, list[Finding]] = {}
    for number, symptom in enumerate(found):
        if number in cause:
            follows.setdefault(_root(number, cause), []).append(symptom)
    return [
        replace(each, follows=tuple(follows.get(number, ())))
        for number, each in enumerate(found)
        if number not in cause
    ]


def _root(number: int, cause: dict[int, int]) -> int:
    while number in cause:
        number = cause[number]
    return number


def _explains(cause: Finding, symptom: Finding, check: Check) -> bool:
    """Whether one finding follows from another: by name, by place, and not graver than it."""
    if symptom.check not in check.explains:
        return False
    if cause.severity == "warning" and symptom.severity == "error":
        return False
    return bool({*_places(cause), *cause.reaches} & _places(symptom))


def _places(each: Finding) -> set[str]:
    return {*each.hosts, *(each.link or ())}
