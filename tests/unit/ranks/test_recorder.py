"""What a rank says of itself, as its host's daemon reads it; and how it is freed at a word."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from yoked.core.fs import read_json
from yoked.core.shared_json import read_shared_json
from yoked.ranks import freeing, recorder
from yoked.ranks.freeing import ADDRESSES_VARIABLE, NcclAbortedError, free_rank

LIMIT_S = 20.0
Say = Callable[[bytes], int]
PROGRAM = """
import sys, time
from yoked.ranks.recorder import RECORDER
RECORDER.start()
with RECORDER.phase("saving"), RECORDER.awaiting("gradient 3", (1,)):
    RECORDER.step_done()
    print("begun", flush=True)
    time.sleep(60)
"""


def soon(look: Callable[[], Any]) -> Any:
    until_s = time.monotonic() + LIMIT_S
    while not (found := look()) and time.monotonic() < until_s:
        time.sleep(0.02)
    return found


def test_each_of_the_last_steps_is_told_with_its_end_and_its_cpu_time() -> None:
    own = recorder.Recorder()
    for _ in range(40):
        began_s = time.process_time()
        while time.process_time() < began_s + 0.002:
            pass
        own.step_done()

    told = own._record(None)

    between = list(pairwise(told["ends"]))
    assert (told["steps"], len(between)) == (40, 32)
    assert all(after[0] - before[0] >= 0.0019 for before, after in between)
    assert all(after[1] - before[1] >= 0.0019 for before, after in between)
    assert told["ends"][-1][0] == pytest.approx(told["stepped_s"], abs=1e-5)


def test_what_a_rank_is_about_is_read_also_while_it_is_stopped(tmp_path: Path) -> None:
    file = tmp_path / "record"
    command = [sys.executable, "-c", PROGRAM]
    env = {**os.environ, recorder.FILE_VARIABLE: str(file)}
    with subprocess.Popen(command, env=env, stdout=subprocess.PIPE) as rank:
        try:
            assert rank.stdout is not None
            rank.stdout.readline()
            told = soon(lambda: (found := read_shared_json(file)) and found["steps"] and found)
            rank.send_signal(signal.SIGSTOP)
            time.sleep(2 * recorder.PERIOD_S)
            then = read_shared_json(file)
        finally:
            rank.kill()

    assert told["phase"] == "saving"
    assert (told["awaits"]["what"], told["awaits"]["ranks"]) == ("gradient 3", [1])
    assert told["frames"][0][1:] == [8, "<module>"]
    assert then is not None
    assert time.monotonic() - then["at_s"] > recorder.PERIOD_S


THREADS = """
import threading, time
from yoked.ranks.recorder import RECORDER
def loads_data():
    time.sleep(60)
threading.Thread(target=loads_data, name="loader", daemon=True).start()
RECORDER.start()
time.sleep(60)
"""


@contextmanager
def recorded(program: str, file: Path) -> Iterator[tuple[subprocess.Popen[bytes], Say]]:
    """A rank that writes into this file, and what says a word to it; it ends with the block."""
    reads, writes = os.pipe()
    env = {
        **os.environ,
        recorder.FILE_VARIABLE: str(file),
        recorder.WORDS_VARIABLE: str(reads),
    }
    with subprocess.Popen([sys.executable, "-c", program], env=env, pass_fds=[reads]) as rank:
        try:
            yield rank, lambda word: os.write(writes, word)
        finally:
            rank.kill()
            os.close(reads)
            os.close(writes)


def test_a_frame_of_which_python_knows_no_line_is_at_line_0() -> None:
    code = SimpleNamespace(co_filename="/home/me/train.py", co_name="main")
    frame: Any = SimpleNamespace(f_code=code, f_lineno=None, f_back=None)

    assert recorder._frames(frame) == [["/home/me/train.py", 0, "main"]]


def test_at_a_word_a_rank_writes_where_all_its_threads_are(tmp_path: Path) -> None:
    file = tmp_path / "0.1.record"
    with recorded(THREADS, file) as (_, say):
        soon(lambda: (read_shared_json(file) or {"frames": 0})["frames"])
        asked_s = time.monotonic()
        say(recorder.STACKS)
        told = soon(lambda: read_json(tmp_path / "0.1.stacks"))

    main, loader = told["threads"]
    assert told["at_s"] >= asked_s
    assert (main["main"], main["frames"][-1][2]) == (True, "<module>")
    assert (loader["name"], loader["main"]) == ("loader", False)
    assert loader["frames"][0][2] == "loads_data"


def test_a_rank_whose_call_does_not_raise_as_it_is_freed_is_ended(tmp_path: Path) -> None:
    file = tmp_path / "0.1.record"
    with recorded(PROGRAM, file) as (rank, say):
        soon(lambda: (read_shared_json(file) or {"awaits": None})["awaits"])
        say(recorder.FREE)

        assert rank.wait(LIMIT_S) == recorder.STUCK_EXIT


def test_a_rank_that_is_not_known_to_wait_lives_on_as_it_is_freed(tmp_path: Path) -> None:
    file = tmp_path / "0.1.record"
    with recorded(THREADS, file) as (_, say):
        soon(lambda: (read_shared_json(file) or {"frames": 0})["frames"])
        say(recorder.FREE)
        # The next word finds it there.
        say(recorder.STACKS)

        assert soon(lambda: read_json(tmp_path / "0.1.stacks"))


DEEP = """
import json, sys, time, types
from yoked.ranks.recorder import RECORDER
call = {"process_group": ["0", ""], "is_p2p": False, "collective_seq_id": 77, "retired": False,
        "profiling_name": "gloo:all_reduce", "input_sizes": [[1000] * 60],
        "input_dtypes": ["Float"]}
