"""The lines that install yoked are one constant's, in errors and in the docs."""

from __future__ import annotations

import json
import re
import shlex
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from yoked.core import source
from yoked.core.source import SOURCE, install_line, with_extra

REPOSITORY = Path(__file__).parents[3]
INSTALLS = re.compile(
    r"(?:pip install|pipx (?:install|run)|uv tool install|uvx) [^`\n]*yoked[^`\n]*"
)


def lines_of_docs() -> list[str]:
    pages = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").rglob("*.md"))]
    return [line for page in pages for line in INSTALLS.findall(page.read_text(encoding="utf-8"))]


def test_the_docs_install_from_where_people_get_yoked_today() -> None:
    lines = lines_of_docs()

    allowed = {SOURCE, f"{SOURCE}[train]", "yoked"}
    wrong = [
        line
        for line in lines
        if not {word for word in shlex.split(line, comments=True) if "yoked" in word} <= allowed
        or SOURCE not in line
    ]
    assert lines
    assert wrong == []


class Installed:
    """A yoked whose record of installation (PEP 610) says this; None: it has none."""

    def __init__(self, record: dict[str, Any] | None) -> None:
        self._record = record

    def read_text(self, name: str) -> str | None:
        assert name == "direct_url.json"
        return None if self._record is None else json.dumps(self._record)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment of pip's in a folder of the test's, with a yoked from an index."""
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    monkeypatch.setattr(sys, "executable", "/env/bin/python")
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(None))
    return tmp_path


def test_a_yoked_from_an_index_names_the_constant(place: Path) -> None:
    assert install_line() == f"/env/bin/python -m pip install '{SOURCE}[train]'"


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"archive_info": {}}, "pip install '{wheel}[train]'"),
        ({"dir_info": {"editable": True}}, "pip install --editable '{wheel}[train]'"),
    ],
)
def test_a_yoked_from_a_file_names_the_file(
    place: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, Any], words: str
) -> None:
    wheel = place / "yoked of today.whl"
    wheel.touch()
    told = Installed({"url": wheel.as_uri(), **record})
    monkeypatch.setattr(metadata, "distribution", lambda name: told)

    assert install_line().endswith(words.format(wheel=wheel))


@pytest.mark.parametrize(
    "record", [{"url": "file:///gone/yoked.whl"}, {"url": 7}, {}, {"url": "https://x/y.whl"}]
)
def test_a_file_that_is_gone_is_not_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, record: dict[str, Any]
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda name: Installed(record))

    assert install_line().endswith(f"pip install {with_extra(SOURCE)}")


@pytest.mark.parametrize(
    ("receipt", "begins"),
    [
        ("pipx_metadata.json", "pipx install --force "),
        ("uv-receipt.toml", "uv tool install --force "),
    ],
)
def test_the_tool_that_made_the_environment_changes_it(
    place: Path, receipt: str, begins: str
) -> None:
    (place / receipt).touch()

    assert install_line() == begins + with_extra(SOURCE)


def test_an_environment_without_pip_is_changed_by_uv(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source.importlib.util, "find_spec", lambda name: None)

    assert install_line() == f"uv pip install --python /env/bin/python {with_extra(SOURCE)}"
