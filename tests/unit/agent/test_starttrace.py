"""Which line of a start file is to blame: homes made up, whose files a real bash runs."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from yoked.agent import startfiles, starttrace
from yoked.agent.startfiles import probe_set_limits
from yoked.agent.starttrace import StartFiles, told

pytestmark = pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here")


@pytest.fixture
def bashrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    login = starttrace._login
    monkeypatch.setattr(starttrace, "_login", lambda: {**login(), "HOME": str(tmp_path)})
    monkeypatch.setattr(starttrace, "_ONE_S", 2.0)
    return tmp_path / ".bashrc"


def test_what_is_ended_for_want_of_time_gives_back_its_lock(bashrc: Path) -> None:
    """As pyenv's rehash: with its lock left there every login waits for a minute."""
    lock, program = bashrc.with_name("lock"), bashrc.with_name("rehash")
    program.write_text(f"set -C; : > {lock} || exit; trap 'rm {lock}' EXIT; sleep 60\n")
    bashrc.write_text(f"bash {program}\n")

    commands = StartFiles(limit_s=1.0).commands()

    assert commands[-1].words == f"bash {program}"
    assert not lock.exists()


def test_what_does_not_end_is_killed(bashrc: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(starttrace, "_TO_END_S", 0.2)
    told = bashrc.with_name("told")
    bashrc.write_text(f"trap '' TERM\n(trap '' TERM; echo $BASHPID > {told}; sleep 61)\n")

    StartFiles(limit_s=1.0).commands()

    try:  # who was killed stands as a zombie until pid 1 asks for it
        stat = Path("/proc", told.read_text().strip(), "stat").read_text()
    except OSError:
        return
    assert stat.rpartition(") ")[2].startswith("Z")


ASKS = 'read -r -t 1 -p "Load?" X; [ "$X" = y ] && . /x'
GUARD = '[ -z "$PS1" ] && return'


@pytest.mark.parametrize(
    ("lines", "proof", "how", "line", "words"),
    [
        (["export A=1", "echo hello", "B=2"], "prints", "prints", 2, "echo hello"),
        (["f() {", "  echo hello; }", "if true; then", "  f", "fi"], "prints", "prints", 2, "echo"),
        (["true", ASKS], "reads", "reads", 2, "read -r -t 1"),
        (['export PHOTOS="$(seq -f /srv/photos/IMG_%g.jpg 20000)"'], "start", "start", 1,
         "export PHOTOS"),
        (["ulimit -s 32", "A=1"], "threads", "threads", 1, "ulimit -s 32"),
        (["A=1", "exit 0"], "start", "ends", 2, "exit 0"),
        (["A=1", "export PATH=/opt/bin", "B=2"], "finds", "finds", 2, "export PATH"),
        (["A=1", "sleep 60", "B=2"], "start", "waits", 2, "sleep 60"),
        (["A=1", "exec /bin/true"], "start", "ends", 2, "exec /bin/true"),
    ],
)  # fmt: skip
def test_the_line_is_found_with_which_something_stops_working(
    bashrc: Path, lines: list[str], proof: str, how: str, line: int, words: str
) -> None:
    bashrc.write_text("\n".join([*lines, GUARD, "echo never"]) + "\n")

    found = StartFiles().culprit(proof)

    assert found is not None
    assert (found[0], found[1].file, found[1].line) == (how, str(bashrc), line)
    assert found[1].words.startswith(words)


def test_a_file_that_another_one_reads_is_named_itself(bashrc: Path) -> None:
    other = bashrc.with_name("env")
    other.write_text("A=1\necho hello\n")
    bashrc.write_text(f"true\n. {other}\n")

    found = StartFiles().culprit("prints")

    assert found is not None
    assert (found[1].file, found[1].line) == (str(other), 2)


@pytest.mark.parametrize(
    "lines", [[], ["export A=1", "ulimit -c 0", "x=$(echo y)", "echo z > /dev/null", GUARD]]
)
def test_an_ordinary_start_file_is_not_blamed(bashrc: Path, lines: list[str]) -> None:
    bashrc.write_text("\n".join(lines))

    assert told() == {"proof": None, "how": None, "command": None}


def test_what_fails_without_start_files_too_is_not_their_fault(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(starttrace.PROOFS, "start", "/nonexistent/program")
    bashrc.write_text("export A=1\n")

    assert StartFiles().culprit("start") is None

    # Unless it is in another program that all of the login was put into: we are there already.
    bashrc.write_text('[ -n "$IN" ] || { export IN=1; exec bash -c "$BASH_EXECUTION_STRING"; }\n')
    found = StartFiles().culprit("start")
    assert found is not None
    assert (found[0], found[1].line) == ("inside", 1)


def test_it_is_a_program_of_its_own() -> None:
    source = Path(starttrace.__file__).read_text()

    done = subprocess.run(
        [sys.executable, "-E", "-s", "-S", "-c", source, "token"],
        capture_output=True, text=True, check=True, env={},
    )  # fmt: skip

    word, _, said = done.stdout.strip().splitlines()[-1].partition(" ")
    assert word == "token"
    assert set(json.loads(said)) == {"proof", "how", "command"}


def test_a_low_limit_is_found_where_it_is_set(
    bashrc: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("ulimit -c 0\nulimit -S -s 96\n")
    pam = tmp_path / "limits.conf"
    pam.write_text("# * - nofile 64\nada hard nofile 640\n*  -  nofile  64  # few\n")
    monkeypatch.setattr(startfiles, "_PAM_LIMITS", (str(pam),))
    monkeypatch.setattr(startfiles, "_soft_limits", lambda: {"s": 96 << 10, "n": 64, "u": 9999})
    monkeypatch.setattr(startfiles, "_unusual", list)

    found = probe_set_limits()

    assert found == {
        "s": [{"file": str(bashrc), "line": 2}],
        "n": [{"file": str(pam), "line": 3}],
    }


def test_a_low_limit_of_open_files_is_found_under_that_limit(bashrc: Path) -> None:
    bashrc.write_text("ulimit -S -n 64\n")
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, before[1]))
    try:
        found = probe_set_limits()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)

    assert found["n"] == [{"file": str(bashrc), "line": 1}]


