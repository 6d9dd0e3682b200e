"""What a host's daemon writes of its run, by real processes and records that say what is wanted."""

from __future__ import annotations

import gzip
import json
import os
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from tests.unit.launch.bootstrap.jobs import LAUNCH_ID, made_up_job

from yoked.core.proc import has_proc
from yoked.core.shared_json import SharedJson
from yoked.diagnosis.cause import Cause
from yoked.diagnosis.vitals import Vitals
from yoked.journal import read
from yoked.launch.bootstrap import watch as watching
from yoked.launch.bootstrap.job import Job, Node
from yoked.launch.bootstrap.outcome import Failure
from yoked.launch.bootstrap.spawn import LocalRanks
from yoked.launch.bootstrap.watch import PERIOD_S, SEEN_NAME, Watch
from yoked.records.answers import understood

pytestmark = pytest.mark.skipif(not has_proc(), reason="it reads /proc")


def job(folder: Path) -> Job:
    return made_up_job(folder, nodes=(Node("alpha", "192.0.2.1", 1),))


def record(steps: int) -> dict[str, Any]:
    now_s = time.monotonic()
    return {
        "at_s": now_s, "steps": steps, "stepped_s": now_s, "phase": "training",
        "awaits": None, "frames": [["/home/me/train.py", 41, "main"]], "frames_s": now_s,
        "groups": None, "traced": False,
        "ends": [(at * PERIOD_S, at * 0.1) for at in range(max(0, steps - 32), steps)],
    }  # fmt: skip


def test_where_the_time_goes_is_written_for_whoever_asks(tmp_path: Path) -> None:
    of = job(tmp_path)
    file = of.record_file(0, 0)
    file.parent.mkdir(parents=True, exist_ok=True)
    memory = SharedJson(file)
    # This very process is the rank.
    ranks = cast(LocalRanks, SimpleNamespace(processes={0: os.getpid()}, through={}))
    watch = Watch(of, 0)

    for look in range(60):
        memory.write(record(steps=look))
        watch.turn(ranks, look * PERIOD_S)

    written = json.loads((tmp_path / "diagnosis.json").read_text())
    assert written["causes"] == []
    shares = written["shares"]
    assert shares["step_s"] == pytest.approx(PERIOD_S, rel=0.1)
    assert shares["ranks"][0]["computes"] is not None
    assert (shares["gate"], shares["gating"]) == (None, [])
    assert as_understood(written)["shares"] == shares
    trend = watch.memory_of(0)
    assert trend is not None
    assert trend.used_bytes > 1e6


def as_understood(written: dict[str, Any]) -> dict[str, Any]:
    """What passes of it the rules of what an agent may answer: all."""
    odd: list[str] = []
    status = {
        "run": "r", "launch_id": "0123456789ab", "state": "running", "folder": "/f",
        "node_rank": 0, "nodes": [{"host": "alpha", "ranks": 1}], "started_s": 1.0,
        "ended_s": None, "now_s": 2.0, "attempt": 0, "failure": None, "progress": None,
        "diagnosis": written,
    }  # fmt: skip
    found: dict[str, Any] = understood("job_status", status, odd)["diagnosis"]
    assert odd == []
    return found


@pytest.mark.parametrize(
    "strange",
    [
        {"at_s": 10**400},
        {"steps": "many"},
        {"phase": 3},
        {"frames": [["a.py", None, "f"]]},
        {"traced": "no"},
    ],
)
def test_a_record_that_a_program_has_spoilt_is_none(
    tmp_path: Path, strange: dict[str, Any]
) -> None:
    of = replace(job(tmp_path), nodes=(Node("alpha", "192.0.2.1", 2),))
    ranks, watch = Ranks(of), Watch(of, 0)
    ranks.write(0, None)

    well = watch.turn(cast(LocalRanks, ranks), 0.0)
    ranks.write(0, None, **strange)
    spoilt = watch.turn(cast(LocalRanks, ranks), PERIOD_S)

    assert well is not None
    assert well.ranks[0].recorded is not None
    assert spoilt is not None
    assert spoilt.ranks[0].recorded is None


def test_a_host_that_gave_up_judging_is_heard_and_tells_no_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "causes", lambda history: [Cause("host-asleep", (0,), 99.0)])
    ranks = cast(LocalRanks, SimpleNamespace(processes={}, through={}))
    watch = Watch(job(tmp_path), 0)
    first = watch.turn(ranks, 0.0)

    watch.give_up()
    too_soon = watch.turn(ranks, 0.1)
    then = watch.turn(ranks, PERIOD_S)

    assert first is not None
    assert then == Vitals(attempt=0, number=first.number + 1)
    assert (too_soon, watch.failure) == (None, None)
    assert json.loads((tmp_path / "diagnosis.json").read_text())["causes"] == []


IN_A_LOCK = {
    "what": "gloo:all_reduce",
    "waiting": 1,
    "waits_in": "futex_wait_queue",
    "file": "a.py",
    "line": 1,
    "function": "f",
}


