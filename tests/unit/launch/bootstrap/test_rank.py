"""The rank program in a process of its own, compared with Python starting the same program."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

SOURCE = Path(__file__).parents[4] / "src"
DEADLINE_S = 60

SHOWS = """\
import json, os, sys
print(json.dumps({
    "argv": sys.argv, "path": sys.path[0], "cwd": os.getcwd(), "name": __name__,
    "file": __file__, "package": __package__, "main": sys.modules["__main__"].__dict__ is globals(),
    "names": sorted(name for name in globals() if not name.startswith("_")),
}))
"""


@dataclass
class Ended:
    """How one rank ended, and what it left."""

    folder: Path
    status: int
    printed: str

    def log(self, stream: str, attempt: int = 0) -> str:
        return (self.folder / "logs" / f"0.{attempt}.{stream}").read_text()

    @property
    def error(self) -> dict[str, Any] | None:
        path = self.folder / "errors" / "0.0.json"
        return json.loads(path.read_text()) if path.exists() else None


Rank = Callable[..., Ended]


@pytest.fixture
def work(tmp_path: Path) -> Path:
    folder = tmp_path / "work"
    folder.mkdir()
    return folder


@pytest.fixture
def rank(tmp_path: Path, work: Path) -> Rank:
    def run(
        name: str, *args: str, kind: str = "script", env: dict[str, str] | None = None
    ) -> Ended:
        folder = tmp_path / "job"
        folder.mkdir(exist_ok=True)
        job = {
            "version": 1,
            "run": "tried",
            "launch_id": "0123456789ab",
            "folder": str(folder),
            "node_rank": 0,
            "nodes": [{"host": "here", "address": "127.0.0.1", "ranks": 1}],
            "control_port": 1,
            "control_fd": None,
            "restarts": 1,
            "resume_args": ["--resume"],
            "program": {"kind": kind, "name": name, "args": list(args)},
            "cwd": str(work),
            "bootstrap": False,
        }
        (folder / "job.json").write_text(json.dumps(job))
        ended = subprocess.run(
            [sys.executable, "-m", "yoked.launch.bootstrap.rank", str(folder / "job.json")],
            env={**os.environ, "PYTHONPATH": str(SOURCE), "RANK": "0", "WORLD_SIZE": "1"}
            | (env or {}),
            input="typed",
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        return Ended(folder, ended.returncode, ended.stdout + ended.stderr)

    return run


def by_python(work: Path, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *argv], cwd=work, capture_output=True, text=True, check=False, timeout=60
    )


def test_a_script_sees_what_python_shows_it(rank: Rank, work: Path) -> None:
    (work / "sub").mkdir()
    (work / "sub" / "shows.py").write_text(SHOWS)

    ended = rank("sub/shows.py", "--depth=4", "a b")

    assert json.loads(ended.log("out")) == json.loads(
        by_python(work, "sub/shows.py", "--depth=4", "a b").stdout
    )
    assert ended.status == 0
    assert ended.printed == ""
    assert ended.error is None


def test_a_module_sees_what_python_shows_it(rank: Rank, work: Path) -> None:
    (work / "package").mkdir()
    (work / "package" / "shows.py").write_text(SHOWS)

    ended = rank("package.shows", "--depth=4", kind="module")

    expected = by_python(work, "-m", "package.shows", "--depth=4").stdout
    assert json.loads(ended.log("out")) == json.loads(expected)


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("raise SystemExit(7)", 7, "exit status 7"),
        ("raise SystemExit(True)", 1, "exit status 1"),
        ("import sys; sys.exit('no data')", 1, "exit status 1"),
        ("raise SystemExit", 0, None),
        ("pass", 0, None),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("def f(:", 1, "SyntaxError"),
    ],
)
def test_a_program_ends_as_under_python(
    rank: Rank, work: Path, code: str, status: int, words: str | None
) -> None:
    (work / "ends.py").write_text(code + "\n")

    ended = rank("ends.py")

    expected = by_python(work, str(work / "ends.py"))
    assert (ended.status, ended.log("err")) == (expected.returncode, expected.stderr)
    assert ended.status == status
    assert (ended.error is None) == (words is None)
    if words is not None and ended.error is not None:
        assert words in ended.error["what"]
        assert (ended.error["rank"], ended.error["exit_code"]) == (0, status)
        assert "bootstrap/rank.py" not in ended.error["traceback"]
        assert ended.error["time_s"] > 0


def test_an_error_file_holds_the_programs_own_frames_alone(rank: Rank, work: Path) -> None:
    (work / "fails.py").write_text("def inner():\n    raise ValueError('bad row')\n\ninner()\n")

    error = rank("fails.py").error

    assert error is not None
    assert error["kind"] == "ValueError"
    assert error["traceback"].count("fails.py") == 2
    assert "rank.py" not in error["traceback"]
    assert "runpy" not in error["traceback"]


def test_a_killed_program_leaves_what_it_printed(rank: Rank, work: Path) -> None:
    (work / "dies.py").write_text(
        "import os\nprint('step 3')\nos.kill(os.getpid(), 9)\n",
    )

    ended = rank("dies.py")

    assert ended.status == -signal.SIGKILL
    assert ended.log("out") == "step 3\n"


def test_logs_hold_what_children_print_and_stdin_is_empty(rank: Rank, work: Path) -> None:
    (work / "asks.py").write_text(
        "import subprocess, sys\n"
        "print(repr(sys.stdin.read()))\n"
        "subprocess.run([sys.executable, '-c', 'print(1)'], check=True)\n"
    )

    assert rank("asks.py").log("out") == "''\n1\n"


AGAIN = {"YOKED_ATTEMPT": "1", "TORCHELASTIC_RESTART_COUNT": "1"}
NOT_BEGUN = {"YOKED_ATTEMPT": "1", "TORCHELASTIC_RESTART_COUNT": "0"}


def test_after_a_start_whose_ranks_never_met_a_program_has_nothing_to_resume(
    rank: Rank, work: Path
) -> None:
    (work / "args.py").write_text("import sys\nprint(sys.argv[1:])\n")

    ended = rank("args.py", "--depth=4", env=NOT_BEGUN)

    assert ended.log("out", attempt=1) == "['--depth=4']\n"


def test_the_secret_of_the_launch_is_named_to_the_program_where_there_is_one(
    rank: Rank, work: Path
) -> None:
    (work / "named.py").write_text("import os\nprint(os.environ.get('YOKED_SECRET_FILE'))\n")

    without = rank("named.py").log("out")
    (work.parent / "job" / "secret").write_text("ab" * 32)
    ended = rank("named.py")

    assert without == "None\n"
    assert ended.log("out").splitlines()[-1].endswith("/secret")


def test_a_later_attempt_resumes_into_logs_of_its_own(rank: Rank, work: Path) -> None:
    (work / "args.py").write_text(
        "import os, sys\nprint(sys.argv[1:], os.environ['YOKED_LAUNCH_DIR'][-8:])\n"
    )

    rank("args.py", "--depth=4")
    ended = rank("args.py", "--depth=4", env=AGAIN)

    assert ended.log("out") == "['--depth=4'] errors/0\n"
    assert ended.log("out", attempt=1) == "['--depth=4', '--resume'] errors/1\n"


def test_a_program_that_is_not_here_is_named(
    rank: Rank, work: Path, snapshot: SnapshotAssertion
) -> None:
    script, module = rank("train.py"), rank("scripts.train", kind="module")

    assert script.status == 2
    assert script.log("err") == snapshot
    assert module.status == 1
    assert module.log("err") == snapshot
    assert "fix: " in module.log("err")


def test_a_module_whose_own_import_fails_is_not_called_missing(rank: Rank, work: Path) -> None:
    (work / "scripts").mkdir()
    (work / "scripts" / "__init__.py").write_text("import no_such_library\n")
    (work / "scripts" / "train.py").write_text("")

    ended = rank("scripts.train", kind="module")

    assert ended.error is not None
    assert ended.error["kind"] == "ModuleNotFoundError"
    assert "no_such_library" in ended.error["what"]


def test_a_failed_program_says_its_last_words_but_not_for_ever(rank: Rank, work: Path) -> None:
    (work / "lingers.py").write_text(
        "import atexit, time\n"
        "atexit.register(time.sleep, 3600)\n"
        "atexit.register(print, 'bye')\n"
        "raise SystemExit(5)\n"
    )

    ended = rank("lingers.py")

    assert ended.status == 5
    assert ended.log("out") == "bye\n"


def test_a_rank_whose_torchrun_is_gone_does_not_start(rank: Rank, work: Path) -> None:
    (work / "works.py").write_text("print('I train')\n")

    ended = rank("works.py", env={"YOKED_HOST_PID": "0"})

    assert ended.status == -signal.SIGKILL
    assert not (ended.folder / "logs").exists()


def test_a_damaged_job_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "job.json").write_text("{}")

    ended = subprocess.run(
        [sys.executable, "-m", "yoked.launch.bootstrap.rank", str(tmp_path / "job.json")],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "RANK": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=DEADLINE_S,
    )

    assert ended.returncode == 1
    assert ended.stderr.startswith(f"yoked: {tmp_path / 'job.json'}: version is None")
