"""The cases of benchmarks/doctor: each is named by the doctor, and the printed fix heals it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
BENCH = Path(__file__).parents[2] / "benchmarks" / "doctor"
sys.path.append(str(BENCH))

from cases import CASES, Case, case_named  # noqa: E402 - found by the line above
from trial import blocked, broken, examine, is_named  # noqa: E402

pytestmark = pytest.mark.skipif(os.getuid() != 0, reason="cases are made by root")


@pytest.fixture(autouse=True)
def own_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """python3 of a host is the one that runs this, with its torch."""
    monkeypatch.setenv("PATH", f"{Path(sys.executable).parent}:{os.environ['PATH']}")


def test_three_things_at_once_are_all_named_and_their_printed_fixes_let_it_train() -> None:
    names = ("high ports dropped", "small files only", "a logout kills")
    cases = [case_named(name) for name in names]

    with broken(*cases) as own:
        if reason := blocked(cases, own):
            pytest.skip(reason)
        found = own.doctor().findings("error")
        problems = [own.carry_out(fix) for finding in found for fix in finding["fix"]]
        said = own.launch()

    assert [[is_named(case, finding) for finding in found].count(True) for case in cases] == [1] * 3
    assert len(found) == len(cases)
    assert problems == [None] * len(problems)
    assert said is None


def test_every_case_has_a_name_of_its_own_and_a_check_that_exists() -> None:
    from yoked.doctor.catalog import CHECKS

    names = [case.name for case in CASES]
    known = {check.code for check in CHECKS}

    assert len(names) == len(set(names)) >= 40
    assert {name for case in CASES for name in case.checks.split()} <= known


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_misconfiguration_is_named_and_its_fix_lets_the_next_launch_train(case: Case) -> None:
    row = examine(case)

    if row.skipped:
        pytest.skip(row.skipped)
    assert row.fine, row.to_json()
