"""Which process is meant: a PID alone may have been given to another since."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from yoked.core import proc
from yoked.core.proc import ProcessId, has_open, memory_bytes, thread_times

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="processes as Linux has them")
DEADLINE_S = 30.0
DEAF = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True)\n"


@pytest.fixture
def sleeper() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(["sleep", "1000"], text=True) as process:
        yield process
        process.kill()


def deaf() -> subprocess.Popen[str]:
    """A process that does not hear SIGTERM."""
    process = subprocess.Popen(
        [sys.executable, "-c", f"{DEAF}time.sleep(1000)"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    process.stdout.readline()
    return process


def test_a_running_process_is_alive(sleeper: subprocess.Popen[str]) -> None:
    assert ProcessId.of(sleeper.pid).alive


def test_a_process_that_ended_and_was_not_collected_is_not_alive() -> None:
    with subprocess.Popen(["true"]) as process:
        known = ProcessId.of(process.pid)
        # Ended, but a zombie until somebody waits for it.
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert not known.alive


def test_a_process_with_a_number_used_before_is_another(sleeper: subprocess.Popen[str]) -> None:
    known = ProcessId.of(sleeper.pid)
    earlier = ProcessId(known.pid, known.start_ticks - 1)

    assert not earlier.alive
    assert earlier.kill()
    assert earlier.terminate(DEADLINE_S)
    assert earlier.wait(DEADLINE_S)
    assert sleeper.poll() is None


def test_a_process_that_never_was_is_told() -> None:
    # Above what the kernel gives out.
    never = 2**22 + 1

    with pytest.raises(ProcessLookupError):
        ProcessId.of(never)
    assert not ProcessId(never, 1).alive
    assert ProcessId(never, 1).kill()


def test_a_process_comes_back_from_json(sleeper: subprocess.Popen[str]) -> None:
    known = ProcessId.of(sleeper.pid)

    assert ProcessId.from_json({**known.to_json(), "more": 1}) == known


def test_kill_returns_when_the_process_is_gone(sleeper: subprocess.Popen[str]) -> None:
    known = ProcessId.of(sleeper.pid)

    assert known.kill()

    assert not known.alive
    assert sleeper.wait() == -signal.SIGKILL


def test_terminate_asks_first(sleeper: subprocess.Popen[str]) -> None:
    assert ProcessId.of(sleeper.pid).terminate(DEADLINE_S)

    assert sleeper.wait() == -signal.SIGTERM


def test_terminate_ends_also_what_does_not_listen() -> None:
    with deaf() as process:
        assert ProcessId.of(process.pid).terminate(0.05)

        assert process.wait() == -signal.SIGKILL


def test_waiting_for_one_that_goes_on_ends_with_the_deadline(
    sleeper: subprocess.Popen[str],
) -> None:
    assert not ProcessId.of(sleeper.pid).wait(0.01)


def test_a_name_with_a_parenthesis_does_not_confuse() -> None:
    program = "import ctypes; ctypes.CDLL(None).prctl(15, b') Z 1 (', 0, 0, 0); print(flush=True)"
    with subprocess.Popen(
        [sys.executable, "-c", f"{program}; import time; time.sleep(1000)"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()

        assert ProcessId.of(process.pid).alive
        process.kill()


def test_the_main_thread_is_told_apart_from_others() -> None:
    def compute() -> None:
        until_s = time.thread_time() + 0.2
        while time.thread_time() < until_s:
            pass

    before = thread_times(os.getpid())
    other = threading.Thread(target=compute)
    other.start()
    other.join()
    after = thread_times(os.getpid())
    compute()
    last = thread_times(os.getpid())

    assert before is not None
    assert after is not None
    assert last is not None
    assert after.main_cpu_s - before.main_cpu_s < 0.1
    assert last.main_cpu_s - after.main_cpu_s >= 0.15
    assert last.delayed_s >= last.main_delayed_s


def test_nothing_is_counted_of_a_process_that_never_was() -> None:
    assert thread_times(2**22 + 1) is None


# In a process of its own: of what other tests left behind, some may be given back meanwhile.
_TAKES_MEMORY = """
import json, mmap, os
from yoked.core.proc import memory_bytes
size = 64 << 20
seen = [memory_bytes(os.getpid())]
with open("rows", "rb") as file:
    rows = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert sum(rows[::4096]) == 0
    seen.append(memory_bytes(os.getpid()))
    rows.close()
own = bytearray(b"x") * size
seen.append(memory_bytes(os.getpid()))
print(json.dumps(seen))
"""


def test_what_a_process_takes_of_memory_is_seen_and_not_what_it_maps(tmp_path: Path) -> None:
    size = 64 << 20
    (tmp_path / "rows").write_bytes(bytes(size))

    said = subprocess.run(
        [sys.executable, "-c", _TAKES_MEMORY], cwd=tmp_path, stdout=subprocess.PIPE, check=True
    ).stdout
    before, mapped, taken = json.loads(said)

    assert before > 0
    assert mapped - before < size / 2
    assert taken - before > size / 2
    assert memory_bytes(2**22 + 1) == 0


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ("RssAnon:\t 8 kB\nRssFile:\t 99 kB\nRssShmem:\t 2 kB\nVmSwap:\t 1 kB\n", 11 << 10),
        ("VmRSS:\t 8 kB\nVmSwap:\t 1 kB\n", 9 << 10),
        # A zombie, or a thread of the kernel.
        ("Name:\tx\n", 0),
    ],
)
def test_kernels_tell_of_memory_in_two_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: str, expected: int
) -> None:
    monkeypatch.setattr(proc, "_PROC", tmp_path)
    (tmp_path / "7").mkdir()
    (tmp_path / "7" / "status").write_text(told)

    assert memory_bytes(7) == expected


def test_what_a_process_has_open_is_seen(sleeper: subprocess.Popen[str]) -> None:
    with open("/dev/full", "wb"):  # noqa: PTH123 - any device will do
        assert has_open(os.getpid(), "/dev/nvidia", "/dev/fu")
    assert not has_open(sleeper.pid, "/dev/nvidia", "/dev/fu")
    assert not has_open(2**22 + 1, "/")
