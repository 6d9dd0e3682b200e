"""What befalls a run: Ctrl-C, a rank that fails or dies, numbers that explode, a full disk."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import DataError
from yoked.launch.here import RankCrash
from yoked.train.__main__ import parse
from yoked.train.comm.communicator import COLLECTIVE_TIMEOUT_S

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent
# The ranks' files may grow to so many bytes; a job's own would be too large as well.
WITH_SMALL_FILES = """
import os, resource
if "RANK" in os.environ:
    size = int(os.environ["FILE_BYTES"])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
"""
# As a launch starts a rank, with its streams in a file.
RANK_THAT_PRINTS_TO = (
    "import os, sys; file = os.open(sys.argv.pop(1), os.O_WRONLY | os.O_CREAT | os.O_APPEND); "
    "os.dup2(file, 1); os.dup2(file, 2); "
    "import runpy; runpy.run_module('yoked.train', run_name='__main__', alter_sys=True)"
)
# A checkpoint of the tiny run has a file of 790 kB.
NO_CHECKPOINT_BYTES, HARDLY_ANY_BYTES = 600_000, 5_000


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, 2])
def test_ctrl_c_saves_and_the_resumed_run_is_as_if_it_had_not_been(lab: Any, ranks: int) -> None:
    # Two runs are compared: neither may choose for itself.
    head = "vocab-parallel" if ranks > 1 else "replicated"
    flags = lab.flags(num_iterations=60, save_every=-1, eval_every=30, matmul="mkl", lm_head=head)
    assert lab.train("whole", *flags, ranks=ranks).end().status == 0
    started = lab.train("stopped", *flags, ranks=ranks)
    until_steps(lab, "stopped", 3, started)

    started.process.send_signal(signal.SIGINT)
    stopped = started.end()
    resumed = lab.train("stopped", "--resume", ranks=ranks).end()

    assert stopped.status == 130, stopped.stderr
    assert stopped.json["state"] == "interrupted"
    assert 3 <= stopped.json["steps"] < 60
    assert resumed.status == 0, resumed.stderr
    assert lab.lines("stopped") == lab.lines("whole") + 1, "no step was taken twice"
    steps = stopped.json["steps"]
    assert lab.curve("stopped") == replace(lab.curve("whole"), resumed=[steps])


def until_steps(lab: Any, run: str, steps: int, started: Any) -> None:
    until(lambda: lab.lines(run) >= steps, started)


def until(condition: Callable[[], bool], started: Any) -> None:
    deadline_s = time.monotonic() + 90
    while not condition():
        assert started.process.poll() is None, started.end()
        assert time.monotonic() < deadline_s, "waited in vain"
        time.sleep(0.01)


@pytest.mark.slow
def test_ctrl_c_under_plain_torchrun_saves_and_says_how_to_go_on(lab: Any) -> None:
    flags = [*lab.flags(num_iterations=300, save_every=-1), f"--runs-dir={lab.runs}"]
    started = lab.torchrun(2, "--", *flags, "--run=plain")
    until_steps(lab, "plain", 3, started)

    # A terminal sends it to the whole foreground group.
    os.killpg(started.process.pid, signal.SIGINT)
    stopped = started.end()

    assert stopped.status != 0
    assert stopped.stderr.count("asked to stop: ") == 1
    assert f"-- --resume --run plain --runs-dir {lab.runs}" in stopped.stderr
    assert lab.curve("plain").steps == list(range(len(lab.curve("plain").steps)))
    saved = [int(file.stem[-6:]) for file in lab.checkpoints("plain").glob("model_*.pt")]
    assert saved == [len(lab.curve("plain").steps)]
    resumed = lab.torchrun(2, "--", "--resume", "--run=plain", f"--runs-dir={lab.runs}")
    until_steps(lab, "plain", saved[0] + 4, resumed)


@pytest.mark.slow
def test_a_second_ctrl_c_ends_at_once_and_leaves_what_was_saved(lab: Any) -> None:
    flags = lab.flags(num_iterations=2000, save_every=2, eval_every=-1)
    started = lab.train("hurried", *flags)
    until_steps(lab, "hurried", 6, started)

    started.process.send_signal(signal.SIGINT)
    started.process.send_signal(signal.SIGINT)
    stopped = started.end()
    resumed = lab.train("hurried", "--resume", "--num-iterations=40").end()

    assert stopped.status == 130
    assert resumed.status in (0, 2), resumed.stderr
    assert "Traceback" not in resumed.stderr


# Rank 1's death is told the same way by ranks that only pretend, in test_local_launch.
@pytest.mark.parametrize("victim", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_rank_that_is_killed_is_named_and_its_peer_says_whom_it_lost(
    lab: Any, victim: int
) -> None:
    started = lab.train("bereft", *lab.flags(num_iterations=5000), ranks=2)
    until_steps(lab, "bereft", 2, started)

    started.ranks()[victim].send_signal(signal.SIGKILL)
    ended = started.end()

    assert ended.status == 1
    assert f"rank {victim} " in ended.json["error"]["what"]
    assert "SIGKILL" in ended.json["error"]["what"]
    assert any("resume" in line for line in ended.json["error"]["fix"])


@pytest.mark.slow
def test_under_plain_torchrun_the_peer_of_a_dead_rank_says_what_it_lost(lab: Any) -> None:
    flags = [*lab.flags(num_iterations=5000), "--run=plain", f"--runs-dir={lab.runs}"]
    started = lab.torchrun(2, "--", *flags)
    until_steps(lab, "plain", 2, started)

    started.ranks()[1].send_signal(signal.SIGKILL)
    ended = started.end()

    assert ended.status == 1
    assert "rank 0: " in ended.stderr
    assert "--resume" in ended.stderr


def bent(lab: Any, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    environment = {
        **lab.environment({"BEND": way}),
        "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1] / 'src'}",
    }
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    config = parse([*lab.flags(), f"--run={way}", f"--runs-dir={lab.runs}", "--ranks=2"])
    lab.run_module("bent_rank", config)


# These two are in test_local_launch too, with ranks that only pretend and are up sooner.
@pytest.mark.slow
def test_the_first_cause_is_told_and_not_the_peers_complaint(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DataError) as caught:
        bent(lab, monkeypatch, "fail")

    assert caught.value.what.startswith("rank 1: row 17 ")


def test_a_failure_is_told_though_a_peer_stands_still_in_a_collective(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    began_s = time.monotonic()
    with pytest.raises(DataError) as caught:
        bent(lab, monkeypatch, "stop")

    assert caught.value.what.startswith("row 17 ")
    assert time.monotonic() - began_s < COLLECTIVE_TIMEOUT_S / 2


@pytest.mark.slow
def test_a_bug_in_one_rank_ends_the_run_with_its_traceback(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(RankCrash) as caught:
        bent(lab, monkeypatch, "break")
    assert "rank 1 " in str(caught.value)
    assert "one by none" in str(caught.value)


@pytest.mark.parametrize(
    ("ranks", "rate", "save_every"),
    [
        (1, 1e38, -1),
        pytest.param(2, 1e38, -1, marks=pytest.mark.slow),
        pytest.param(1, 1e300, 1, marks=pytest.mark.slow),
        pytest.param(2, 1e300, 1, marks=pytest.mark.slow),
    ],
    ids=["loss", "loss of two ranks", "weights", "weights of two ranks"],
)
def test_numbers_that_are_not_finite_end_the_run_and_are_never_saved(
    lab: Any, ranks: int, rate: float, save_every: int
) -> None:
    flags = lab.flags(save_every=save_every, embedding_lr=rate, matrix_lr=rate, warmup_steps=1)

    ended = lab.train("exploded", *flags, ranks=ranks).end()

    assert ended.status == 1
    assert ended.json["error"]["kind"] == "LossNotFiniteError"
    assert "finite" in ended.json["error"]["what"]
    result = lab.runs / "exploded" / "result.json"
    (fault,) = json.loads(result.read_text())["faults"]
    assert fault["cause"] == "loss-not-finite"
    # Nothing was saved, so the run begins anew, with the rates that are given.
    again = lab.train(
        *("exploded", "--resume", "--embedding-lr=0.15", "--matrix-lr=0.01"), ranks=ranks
    ).end()
    assert again.status == 0, again.stderr
    assert json.loads(result.read_text())["state"] == "finished"


def with_small_files(lab: Any, size_bytes: int) -> dict[str, str]:
    """The environment of a run whose ranks can write no larger file."""
    folder = lab.root / "site"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(WITH_SMALL_FILES)
    path = f"{folder}{os.pathsep}{HERE.parents[1] / 'src'}"
    return {"PYTHONPATH": path, "FILE_BYTES": str(size_bytes)}


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_rows_that_were_changed_end_the_run_instead_of_being_learned(
    lab: Any, tmp_path: Path, ranks: int
) -> None:
    own = {"YOKED_CACHE": str(tmp_path / "own")}
    first = lab.train("first", *lab.flags(num_iterations=2), environment=own).end()
    assert first.status == 0, first.stderr
    (rows,) = (tmp_path / "own" / "data").glob("*/train.rows")
    content = bytearray(rows.read_bytes())
    content[-1000:] = bytes(1000)
    rows.write_bytes(content)

    flags = lab.flags(num_iterations=100_000, save_every=-1, eval_every=-1)
    ended = lab.train("second", *flags, ranks=ranks, environment=own).end()

    assert ended.status == 1
    assert ended.json["error"]["kind"] == "DataError"
    assert f"{rows} on " in ended.json["error"]["what"]
    assert "sha256" in ended.json["error"]["what"]
    assert any("yoked data prepare" in line for line in ended.json["error"]["fix"])


def test_a_full_disk_costs_checkpoints_but_not_the_run(lab: Any, done: list[float]) -> None:
    small = with_small_files(lab, NO_CHECKPOINT_BYTES)

    ended = lab.train("done", "--resume", "--num-iterations=18", environment=small).end()

    assert ended.status == 1
    assert ended.stderr.count("NOT SAVED") >= 1
    assert ended.json["error"]["kind"] == "CheckpointError"
    assert "step 18 " in ended.json["error"]["what"]
    assert lab.curve("done").steps == list(range(18)), "training went on"
    assert lab.curve("done").losses[:12] == done
    left = sorted(file.name for file in lab.checkpoints("done").iterdir() if file.suffix == ".pt")
    models = [name for name in left if name.startswith("model")]
    assert models == [f"model_{step:06d}.pt" for step in (4, 8, 12)]
    assert lab.train("done", "--resume", "--num-iterations=14").end().status == 0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of 32 MB of its own; needs root."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", str(disk)]
    if subprocess.run(mount, check=False, capture_output=True).returncode != 0:
        pytest.skip("needs the right to mount a file system")
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True)


def fill(disk: Path) -> Path:
    """Leave no room; returns the file that takes it."""
    filler = disk / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(1 << 16)):
            pass
    return filler


@pytest.mark.parametrize("prints_there", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_disk_that_is_full_for_a_while_costs_no_line(
    lab: Any, small_disk: Path, prints_there: bool
) -> None:
    flags = [*lab.flags(num_iterations=100_000, save_every=-1, eval_every=-1), "--run=night"]
    said = (small_disk if prints_there else lab.root) / "said"
    metrics = small_disk / "runs" / "night" / "metrics.jsonl"
    argv = ["-c", RANK_THAT_PRINTS_TO, str(said), *flags, f"--runs-dir={small_disk / 'runs'}"]
    started = lab.start(argv)
    until(lambda: metrics.exists() and metrics.read_bytes().count(b"\n") > 3, started)

    filler = fill(small_disk)
    # The last page of the file has room for some lines.
    until(lambda: metrics.stat().st_size == size_after(metrics, 0.5), started)
    time.sleep(0.5)
    filler.unlink()
    until(lambda: metrics.stat().st_size != size_after(metrics, 0.1), started)
    started.process.send_signal(signal.SIGINT)
    ended = started.end()

    assert ended.status == 130, said.read_text()
    steps = [json.loads(line)["step"] for line in metrics.read_text().splitlines()]
    assert steps == list(range(len(steps)))
    saved = list((small_disk / "runs/night/checkpoints/base_checkpoints/d2").glob("model_*.pt"))
    assert [int(path.stem[-6:]) for path in saved] == [len(steps)]
    if not prints_there:
        assert said.read_text().count("takes no more lines") == 1


def size_after(path: Path, seconds: float) -> int:
    time.sleep(seconds)
    return path.stat().st_size


@pytest.mark.usefixtures("done")
def test_a_run_that_cannot_begin_on_a_full_disk_says_so(lab: Any) -> None:
    small = with_small_files(lab, HARDLY_ANY_BYTES)

    ended = lab.train("new", *lab.flags(num_iterations=2), environment=small).end()

    assert ended.status == 1, ended.stderr
    assert "File too large" in ended.json["error"]["what"]
    assert "--runs-dir" in ended.json["error"]["fix"][0]
    # What it left is in nobody's way.
    assert lab.train("new", *lab.flags(num_iterations=2)).end().status == 0
