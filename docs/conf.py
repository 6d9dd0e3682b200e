"""The site that `make docs` builds of these pages: Sphinx, without the network."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

project = "yoked"
copyright = "the yoked authors"  # noqa: A001 - Sphinx has it so
extensions = ["myst_parser"]
root_doc = "index"
html_theme = "furo"
html_title = "yoked"
html_show_sphinx = False
html_copy_source = False
html_static_path = ["site"]
html_css_files = ["yoked.css"]
# It would make a dash of the hyphens of a flag.
smartquotes = False
html_theme_options = {"sidebar_hide_name": False}
# Headings of these levels can be linked, by the anchors that GitHub gives them.
myst_heading_anchors = 4
nitpicky = True

HERE = Path(__file__).parent


def contents(text: str) -> str:
    """A hidden table of contents for each part of index.md: its headings and the links below.

    So index.md stays Markdown that GitHub shows as well, and a page is listed once.
    """
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    trees = []
    for title, part in zip(parts[1::2], parts[2::2], strict=True):
        pages = [link.removesuffix(".md") for link in re.findall(r"\]\(([\w/-]+\.md)\)", part)]
        lines = ["```{toctree}", ":hidden:", f":caption: {title}", "", *pages, "```"]
        trees.append("\n".join(lines))
    return "\n\n".join(trees)


def add_contents(_app: Any, name: str, source: list[str]) -> None:
    """Sphinx's `source-read`."""
    if name == root_doc:
        source[0] += "\n\n" + contents(source[0]) + "\n"


def setup(app: Any) -> dict[str, bool]:
    """Sphinx calls this."""
    app.connect("source-read", add_contents)
    return {"parallel_read_safe": True}
