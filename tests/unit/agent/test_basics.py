"""What every program takes for granted is tried for real: here with files in its place."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from yoked.agent import basics
from yoked.agent.basics import device_flaw, probe_basics, shell_flaw
from yoked.agent.environments import why_unusable

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="devices of Linux")
NULL = (1, 3)


@LINUX
def test_a_machine_that_works_lacks_nothing() -> None:
    # A test may run where no sysfs is mounted.
    assert probe_basics().keys() <= {"/sys"}


@LINUX
def test_what_is_in_a_devices_place_is_told(tmp_path: Path) -> None:
    (tmp_path / "null").write_text("old output\n")
    os.mkfifo(tmp_path / "pipe")

    assert device_flaw("/dev/null", NULL, os.O_RDWR) is None
    assert device_flaw(str(tmp_path / "null"), NULL, os.O_RDWR) == "a plain file of 11 bytes"
    assert device_flaw(str(tmp_path / "pipe"), NULL, os.O_RDWR) == "no device"
    assert "numbers 1 and 5" in str(device_flaw("/dev/zero", NULL, os.O_RDWR))
    # It was only looked at.
    assert (tmp_path / "null").read_text() == "old output\n"


@LINUX
def test_a_flaw_has_the_kernels_word(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(basics, "_DEVICES", {"/dev/no-such": (NULL, os.O_RDWR)})

    assert probe_basics()["/dev/no-such"] == "ENOENT: No such file or directory"


@LINUX
def test_memory_that_may_not_become_executable_is_told() -> None:
    program = (
        "import ctypes, sys\n"
        "from yoked.agent.basics import probe_basics\n"
        "if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0):  # PR_SET_MDWE\n"
        "    sys.exit(3)\n"
        "print(probe_basics().get('executable memory'))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    if done.returncode == 3:
        pytest.skip("this kernel has no MDWE")

    assert done.stdout == "EACCES: Permission denied\n", done.stderr


def test_a_shell_that_speaks_another_language_is_told_with_its_words(tmp_path: Path) -> None:
    other = tmp_path / "fish"
    other.write_text(
        f"#!{sys.executable}\nimport sys\nsys.exit(\"fish: Unsupported use of '='\\nmore\")\n"
    )
    other.chmod(0o755)

    told = shell_flaw(str(other))

    assert told == f"{other.resolve()} does not understand sh: fish: Unsupported use of '='"
    assert shell_flaw("/bin/sh") is None


def test_why_a_python_cannot_be_started_is_told_where_something_is_there(tmp_path: Path) -> None:
    (tmp_path / "python").symlink_to(tmp_path / "python3")
    (tmp_path / "python3").symlink_to("/gone/python3.11")
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "file").write_text("")

    assert why_unusable(sys.executable) is None
    assert why_unusable(str(tmp_path / "nothing")) is None
    assert why_unusable(str(tmp_path / "python")) == (
        "it is a link to /gone/python3.11, which is not there"
    )
    assert "symbolic links" in str(why_unusable(str(tmp_path / "loop")))
    assert why_unusable(str(tmp_path / "file")) == "Permission denied"
