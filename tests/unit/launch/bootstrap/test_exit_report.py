"""What is made of the files that a rank leaves."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.unit.launch.bootstrap.jobs import made_up_job

from yoked.channel.frames import encode_word
from yoked.diagnosis.memory import MemoryTrend
from yoked.launch.bootstrap.exit_report import (
    RankExit,
    last_lines,
    rank_failure,
    store_failure,
)
from yoked.launch.bootstrap.job import Job, Node
from yoked.launch.bootstrap.notice import Notice
from yoked.launch.bootstrap.outcome import Decision

KILLED = RankExit(pid=7, exit_code=-9, time_s=20.0)
FAILED = RankExit(pid=7, exit_code=1, time_s=20.0)


@pytest.fixture
def job(tmp_path: Path) -> Job:
    nodes = (Node("alpha", "127.0.0.1", 1), Node("beta", "127.0.0.2", 2))
    job = made_up_job(tmp_path, node_rank=1, nodes=nodes)
    job.launch_dir(0).mkdir(parents=True)
    (tmp_path / "logs").mkdir()
    return job


def leave(path: Path, **more: Any) -> None:
    error = {"rank": 2, "time_s": 10.0, "kind": "OSError", "what": "OSError: full", **more}
    path.write_text(json.dumps(error))


def test_a_rank_that_ended_well_is_no_failure(job: Job) -> None:
    assert rank_failure(job, 0, 2, None, None) is None


def test_an_error_that_another_rank_told_of_is_that_ranks(job: Job) -> None:
    leave(job.launch_dir(0) / "error.2.json", of_ranks=[0])

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.host, failure.node, failure.rank, failure.pid) == ("alpha", 0, 0, None)
    assert failure.what == "OSError: full"


def test_an_error_that_may_be_any_of_several_ranks_names_their_hosts_and_no_rank(job: Job) -> None:
    leave(job.launch_dir(0) / "error.2.json", kind="WeightsApartError", of_ranks=[0, 2])

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.host, failure.hosts, failure.rank) == ("alpha", ("alpha", "beta"), None)
    assert (failure.cause, failure.last_lines) == ("weights-apart", ())


@pytest.mark.parametrize("told", [[2], [], None, 7, ["0"], [99], [-1]])
def test_an_error_of_no_other_rank_stays_with_who_raised_it(job: Job, told: object) -> None:
    leave(job.launch_dir(0) / "error.2.json", of_ranks=told)

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.host, failure.rank, failure.pid) == ("beta", 2, FAILED.pid)


@pytest.mark.parametrize(
    "told",
    [
        [],
        "no",
        {"rank": 2},
        {"time_s": "now", "kind": "E", "what": "E"},
        {"time_s": 10.0, "kind": 7, "what": "E"},
        {"time_s": 10.0, "kind": "E", "what": None},
        {"time_s": 10.0, "kind": "E", "what": "E", "fix": [1]},
        {"time_s": 10.0, "kind": "E", "what": "E", "traceback": 3},
    ],
)
def test_what_a_program_wrote_into_the_file_of_errors_hides_no_end(job: Job, told: object) -> None:
    job.error_file(0, 2).write_text(json.dumps(told))

    failure = rank_failure(job, 0, 2, FAILED, 30.0)

    assert failure is not None
    assert failure.what == "ended with exit status 1"


def test_an_error_that_prints_all_its_data_is_told_in_short(job: Job) -> None:
    what = f"ValueError: {'7, ' * 1_000_000}is no batch"
    leave(job.error_file(0, 2), kind="ValueError", what=what, traceback=f"Traceback\n{what}")

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert failure.what.startswith("ValueError: 7, 7, ")
    assert failure.what.endswith("7, is no batch")
    # So much of it a controller takes (records/rules.py).
    assert len(failure.what) < 200_000
    encode_word(asdict(Notice(report=(failure,), decision=Decision(0, "failed", failure, False))))


def test_a_kill_is_named_by_its_signal_and_place(job: Job, snapshot: SnapshotAssertion) -> None:
    failure = rank_failure(job, 0, 2, KILLED, None)

    assert failure is not None
    assert (failure.signal, failure.exit_code, failure.kind) == ("SIGKILL", None, None)
    assert failure.headline == snapshot
    assert failure.fix


LEAK = MemoryTrend(8 * 10**9, 10**9, took_s=40.0, steps=80, gradual=True)
NEED = MemoryTrend(8 * 10**9)
OOM = replace(KILLED, oom_killed=True)


@pytest.mark.parametrize(
    ("trend", "said", "fix"),
    [
        (
            LEAK,
            "; its memory grew from 1.00 GB to 8.00 GB in its last 40.0 s, over 80",
            "loss.item",
        ),
        (NEED, "; it needed 8.00 GB from its first steps on", "a smaller batch"),
        (None, "(SIGKILL)", "a smaller batch"),
    ],
)
def test_a_want_of_memory_is_told_with_how_it_came_to_it(
    job: Job, trend: MemoryTrend | None, said: str, fix: str
) -> None:
    asked = []

    def memory_of(rank: int) -> MemoryTrend | None:
        asked.append(rank)
        return trend

    failure = rank_failure(job, 0, 2, OOM, None, memory_of)

    assert failure is not None
    assert (failure.cause, asked) == ("out-of-memory", [2])
    assert failure.what.startswith("killed by the kernel for want of memory (SIGKILL)")
    assert said in failure.what
    assert fix in failure.fix[0]


def test_memory_that_was_refused_is_told_so_too(job: Job) -> None:
    leave(job.error_file(0, 2), kind="MemoryError", what="MemoryError: ")

    failure = rank_failure(job, 0, 2, FAILED, None, lambda _: LEAK)

    assert failure is not None
    assert "its memory grew" in failure.what


@pytest.mark.parametrize(
    "error",
    [
        {"kind": "OutOfMemoryError", "what": "OutOfMemoryError: CUDA out of memory. Tried"},
        {"kind": "RuntimeError", "what": "RuntimeError: CUDA out of memory"},
        {"kind": "ValueError", "what": "ValueError: no"},
    ],
)
def test_of_a_gpus_memory_and_of_other_ends_the_hosts_says_nothing(
    job: Job, error: dict[str, str]
) -> None:
    leave(job.error_file(0, 2), **error)

    failure = rank_failure(job, 0, 2, FAILED, None, lambda _: LEAK)

    assert failure is not None
    assert failure.what == error["what"]


def test_a_rank_that_seeks_a_port_of_node_0_at_master_addr_is_told_where_it_is(job: Job) -> None:
    what = "RuntimeError: failed to connect to 127.0.0.1:29600: Connection refused"
    leave(job.error_file(0, 2), what=what)

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert "YOKED_NODE0_ADDR" in failure.fix[-1]
    assert "YOKED_NODE0_ADDR" not in str(
        rank_failure(replace(job, node_rank=0), 0, 2, FAILED, None)
    )


def test_a_signal_without_a_name_has_its_number(job: Job) -> None:
    failure = rank_failure(job, 0, 2, RankExit(7, -61, 20.0), None)

    assert failure is not None
    assert failure.signal == "signal 61"


def test_an_exit_status_stands_alone_when_nothing_was_said(
    job: Job, snapshot: SnapshotAssertion
) -> None:
    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.exit_code, failure.what) == snapshot


def test_an_error_comes_with_the_time_at_which_it_was_raised(job: Job) -> None:
    leave(job.error_file(0, 2), traceback="Traceback ...")

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.kind, failure.what, failure.time_s) == ("OSError", "OSError: full", 10.0)
    assert failure.traceback == "Traceback ..."


def test_the_error_of_yoked_train_is_preferred_with_its_fix(job: Job) -> None:
    leave(job.error_file(0, 2), kind="SystemExit", what="exit status 1")
    leave(job.launch_dir(0) / "error.2.json", kind="DataError", what="gone", fix=["prepare it"])

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.kind, failure.what, failure.fix) == ("DataError", "gone", ("prepare it",))


def test_an_error_explains_the_abort_that_followed_it(job: Job) -> None:
    leave(job.error_file(0, 2))

    failure = rank_failure(job, 0, 2, RankExit(7, -6, 20.0), None)

    assert failure is not None
    assert (failure.kind, failure.signal) == ("OSError", None)


def test_a_rank_that_we_ended_is_told_of_only_for_what_it_met_before(job: Job) -> None:
    leave(job.error_file(0, 2), exit_code=7)

    before = rank_failure(job, 0, 2, None, ended_s=10.5)
    after = rank_failure(job, 0, 2, None, ended_s=9.5)

    assert before is not None
    # It was at its last words, and had said how it would end.
    assert (before.kind, before.exit_code) == ("OSError", 7)
    assert after is None


def test_a_torn_error_file_is_as_none(job: Job) -> None:
    job.error_file(0, 2).write_text('{"rank": 2, "ti')

    failure = rank_failure(job, 0, 2, KILLED, None)

    assert failure is not None
    assert failure.signal == "SIGKILL"


def test_the_last_lines_end_with_the_stream_that_was_written_last(job: Job) -> None:
    out, err = job.log_file(0, 2, "out"), job.log_file(0, 2, "err")
    out.write_bytes(b"".join(b"step %d\n\n" % step for step in range(40)))
    err.write_bytes(b"warning \xff\n")
    os.utime(err, (1.0, 1.0))

    assert last_lines(job, 0, 2) == tuple(f"step {step}" for step in range(25, 40))

    os.utime(out, (0.5, 0.5))

    assert last_lines(job, 0, 2)[-2:] == ("step 39", "warning \ufffd")
    assert last_lines(job, 0, 1) == ()


def test_what_torch_prints_at_each_start_is_no_ranks_last_word(job: Job) -> None:
    noise = (
        "[W1126 08:02:59.334758623 socket.cpp:207] [c10d] The hostname of the client socket cannot "
        "be retrieved. err=-3\n"
    )
    job.log_file(0, 2, "err").write_text(f"{noise}loading\n{noise}")
    (job.folder / "logs" / "launcher.err").write_text(f"no room\n{noise}")

    assert last_lines(job, 0, 2) == ("loading",)
    assert store_failure(job, KILLED).last_lines == ("no room",)


ABORTED = RankExit(pid=7, exit_code=-6, time_s=20.0)


def test_an_abort_while_ranks_meet_is_a_meeting_that_failed(
    job: Job, snapshot: SnapshotAssertion
) -> None:
    job.meeting_mark(0, 2).touch()

    failure = rank_failure(job, 0, 2, ABORTED, None)

    assert failure is not None
    assert (failure.signal, failure.before_meeting) == ("SIGABRT", True)
    assert failure.headline == snapshot


def test_an_error_while_ranks_meet_is_a_meeting_that_failed(job: Job) -> None:
    job.meeting_mark(0, 2).touch()
    leave(job.error_file(0, 2), kind="RuntimeError", what="Socket closed")

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert (failure.before_meeting, failure.what) == (True, "Socket closed")


def test_a_kill_while_ranks_meet_is_a_kill(job: Job) -> None:
    job.meeting_mark(0, 2).touch()

    failure = rank_failure(job, 0, 2, KILLED, None)

    assert failure is not None
    assert (failure.signal, failure.kind, failure.before_meeting) == ("SIGKILL", None, False)


def test_an_abort_after_the_meeting_is_an_abort(job: Job) -> None:
    failure = rank_failure(job, 0, 2, ABORTED, None)

    assert failure is not None
    assert (failure.signal, failure.before_meeting) == ("SIGABRT", False)


@pytest.mark.parametrize(
    ("what", "cause", "added", "fix"),
    [
        (
            "ModuleNotFoundError: No module named 'peft'",
            "module-missing",
            f"; {sys.executable} on beta has no module peft",
            f"{sys.executable} -m pip install peft",
        ),
        (
            "AssertionError: Torch not compiled with CUDA enabled",
            "gpu-missing",
            f"; the program asks for a GPU, and {sys.executable} on beta can use none",
            "--device=cpu behind the program's name",
        ),
        (
            "FileNotFoundError: [Errno 2] No such file or directory: 'rows.bin'",
            "file-missing",
            "/rows.bin is not on beta",
            "check its name",
        ),
    ],
)
def test_what_a_program_expected_and_did_not_find_is_said_behind_its_own_words(
    job: Job, what: str, cause: str, added: str, fix: str
) -> None:
    (job.cwd / "x.py").write_text('parser.add_argument("--device", default="cuda")')
    leave(job.error_file(0, 2), kind=what.partition(":")[0], what=what)

    failure = rank_failure(job, 0, 2, FAILED, None)

    assert failure is not None
    assert failure.cause == cause
    assert failure.what.startswith(what)
    assert added in failure.what
    assert any(line.startswith(fix) for line in failure.fix)


def test_a_program_of_the_job_folder_was_sent(job: Job) -> None:
    sent = replace(job, cwd=job.folder / "work")
    what = "FileNotFoundError: [Errno 2] No such file or directory: 'rows.bin'"
    leave(job.error_file(0, 2), kind="FileNotFoundError", what=what)

    failure = rank_failure(sent, 0, 2, FAILED, None)

    assert failure is not None
    assert "rows.bin is not in the copy of the program's folder on beta" in failure.what
