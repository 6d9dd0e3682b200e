"""commands.md and errors.md of docs/reference, from the code: `make docs` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from yoked.cli.main import build_app
from yoked.core.faults import FAULTS

_HEADER = "<!-- Written by `make docs` from the parser; edit the help texts instead. -->\n\n"
_ERRORS = """\
<!-- Written by `make docs` from core/faults.py; edit the sentences there instead. -->

# Codes of errors

With `--json`, an expected failure is one object: `{"error": {"kind", "code", "params", "what",
"fix"}}`. `code` is stable: a script may branch on it; `params` holds the names and figures of the
sentence. Wrong usage (exit status 2) and failures that nobody needs to tell apart have no code
(`null`). What `yoked doctor` finds has codes of its own, in [checks.md](checks.md); where both see
the same trouble, the code is the same.

| code | what is said | what to do |
|---|---|---|
"""


def command_reference() -> str:
    """Every command and flag, as Markdown."""
    before = sys.argv[0]
    # Usage lines name the running program, which here is a test or `python -m`.
    sys.argv[0] = "yoked"
    try:
        text: str = build_app().generate_docs(output_format="markdown")
    finally:
        sys.argv[0] = before
    lines = [line.rstrip() for line in text.splitlines()]
    return _HEADER + "\n".join(lines).strip() + "\n"


def error_reference() -> str:
    """Every code of an error with its sentences, as Markdown."""
    rows = (
        f"| {code} | {_cell(each.what)} | {_cell('; '.join(each.fix))} |"
        for code, each in sorted(FAULTS.items())
    )
    return _ERRORS + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "commands.md").write_text(command_reference(), encoding="utf-8")
    (folder / "errors.md").write_text(error_reference(), encoding="utf-8")
