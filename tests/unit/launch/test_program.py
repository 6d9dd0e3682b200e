"""A program is found and read before any host is asked."""

from __future__ import annotations

from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.errors import UsageError
from yoked.launch.program import read_program


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text("print('hello')\n")
    (tmp_path / "broken.py").write_text("def f(:\n    pass\n")
    (tmp_path / "scripts").mkdir()
    (tmp_path / "scripts" / "base_train.py").write_text("print('hello')\n")
    (tmp_path / "scripts" / "wrong.py").write_text("x = (\n")
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "__main__.py").write_text("print('hello')\n")
    return tmp_path


@pytest.mark.parametrize("named", ["train.py", "./train.py", "scripts/../train.py"])
def test_a_script_is_named_as_the_hosts_will_find_it(folder: Path, named: str) -> None:
    program = read_program([named, "--depth=4", "-x"], folder)

    assert program.to_dict() == {"kind": "script", "name": "train.py", "args": ["--depth=4", "-x"]}
    assert program.folder == folder


def test_an_absolute_script_below_the_folder_is_the_same(folder: Path) -> None:
    assert read_program([str(folder / "train.py")], folder).name == "train.py"


@pytest.mark.parametrize("module", ["scripts.base_train", "tool", "json.tool", "pytest"])
def test_a_module_may_be_in_the_folder_or_installed(folder: Path, module: str) -> None:
    program = read_program(["-m", module, "a"], folder, ["--resume"])

    assert (program.kind, program.name, program.args) == ("module", module, ("a",))
    assert program.resume_args == ("--resume",)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["-m"],
        ["--ranks"],
        ["trian.py"],
        ["broken.py"],
        ["-m", "scripts.wrong"],
        ["-m", "scripts.base_trian"],
        ["-m", "no_such_module_anywhere"],
    ],
)
def test_what_no_host_could_run_is_refused(
    folder: Path, words: list[str], snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(UsageError) as caught:
        read_program(words, folder)
    assert str(caught.value) == snapshot


def test_a_script_outside_of_the_folder_says_where_to_start_it(
    folder: Path, tmp_path_factory: pytest.TempPathFactory, snapshot: SnapshotAssertion
) -> None:
    other = tmp_path_factory.mktemp("other") / "far.py"
    other.write_text("")

    with pytest.raises(UsageError) as caught:
        read_program([str(other)], folder)
    assert str(caught.value) == snapshot
