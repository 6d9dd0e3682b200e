"""The output of ranks comes whole, in order, and from any byte on."""

from __future__ import annotations

import shutil
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.agent.job_acts import (
    COUNTER,
    SLEEPER,
    kill,
    launch,
    until,
)

from yoked.agent import logs
from yoked.agent.jobfolder import JobFolder
from yoked.agent.logs import LogReader
from yoked.agent.logtimes import LogTimes, Notes
from yoked.errors import JobError
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here

LINES = 200


@pytest.fixture
def job(tmp_path: Path) -> JobFolder:
    """A job that is over, without a process: its logs are what a test writes."""
    job = JobFolder(tmp_path / "jobs" / "over")
    job.logs.mkdir(parents=True)
    return job


def texts(job: JobFolder, **wanted: Any) -> list[tuple[int, str, str]]:
    reader = LogReader(job, wanted)
    return [(p.rank, p.stream, p.data.decode()) for p in reader.read(last=True)]


def numbered(stream: str) -> bytes:
    return b"".join(b"%s %d\n" % (stream.encode(), number) for number in range(LINES))


def test_both_streams_are_followed_to_the_end_of_the_job(agent: AgentClient, root: Path) -> None:
    launch(agent, root, COUNTER, str(LINES), "0.005")

    came = {"out": b"", "err": b""}
    times = []
    for part in agent.stream("job_logs", run="try", follow=True):
        assert part.content["offset"] == len(came[part.content["stream"]])
        assert part.data.endswith(b"\n")
        came[part.content["stream"]] += part.data
        times.append(part.content["time_s"])

    assert came == {"out": numbered("out"), "err": numbered("err")}
    assert len(times) > 4
    assert times == sorted(times)


def test_whoever_comes_back_gets_what_follows_the_bytes_he_has(
    agent: AgentClient, root: Path
) -> None:
    launch(agent, root, COUNTER, str(LINES), "0.005")

    came = {"out": b"", "err": b""}
    rounds = 0
    while len(came["out"]) < len(numbered("out")):
        rounds += 1
        offsets = {f"0.0.{stream}": len(data) for stream, data in came.items()}
        with connect_here("attic") as another:
            for part in another.stream("job_logs", run="try", follow=True, offsets=offsets):
                came[part.content["stream"]] += part.data
                if rounds < 4 and part.content["stream"] == "err":
                    break

    assert rounds >= 4
    assert came["out"] == numbered("out")


def test_no_byte_is_lost_when_the_supervisor_is_killed(agent: AgentClient, root: Path) -> None:
    job = launch(agent, root, COUNTER, str(LINES), "0.005")
    until((job.logs / "0.0.out").exists, "the first line")
    kill(job.read("supervisor.json")["pid"])

    came = b"".join(
        part.data for part in agent.stream("job_logs", run="try", follow=True, streams=["out"])
    )

    assert came == numbered("out")


def test_a_stream_that_is_left_early_ends_on_the_host_too(agent: AgentClient, root: Path) -> None:
    job = launch(agent, root, SLEEPER)
    (job.logs / "0.0.out").write_text("hello\n")

    for part in agent.stream("job_logs", run="try", follow=True):
        assert part.data == b"hello\n"
        break

    assert agent.call("job_status", run="try")["state"] == "running"


def test_logs_that_go_while_they_are_read_are_those_of_a_run_that_was_removed(
    job: JobFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    (job.logs / "0.0.out").write_bytes(b"hello\n")
    call: Any = SimpleNamespace(
        args={"run": job.run, "follow": True},
        cancelled=threading.Event(),
        send=lambda *_: shutil.rmtree(job.path),
    )
    monkeypatch.setattr(logs, "find_job", lambda _: job)

    with pytest.raises(JobError, match="was removed"):
        logs.answer_job_logs(call)


def test_ranks_and_streams_are_merged_by_time(job: JobFolder) -> None:
    (job.logs / "0.0.out").write_bytes(b"first\nthird\n")
    (job.logs / "0.0.times").write_text("10.0 out 6\n12.0 out 12\n")
    (job.logs / "1.0.err").write_bytes(b"second\nfourth\n")
    (job.logs / "1.0.times").write_text("11.0 err 7\n13.0 err 14\n")

    assert texts(job) == [
        (0, "out", "first\n"),
        (1, "err", "second\n"),
        (0, "out", "third\n"),
        (1, "err", "fourth\n"),
    ]
    assert texts(job, ranks=[1]) == [(1, "err", "second\n"), (1, "err", "fourth\n")]
    assert texts(job, streams=["out"]) == [(0, "out", "first\n"), (0, "out", "third\n")]


def test_a_line_waits_for_its_end_and_then_counts_as_of_that_time(job: JobFolder) -> None:
    log, times = job.logs / "0.0.out", job.logs / "0.0.times"
    log.write_bytes(b"whole\nhal")
    times.write_text("10.0 out 9\n")
    reader = LogReader(job, {})
    before = [piece.data for piece in reader.read(last=False)]

    log.write_bytes(b"whole\nhalf\nrest")
    times.write_text("10.0 out 9\n11.0 out 15\n")
    after = [(piece.time_s, piece.data) for piece in reader.read(last=False)]
    end = [piece.data for piece in reader.read(last=True)]

    assert before == [b"whole\n"]
    assert after == [(11.0, b"half\n")]
    assert end == [b"rest"]


def test_a_torn_note_is_passed_over(job: JobFolder) -> None:
    (job.logs / "0.0.times").write_text("10.0 out 5\n11.0 out 712.0 out 9\n13.0 out 12\n14.")

    assert Notes(job.logs / "0.0.times", "out").more() == [(10.0, 5), (13.0, 12)]


def test_notes_go_on_where_a_killed_supervisor_left_off(job: JobFolder) -> None:
    log = job.logs / "0.0.out"
    for content in (b"one\n", b"one\ntwo\n"):
        log.write_bytes(content)
        times = LogTimes(job.logs)
        times.note()
        times.note()
        times.close()

    assert [end for _, end in Notes(job.logs / "0.0.times", "out").more()] == [4, 8]


@given(cuts=st.lists(st.integers(0, 60), max_size=5), content=st.text("ab\n", max_size=60))
@settings(max_examples=30, deadline=None)
def test_every_byte_comes_once_wherever_it_was_cut(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], content: str
) -> None:
    job = JobFolder(tmp_path_factory.mktemp("job"))
    job.logs.mkdir()
    came = b""
    for cut in [*sorted(cuts), len(content)]:
        (job.logs / "0.0.out").write_bytes(content[:cut].encode())
        reader = LogReader(job, {"offsets": {"0.0.out": len(came)}})
        came += b"".join(piece.data for piece in reader.read(last=False))
    reader = LogReader(job, {"offsets": {"0.0.out": len(came)}})
    came += b"".join(piece.data for piece in reader.read(last=True))

    assert came == content.encode()
