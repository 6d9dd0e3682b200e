from __future__ import annotations

import errno
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.cli import main as cli
from yoked.cli.commands import here
from yoked.cli.main import main
from yoked.cli.reference import command_reference, error_reference, json_reference
from yoked.core.fs import write_bytes
from yoked.errors import DataError

HEAVY = ("torch", "numpy", "pyarrow", "matplotlib")
REPOSITORY = Path(__file__).parents[3]


def test_ctrl_c_is_told_as_such_while_the_command_line_is_still_being_imported() -> None:
    program = (
        "import sys\n"
        "class Pressed:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'cyclopts': raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Pressed())\n"
        "from yoked.__main__ import main\n"
        "sys.exit(main())\n"
    )
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize("argv", [["--help"], ["train", "--help"], ["data", "--help"]])
def test_help_loads_no_heavy_package(argv: list[str]) -> None:
    program = (
        "import sys; from yoked.cli.main import main\n"
        f"status = main({argv!r}); print([m for m in {HEAVY!r} if m in sys.modules], status)"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[] 0"
    assert "Usage: yoked" in done.stdout


def test_a_command_loads_no_other_commands_module() -> None:
    program = (
        "import sys; from yoked.cli.main import main\n"
        "main(['attach', '--hlp'])\n"
        "print(sorted(m for m in sys.modules if m.startswith('yoked.cli.commands.')"
        " or m in ('pydantic', 'yoked.train.config')))"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == ("['yoked.cli.commands.attach']")


def test_a_mistyped_flag_gets_the_nearest_and_status_2(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    status = main(["train", "--dpth", "4"])

    assert status == 2
    said = capsys.readouterr()
    assert said.err == snapshot
    assert said.out == ""


@pytest.mark.parametrize(
    ("typed", "right"),
    [
        ("plan --depht=4", "plan --depth=4"),
        ("data list --jsn", "data list --json"),
        ("manifest --for slurn", "manifest --for slurm"),
        ("lab fautl firewall 'my beta'", "lab fault firewall 'my beta'"),
        # Which of the two is not for us to say.
        ("plan --depht 4 --depht 5", "plan --help"),
        # The nearest flag is another word.
        ("chat night --fleet home.toml", "chat --help"),
    ],
)
def test_the_fix_of_a_mistyped_word_is_the_line_as_it_was_meant(
    typed: str, right: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(shlex.split(typed)) == 2

    said = capsys.readouterr().err
    assert said.splitlines()[-1] == f"fix: yoked {right}"
    assert "--seed" not in said


@pytest.mark.parametrize("name", ["run", "manifest", "train"])
def test_help_is_one_letter_too(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "-h"]) == 0

    assert f"Usage: yoked {name}" in capsys.readouterr().out


def test_a_mistyped_flag_before_a_program_gets_the_nearest(
    capsys: pytest.CaptureFixture[str],
    snapshot: SnapshotAssertion,
) -> None:
    assert main(["run", "--rank", "2", "--", "train.py"]) == 2

    said = capsys.readouterr().err
    assert "unknown flag --rank" in said
    assert said == snapshot


def test_a_mistyped_command_gets_the_nearest(
    capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    assert main(["trian"]) == 2
    assert capsys.readouterr().err == snapshot


@pytest.mark.parametrize(
    "argv",
    [
        ["train", "--depth", "deep", "--json"],
        ["train", "--depth", "0", "--json"],
        ["plot", "--json", "--runs-dir", "nowhere"],
        ["sample", "--json", "--max-tokens", "0"],
        ["train", "--json", "--nice", "20"],
        ["run", "--json", "--nice", "-1", "--", "program.py"],
        ["data", "prepare", "--json", "--max-seq-len", "1"],
        ["data", "download", "--json", "--shards", "0"],
    ],
)
def test_with_json_an_error_is_one_object_on_stdout(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    status = main(argv)

    said = capsys.readouterr()
    error = json.loads(said.out)["error"]
    assert status == 2
    assert error["kind"] == "UsageError"
    assert error["what"]
    assert error["fix"]
    assert said.err == ""


def test_statuses_tell_failure_bug_and_interrupt_apart(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], snapshot: SnapshotAssertion
) -> None:
    problems: list[BaseException] = [
        DataError("gone", fix="fetch it"),
        ZeroDivisionError("oops"),
        KeyboardInterrupt(),
    ]
    statuses = []
    for problem in problems:

        def raising(*args: object, problem: BaseException = problem, **options: object) -> int:
            raise problem

        monkeypatch.setattr(cli, "build_app", lambda raising=raising: raising)
        statuses.append(main(["train"]))

    assert statuses == [1, 3, 130]
    said = capsys.readouterr().err
    assert "gone\nfix: fetch it" in said
    assert "ZeroDivisionError: oops" in said
    assert said == snapshot


def test_a_reader_that_leaves_early_is_no_error() -> None:
    program = "import sys; from yoked.cli.main import main; sys.exit(main(['train', '--help']))"
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        said = process.stderr.read()

    assert process.returncode == 0
    assert said == b""


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_a_stream_that_the_shell_closed_is_an_empty_one(closed: str, tmp_path: Path) -> None:
    fleet = tmp_path / "yoked.toml"
    fleet.write_text('[fleet]\nssh_config = "config"\n[[host]]\nname = "."\n')
    program = f"""
import os, sys
from yoked.cli.main import main
status = main(["runs", "--fleet", {str(fleet)!r}])
os._exit(status if os.open(os.devnull, 0) > 2 else 99)
"""
    line = f'exec "$1" -c "$2" {closed}'
    done = subprocess.run(
        ["bash", "-c", line, "bash", sys.executable, program],
        capture_output=True,
        text=True,
        check=False,
    )

    # Nobody can be asked whether to trust the file.
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_lacks_a_letter_gets_its_escape(encoding: str) -> None:
    program = "import sys; from yoked.cli.main import main; sys.exit(main(sys.argv[1:]))"
    done = subprocess.run(
        [sys.executable, "-c", program, "plan", "--params", "1"],
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": encoding},
    )

    assert done.returncode == 0, done.stderr
    assert b"takes" in done.stdout


@pytest.mark.skipif(not os.access("/dev/ptmx", os.R_OK), reason="there are no terminals here")
def test_an_answer_in_another_encoding_is_no_yes() -> None:
    import pty

    program = """
import sys
from yoked.cli.output import Output
from yoked.streams import take_any_text
take_any_text()
sys.exit(7 if Output(json_mode=False).asks("Remove it?") else 5)
"""
    ours, theirs = pty.openpty()
    os.write(ours, b"\xe9\n")
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=theirs,
        capture_output=True,
        check=False,
        env={**os.environ, "PYTHONIOENCODING": "utf-8:strict"},
    )
    os.close(ours)
    os.close(theirs)

    assert done.returncode == 5, done.stderr


def test_help_shows_commands_in_the_order_of_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0

    page = capsys.readouterr().out
    shown = [line.split()[1] for line in page.splitlines() if re.match(r"(╭─|│) [A-Za-z]", line)]
    assert shown[:7] == ["Set", "up", "init", "trust", "install", "hosts", "data"]
    assert shown.index("doctor") < shown.index("train") < shown.index("attach") < shown.index("lab")


def test_the_command_reference_is_up_to_date() -> None:
    written = (REPOSITORY / "docs" / "reference" / "commands.md").read_text(encoding="utf-8")

    assert written == command_reference(), "run `make docs`"


def test_the_list_of_promised_keys_is_up_to_date() -> None:
    folder = REPOSITORY / "docs" / "reference"

    assert (folder / "json.md").read_text(encoding="utf-8") == json_reference(folder / "schemas"), (
        "run `make docs`"
    )


def test_the_list_of_errors_is_up_to_date() -> None:
    written = (REPOSITORY / "docs" / "reference" / "errors.md").read_text(encoding="utf-8")

    assert written == error_reference(), "run `make docs`"


def test_a_disk_that_takes_nothing_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "fsync", refuse)
    monkeypatch.setattr(here, "command", lambda **_: write_bytes(tmp_path / "loss.png", b"x"))

    assert main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"{tmp_path}/loss.png: the disk is full")
    assert f"fix: df -h {tmp_path}" in said


def test_a_folder_of_another_user_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(**_: object) -> None:
        raise PermissionError(errno.EACCES, "Permission denied", f"{tmp_path}/.local/state")

    monkeypatch.setattr(here, "command", refuse)

    assert main([]) == 1
    assert capsys.readouterr().err.splitlines() == [
        f"{tmp_path}/.local/state: Permission denied",
        f"fix: ls -ld {tmp_path}    there shows whose it is",
    ]


def test_a_folder_that_was_deleted_under_the_shell_is_no_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    monkeypatch.setattr(here, "command", lambda **_: Path.cwd())

    assert main([]) == 1
    assert capsys.readouterr().err.splitlines() == [
        "the folder in which this was started has been deleted",
        "fix: cd ~    or to another folder that is there",
    ]
