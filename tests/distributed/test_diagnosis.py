"""Hosts that tell why their run stands, with real ranks and a program that knows nothing of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from tests.distributed.test_host_program import HERE, Pair
from tests.unit.agent.fake_call import FakeCall

from yoked.agent import stacks as agent_stacks
from yoked.agent.jobfolder import JobFolder
from yoked.core.shared_json import read_shared_json
from yoked.diagnosis.outside import causes_outside, evidence, process_of
from yoked.diagnosis.stacks import STALE_S, RankStacks, read_stacks
from yoked.journal import read
from yoked.launch.outside import look_outside

pytestmark = pytest.mark.distributed
DEADLINE_S = 60.0
PROGRAM = HERE / "diagnosis_acts.py"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    made = Pair(tmp_path)
    try:
        yield made
    finally:
        for program in made.programs:
            program.send_signal(signal.SIGTERM)
        for program in made.programs:
            program.wait(DEADLINE_S)


def told(pair: Pair, node: int) -> dict[str, Any] | None:
    """The first cause that a host tells of."""
    file = pair.folder(node) / "diagnosis.json"
    causes = json.loads(file.read_text())["causes"] if file.exists() else []
    return causes[0] if causes else None


def await_cause(pair: Pair, node: int) -> dict[str, Any]:
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if (cause := told(pair, node)) is not None:
            return cause
        time.sleep(0.05)
    raise AssertionError(pair.printed(0) + pair.printed(1))


def await_steps(pair: Pair, count: int) -> None:
    log = pair.folder(0) / "logs" / "0.0.out"
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        if log.exists() and log.read_text().count("step") >= count:
            return
        time.sleep(0.05)
    raise AssertionError(pair.printed(0) + pair.printed(1))


def test_a_stopped_rank_is_named_by_both_hosts(pair: Pair) -> None:
    pair.start("none", program=PROGRAM)
    await_steps(pair, 40)
    pid = stop_rank(pair, 1)
    began_s = time.monotonic()

    for node in (0, 1):
        cause = await_cause(pair, node)
        print(node, time.monotonic() - began_s, cause)
        assert (cause["cause"], cause["rank"]) == ("rank-stopped", 1)
    os.kill(pid, signal.SIGCONT)

    for node in (0, 1):
        over = await_line(pair, node, "over", "rank-stopped")
        print(node, over)
        assert (over["rank"], over["hosts"]) == (1, ["beta"])


def await_line(pair: Pair, node: int, event: str, cause: str) -> dict[str, Any]:
    """The first line of a host's journal with this event of a cause."""
    until_s = time.monotonic() + DEADLINE_S
    while time.monotonic() < until_s:
        for line in read(pair.folder(node) / "diagnosis.jsonl"):
            if (line["event"], line.get("cause")) == (event, cause):
                return line
        time.sleep(0.05)
    raise AssertionError(pair.printed(0) + pair.printed(1))


def stop_rank(pair: Pair, rank: int) -> int:
    """Stop a rank of beta as Ctrl-Z would; returns its process."""
    record = read_shared_json(pair.folder(1) / "errors" / f"0.{rank}.record")
    assert record is not None
    os.kill(record["pid"], signal.SIGSTOP)
    return int(record["pid"])


def stacks(pair: Pair, node: int, patch: pytest.MonkeyPatch) -> list[RankStacks]:
    """What an agent of this host would tell."""
    patch.setattr(agent_stacks, "find_job", lambda _: JobFolder(pair.folder(node)))
    told = agent_stacks.answer_job_stacks(FakeCall(run="r"))
    return list(read_stacks(json.loads(json.dumps(told))))


