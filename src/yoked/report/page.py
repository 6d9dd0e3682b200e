"""The page of a run: one HTML file with its style, its script and the figures in it.

It is opened from the file system, or sent on, so it loads nothing: its policy allows its own style
and scripts alone, by their hashes, and no request. The figures have names of hosts and words of a
person in them; they stand in the page as JSON that cannot end its element and is never run, and
the script makes nothing but text of them.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from yoked.core.fs import write_bytes
from yoked.text import one_line, plain

_FOLDER = Path(__file__).with_name("page")
_STYLES = ("vendor/uPlot.min.css", "page.css")
# In this order: each uses those before it.
_SCRIPTS = ("vendor/uPlot.iife.min.js", "units.js", "dom.js", "charts.js", "sections.js", "page.js")
_LICENSE = "vendor/LICENSE"
# What could end the element or begin a comment. JSON reads the escapes as the same characters, and
# json.dumps writes all beyond ASCII as such, so U+2028 too.
_UNSAFE = {ord(each): f"\\u{ord(each):04x}" for each in "<>&"}


class Page(NamedTuple):
    """A page, and its policy, which stands in it too."""

    html: str
    policy: str


def page_of(figures: Mapping[str, Any]) -> str:
    """The page, as HTML. figures: as `figures_of` returns them."""
    return page_with(
        title=f"{one_line(str(figures['run']))} — yoked report",
        said=f"{one_line(str(figures['verdict']))}.",
        figures=figures,
    ).html


def page_with(
    *,
    title: str,
    said: str,
    figures: Mapping[str, Any] | None,
    styles: Sequence[str] = (),
    scripts: Sequence[str] = (),
    policy: Sequence[str] = (),
) -> Page:
    """The page with more styles and scripts, which come last, and more directives of its policy.

    said: to who has scripts switched off. figures: None: a script gets them later.
    """
    styles = (*map(_text, _STYLES), *styles)
    scripts = (*map(_text, _SCRIPTS), *scripts)
    allowed = _policy(styles, scripts, policy)
    parts = {
        "POLICY": allowed,
        "TITLE": html.escape(title),
        "SAID": html.escape(said),
        "LICENSE": _text(_LICENSE),
        "STYLE": "\n".join(f"<style>{each}</style>" for each in styles),
        "FIGURES": json.dumps(_shown(figures), allow_nan=False).translate(_UNSAFE),
        "SCRIPT": "\n".join(f"<script>{each}</script>" for each in scripts),
    }
    # In one pass: what is put in is not looked at again.
    text = re.sub("@([A-Z]+)@", lambda place: parts[place[1]], _text("page.html"))
    return Page(text, allowed)


def write_page(figures: Mapping[str, Any], path: Path) -> None:
    """Write the page to a file, in one rename. Raises OSError."""
    write_bytes(path, page_of(figures).encode())


def _text(name: str) -> str:
    return (_FOLDER / name).read_text(encoding="utf-8")


def _policy(styles: Sequence[str], scripts: Sequence[str], more: Sequence[str]) -> str:
    """A content security policy: nothing is loaded, sent or run but what stands here."""
    allowed = {"style-src": styles, "script-src": scripts}
    return "; ".join(
        [
            "default-src 'none'",
            *(f"{kind} {' '.join(map(_hash, texts))}" for kind, texts in allowed.items()),
            *more,
            "base-uri 'none'",
            "form-action 'none'",
        ]
    )


def _hash(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"


def _shown(value: Any) -> Any:
    """A value as the page has it: control characters visible, figures that JSON lacks as words."""
    if isinstance(value, str):
        return plain(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, Mapping):
        return {plain(str(name)): _shown(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_shown(each) for each in value]
    return value