told = json.dumps({"entries": [call] * 64})
fake = types.SimpleNamespace(_dump_fr_trace_json=lambda *_: told)
sys.modules["torch._C._distributed_c10d"] = fake
RECORDER.start()
space = {"time": time}
name = "/home/" + chr(0x43c) * 120
text = "def deep(n):\\n    deep(n - 1) if n else time.sleep(60)"
exec(compile(text, name, "exec"), space)
space["deep"](30)
"""


def test_a_record_that_has_no_room_is_renewed_with_less(tmp_path: Path) -> None:
    file = tmp_path / "0.1.record"
    with recorded(DEEP, file):
        told = soon(lambda: (found := read_shared_json(file)) and found["groups"] and found)

    assert told["frames"][0][2] == "deep"
    assert told["groups"][0]["flying"][0] == {"number": 77, "op": "gloo:all_reduce"}


CLOSES_ALL = """
import os, sys, tempfile, time
from yoked.ranks.recorder import RECORDER
RECORDER.start()
os.closerange(3, 64)
own = [tempfile.TemporaryFile() for _ in range(40)]
for file in own:
    file.write(b"rows")
    file.flush()
    file.seek(0)
RECORDER.step_done()
time.sleep(1.0)
if all(os.read(file.fileno(), 4) == b"rows" for file in own):
    RECORDER.step_done()
time.sleep(60)
"""


def test_a_program_that_closes_what_it_did_not_open_is_recorded_and_keeps_its_own_files(
    tmp_path: Path,
) -> None:
    file = tmp_path / "0.1.record"
    with recorded(CLOSES_ALL, file):
        told = soon(
            lambda: (found := read_shared_json(file)) and found["steps"] == 2 and found["frames"]
        )

    assert told


ENDS_AT_ONCE = """
import os
from yoked.ranks.recorder import RECORDER
RECORDER.start()
RECORDER.learning = lambda: {"group": "none"}
RECORDER.step_done()
RECORDER.write()
os._exit(0)
"""


def test_what_a_program_did_between_two_looks_is_left_at_its_end(tmp_path: Path) -> None:
    file = tmp_path / "0.0.record"
    env = {**os.environ, recorder.FILE_VARIABLE: str(file)}

    subprocess.run([sys.executable, "-c", ENDS_AT_ONCE], env=env, check=True)

    told = read_shared_json(file)
    assert told is not None
    assert (told["steps"], told["learning"]) == (1, {"group": "none"})


def test_without_a_daemon_nothing_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(recorder.FILE_VARIABLE, raising=False)
    before = threading.active_count()

    recorder.Recorder().start()

    assert threading.active_count() == before


def test_connections_to_hosts_of_the_run_are_shut_and_no_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(ADDRESSES_VARIABLE, "127.0.0.2")
    with (
        socket.create_server(("127.0.0.2", 0)) as peer,
        socket.create_server(("127.0.0.1", 0)) as store,
        socket.create_server(("127.0.0.3", 0)) as stranger,
    ):
        monkeypatch.setenv("MASTER_PORT", str(store.getsockname()[1]))
        ends = [socket.create_connection(each.getsockname()) for each in (peer, store, stranger)]
        accepted = [each.accept()[0] for each in (peer, store, stranger)]
        try:
            assert free_rank() == 1
            for end in ends:
                end.settimeout(0.2)
            assert ends[0].recv(1) == b""
            for end in ends[1:]:
                with pytest.raises(TimeoutError):
                    end.recv(1)
        finally:
            for each in (*ends, *accepted):
                each.close()


class Nccl: ...


class Gloo: ...


def groups_of(patch: pytest.MonkeyPatch, *backends: object) -> list[str]:
    """Has torch have groups with these backends for GPUs; returns what was done to them."""

    def group(backend: object) -> SimpleNamespace:
        return SimpleNamespace(_get_backend=lambda device: backend)

    done: list[str] = []
    c10d = SimpleNamespace(
        torch=SimpleNamespace(device=str),
        ProcessGroupNCCL=Nccl,
        _world=SimpleNamespace(pg_map=[group(backend) for backend in backends]),
        _abort_process_group=lambda: done.append("aborted"),
    )
    patch.setitem(sys.modules, "torch.distributed.distributed_c10d", c10d)
    patch.setattr(freeing, "_ONCE", threading.Lock())
    patch.setenv(ADDRESSES_VARIABLE, "")
    return done


def freed_by_another_thread() -> None:
    """Wait in this thread, as a program does, while another frees it, twice."""

    def free() -> None:
        free_rank()
        free_rank()

    thread = threading.Thread(target=free)
    thread.start()
    while thread.is_alive():
        time.sleep(0.01)


def test_a_rank_that_nccl_holds_raises_before_it_can_use_what_the_abort_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done = groups_of(monkeypatch, Gloo(), Nccl())

    with pytest.raises(NcclAbortedError, match="a peer was lost in a collective of NCCL"):
        freed_by_another_thread()

    # The second word found nothing to do.
    time.sleep(0.1)
    assert done == ["aborted"]


def test_a_rank_without_nccl_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    done = groups_of(monkeypatch, Gloo())

    freed_by_another_thread()

    assert done == []