def told_with(folder: Path, causes: list[Cause], patch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What a host tells whose rules find these causes."""
    patch.setattr(watching, "causes", lambda history: causes)
    patch.setenv("GLOO_SOCKET_IFNAME", "enp4s0")
    Watch(job(folder), 0).turn(cast(LocalRanks, SimpleNamespace(processes={}, through={})), 0.0)
    return as_understood(json.loads((folder / "diagnosis.json").read_text()))


def test_with_a_cause_the_network_is_told_that_nccl_says_in_a_ranks_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asleep = Cause("host-asleep", (0,), 2.0, "likely")
    silent = told_with(tmp_path, [asleep], monkeypatch)
    log = job(tmp_path).log_file(0, 0, "out")
    log.parent.mkdir()
    log.write_text("epoch 1\na:1:1 [0] NCCL INFO Bootstrap : Using docker0:192.0.2.9<0>\nstep 1\n")

    held_up = told_with(tmp_path, [asleep], monkeypatch)
    goes_on = told_with(tmp_path, [], monkeypatch)

    assert held_up["nccl"] == {
        "what": "NCCL uses docker0 (192.0.2.9), and not enp4s0 as planned: NCCL_SOCKET_IFNAME, or "
        "/etc/nccl.conf",
        "as_planned": False,
    }
    assert silent["nccl"] is goes_on["nccl"] is None


def test_the_network_of_nccl_is_told_though_an_earlier_cause_came_before_its_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [Cause("host-asleep", (0,), 2.0, "likely")]
    monkeypatch.setattr(watching, "causes", lambda history: list(told))
    ranks = cast(LocalRanks, SimpleNamespace(processes={}, through={}))
    watch = Watch(job(tmp_path), 0)
    watch.turn(ranks, 0.0)
    log = job(tmp_path).log_file(0, 0, "out")
    log.parent.mkdir()
    log.write_text("a:1:1 [0] NCCL INFO Bootstrap : Using docker0:192.0.2.9<0>\n")

    told[0] = Cause("rank-stands", (0,), 2.0, "likely", rank=0, params=IN_A_LOCK)
    watch.turn(ranks, PERIOD_S)

    assert json.loads((tmp_path / "diagnosis.json").read_text())["nccl"] is not None


def test_what_was_seen_is_kept_after_the_look_that_frees_a_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [Cause("host-asleep", (0,), 2.0, "likely")]
    monkeypatch.setattr(watching, "causes", lambda history: list(told))
    ranks = cast(LocalRanks, SimpleNamespace(processes={}, through={}))
    watch, seen = Watch(job(tmp_path), 0), tmp_path / SEEN_NAME

    watch.turn(ranks, 0.0)
    at_once = seen.exists()
    watch.turn(ranks, PERIOD_S)
    later = len(looks(seen))
    told[0] = replace(told[0], certainty="sure")
    watch.turn(ranks, 2 * PERIOD_S)
    watch.end(finished=False)

    assert not at_once
    assert later == 1
    assert len(looks(seen)) == 3


NOBODY = cast(LocalRanks, SimpleNamespace(processes={}, through={}))
ASLEEP = Cause("host-asleep", (0,), 2.0, "likely")


def lines_of(folder: Path) -> list[tuple[int, str]]:
    """Attempt and event of each line of the journal."""
    return [(line["attempt"], line["event"]) for line in read(folder / "diagnosis.jsonl")]


def test_what_is_said_is_written_over_time_attempt_by_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = [ASLEEP]
    monkeypatch.setattr(watching, "causes", lambda history: list(told))
    first, second = Watch(job(tmp_path), 0), Watch(job(tmp_path), 1)

    for look in range(3):
        first.turn(NOBODY, look * PERIOD_S)
    told.clear()
    first.turn(NOBODY, 3 * PERIOD_S)
    failure = Failure("beta", 1, "killed by SIGKILL", 7.0, rank=1, cause="rank-killed")
    first.end(finished=False, failure=failure)
    second.turn(NOBODY, 4 * PERIOD_S)
    second.end(finished=True)

    assert lines_of(tmp_path) == [
        (0, "begin"), (0, "cause"), (0, "over"), (0, "end"), (1, "begin"), (1, "end"),
    ]  # fmt: skip
    begin, cause, over, end, _, last = read(tmp_path / "diagnosis.jsonl")
    assert (begin["launch_id"], begin["host"]) == (LAUNCH_ID, "alpha")
    assert (cause["hosts"], cause["certainty"]) == (["alpha"], "likely")
    # Two seconds when it was told first, and three looks.
    assert (over["lasted_s"], end["finished"]) == (3.5, False)
    assert end["failure"] == {
        "cause": "rank-killed", "hosts": ["beta"], "rank": 1, "what": "killed by SIGKILL",
    }  # fmt: skip
    assert (last["finished"], last["failure"]) == (True, None)


def test_lines_wait_while_the_disk_takes_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "causes", lambda history: [ASLEEP])
    in_the_way, watch = tmp_path / "diagnosis.jsonl", Watch(job(tmp_path), 0)
    in_the_way.mkdir()

    watch.turn(NOBODY, 0.0)
    in_the_way.rmdir()
    watch.end(finished=True)

    assert lines_of(tmp_path) == [(0, "begin"), (0, "cause"), (0, "end")]


def test_a_diagnosis_that_gave_up_ends_what_it_had_begun(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watching, "causes", lambda history: [ASLEEP])
    watch = Watch(job(tmp_path), 0)
    watch.turn(NOBODY, 0.0)

    watch.give_up()
    watch.end(finished=True)

    assert [event for _, event in lines_of(tmp_path)] == ["begin", "cause", "over", "end"]


def looks(seen: Path) -> list[Any]:
    """What is kept of each look."""
    found: list[Any] = json.loads(gzip.decompress(seen.read_bytes()))["looks"]
    return found


def learning(*sums: int, group: str = "none", floats: int = 0) -> dict[str, Any]:
    """As a rank's recorder writes it. sums: before its first step, after 1, 2, 4 ..."""
    steps = [0, *(2**power for power in range(len(sums) - 1))]
    trained = {"layout": 1, "elements": 100, "largest": 90,
               "sums": list(zip(steps, sums, strict=True))}  # fmt: skip
    return {"optimizers": [trained], "group": group, "floats": floats, "wholes": 0,
            "libraries": ["lightning.pytorch"], "other_ways": False}  # fmt: skip


class Ranks:
    """Two of a host, which write what they are told to. The test's process is both of them."""

    def __init__(self, of: Job) -> None:
        self.processes = {0: os.getpid(), 1: os.getpid()}
        self.through: dict[int, tuple[int, float]] = {}
        of.record_file(0, 0).parent.mkdir(parents=True, exist_ok=True)
        self._memories = [SharedJson(of.record_file(0, rank)) for rank in (0, 1)]

    def write(self, rank: int, learns: dict[str, Any] | None, **more: Any) -> None:
        self._memories[rank].write({**record(1), "learning": learns, **more})

    def end(self, rank: int) -> None:
        """Its process is gone; its file stays."""
        del self.processes[rank]
        self.through[rank] = (0, time.time())


def warnings(folder: Path) -> list[dict[str, Any]]:
    told: list[dict[str, Any]] = as_understood(json.loads((folder / "diagnosis.json").read_text()))[
        "warnings"
    ]
    return told


def test_ranks_that_share_nothing_are_told_from_their_first_step_to_their_end(
    tmp_path: Path,
) -> None:
    of = replace(job(tmp_path), nodes=(Node("alpha", "192.0.2.1", 2),))
    ranks = Ranks(of)
    watch, looked = Watch(of, 0), cast(LocalRanks, ranks)

    ranks.write(0, learning(5, 50))
    ranks.write(1, None)
    watch.turn(looked, 0.0)
    one = warnings(tmp_path)
    ranks.write(1, learning(6, 60))
    watch.turn(looked, PERIOD_S)
    both = warnings(tmp_path)
    # Both end between two looks, after more steps.
    for rank in (0, 1):
        ranks.write(rank, learning(rank, 10 + rank, 20 + rank, 30 + rank))
        ranks.end(rank)
    nothing_new = watch.turn(looked, 1.1 * PERIOD_S)
    watch.turn(looked, 1.2 * PERIOD_S, last=True)
    watch.end(finished=True)

    assert (one, nothing_new) == ([], None)
    (first,), (last,) = both, warnings(tmp_path)
    assert (first["cause"], first["hosts"], first["rank"]) == ("ranks-alone", ["alpha"], None)
    assert "after step 1 each has weights of its own" in first["what"]
    assert first["fix"][0].startswith("Trainer(devices=2, num_nodes=1,")
    assert "after step 4 each" in last["what"]
    assert watch.warning == last["what"]


@pytest.mark.parametrize("finished", [True, False])
def test_of_ranks_that_may_average_later_it_is_said_once_they_have_ended_well(
    tmp_path: Path, finished: bool
) -> None:
    of = replace(job(tmp_path), nodes=(Node("alpha", "192.0.2.1", 2),))
    ranks = Ranks(of)
    watch, looked = Watch(of, 0), cast(LocalRanks, ranks)
    for rank in (0, 1):
        ranks.write(rank, learning(5, 50 + rank, group="program"))

    watch.turn(looked, 0.0)
    before = warnings(tmp_path)
    watch.end(finished=finished)

    assert before == []
    assert bool(warnings(tmp_path)) == bool(watch.warning) == finished


def test_ranks_that_come_to_share_are_not_warned_of_any_more(tmp_path: Path) -> None:
    of = replace(job(tmp_path), nodes=(Node("alpha", "192.0.2.1", 2),))
    ranks = Ranks(of)
    watch, looked = Watch(of, 0), cast(LocalRanks, ranks)
    for turn, floats in enumerate((0, 100)):
        for rank in (0, 1):
            ranks.write(rank, learning(5, 50 + rank, floats=floats))
        watch.turn(looked, turn * PERIOD_S)
        assert bool(warnings(tmp_path)) == (not floats)