def test_a_priority_a_mask_and_cpus_are_found_where_they_are_set(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("umask 777\nrenice -n 5 $$ > /dev/null\nf() { umask 22; }\n")
    monkeypatch.setattr(startfiles, "_soft_limits", dict)
    monkeypatch.setattr(startfiles, "_unusual", lambda: ["umask", "priority", "cpus"])

    found = probe_set_limits()

    assert {name: [each["line"] for each in own] for name, own in found.items()} == {
        "umask": [1], "priority": [2], "cpus": [],
    }  # fmt: skip


def test_a_signal_is_found_where_it_is_ignored(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("trap '' USR2\ntrap true CHLD\ntrap '' INT SIGCHLD\n")
    monkeypatch.setattr(startfiles, "_soft_limits", dict)
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        found = probe_set_limits()
    finally:
        signal.signal(signal.SIGCHLD, before)

    assert found["SIGCHLD"] == [{"file": str(bashrc), "line": 3}]
    assert "SIGUSR2" not in found


def test_limits_that_are_usual_are_not_looked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(startfiles, "_soft_limits", lambda: {"s": 8 << 20, "n": 1024})
    monkeypatch.setattr(startfiles, "_unusual", list)
    monkeypatch.setattr(startfiles, "StartFiles", None)

    assert probe_set_limits() == {}


def test_the_command_that_takes_long_is_found_with_its_time(bashrc: Path) -> None:
    bashrc.write_text("A=1\nsleep 0.1\nsleep 1.3\nB=$(sleep 0.2)\n")

    found = told(proofs=("soon",))

    assert found["how"] == "soon"
    assert (found["command"]["line"], found["command"]["words"]) == (3, "sleep 1.3")
    assert found["command"]["took_s"] >= 1.3


def test_where_no_command_takes_long_none_is_named(bashrc: Path) -> None:
    bashrc.write_text("A=1\n")

    assert told(proofs=("soon",))["command"] is None


@pytest.mark.parametrize(
    "line",
    [
        'printf -v "$A" %s DETAIL; export "$A"',
        'eval "export $(echo TORCH_ODD DETAIL | tr " " =)"',
        'for each in "$A"; do declare -gx "$each=DETAIL"; done',
    ],
)
def test_a_variable_is_traced_to_a_line_that_does_not_name_it(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    bashrc.write_text(f"A=TORCH_ODD\n{line}\nB=2\n")
    monkeypatch.setenv("TORCH_ODD", "DETAIL")
    monkeypatch.setenv("TORCH_OF_A_CONTAINER", "1")

    found = startfiles.places_of(["TORCH_ODD", "TORCH_OF_A_CONTAINER"])

    assert found == {
        "TORCH_ODD": [{"file": str(bashrc), "line": 2, "traced": True}],
        "TORCH_OF_A_CONTAINER": [],
    }


def test_where_no_start_file_sets_a_variable_they_are_run_once(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("A=1\nB=2\n")
    runs = []
    run = StartFiles._run

    def counted(*args: Any) -> Any:
        runs.append(args)
        return run(*args)

    monkeypatch.setattr(StartFiles, "_run", counted)

    assert StartFiles().setters({"TORCH_A": "x", "TORCH_B": "y"}) == {}
    assert StartFiles().setters({}) == {}

    assert len(runs) == 1


def test_who_has_no_time_left_to_try_blames_no_line(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("A=1\nulimit -s 32\nB=2\nC=3\n")
    files = StartFiles()
    run = StartFiles._run

    def once(*args: Any) -> Any:
        told = run(*args)
        files._until_s = 0.0
        return told

    monkeypatch.setattr(StartFiles, "_run", once)

    assert files.culprit("threads") is None
