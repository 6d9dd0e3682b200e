"""Sources of small modules are sent, where they may ask a host for something."""

from __future__ import annotations

from pathlib import Path

import pytest

from yoked.probe.origins import asking


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "site-packages"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_a_module_and_what_it_imports_are_sent_where_they_ask_for_something(site: Path) -> None:
    (site / "y_scale").mkdir()
    (site / "y_scale" / "__init__.py").write_text("import json, os\nfrom y_deep import at\n")
    (site / "y_scale" / "rows.py").write_text("import os\nos.getenv('SCALE')\n")
    (site / "y_deep.py").write_text("at = '~/.config/scale.json'\n")
    (site / "y_other.py").write_text("at = '~/.config/other.json'\n")

    found = asking(["y_scale", "os", "y_missing"])

    assert found == {
        str(site / "y_scale" / "rows.py"): "import os\nos.getenv('SCALE')\n",
        str(site / "y_deep.py"): "at = '~/.config/scale.json'\n",
    }


def test_what_is_large_or_everybodys_is_not_sent(site: Path) -> None:
    (site / "y_large.py").write_text("import os\nos.getenv('SCALE')\n" + "#" * 300_000)
    (site / "y_many").mkdir()
    for number in range(80):
        (site / "y_many" / f"{number}.py").write_text("import os\nos.getenv('SCALE')\n")
    (site / "y_many" / "__init__.py").write_text("")

    assert asking(["y_large", "y_many", "numpy", "torch"]) == {}
