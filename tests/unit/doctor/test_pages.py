"""docs/reference/checks.md is complete, and as the checks have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from yoked.doctor.catalog import CHECKS, check_named
from yoked.doctor.pages import checks_page, section
from yoked.errors import UsageError

DOCS = Path(__file__).parents[3] / "docs" / "reference" / "checks.md"


def test_the_page_in_docs_is_that_of_the_checks() -> None:
    assert DOCS.read_text(encoding="utf-8") == checks_page(), "run `make docs`"


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.code)
def test_a_check_says_symptom_cause_and_fix(check: object) -> None:
    text = section(check)  # type: ignore[arg-type]

    assert all(f"**{word}.** " in text for word in ("Symptom", "Cause", "Fix"))


def test_names_are_unique_and_explain_known_ones() -> None:
    names = [check.code for check in CHECKS]

    assert len(set(names)) == len(names) >= 50
    assert {each for check in CHECKS for each in check.explains} <= set(names)


def test_no_page_recommends_a_variable_that_does_nothing() -> None:
    for name in ("GLOO_PORT_RANGE", "GLOO_IPV6"):
        lines = [line for line in checks_page().splitlines() if name in line]
        assert all("nothing" in line or "does not know" in line for line in lines)


def test_the_example_in_docs_has_checks_that_there_are() -> None:
    text = (DOCS.parents[1] / "guides" / "doctor.md").read_text(encoding="utf-8")
    errors = re.findall(r"^ +(?:error|so)  +([a-z-]+),", text, re.MULTILINE)
    warnings = re.findall(r"^    ([a-z-]+)  alpha:", text, re.MULTILINE)

    assert len(errors) == 2
    assert len(warnings) == 1
    assert {*errors, *warnings} <= {check.code for check in CHECKS}


def test_a_wrong_name_gets_the_nearest() -> None:
    with pytest.raises(UsageError) as caught:
        check_named("firewal-drop", "--only")

    assert caught.value.fix == ("--only firewall-drop",)
    assert check_named("own-name", "--only").severity == "warning"
