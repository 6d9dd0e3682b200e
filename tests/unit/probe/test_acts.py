"""What programs do first is tried by a bare Python, from text, in the environment that it gets."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import yoked
from yoked.doctor.rank_probes import program

LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="acts of Linux")
HERE = Path(yoked.__file__).parents[1]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "tmp").mkdir()
    return tmp_path


@contextmanager
def waited_for() -> Iterator[int]:
    """A descriptor that does not end meanwhile."""
    source, sink = os.pipe()
    yield source
    os.close(source)
    os.close(sink)


def tried(
    home: Path,
    text: str = "",
    before: Callable[[], None] | None = None,
    *,
    python: str = sys.executable,
    modules: Sequence[str] = (),
    **variables: str,
) -> dict[str, Any]:
    """What is told of all acts, or by another program."""
    own = {"HOME": str(home), "TMPDIR": str(home / "tmp"), "PATH": os.environ["PATH"]}
    with waited_for() as descriptor:
        done = subprocess.run(
            [python, "-c", text or program("acts"), *modules, "acts", str(descriptor)],
            env={**own, "USER": "ada", **variables},
            pass_fds=(descriptor,),
            preexec_fn=before,
            capture_output=True,
            text=True,
            check=True,
        )
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])["has"]["acts"]
    return told


def test_what_works_is_told_and_nothing_is_left_behind(home: Path) -> None:
    told = tried(home)

    assert {"thread", "queue", "shared-memory", "request"} <= set(told["worked"])
    assert {"home.map", "tmp.lock"} <= set(told["worked"])
    assert set(told["failed"]) <= {"locked-memory", "inotify"}
    assert list(home.rglob("*")) == [home / "tmp"]


@pytest.mark.parametrize(
    ("line", "by", "said"),
    [
        ('exec -a "$0" {python} -s "$@"', None, ""),
        ('exec -a "$0" {python} -I "$@"', "isolated", "No module named yoked_beside"),
        ('exec -a "$0" {python} -E "$@"', "isolated", "No module named yoked_beside"),
        ('exec {python} -I "$@"', "isolated", "it takes no notice of PYTHONPATH"),
        ('unset PYTHONPATH; exec -a "$0" {python} "$@"', None, "No module named yoked_beside"),
        ('unset YOKED_LARGE; exec -a "$0" {python} "$@"', None, "not get the variables"),
        ('[ "$1" = -c ] || set -- $*; exec -a "$0" {python} "$@"', None, "not get the arguments"),
        ('[ "$1" = -c ] && exec -a "$0" {python} "$@"; {python} "$@"', None, "it is a child of"),
    ],
)  # fmt: skip
def test_a_script_in_the_place_of_a_python_is_tried_as_a_rank_is_started(
    home: Path, line: str, by: str | None, said: str
) -> None:
    python = home / "tmp" / "python"
    last = line.format(python=sys.executable)
    python.write_text(f"#!/bin/bash\n{last}\n")
    python.chmod(0o755)

    told = tried(home, python=str(python))

    assert ("program" in told["worked"]) is (not said)
    if said:
        failure = told["failed"]["program"]
        assert said in failure["said"]
        assert failure.get("by") == by
        # Past the script it is started by its own name.
        assert failure.get("command") in (last[:160], None)


def test_modules_of_python_itself_are_imported_and_fail_in_their_own_words(home: Path) -> None:
    told = tried(home, modules=["statistics", "concurrent.futures", "parsec"])

    assert {"module-statistics", "module-concurrent.futures"} <= set(told["worked"])
    assert told["failed"]["module-parsec"] == {
        "said": "ModuleNotFoundError: No module named 'parsec'"
    }


def test_a_request_that_goes_to_a_proxy_names_its_variable(home: Path) -> None:
    proxy = "http://ada:secret@127.0.0.1:9"

    told = tried(home, http_proxy=proxy)["failed"]
    excepted = tried(home, http_proxy=proxy, no_proxy="127.0.0.1")["failed"]

    assert told["request"]["variables"] == ["http_proxy"]
    assert "refused" in told["request"]["said"]
    assert "//127.0.0.1:9" in told["request"]["said"]
    assert "secret" not in told["request"]["said"]
    assert "request" not in excepted


@pytest.mark.parametrize("exempt", ["", "localhost,.example.org"])
def test_a_proxy_of_another_host_is_named_and_not_asked(home: Path, exempt: str) -> None:
    told = tried(home, http_proxy="http://ada:secret@203.0.113.9:3128", no_proxy=exempt)["failed"]

    # To ask it, which nobody answers, would have taken until the limit.
    assert told["request"]["said"] == "it goes to the proxy //203.0.113.9:3128"


def test_a_signal_that_is_blocked_from_before_is_told(home: Path) -> None:
    def block() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    told = tried(home, before=block)["failed"]

    assert told["signals"]["said"].startswith("SIGTERM blocked")


def test_a_signal_that_is_ignored_does_not_matter_here(home: Path) -> None:
    told = tried(home, before=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN) and None)

    assert "child" not in told["failed"]
    assert "signals" in told["worked"]


def test_certificates_that_a_variable_names_in_vain_are_told(home: Path) -> None:
    told = tried(home, REQUESTS_CA_BUNDLE="/gone/ca.pem")["failed"]

    assert told["certificates"]["variables"] == ["REQUESTS_CA_BUNDLE"]
    assert "/gone/ca.pem" in told["certificates"]["said"]


def test_a_locale_and_a_log_of_keys_that_are_not_there_are_told(home: Path) -> None:
    told = tried(home, LC_ALL="xx_YY.UTF-8", SSLKEYLOGFILE="/gone/keys.log")["failed"]

    assert told["locale"]["variables"] == ["LC_ALL"]
    assert "xx_YY.UTF-8" in told["locale"]["said"]
    assert told["certificates"]["variables"] == ["SSLKEYLOGFILE"]


@LINUX
def test_a_limit_is_told_with_the_act_that_meets_it(home: Path) -> None:
    def few() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (0, 0))

    told = tried(home, before=few)["failed"]

    assert "File too large" in told["home.sparse"]["said"]
    assert told["home.sparse"]["mount"]["place"]
    # Who is root may lock as much as there is.
    assert os.geteuid() == 0 or told["locked-memory"]["limit"] == "l"


def test_an_act_that_hangs_or_ends_its_process_holds_up_no_other(home: Path) -> None:
    text = f"""
