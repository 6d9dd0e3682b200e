"""What the project promises about its own shape."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from yoked import __version__

REPOSITORY = Path(__file__).parents[2]


def test_torch_is_pinned_and_only_an_extra() -> None:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]

    assert "torch==2.13.0" in project["optional-dependencies"]["train"]
    assert not any(line.startswith(("torch", "numpy")) for line in project["dependencies"])


def test_the_changelog_knows_this_version() -> None:
    assert f"## {__version__} " in (REPOSITORY / "CHANGELOG.md").read_text()


@pytest.mark.parametrize(
    "name",
    [
        "README.md",
        "ARCHITECTURE.md",
        *sorted(f"docs/{page.name}" for page in (REPOSITORY / "docs").glob("*.md")),
    ],
)
def test_links_between_the_documents_lead_somewhere(name: str) -> None:
    import re

    document = REPOSITORY / name
    for target in re.findall(r"\]\(([^)#:]+)\)", document.read_text()):
        assert (document.parent / target).exists(), f"{name} points to {target}"
