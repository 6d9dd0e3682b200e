"""commands.md and errors.md of docs/reference, from the code: `make docs` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

from yoked.cli.main import build_app
from yoked.cli.output import BUG_STATUS, INTERRUPTED_STATUS
from yoked.core.faults import FAULTS
from yoked.errors import error_kinds

_HEADER = "<!-- Written by `make docs` from the parser; edit the help texts instead. -->\n\n"
_ERRORS = """\
<!-- Written by `make docs` from core/faults.py; edit the sentences there instead. -->

# Codes of errors

With `--json`, a command that fails prints one object: `{"error": {"kind", "code", "params", "what",
"fix"}}`. `code` is stable: a script may branch on it. `params` holds the names and figures of the
sentence `what`, and `fix` at least one line. An error that nobody needs to tell from others has the
code of its kind. What `yoked doctor` finds has codes of its own, in [checks.md](checks.md); where
both see the same trouble, the code is the same.

## Kinds

| kind | code | exit status | when |
|---|---|---|---|
"""
_CODES = """
Wrong usage has one parameter, `flag`: the first flag that the sentence names, or `null`.

## Codes of their own

| code | what is said | what to do |
|---|---|---|
"""
_ENDINGS = (
    ("bug", "bug", BUG_STATUS, "A failure that nobody foresaw; its trace is on stderr."),
    ("interrupted", "interrupted", INTERRUPTED_STATUS, "Ctrl-C."),
)


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
    """Every kind and code of an error with its sentences, as Markdown."""
    kinds = [
        (kind.__name__, kind.code, kind.exit_status, (kind.__doc__ or "").partition("\n")[0])
        for kind in error_kinds()
    ]
    rows = [
        f"| {code} | {_cell(each.what)} | {_cell('; '.join(each.fix))} |"
        for code, each in sorted(FAULTS.items())
    ]
    table = [f"| {name} | {code} | {status} | {when} |" for name, code, status, when in kinds]
    table += [f"| {name} | {code} | {status} | {when} |" for name, code, status, when in _ENDINGS]
    return _ERRORS + "\n".join(table) + "\n" + _CODES + "\n".join(rows) + "\n"


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "commands.md").write_text(command_reference(), encoding="utf-8")
    (folder / "errors.md").write_text(error_reference(), encoding="utf-8")