import os, signal, sys, time
sys.path.insert(0, {str(HERE)!r})
from yoked.probe import acts, folder_acts, process_acts

acts._ACT_S = 0.3
folder_acts.is_busy = lambda: False
fine = lambda: None
ends = lambda: os.kill(os.getpid(), signal.SIGSYS)
process_acts.acts = lambda modules: {{
    "one": fine, "hangs": lambda: time.sleep(60), "two": fine, "ends": ends, "three": fine,
    "tmp.fsync": lambda: time.sleep(60),
}}
sys.exit(acts.main(sys.argv[1:]))
"""
    told = tried(home, text)

    assert told["worked"] == ["one", "two", "three"]
    assert told["failed"].keys() == {"hangs", "ends"}
    assert told["failed"]["hangs"]["said"] == "no end in 0.3 s"
    assert told["failed"]["ends"]["said"].startswith(f"it ends with signal {int(signal.SIGSYS)}")


@LINUX
def test_who_holds_inotify_instances_is_told(home: Path) -> None:
    text = f"""
import ctypes, json, os, sys
sys.path.insert(0, {str(HERE)!r})
from yoked.probe.process_acts import _holders

ctypes.CDLL(None).inotify_init1(0)
told = {{"holders": _holders(), "own": os.getpid()}}
print(json.dumps({{"has": {{"acts": told}}}}))
"""
    told = tried(home, text)

    assert [each["count"] for each in told["holders"] if each["pid"] == told["own"]] in ([1], [])


def test_a_folder_whose_name_is_too_long_for_sockets_is_told_elsewhere(home: Path) -> None:
    folder = home / ("n" * 90)
    folder.mkdir()

    told = tried(home, TMPDIR=str(folder))

    assert "unix-socket" not in {*told["worked"], *told["failed"]}
    assert "tmp.map" in told["worked"]
