"""What a Python takes in is told by real ones: files that were edited, and files that it runs."""

from __future__ import annotations

import base64
import hashlib
import os
import py_compile
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import yoked
from yoked.probe import interpreter, origins, own_library
from yoked.probe.origins import blame, foreign_libraries

SOURCES = {"torch/__init__.py": "A = 1\n", "torch/c10d.py": "B = 2\n", "torch/tests/t.py": "\n"}


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder of packages with a torch in it, as pip leaves it."""
    folder = tmp_path / "site-packages"
    info = folder / "torch-2.13.0.dist-info"
    info.mkdir(parents=True)
    lines = []
    for name, text in SOURCES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
        digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest())
        lines.append(f"{name},sha256={digest.rstrip(b'=').decode()},{len(text)}\n")
    (info / "RECORD").write_text("".join(lines))
    return folder


def told(look: str, packages: Path, **environment: str) -> Any:
    """What a Python says that has these packages."""
    program = f"from yoked.probe.interpreter import at_start, installed\nprint({look}())"
    paths = f"{Path(yoked.__file__).parents[1]}{os.pathsep}{packages}"
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "PYTHONPATH": paths, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    return eval(done.stdout)


def altered(packages: Path) -> list[tuple[str, str, str]]:
    found = told("installed", packages)["altered"]
    return [(Path(each["file"]).name, each["package"], each["how"]) for each in found
            if str(packages) in each["file"]]  # fmt: skip


def test_packages_that_are_as_installed_have_no_flaw(packages: Path) -> None:
    assert altered(packages) == []


def test_a_file_that_was_edited_is_told_also_where_size_and_time_are_as_before(
    packages: Path,
) -> None:
    file = packages / "torch" / "c10d.py"
    times = (file.stat().st_atime, file.stat().st_mtime)
    file.write_text("B = 3\n")
    os.utime(file, times)

    assert altered(packages) == [("c10d.py", "torch", "content")]


def test_a_file_that_is_gone_or_empty_is_told_and_tests_need_not_be_there(packages: Path) -> None:
    (packages / "torch" / "c10d.py").unlink()
    (packages / "torch" / "__init__.py").write_text("")
    (packages / "torch" / "tests" / "t.py").unlink()

    assert altered(packages) == [("__init__.py", "torch", "empty"), ("c10d.py", "torch", "missing")]


def test_what_may_not_be_read_is_told_of_files_and_of_the_list_itself(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, info = packages / "torch" / "c10d.py", packages / "torch-2.13.0.dist-info"

    def refuse(path: Path, **more: Any) -> os.stat_result:
        if path == info / "RECORD":
            raise PermissionError(13, "Permission denied")
        return os.stat(path, **more)  # noqa: PTH116

    # Root may read all.
    monkeypatch.setattr(os, "access", lambda path, wanted: path != str(file))
    (found,) = interpreter._altered(info)
    monkeypatch.setattr(Path, "stat", refuse)
    (whole,) = interpreter._altered(info)

    assert (found["file"], found["how"]) == (str(file), "unreadable")
    assert (whole["file"], whole["how"]) == (str(info), "unreadable")


def test_a_file_that_is_a_link_to_what_is_gone_is_told(packages: Path) -> None:
    file = packages / "torch" / "c10d.py"
    file.unlink()
    file.symlink_to("/gone/cache/c10d.py")

    assert altered(packages) == [("c10d.py", "torch", "dangling")]


def test_who_may_not_read_a_file_is_told_of_the_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = {"place": "/opt/v"}
    monkeypatch.setattr(origins, "barred", lambda file: place if file == "/opt/v/a.py" else None)

    assert blame(PermissionError(13, "Permission denied", "/opt/v/a.py"))["barred"] == place
    assert blame(PermissionError(13, "Permission denied"))["barred"] is None
    assert blame(ImportError("/opt/v/a.py"))["barred"] is None


def test_other_packages_are_looked_at_where_there_is_time(packages: Path) -> None:
    info = packages / "rich_text-14.dist-info"
    info.mkdir()
    (packages / "rich.py").write_text("")
    (info / "RECORD").write_text("rich.py,sha256=x,77\n")
    (info / "top_level.txt").write_text("rich\n")
    partly = "__import__('functools').partial(installed"

    assert altered(packages) == []
    (found,) = told(f"{partly}, ['rich'])", packages)["altered"]
    assert (found["package"], found["version"], found["how"]) == ("rich_text", "14", "empty")
    assert told(f"{partly}, others=True)", packages)["altered"] == [found]


def test_bytecode_of_another_source_is_told(packages: Path, tmp_path: Path) -> None:
    source = packages / "torch" / "c10d.py"
    other = tmp_path / "other.py"
    other.write_text("B = 3\n")
    unchecked = py_compile.PycInvalidationMode.UNCHECKED_HASH
    compiled = source.parent / "__pycache__" / f"c10d.{sys.implementation.cache_tag}.pyc"
    py_compile.compile(str(source), cfile=str(compiled), invalidation_mode=unchecked)
    assert altered(packages) == []

    py_compile.compile(str(other), cfile=str(compiled), invalidation_mode=unchecked)

    assert altered(packages) == [(compiled.name, "torch", "bytecode")]


def test_the_folders_of_packages_are_listed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []

    def folders() -> list[Path]:
        listed.append(1)
        return []

    monkeypatch.setattr(interpreter, "packages_folders", folders)

    interpreter.installed()

    assert len(listed) == 1


def test_bytecode_that_was_cut_short_is_told(packages: Path) -> None:
    source = packages / "torch" / "c10d.py"
    compiled = Path(py_compile.compile(str(source)))
    whole = compiled.read_bytes()
    compiled.write_bytes(whole + bytes(-len(whole) % 512))
    # What stands behind the code does no harm.
    assert altered(packages) == []

    for torn in (whole[:40] + bytes(len(whole) - 40), (whole[:40] * 99)[:1024]):
        compiled.write_bytes(torn)
        assert altered(packages) == [(compiled.name, "torch", "cut")]
    record = packages / "torch-2.13.0.dist-info" / "RECORD"
    record.rename(record.with_name("OTHER"))
    assert altered(packages) == [(compiled.name, "torch", "cut")]

    # Python makes these anew.
    compiled.write_bytes(whole[:8] + bytes(504))
    assert altered(packages) == []
    compiled.write_bytes(whole[:8])
    assert altered(packages) == []


def test_files_of_python_itself_have_marks_without_their_comments(tmp_path: Path) -> None:
    library = told("installed", Path("/nowhere/site-packages"))["library"]
    assert {"statistics.py", "multiprocessing/reduction.py"} <= set(library["files"])
    assert library["home"] == f"{Path(os.__file__).parent}/"

    first, second = (own_library._build(f"/nix/store/{each}/lib/python3.11/") for each in "ab")
    assert first != second
    assert own_library._build("/usr/lib/python3.11/") == own_library._build("/opt/lib/python3.11/")

    source = tmp_path / "source.py"
    texts = ("a = 1\n", "a = 1\n# Read it.\n", "a = 1\n  # Read it.\nbreakpoint()\n")
    marks = [own_library._mark(str(source)) for text in texts if source.write_text(text)]
    assert marks[0] == marks[1] != marks[2]


def test_what_python_runs_by_itself_is_told_and_what_that_has_changed(packages: Path) -> None:
    (packages / "sitecustomize.py").write_text(
        "import multiprocessing, socket, threading\n"
        "multiprocessing.set_start_method('spawn', force=True)\n"
        "def create_connection(*args): ...\n"
        "socket.create_connection = create_connection\n"
    )
    (packages / "trace.pth").write_text("import os\n")
    (packages / "distutils-precedence.pth").write_text("import os\n")
    (packages / "place.pth").write_text("/opt/place\n")

    found = told("at_start", packages)

    files = [Path(each["file"]).name for each in found["starts"] if str(packages) in each["file"]]
    assert files == ["trace.pth", "sitecustomize.py"]
    assert found["settings"] == {"multiprocessing starts by": "spawn"}
    assert found["replaced"] == {
        "socket.create_connection": str(packages / "sitecustomize.py"),
    }


def test_what_the_options_of_a_python_set_is_told_and_not_what_a_variable_sets(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = packages / "python"
    options = "-s -W error -bb -X dev -X int_max_str_digits=640"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} {options} "$@"\n')
    script.chmod(0o755)
    (packages / "sitecustomize.py").write_text("import sys\nsys.path.insert(0, '/opt/own')\n")
    monkeypatch.setattr(sys, "executable", str(script))

    settings = told("at_start", packages)["settings"]
    by_variable = told("at_start", packages, PYTHONDEVMODE="1", PYTHONINTMAXSTRDIGITS="900")

    assert settings == {
        "warnings": "default, error, error::BytesWarning",
        "development mode": "True",
        "comparing bytes with text": "2",
        "options": "('dev', True), ('int_max_str_digits', '640')",
        "most digits of a number": "640",
        "takes modules before its own from": "/opt/own",
    }
    assert not {"warnings", "development mode"} & set(by_variable["settings"])


def test_a_plugin_that_torch_loads_by_itself_is_told_unless_it_is_switched_off(
    packages: Path,
) -> None:
    info = packages / "torch_units-0.4.dist-info"
    info.mkdir()
    (info / "entry_points.txt").write_text(
        "[console_scripts]\nunits = units:main\n\n[torch.backends]\nunits = torch_units:load\n"
    )
    (packages / "torch_units.py").write_text("")

    (plugin,) = told("at_start", packages)["plugins"]
    off = told("at_start", packages, TORCH_DEVICE_BACKEND_AUTOLOAD="0")

    assert plugin == {
        "name": "units",
        "value": "torch_units:load",
        "package": "torch_units",
        "version": "0.4",
        "folder": str(info),
        "file": str(packages / "torch_units.py"),
    }
    assert off["plugins"] == []
    assert any(each.startswith("TORCH_DEVICE_BACKEND_AUTOLOAD=") for each in off["obeys"])


@pytest.mark.skipif(sys.platform != "linux", reason="its loader is Linux's")
def test_a_library_before_one_of_the_systems_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, other = tmp_path / "system", tmp_path / "sim"
    for folder in (system, other):
        folder.mkdir()
        (folder / "libm.so.6").touch()
    (other / "libmine.so.1").touch()
    monkeypatch.setattr(origins, "_system_folders", lambda: iter([system]))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"/x:{other}")
    monkeypatch.setattr(origins, "sys", SimpleNamespace(prefix="/v", base_prefix="/usr", path=[]))

    found = foreign_libraries(
        [str(other / "libm.so.6"), str(system / "libm.so.6"), str(other / "libmine.so.1")]
    )

    assert found == [
        {
            "file": str(other / "libm.so.6"),
            "hides": str(system / "libm.so.6"),
            "set_by": "LD_LIBRARY_PATH",
        }
    ]


def test_a_folder_of_metadata_that_a_former_torch_left_is_told_where_pip_believes_it(
    packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(packages))
    torch = packages / "torch"
    for name in ("Torch-2.13.0+cpu", "torch-2.12.0+cpu", "~orch-2.11.0+cpu"):
        (packages / f"{name}.dist-info").mkdir()

    stale = interpreter.stale_info(torch, "2.13.0+cpu", "2.12.0+cpu")

    assert stale == {"folder": str(packages / "torch-2.12.0+cpu.dist-info"),
                     "version": "2.12.0+cpu"}  # fmt: skip
    assert interpreter.stale_info(torch, "2.13.0+cpu", "2.13.0+cpu") is None
    # A torch whose own files are of another version than all that pip knows.
    assert interpreter.stale_info(torch, "2.14.0", "2.12.0+cpu") is None
