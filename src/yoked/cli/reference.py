"""commands.md, errors.md and json.md of docs/reference: `make docs` writes them."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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
both see the same trouble, the code is the same. A launch that the doctor stopped has the code of
its first finding, and all of them in `params.checks`.

A line of `fix` is a command, a flag to add, or a sentence. A command begins with its program, and
what stands behind four spaces is a remark on it. Words in capitals are yours to replace. A command
of yoked is about the hosts that `--fleet` named.

## Kinds

| kind | code | exit status | when |
|---|---|---|---|
"""
_JSON = """\
<!-- Written by `make docs` from schemas/; edit those instead. -->

# What `--json` prints

With `--json` a command prints exactly one JSON object on stdout; progress goes to stderr. These
keys are promised, and more may be there. `_s` is seconds, `_bytes` bytes, a loss nats a token. The
tables are made of the JSON Schemas in docs/reference/schemas, against which the tests hold what the
commands print. `yoked lab exec` and `lab shell` have no `--json`: their streams are those of what
they run.
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


def json_reference(schemas: Path) -> str:
    """The keys that each schema of a folder promises, as Markdown."""
    parts = [_JSON]
    for path in sorted(schemas.glob("*.json")):
        schema = json.loads(path.read_text(encoding="utf-8"))
        parts.append(f"\n## {schema['title']}\n\n`schemas/{path.name}`\n")
        parts.append("\n| key | type | what |\n|---|---|---|\n")
        parts += [f"| `{name}` | {kind} | {what} |\n" for name, kind, what in _keys(schema)]
    return "".join(parts)


def _keys(schema: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str, str]]:
    """Path, type and description of each key, those of objects in objects behind theirs."""
    for key, value in schema.get("properties", {}).items():
        inner = value.get("items", value)
        name = f"{before}{key}[]" if "items" in value else f"{before}{key}"
        kinds = value.get("type", "any")
        choices = ", ".join(f"`{each}`" for each in value.get("enum", ()))
        what = "; ".join(part for part in (value.get("description", ""), choices) if part)
        yield name, " or ".join([kinds] if isinstance(kinds, str) else kinds), _cell(what)
        yield from _keys(inner, f"{name}.")


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "\\|").split())


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / "commands.md").write_text(command_reference(), encoding="utf-8")
    (folder / "errors.md").write_text(error_reference(), encoding="utf-8")
    (folder / "json.md").write_text(json_reference(folder / "schemas"), encoding="utf-8")
