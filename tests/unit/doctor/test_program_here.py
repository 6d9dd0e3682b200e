"""What the program imports is read in its sources, in the folder where a command is typed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from yoked.doctor.program import ProgramHere, program_here


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(
        "import argparse, os\nimport common\nfrom torch import nn\n"
        "try:\n    from rowscale.deep import SCALE  # my own\nexcept ImportError:\n    pass\n"
        "if True:\n    import numpy as np, my_losses as losses\n"
    )
    (tmp_path / "common.py").write_text(
        "import os, my_files\nnames = sorted(os.listdir('a'))\nnames = os.listdir('b')\n"
    )
    (tmp_path / "notes.py").write_text("import pandas\n")
    return tmp_path


def test_a_program_imports_what_its_own_modules_import_too(folder: Path) -> None:
    found = program_here(quick=False)

    assert found.programs == (str(folder / "train.py"),)
    assert found.modules == ("my_files", "my_losses", "numpy", "rowscale")


def test_a_module_that_lies_here_with_other_capitals_is_told(folder: Path) -> None:
    (folder / "My_Losses.py").write_text("")
    (folder / "Numpy.txt").write_text("")

    assert program_here(quick=False).miscased == {"my_losses": "My_Losses.py"}


def test_links_beside_the_program_or_named_by_it_are_told_and_where_dead_ones_lead(
    folder: Path,
) -> None:
    (folder / "deep").mkdir()
    for name, target in (("1.pt", "/mnt/gone/1.pt"), ("here", "/"), ("deep/other", "x"),
                         ("deep/my_files", "x"), ("loop", "loop")):  # fmt: skip
        (folder / name).symlink_to(target)

    found = program_here(quick=False)

    assert sorted(found.links) == ["1.pt", "deep/my_files", "here", "loop"]
    assert found.asks["links"] == {"/mnt/gone/1.pt": "1.pt"}


def test_modules_of_python_itself_are_those_that_are_imported_whenever_it_runs(
    folder: Path,
) -> None:
    (folder / "train.py").write_text(
        "import os, xml.dom as d, this  # and ssl\nfrom concurrent.futures import wait\n"
        "import torch\nimport queue\ntry:\n    import tkinter\nexcept ImportError: ...\n"
    )
    (folder / "queue.py").write_text("import zlib\n")

    assert program_here(quick=False).standard == ("concurrent.futures", "os", "xml.dom", "zlib")


def test_a_folder_that_is_imported_and_is_no_package_is_told(folder: Path) -> None:
    (folder / "common.py").write_text("from utils import reading\nimport tools, parts, other\n")
    for name in ("utils", "tools", "parts", "unused"):
        (folder / name).mkdir()
        (folder / name / "reading.py").write_text("")
    (folder / "tools" / "__init__.py").write_text("")
    (folder / "parts.py").write_text("")

    assert program_here(quick=False).plain == ("utils",)


def test_where_a_folder_is_listed_and_not_sorted_is_told(folder: Path) -> None:
    assert program_here(quick=False).unsorted == ("common.py:3",)


def test_where_files_are_sorted_by_time_and_local_time_is_asked_for_is_told(folder: Path) -> None:
    (folder / "common.py").write_text(
        "files = sorted(\n    found, key=lambda each: each.stat().st_mtime)\n"
        "newest = max(saved, key=os.path.getmtime)\n"
        "day = datetime.now().date()\n"
        "stamp = time.strftime('%H', time.gmtime())\n"
    )

    found = program_here(quick=False)

    assert (found.file_times, found.local_time) == (("common.py:2",), ("common.py:4",))


def test_before_a_launch_no_source_is_read_where_nothing_hides_a_module(folder: Path) -> None:
    assert program_here(quick=True) == ProgramHere()
    (folder / "queue.py").write_text("")

    found = program_here(quick=True)

    assert found.shadows == (str(folder / "queue.py"),)
    assert found.programs == (str(folder / "train.py"),)


@pytest.mark.parametrize(
    "name",
    ["typing_extensions.py", "torch/__init__.py", "torch.so", "numpy.abi3.so",
     "queue.cpython-311-x86_64-linux-gnu.so"],
)  # fmt: skip
def test_what_torch_imports_of_other_packages_may_not_be_hidden(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text("")

    assert program_here(quick=True).shadows == (str(folder / name),)


def test_a_package_beside_a_program_is_of_it(folder: Path) -> None:
    (folder / "my_losses").mkdir()
    for name, text in (("__init__", "import my_graphs"), ("deep", "import torch")):
        (folder / "my_losses" / f"{name}.py").write_text(text)

    found = program_here(quick=False)

    assert found.own == ("train.py", "common.py", "my_losses/__init__.py", "my_losses/deep.py")
    assert found.modules == ("my_files", "my_graphs", "numpy", "rowscale")


@pytest.mark.skipif(sys.platform != "linux", reason="its names are bytes")
def test_names_that_are_no_files_or_no_text_are_told(folder: Path) -> None:
    (folder / "deep").mkdir()
    os.mkfifo(folder / "deep" / "pipe")
    os.mkfifo(folder / ".hidden")
    (folder / os.fsdecode(b"notes-Gr\xf6\xdfe.md")).write_text("")

    found = program_here(quick=False)

    assert found.special == ("deep/pipe (a pipe)",)
    assert found.misnamed == ("notes-Gr\udcf6\udcdfe.md",)
    assert program_here(quick=True) == ProgramHere()


def test_a_pointer_of_git_lfs_in_the_place_of_a_file_is_told(folder: Path) -> None:
    pointer = f"version https://git-lfs.github.com/spec/v1\noid sha256:{'0' * 64}\nsize 16\n"
    (folder / "deep").mkdir()
    (folder / "deep" / "scales.txt").write_text(pointer)
    (folder / "notes.txt").write_text("version 2\n")
    (folder / "how.md").write_text(pointer + "x" * 1024)

    assert program_here(quick=False).pointers == ("deep/scales.txt",)
    assert program_here(quick=True) == ProgramHere()


def test_names_of_extensions_that_a_program_builds_are_told(folder: Path) -> None:
    (folder / "common.py").write_text(
        'from torch.utils.cpp_extension import load\nload("rows", ["csrc/rows.cpp"])\n'
    )
    # It is no part of a program.
    (folder / "notes.py").write_text('from rowscale import load_inline\nload_inline("other")\n')

    assert program_here(quick=False).extensions == ("csrc", "rows")


def test_what_no_python_could_run_of_a_program_is_told(folder: Path) -> None:
    (folder / "common.py").write_text("import os\n<<<<<<< HEAD\nimport my_files\n")
    (folder / "my_losses.py").symlink_to("gone.py")

    assert program_here(quick=False).broken == (
        "my_losses.py: No such file or directory",
        "common.py:2: invalid syntax",
    )


def test_files_that_a_program_names_are_told(folder: Path) -> None:
    (folder / "config").mkdir()
    (folder / "config" / "small.json").write_text("{}")
    (folder / "common.py").write_text("open('config/small.json'); open(\"./notes.py\"); open('/x')")

    found = program_here(quick=False)

    assert found.named == ("config/small.json", "notes.py")


def test_what_the_program_asks_of_a_host_is_told_but_for_what_it_has_here(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWS", "1")
    monkeypatch.setenv("WANDB_PROJECT", "rows")
    rows = folder.parent / "rows.txt"
    rows.write_bytes(b"1\n" + bytes(50))
    (folder / "out").mkdir()
    (folder / ".env").write_text("")
    (folder / "common.py").write_text(
        "os.environ['ROWS'], os.environ['WANDB_PROJECT']\nload_dotenv()\n"
        f"open({str(rows)!r})\nopen('../rows.txt')\nopen('../none.txt')\n"
        "open('out/a.txt', 'w')\nopen('none/a.txt', 'w')\n"
    )

    found = program_here(quick=False)

    assert {kind: names for kind, names in found.asks.items() if names} == {
        "variables": {"ROWS": "common.py:1"},
        "reads": {str(rows): "common.py:3"},
        "beyond": {"../rows.txt": "common.py:4"},
        "fills": {"out": "common.py:6"},
        "here": {str(rows): "common.py:3"},
    }
    assert found.set_here == ("ROWS",)
    assert list(found.damaged) == [str(rows)]
    assert program_here(quick=True).asks == {}
