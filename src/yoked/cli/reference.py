"""docs/commands.md, from the parser: `make docs` writes it, a test compares."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from yoked.cli.main import build_app

_HEADER = "<!-- Written by `make docs` from the parser; edit the help texts instead. -->\n\n"


@contextmanager
def _as_program(name: str) -> Iterator[None]:
    """Usage lines name the running program, which here is a test or `python -m`."""
    before = sys.argv[0]
    sys.argv[0] = name
    try:
        yield
    finally:
        sys.argv[0] = before


def command_reference() -> str:
    """Every command and flag, as Markdown."""
    with _as_program("yoked"):
        text: str = build_app().generate_docs(output_format="markdown")
    lines = [line.rstrip() for line in text.splitlines()]
    return _HEADER + "\n".join(lines).strip() + "\n"


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(command_reference(), encoding="utf-8")
