"""Looking on at a run of two hosts: what moves, what stands, and what may be asked of it."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.lab.commands import run
from tests.lab.test_fleet_jobs import write_text
from tests.schemas import conforms

from yoked.errors import JobError
from yoked.fleet.file import read_fleet
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.launch.hosts import reach_hosts
from yoked.watch.view import View
from yoked.watch.watched import Watching

pytest.importorskip("torch")

LIMIT_S = 120.0
LONG = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--total-batch-size=256"),
    *("--num-iterations=100000", "--eval-every=20", "--dtype=float32", "--matmul=mkl"),
    *("--data=text", "--compile=off", "--balance=off", "--no-doctor", "--detach"),
    "--on-fault=wait",
)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@contextmanager
def training(lab: Lab, folder: Path, name: str) -> Iterator[Watching]:
    """Somebody who looks on at a training of both hosts."""
    write_text(folder / "text")
    begun = run(
        folder, "train", *LONG, f"--run={name}", "--fleet", str(lab.fleet_file), limit_s=LIMIT_S
    )
    assert begun.returncode == 0, begun.stderr
    with (
        reach_hosts(read_fleet(lab.fleet_file), print) as hosts,
        closing(Watching(hosts, folder / "runs")) as watching,
    ):
        try:
            assert watching.begin(name)
            yield watching
        finally:
            with suppress(JobError):
                watching.stop(now=True)


def until(watching: Watching, fits: Callable[[View], bool], limit_s: float = LIMIT_S) -> View:
    until_s = time.monotonic() + limit_s
    while time.monotonic() < until_s:
        view = watching.look()
        if fits(view):
            return view
    raise AssertionError(f"not within {limit_s} s: {view.verdict} {view.progress}")


def rank_process(lab: Lab, host: str, name: str) -> int:
    """The number of a rank's process, as this machine has it."""
    for process in lab.host(host).processes():
        environ = Path(f"/proc/{process.outer_pid}/environ")
        try:
            told = environ.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"RANK=1" in told and f"YOKED_RUN={name}".encode() in told:
            return process.outer_pid
    raise AssertionError(f"no rank of {name} on {host}")


def test_a_run_moves_stands_saves_and_stops_under_the_eyes_of_who_looks_on(
    lab: Lab, tmp_path: Path
) -> None:
    with training(lab, tmp_path, "watched") as watching:
        first = until(watching, lambda view: view.progress.step >= 25)
        assert [each.host for each in first.ranks] == ["alpha", "beta"]
        assert all(set(each.parts) == {"computes", "sends", "waits"} for each in first.ranks)
        assert first.progress.val_bpb is not None
        conforms("watch", json.loads(json.dumps(first.to_dict())))
        # Links and memory come with the diagnosis, twice in ten seconds.
        seen = until(
            watching, lambda view: len(view.links) == 2 and all(e.bits_per_s for e in view.links)
        )
        assert {(each.sender, each.receiver) for each in seen.links} == {
            ("alpha", "beta"),
            ("beta", "alpha"),
        }
        assert all(each.memory_bytes for each in seen.ranks)
        assert seen.cost is not None
        assert seen.cost.bytes_per_s < seen.cost.most_bytes_per_s
        # The curve is read a part at a time, and all of it is there.
        last = seen.progress.step - 1
        assert watching.curve(0, last, 100_000)["step"] == list(range(1, last + 2))

        stopped = rank_process(lab, "beta", first.run)
        os.kill(stopped, signal.SIGSTOP)
        try:
            stands = until(watching, lambda view: view.verdict.level == "bad")
            assert "rank 1 on beta" in stands.verdict.text
            assert stands.ranks[1].level == "bad"
            assert any("CONT" in line for line in stands.verdict.next)
        finally:
            os.kill(stopped, signal.SIGCONT)
        goes_on = until(watching, lambda view: view.verdict.level == "good")
        until(watching, lambda view: view.progress.step > goes_on.progress.step)

        assert "saved after" in watching.save()
        assert any("step" in line for _, line in watching.log(0, 50))
        assert "interrupted" in watching.stop()
        over = until(watching, lambda view: not view.active)
        assert (over.state, over.verdict.level) == ("interrupted", "warning")
        assert over.figures["curve"]["step"][-1] == over.progress.step


def test_a_connection_that_is_cut_is_made_anew(lab: Lab, tmp_path: Path) -> None:
    with training(lab, tmp_path, "cut") as watching:
        until(watching, lambda view: view.progress.step > 0)
        # As when whoever looks on loses the network; the run goes on.
        sessions = [
            process.outer_pid
            for process in lab.host("alpha").processes()
            if process.command[0].startswith("sshd: ") and "notty" in process.command[0]
        ]
        assert sessions
        for session in sessions:
            os.kill(session, signal.SIGKILL)
        silent = until(watching, lambda view: bool(view.silent))
        assert "alpha" in silent.silent
        back = until(watching, lambda view: not view.silent and view.verdict.level == "good")
        until(watching, lambda view: view.progress.step > back.progress.step)
