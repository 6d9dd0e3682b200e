"""A launch in small: nothing is told of a host where each step goes as it should."""

from __future__ import annotations

import fcntl
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from ast import literal_eval
from pathlib import Path
from typing import Any

import pytest
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import smalllaunch, starttrace
from yoked.agent.files import blob_path
from yoked.agent.folders import entries_digest, make_folder
from yoked.agent.smalllaunch import answer_small_launch
from yoked.core.fs import sha256_of
from yoked.paths import cache_root
from yoked.records.answers import understood

pytestmark = [
    pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash here"),
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks Linux's kernel"),
]


# As it is, where a test asks for it.
ADOPTER = smalllaunch._adopter


@pytest.fixture(autouse=True)
def bashrc(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    login = starttrace._login
    monkeypatch.setattr(starttrace, "_login", lambda: {**login(), "HOME": str(tmp_path)})
    monkeypatch.setattr(starttrace, "_ONE_S", 1.0)
    # Not what this very machine's first process does.
    monkeypatch.setattr(smalllaunch, "_adopter", lambda orphan: None)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    return tmp_path / ".bashrc"


def launched() -> dict[str, Any]:
    told = answer_small_launch(FakeCall())
    assert understood("small_launch", told, odd := []) == told
    assert odd == []
    return told


def test_nothing_is_told_where_all_goes_as_it_should(bashrc: Path) -> None:
    bashrc.write_text("export A=1\n")

    assert launched() == {}


def test_a_start_file_that_waits_for_the_login_beside_it_is_told(
    bashrc: Path, tmp_path: Path
) -> None:
    lock = tmp_path / "lock"
    bashrc.write_text(f"A=1\nexec 9> {lock}; flock 9\nB=2\n")
    with lock.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        waiting = launched()
    free = launched()

    assert waiting["login"]["how"] == "waits"
    assert (waiting["login"]["command"]["line"], waiting["login"]["command"]["words"]) == (
        2, "flock 9"
    )  # fmt: skip
    assert free == {}


def test_a_start_file_that_leaves_streams_non_blocking_is_told(bashrc: Path) -> None:
    bashrc.write_text(f"A=1\n{sys.executable} -c 'import os; os.set_blocking(1, False)'\nB=2\n")

    told = launched()

    assert told["login"]["how"] == "blocks"
    assert told["login"]["command"]["line"] == 2


def test_a_variable_that_has_each_program_print_is_told_with_its_place(
    bashrc: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bashrc.write_text("export LD_DEBUG=libs\n")
    monkeypatch.setenv("LD_DEBUG", "libs")
    monkeypatch.setenv("LD_BIND_NOW", "1")

    noise = launched()["noise"]

    assert noise["line"]
    assert noise["variables"] == [
        {"name": "LD_DEBUG", "places": [{"file": str(bashrc), "line": 1}]}
    ]


def test_what_cannot_start_a_supervisor_is_told_in_its_own_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "systemd-run"
    broken.write_text("#!/bin/sh\necho '  Failed to   connect to bus' >&2\nexit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(smalllaunch, "scope_helps", lambda: True)

    assert launched() == {"failed": "Failed to connect to bus"}


# As the first process of a container, which waits for its own child alone, or for all that it gets.
_IN_CONTAINER = """
import ctypes, os, sys
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
child = os.fork()
if not child:
    from yoked.agent import smalllaunch
    smalllaunch._REAPED_S = float(sys.argv[2])
    print(smalllaunch._supervisor()["adopter"] or os.getppid(), os.getppid(), flush=True)
    os._exit(0)
ended = 0
while ended != child:
    ended, _ = os.waitpid(int(sys.argv[1]) or child, 0)
"""


@pytest.mark.parametrize(("waits_for", "is_told"), [(-1, False), (0, True)])
def test_who_does_not_wait_for_an_orphan_is_told(waits_for: int, is_told: bool) -> None:
    limit_s = "0.5" if is_told else "20"
    argv = [sys.executable, "-c", _IN_CONTAINER, str(waits_for), limit_s]
    said = subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    told, first = said.rsplit(" ", 1)
    assert (f"'pid': {first.strip()}," in told) == is_told
    assert (told == first.strip()) != is_told


def test_an_orphan_that_ends_a_moment_later_is_looked_at_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(smalllaunch, "_REAPED_S", 1.0)
    with subprocess.Popen(["sleep", "0.2"]) as orphan:
        told = ADOPTER(orphan.pid)

    assert told is not None
    assert told["pid"] == os.getpid()


def test_an_agent_that_stood_with_its_host_tells_for_how_long() -> None:
    program = (
        "import sys; from yoked.agent import watch; watch._STOOD_S = 0.2; watch.BEAT.begin(); "
        "print(watch.BEAT.stood(), flush=True); sys.stdin.readline(); "
        "exec('while not watch.BEAT.stood(): pass'); print(watch.BEAT.stood()['times'])"
    )
    argv = [sys.executable, "-c", program]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        before = process.stdout.readline()
        time.sleep(0.2)
        process.send_signal(signal.SIGSTOP)
        time.sleep(0.6)
        process.send_signal(signal.SIGCONT)
        after, _ = process.communicate(b"\n", timeout=20)

    assert (before, after) == (b"None\n", b"1\n")


def test_an_agent_that_waited_for_its_own_threads_did_not_stand() -> None:
    program = (
        "import sys, time; from yoked.agent import watch; watch._STOOD_S = 0.2; "
        "watch.BEAT.begin(); sys.setswitchinterval(2); end = time.monotonic() + 0.8\n"
        "while time.monotonic() < end: pass\n"
        "sys.setswitchinterval(0.005); time.sleep(0.2); print(watch.BEAT.stood())"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)

    assert done.stdout == b"None\n"


_IN_A_LOGIN = "from yoked.agent import smalllaunch as s; print(s._enclosed())"
_JAIL = "unshare --user --map-current-user --pid --fork --kill-child"


@pytest.fixture
def in_a_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A command as ssh runs it; skips where nobody may make a PID namespace."""
    if subprocess.run([*_JAIL.split(), "true"], capture_output=True, check=False).returncode:
        pytest.skip("there are no PID namespaces here")
    monkeypatch.setenv("SSH_CONNECTION", "192.168.1.9 40001 192.168.1.12 22")
    program = (
        "from yoked.agent import starttrace; own = starttrace._login; "
        f"starttrace._login = lambda: {{**own(), 'HOME': {str(tmp_path)!r}}}; {_IN_A_LOGIN}"
    )
    return f"{sys.executable} -c {shlex.quote(program)}"


def test_a_login_with_a_process_tree_of_its_own_is_told_with_the_line_that_makes_it(
    bashrc: Path, in_a_login: str
) -> None:
    bashrc.write_text(
        f'A=1\n[ -n "$IN" ] || {{ export IN=1; exec {_JAIL} bash -c "$BASH_EXECUTION_STRING"; }}\n'
    )

    def told(*jail: str) -> str:
        argv = [*jail, "bash", "-c", f"{in_a_login}; true"]
        return subprocess.run(argv, capture_output=True, text=True, check=True).stdout

    inside = literal_eval(told(*_JAIL.split()))

    assert inside["start_file"]["line"] == 2
    assert inside["start_file"]["words"].startswith("exec unshare")
    assert in_a_login[:20] in inside["command"]
    assert told() == "None\n"


def test_a_process_tree_that_was_there_before_a_login_is_not_told(in_a_login: str) -> None:
    other = f"SSH_CONNECTION='192.168.1.9 40002 192.168.1.12 22' {in_a_login}; true"
    argv = [*_JAIL.split(), "bash", "-c", other]

    assert subprocess.run(argv, capture_output=True, text=True, check=True).stdout == "None\n"


@pytest.mark.parametrize("variable", ["TORCH_EXTENSIONS_DIR", None])
def test_the_lock_of_a_build_that_was_killed_is_told_and_that_of_one_that_goes_on_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str | None
) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
    root = tmp_path / ".cache/torch_extensions/py312_cpu"
    if variable:
        root = tmp_path / "extensions"
        monkeypatch.setenv(variable, str(root))
    for name in ("killed", "held", "young", "built"):
        (root / name).mkdir(parents=True)
        (root / name / "a.o").write_text("")
        if name != "built":
            (root / name / "lock").write_text("")
        for path in (root / name).iterdir():
            os.utime(path, None if name == "young" else (1, 1))

    with (root / "held/lock").open():
        told = launched()

    assert told == {"batons": [str(root / "killed/lock")]}


def kept(name: str, content: bytes) -> Path:
    """A program's file, as a launch leaves it in the cache."""
    source = cache_root() / "source"
    source.parent.mkdir(parents=True, exist_ok=True)
    source.write_bytes(content)
    digest = sha256_of(source)
    source.unlink()
    blob_path(digest).parent.mkdir(parents=True, exist_ok=True)
    blob_path(digest).write_bytes(content)
    entries = [[name, "file", digest, len(content)]]
    tree = cache_root() / "trees" / entries_digest(entries)
    make_folder(tree, entries)
    return tree / name


def test_a_file_that_is_not_what_was_sent_is_told_by_where_a_program_has_it() -> None:
    good, bad = kept("good.py", b"x = 1\n"), kept("common.py", b"endswith('.txt')\n")
    before = launched()
    with bad.open("r+b") as stream:
        stream.write(b"endswith('.tyt')\n")
    after = launched()

    assert good.exists()
    assert before == {}
    assert after == {"damaged": [str(bad)]}
