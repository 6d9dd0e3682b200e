"""Programs of the lab start on their own."""

from __future__ import annotations

import subprocess

import pytest

from yoked.lab.process import own_program


@pytest.mark.parametrize("name", ["keeper", "hostinit", "enter", "connect"])
def test_programs_of_the_lab_need_only_the_standard_library(name: str) -> None:
    command = own_program(name, "argument")
    only_import = command[command.index("-c") + 1].replace(f"{name}.main()", "print(sys.argv)")

    done = subprocess.run(
        [*command[: command.index("-c") + 1], only_import, *command[command.index("-c") + 2 :]],
        capture_output=True,
        text=True,
        check=False,
        env={},
    )

    assert done.stderr == ""
    assert done.stdout == "['-c', 'argument']\n"
