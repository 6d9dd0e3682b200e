"""docs/reference/checks.md, from the checks: `python -m yoked.doctor.pages FILE` writes it."""

from __future__ import annotations

import sys
from pathlib import Path

from yoked.doctor.catalog import CHECKS
from yoked.doctor.check import Check

_HEADER = """\
<!-- Written by `make docs` from the checks; edit those instead. -->

# What the doctor checks

`yoked doctor` asks these questions of all hosts and of every ordered pair, in this order: what
stands first is to be mended first. An **error** means that a launch would not train, or would be
wrong; a **warning** that it is slower, fragile, or breaks programs other than yoked. What one
finding explains is attached to it, and not told again. *quick*: the check is made before every
launch too.

`yoked doctor --explain NAME` prints one of the sections below.
"""


def checks_page() -> str:
    """All checks, as one Markdown document."""
    rows = "\n".join(_row(check) for check in CHECKS)
    table = f"| check | question | gravest |\n|---|---|---|\n{rows}\n"
    return "\n".join([_HEADER, table, *(f"{section(check)}\n" for check in CHECKS)]).rstrip() + "\n"


def _row(check: Check) -> str:
    quick = ", quick" if check.quick else ""
    return f"| [{check.code}](#{check.code}) | {check.question} | {check.severity}{quick} |"


def section(check: Check) -> str:
    """What is said of one check: its question, its page, what it reads and what it explains."""
    lines = [f"## {check.code}", "", f"*{check.question}*", "", check.page, ""]
    lines.append(f"Reads: {', '.join(check.reads)}.")
    if check.explains:
        lines.append(f"Explains: {', '.join(check.explains)}.")
    return "\n".join(lines)


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(checks_page(), encoding="utf-8")
