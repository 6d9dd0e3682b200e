"""What a shell hands to a command that it cannot work with is told, and no bug."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from yoked.cli.startup import allow_files, unloadable
from yoked.core.fs import expected_failure

SOURCES = Path(__file__).parents[3] / "src"


def caused(first: Exception) -> Exception:
    try:
        try:
            raise first
        except Exception as problem:
            raise ImportError("Cannot import module 'yoked.cli.commands.run'") from problem
    except ImportError as problem:
        return problem


def test_the_variable_that_leads_to_a_broken_library_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/usr/local/lib:/opt/sim/lib/")

    found = unloadable(caused(ImportError("/opt/sim/lib/libcrypto.so.3: file too short")))

    assert found is not None
    assert "/opt/sim/lib/libcrypto.so.3: file too short" in found.what
    assert found.fix[0].startswith("unset LD_LIBRARY_PATH ")


def test_a_variable_that_may_be_why_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/opt/sim/lib")

    found = unloadable(ImportError("/usr/lib/libssl.so.3: undefined symbol: EVP_x"))

    assert found is not None
    assert found.fix[0].startswith("env -u LD_LIBRARY_PATH yoked")


def test_a_python_without_a_part_of_its_library_is_told() -> None:
    found = unloadable(ModuleNotFoundError("No module named '_ssl'", name="_ssl"))

    assert found is not None
    assert "_ssl" in found.what


@pytest.mark.parametrize(
    "problem",
    [
        ImportError("cannot import name 'x' from 'yoked'"),
        ModuleNotFoundError("No module named 'yoked.gone'", name="yoked.gone"),
        OSError(2, "No such file or directory", "/x"),
        ValueError("libx.so: words"),
    ],
)
def test_a_bug_stays_one(problem: Exception) -> None:
    assert unloadable(problem) is None


def test_a_soft_limit_of_files_is_raised_as_far_as_the_hard_one_lets() -> None:
    program = (
        "import resource; from yoked.cli.startup import allow_files\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (20, 300)); allow_files()\n"
        "print(*resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}

    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.split() == ["300", "300"]


def test_a_limit_that_is_high_enough_stays() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[0] < 1024:
        pytest.skip("it is not")

    allow_files()

    assert resource.getrlimit(resource.RLIMIT_NOFILE) == before


def test_too_few_files_are_a_limit_of_the_shell_and_no_bug() -> None:
    found = expected_failure(OSError(24, "Too many open files"))

    assert found is not None
    assert "`ulimit -n`" in found.what
    assert found.fix[0].split("    ")[0] == "ulimit -n 1024"


def test_a_file_in_the_place_of_a_folder_is_no_bug() -> None:
    found = expected_failure(NotADirectoryError(20, "Not a directory", "/etc/passwd/jobs"))

    assert found is not None
    assert "/etc/passwd/jobs" in found.what


def test_modules_of_the_program_here_are_not_taken_for_pythons(tmp_path: Path) -> None:
    (tmp_path / "queue.py").write_text("class Waiting: pass\n")
    program = "import yoked.cli, queue, sys; print(queue.SimpleQueue, sys.path[0])"

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{SOURCES}{os.pathsep}"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout == f"<class '_queue.SimpleQueue'> {SOURCES}\n"
