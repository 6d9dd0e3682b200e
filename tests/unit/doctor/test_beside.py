"""Files that Python may take for one module of the program, and which of them each host takes."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import os
import py_compile
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.doctor.builders import change, home

from yoked.doctor.beside import modules_beside
from yoked.doctor.causes import findings_of
from yoked.records.examination import Examination

SO = "cpython-312-x86_64-linux-gnu.so"
OTHER = "cpython-311-x86_64-linux-gnu.so"
ARM = "cpython-312-aarch64-linux-gnu.so"
# e_machine of x86-64, and of an ARM.
HEAD = b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00"
X86, ARM_ELF = HEAD + b">\x00", HEAD + b"\xb7\x00"


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["common.py", f"common.{SO}"], [f"common.{SO}", "common.py"]),
        (["common.py", "common.so", "common.abi3.so", f"common.{SO}"],
         [f"common.{SO}", "common.abi3.so", "common.so", "common.py"]),
        (["common.py", "common/__init__.py"], ["common", "common.py"]),
        (["common.py", "common/rows.py"], []),
        (["common/__init__.py", "common/rows.py", f"common/rows.{SO}"],
         [f"common/rows.{SO}", "common/rows.py"]),
        (["common.py", "other.so", "other.py", "common.txt", "commons.so"], []),
        ([f"common.{SO}"], [f"common.{SO}"]),
    ],
)  # fmt: skip
def test_files_of_a_module_are_told_in_the_order_of_imports(
    names: list[str], order: list[str], tmp_path: Path
) -> None:
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(X86)

    assert [each["file"] for each in modules_beside(tmp_path, ["common"])] == order


def test_the_order_is_that_of_this_very_python(tmp_path: Path) -> None:
    suffix = importlib.machinery.EXTENSION_SUFFIXES[0]
    for name in (f"common{suffix}", "common.py"):
        (tmp_path / name).write_bytes(X86)

    spec = importlib.machinery.PathFinder.find_spec("common", [str(tmp_path)])

    assert spec is not None
    assert spec.origin == str(tmp_path / str(modules_beside(tmp_path, ["common"])[0]["file"]))


def test_bytecode_without_its_source_tells_its_python_and_what_is_older_is_told(
    tmp_path: Path,
) -> None:
    (tmp_path / "lost.py").write_text("")
    py_compile.compile(str(tmp_path / "lost.py"), str(tmp_path / "lost.pyc"))
    (tmp_path / "lost.py").unlink()
    for name in ("old.py", f"old.{OTHER}"):
        (tmp_path / name).write_bytes(ARM_ELF)
    os.utime(tmp_path / f"old.{OTHER}", (1, 1))

    lost, old, _ = modules_beside(tmp_path, ["lost", "old"])

    assert lost["python"] == f"3.{sys.version_info[1]}"
    assert (old["python"], old["arch"], old["older"]) == ("3.11", "x86_64", True)


def seen_with(tmp_path: Path, *names: str, **python: str) -> Examination:
    """A fleet of Python 3.12, but for these, with these files beside the program."""
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(X86)
    seen = home()
    for host, version in python.items():
        torch = {**(seen.host(host).torch or {}), "python_version": version}
        seen = change(seen, host, torch=torch)
    told: dict[str, Any] = {"beside": modules_beside(tmp_path, ["common"])}
    return replace(seen, controller={**seen.controller, **told})


def said(seen: Examination) -> list[str]:
    return [each.saw for each in findings_of(seen) if each.check == "program-needs"]


@pytest.mark.parametrize(
    ("names", "begins"),
    [
        (["common.py", f"common.{SO}"], f"common.{SO} is imported in the place of common.py"),
        (["common.py", "common/__init__.py"], "common is imported in the place of common.py"),
        (["common.py", f"common.{OTHER}"], ""),
        (["common.py", f"common.{ARM}"], ""),
        (["common.py", "common.cpython-312-darwin.so", "common.cp312-win_amd64.pyd"], ""),
        ([f"common.{SO}"], ""),
        ([f"common.{ARM}"], "module common of the program cannot be imported on attic, garage"),
        ([f"common.{OTHER}"], "module common of the program cannot be imported on attic, garage"),
        ([f"common.{OTHER}", f"common.{SO}"], ""),
        (["common/__init__.py"], ""),
    ],
)
def test_what_a_host_takes_is_said_where_it_is_not_the_source(
    names: list[str], begins: str, tmp_path: Path
) -> None:
    found = said(seen_with(tmp_path, *names))

    assert [each[: len(begins)] for each in found] == [begins] * bool(begins)


def test_hosts_of_two_pythons_take_two_files(tmp_path: Path) -> None:
    seen = seen_with(tmp_path, "common.py", f"common.{OTHER}", garage="3.11.4")

    (found,) = said(seen)

    assert f"common.{OTHER} on garage" in found
    assert "common.py on attic" in found


def test_a_library_for_another_machine_fails_though_a_source_is_beside_it(tmp_path: Path) -> None:
    (tmp_path / "common.py").write_text("")
    (tmp_path / "common.so").write_bytes(ARM_ELF)

    (found,) = said(seen_with(tmp_path))

    assert "common.so is for aarch64" in found


def test_what_stays_here_hides_nothing(tmp_path: Path) -> None:
    seen = seen_with(tmp_path, "common.py", f"common.{SO}")

    controller = {**seen.controller, "left_beside": [f"common.{SO}"]}

    assert said(replace(seen, controller=controller)) == []


@pytest.mark.parametrize(("installed", "count"), [(None, 1), ({"path": "/x/common.py"}, 0)])
def test_a_module_with_other_capitals_is_told_where_no_host_has_another(
    installed: dict[str, str] | None, count: int
) -> None:
    seen = home()
    for host in seen.up:
        torch = {**(host.torch or {}), "modules": {"common": installed}}
        seen = change(seen, host.name, torch=torch)

    found = said(replace(seen, controller={"miscased": {"common": "Common.py"}}))

    assert len(found) == count
