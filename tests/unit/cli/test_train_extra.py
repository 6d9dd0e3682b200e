"""A controller without what training needs goes on where that is, or says how to get it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from yoked.launch.requirements import requirements_digest, train_requirements

# Stands for a yoked that was installed without its extra.
WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
from yoked.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def data_list(folder: Path, missing: str) -> subprocess.CompletedProcess[str]:
    """`yoked data list` by a Python that lacks a module."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(missing=missing), "data", "list"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "YOKED_DATA_HOME": str(folder)},
    )


def test_without_numpy_the_line_that_brings_it_is_named(tmp_path: Path) -> None:
    done = data_list(tmp_path, "numpy")

    assert done.returncode == 1
    assert "needs numpy, which this yoked was installed without" in done.stderr
    assert f"fix: {sys.executable} -m pip install" in done.stderr
    assert "[train]'" in done.stderr


def test_a_module_of_ours_that_is_missing_stays_a_bug(tmp_path: Path) -> None:
    done = data_list(tmp_path, "yoked.train.data.dataset")

    assert done.returncode == 3
    assert "This is a bug" in done.stderr


def test_a_command_goes_on_in_the_environment_that_install_made(tmp_path: Path) -> None:
    environment = tmp_path / "envs" / requirements_digest(train_requirements())
    python = environment / "bin" / "python"
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\necho went on >&2\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)
    (environment / "yoked.json").write_text("{}")

    done = data_list(tmp_path, "numpy")

    assert (done.returncode, done.stderr) == (0, "went on\n")
    assert "sotu" in done.stdout
