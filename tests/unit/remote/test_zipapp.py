"""The agent's file: all that it imports, and nothing that a host may lack."""

from __future__ import annotations

import ast
import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import yoked
from yoked.remote.zipapp import PARTS, agent_file, boot_script

OLDEST = (3, 9)


def sources() -> dict[str, str]:
    with zipfile.ZipFile(io.BytesIO(agent_file().content)) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


def test_the_same_sources_give_the_same_file() -> None:
    first = agent_file()
    agent_file.cache_clear()

    assert agent_file() == first


@pytest.mark.parametrize("name", sorted(sources()))
def test_each_module_is_in_the_grammar_of_the_oldest_python(name: str) -> None:
    ast.parse(sources()[name], name, feature_version=OLDEST)


def test_the_import_closure_is_the_standard_library_and_every_file_is_of_it() -> None:
    found = sources()
    imported = {"yoked/__init__.py"}
    for name, source in found.items():
        for node in ast.walk(ast.parse(source)):
            modules = []
            if isinstance(node, ast.Import):
                modules = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                modules = [node.module or ""]
            for module in modules:
                if module == "yoked" or module.startswith("yoked."):
                    path = module.replace(".", "/")
                    assert {f"{path}.py", f"{path}/__init__.py"} & found.keys(), (name, module)
                    imported.add(f"{path}.py")
                else:
                    assert module.partition(".")[0] in sys.stdlib_module_names, (name, module)
    assert {f"yoked/{part}" for part in PARTS if part.endswith(".py")} <= imported


def test_it_runs_without_the_installed_package(tmp_path: Path) -> None:
    app = tmp_path / "agent.pyz"
    app.write_bytes(agent_file().content)

    done = subprocess.run(
        [sys.executable, "-I", "-S", str(app), "serve", "token"],
        stdin=subprocess.DEVNULL,
        check=False,
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )

    assert (done.returncode, done.stdout) == (0, "yoked-agent token\n"), done.stderr


def test_it_is_on_the_disk_before_it_has_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: named.append((tmp_path / "agent").exists()))

    # Imported, it would begin.
    functions = [
        each for each in ast.parse(boot_script()).body if isinstance(each, ast.FunctionDef)
    ]
    boot: dict[str, Any] = {"os": os}
    exec(compile(ast.Module(functions, []), "boot.py", "exec"), boot)
    boot["unpack"](agent_file().content, str(tmp_path), str(tmp_path / "agent"))

    assert len(named) == len([path for path in (tmp_path / "agent").rglob("*") if path.is_file()])
    assert not any(named)


def test_the_package_it_is_built_from_is_this_one() -> None:
    assert f'__version__ = "{yoked.__version__}"' in sources()["yoked/__init__.py"]
