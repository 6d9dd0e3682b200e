"""`yoked trust`, and every command that meets a yoked.toml of somebody else."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from yoked.cli.main import main

SOURCE = Path(__file__).parents[3] / "src"
YOKED = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"


def test_a_command_in_a_cloned_repository_runs_nothing_of_it(
    cloned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(["runs"])

    said = capsys.readouterr().err
    assert status == 2
    assert not (cloned / "owned").exists()
    assert f"ssh_config = {cloned / 'config'} sha256:" in said
    assert "fix:" in said
    assert "yoked trust yoked.toml" in said


def test_trust_agrees_to_the_values_and_shows_them(
    cloned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["trust", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    main(["runs"])

    assert (cloned / "owned").exists()
    assert list(told["trusted"]) == ["ssh_config"]


def test_a_file_is_named_as_one_word(cloned: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (cloned / "yoked.toml").rename(cloned / "-my fleet.toml")

    assert main(["trust", "./-my fleet.toml"]) == 0
    assert main(["runs", "--fleet=-my fleet.toml"]) == 1
    assert main(["trust", "--revoke", "./-my fleet.toml"]) == 0
    capsys.readouterr()
    assert main(["runs", "--fleet=-my fleet.toml"]) == 2

    assert "yoked trust './-my fleet.toml'    agrees" in capsys.readouterr().err


def at_a_terminal(folder: Path, answer: str) -> tuple[int, str]:
    """`yoked hosts` at a terminal of its own, and what a person answers it."""
    controller, terminal = pty.openpty()
    try:
        os.write(controller, answer.encode() + b"\n")
        ended = subprocess.run(
            [sys.executable, "-c", YOKED, "runs"],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(SOURCE)},
            stdin=terminal,
            stdout=subprocess.PIPE,
            stderr=terminal,
            check=False,
            timeout=60,
        )
        said = os.read(controller, 65_536).decode()
    finally:
        os.close(controller)
        os.close(terminal)
    return ended.returncode, said


def test_at_a_terminal_it_asks_and_no_is_the_default(cloned: Path) -> None:
    status, said = at_a_terminal(cloned, "")

    assert status == 2
    assert "[y/N]" in said
    assert not (cloned / "owned").exists()


def test_at_a_terminal_yes_is_remembered(cloned: Path) -> None:
    _, said = at_a_terminal(cloned, "y")

    assert "[y/N]" in said
    assert (cloned / "owned").exists()
    (cloned / "owned").unlink()
    main(["runs"])
    assert (cloned / "owned").exists()