def test_where_a_rank_stands_is_told_while_it_runs_and_while_it_is_stopped(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.start("lock", program=PROGRAM)
    await_steps(pair, 20)
    await_cause(pair, 0)
    running = stacks(pair, 1, monkeypatch)
    pid = stop_rank(pair, 2)
    time.sleep(STALE_S)
    stopped = stacks(pair, 1, monkeypatch)
    os.kill(pid, signal.SIGCONT)

    ours = [
        [frame for frame in rank.threads[0].frames if frame[0].endswith("diagnosis_acts.py")]
        for rank in (*running, *stopped)
    ]
    lines = PROGRAM.read_text().splitlines()
    assert [rank.rank for rank in running] == [1, 2]
    # Threads beside the main one are told by ranks that can be asked.
    assert all({thread.name for thread in rank.threads} >= {"MainThread"} for rank in running)
    assert [lines[frames[0][1] - 1].strip() for frames in ours] == [
        "dist.all_reduce(torch.ones(100_000))",
        "lock.acquire()",
    ] * 2
    assert [rank.frozen for rank in running] == [False, False]
    assert [(rank.frozen, rank.state) for rank in stopped] == [(False, "S"), (True, "T")]


def test_a_run_that_is_held_up_ends_with_the_cause(pair: Pair) -> None:
    pair.start("none", program=PROGRAM, ends_held_up=True)
    await_steps(pair, 40)
    stop_rank(pair, 1)
    began_s = time.monotonic()

    for node in (0, 1):
        failure = pair.exit(node).failure
        print(node, time.monotonic() - began_s, failure)
        assert failure is not None
        assert (failure.cause, failure.rank, failure.host) == ("rank-stopped", 1, "beta")
    for node in (0, 1):
        # The rank never went on, so its stop is not over.
        told = [line["event"] for line in read(pair.folder(node) / "diagnosis.jsonl")]
        assert "over" not in told[told.index("cause") :], told


@pytest.mark.slow
def test_a_run_ends_with_the_cause_though_a_host_is_asleep(pair: Pair) -> None:
    pair.start("none", program=PROGRAM, ends_held_up=True)
    await_steps(pair, 40)
    # The launcher first: it would tell of its rank.
    pair.programs[1].send_signal(signal.SIGSTOP)
    stop_rank(pair, 1)
    began_s = time.monotonic()
    try:
        failure = pair.exit(0).failure
    finally:
        pair.programs[1].send_signal(signal.SIGCONT)
    print(time.monotonic() - began_s, failure)
    assert failure is not None
    assert (failure.cause, failure.host) == ("host-asleep", "beta")


@pytest.mark.parametrize(
    ("act", "code"),
    [("lock", "rank-stands"), ("lingers", "rank-ended-early")],
)
def test_a_rank_that_does_not_come_is_named_by_both_hosts(pair: Pair, act: str, code: str) -> None:
    pair.start(act, program=PROGRAM)
    await_steps(pair, 20)
    began_s = time.monotonic()

    for node in (0, 1):
        cause = await_cause(pair, node)
        print(node, time.monotonic() - began_s, cause)
        assert (cause["cause"], cause["rank"]) == (code, 2)


def test_a_rank_that_ends_well_while_others_go_on_is_the_cause_of_their_complaints(
    pair: Pair,
) -> None:
    pair.start("ends", program=PROGRAM)

    for node in (0, 1):
        failure = pair.exit(node).failure
        assert failure is not None
        assert (failure.cause, failure.rank) == ("rank-ended-early", 2)


@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("shapes", "collective-mismatch"),
        ("skips", "collective-mismatch"),
        ("raises", "exception"),
    ],
)
def test_the_rank_that_did_otherwise_is_named_with_its_line(
    pair: Pair, act: str, cause: str
) -> None:
    pair.start(act, program=PROGRAM)

    for node in (0, 1):
        failure = pair.exit(node).failure
        print(node, failure)
        assert failure is not None
        assert (failure.cause, failure.rank, failure.host) == (cause, 2, "beta")
        assert failure.at is not None
        assert "diagnosis_acts.py:" in failure.at


def test_a_rank_that_left_a_call_out_is_named_although_it_computes_as_the_others_fail(
    pair: Pair,
) -> None:
    pair.start("skips and computes", program=PROGRAM)

    for node in (0, 1):
        failure = pair.exit(node).failure
        print(node, failure)
        assert failure is not None
        assert (failure.cause, failure.rank, failure.host) == ("collective-mismatch", 2, "beta")
        assert "all_reduce of [100000]" in failure.what


@pytest.mark.parametrize("nodes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_of_ranks_that_torchrun_started_the_stopped_one_is_told(tmp_path: Path, nodes: int) -> None:
    log = tmp_path / "log"
    meeting = ["--standalone", "--nproc-per-node=2"]
    if nodes == 2:
        # As Slurm's script starts them, each node by itself.
        with socket.create_server(("127.0.0.1", 0)) as opened:
            port = opened.getsockname()[1]
        meeting = ["--nnodes=2", "--master-addr=127.0.0.1", f"--master-port={port}"]
    with log.open("ab") as out:
        launchers = [
            subprocess.Popen(
                [
                    *(sys.executable, "-m", "torch.distributed.run", *meeting),
                    *(f"--node-rank={node}", str(PROGRAM), "none"),
                ],
                env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
            for node in range(nodes)
        ]
    try:
        until_s = time.monotonic() + DEADLINE_S
        while log.read_text().count("step") < 20:
            assert time.monotonic() < until_s, log.read_text()
            time.sleep(0.05)
        goes_on = look_outside(launchers[-1].pid)
        stopped = next(one for one in goes_on.ranks if one.rank == 1)
        os.kill(stopped.vitals.pid, signal.SIGSTOP)
        seen = look_outside(launchers[-1].pid)
    finally:
        # Their ranks are of sessions of their own, and one is stopped.
        for launcher in launchers:
            for one in (*psutil.Process(launcher.pid).children(recursive=True), launcher):
                one.kill()
            launcher.wait()

    print(*evidence(seen), sep="\n")
    assert causes_outside(goes_on) == []
    assert sum(bool(one.peers) for one in seen.ranks) == 2
    (cause,) = causes_outside(seen)
    process = process_of(cause, seen)
    assert process is not None
    assert (cause.code, process.rank, process.world_size) == ("rank-stopped", 1, 2)
