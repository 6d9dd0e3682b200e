"""The site of docs/ is whole, and its pages load nothing from elsewhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def build(docs: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """As `make docs` does it."""
    flags = ("-q", "-W", "--keep-going", "-n", "-b", "html", "-d", f"{site}.trees")
    return subprocess.run(
        [sys.executable, "-m", "sphinx", *flags, docs, site],
        capture_output=True,
        text=True,
        check=False,
    )


def test_every_page_is_in_the_site_and_none_loads_anything_from_elsewhere(tmp_path: Path) -> None:
    built = build(DOCS, tmp_path / "site")

    assert (built.stderr, built.returncode) == ("", 0)
    pages = {path: path.read_text(encoding="utf-8") for path in tmp_path.rglob("site/**/*.html")}
    assert len(pages) >= len(list(DOCS.rglob("*.md")))
    loads = r"""<(?:script|link|img|iframe|source)\b[^>]*\b(?:src|href)=["'](?:https?:)?//[^>]*>"""
    assert [found for text in pages.values() for found in re.findall(loads, text)] == []
    styles = "".join(path.read_text() for path in tmp_path.rglob("site/**/*.css"))
    assert re.findall(r"""(?:@import|url\()\s*["']?(?:https?:)?//""", styles) == []


@pytest.mark.parametrize(
    "link",
    ["[there](guides/not-there.md)", "[there](guides/runs.md#no-such-part)", "[there](#nor-this)"],
)
def test_a_broken_link_fails_the_site(tmp_path: Path, link: str) -> None:
    docs = tmp_path / "docs"
    (docs / "guides").mkdir(parents=True)
    shutil.copy(DOCS / "conf.py", docs)
    shutil.copytree(DOCS / "site", docs / "site")
    (docs / "guides" / "runs.md").write_text("# Runs\n")
    (docs / "index.md").write_text(f"# Start\n\n{link}\n\n## Guides\n\n- [runs](guides/runs.md)\n")

    assert build(docs, tmp_path / "site").returncode != 0
