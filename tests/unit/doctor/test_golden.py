"""What each check says and prints, word by word, in one file: `make golden` writes it anew.

Other tests look at checks, hosts and fixes; a change of wording is one diff to read, here.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.unit.doctor.test_checks_found import CASES

from yoked.doctor.catalog import CHECKS
from yoked.doctor.causes import findings_of
from yoked.records.examination import Finding

GOLDEN = Path(__file__).parents[2] / "golden" / "findings.txt"


def rendered() -> str:
    """A block for each case, in the order of their checks' names."""
    numbers: Counter[str] = Counter()
    blocks = []
    for case in sorted(CASES, key=lambda case: case.check):
        numbers[case.check] += 1
        heading = f"== {case.check} {numbers[case.check]}"
        found = findings_of(case.make())
        blocks.append("\n".join([heading, *(line for each in found for line in lines(each))]))
    return "\n\n".join(blocks) + "\n"


def lines(finding: Finding) -> Iterator[str]:
    """All that a finding has."""
    link = "" if finding.link is None else f", link {' -> '.join(finding.link)}"
    yield f"{finding.check}, {finding.severity}, {', '.join(finding.hosts)}{link}"
    yield f"saw:  {finding.saw}"
    yield f"why:  {finding.why}"
    for fix in finding.fix:
        root = " as root" * fix.root
        yield f"{fix.repair}{root} on {fix.host or 'the controller'}:  {fix.command}"
        if fix.undo is not None:
            yield f"undo:  {fix.undo}"


def test_findings_are_those_of_the_golden_file() -> None:
    assert rendered() == GOLDEN.read_text(encoding="utf-8"), "make golden, and read the diff"


def test_the_fleets_file_is_not_called_by_a_name_that_it_need_not_have() -> None:
    assert [each.code for each in CHECKS if "yoked.toml" in f"{each.saw} {each.why}"] == []


if __name__ == "__main__":
    GOLDEN.write_text(rendered(), encoding="utf-8")
    sys.exit(0)
