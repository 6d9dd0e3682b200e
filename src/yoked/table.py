"""Columns of text for people."""

from __future__ import annotations

import io
import shutil
import sys
from collections.abc import Iterable, Sequence

from yoked.text import plain

# Into a file or pipe, lines are as long as they need to be.
_WIDE = 200


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Aligned columns, as wide as the terminal at most."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    # The lines will be indented by two.
    width = shutil.get_terminal_size().columns - 3 if sys.stdout.isatty() else _WIDE
    console = Console(file=io.StringIO(), width=max(width, 20), color_system=None, emoji=False)
    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    with console.capture() as captured:
        console.print(grid)
    return [line.rstrip() for line in captured.get().splitlines()]
