"""What scripts/size.py counts."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = (
    '''
def small():
    """Says more than three words."""
    return 1


def test_large():
    with pytest.raises(ValueError, match="no number"):
        int("x")
    assert said == "the disk is full", "and why"
    assert code == "disk-full"
    assert said == "no word of theirs"
    assert said == "yoked the disk is"
    assert f"{host} does not answer at all" in said
'''
    + "    pass\n" * 60
)


@pytest.fixture
def size(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("size", ROOT / "scripts" / "size.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "size", module)
    spec.loader.exec_module(module)
    return module


def test_functions_and_what_tests_say_of_prose_are_counted(size: ModuleType) -> None:
    found = size.Size()

    found.add(SOURCE, size.in_a_row("the disk is full: it does not answer"))

    assert found == size.Size(1, 74, 2, small=1, large=1, match=1, sentences=2)


def test_packages_have_what_is_below_them(size: ModuleType, tmp_path: Path) -> None:
    for name in ("src/yoked/lab/faults/cut.py", "src/yoked/lab/host.py", "tests/unit/test_a.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x = 1\n")

    found = size.sizes(tmp_path)

    assert {name: each.files for name, each in found.items()} == {
        "src/yoked/lab": 2,
        "tests/unit": 1,
    }
    assert "src, all" in size.table(found)
