"""`yoked bench` over two hosts, as a person types it: its table, and what stays when it is over."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.commands import finish, start
from tests.schemas import conforms

from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LIMIT_S = 600
STATE = Path.home() / ".local" / "state" / "yoked"
SMALL = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512"),
    *("--dtype=float32", "--matmul=mkl", "--data=text", "--processes=2"),
    "--sync=exact",
)
BATCH = "--total-batch-size=256"


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "text").mkdir()
    documents = [f"host {n} and host {n * n} pull the same cart" for n in range(900)]
    lines = "".join(json.dumps({"text": document}) + "\n" for document in documents)
    (tmp_path / "text" / "carts.jsonl").write_text(lines)
    return tmp_path


def bench(lab: Lab, folder: Path, *words: str) -> subprocess.Popen[str]:
    return start(folder, "bench", "--fleet", str(lab.fleet_file), *SMALL, *words)


def ranks(lab: Lab) -> list[str]:
    """Command lines of ranks, on all hosts."""
    return [
        " ".join(process.command)
        for host in lab.topology.hosts
        for process in lab.host(host.name).processes()
        if "bootstrap.rank" in " ".join(process.command)
    ]


def left_behind(lab: Lab) -> list[str]:
    """Jobs and runs in the hosts' own folders."""
    found = []
    for host in lab.topology.hosts:
        script = f"ls -A {STATE}/jobs {STATE}/runs 2>/dev/null"
        said = lab.host(host.name).run(["sh", "-c", script], check=False).stdout
        found += [line for line in said.splitlines() if line.startswith("bench-")]
    return found


def test_the_table_has_each_host_alone_several_processes_and_all_hosts(
    lab: Lab, folder: Path
) -> None:
    process = bench(lab, folder, BATCH, "--steps=8", "--compare=int8", "--json", "--plot=bench.png")

    done = finish(process, LIMIT_S)

    assert done.returncode == 0, done.stderr
    told = conforms("bench", json.loads(done.stdout))
    rows = {row["name"]: row for row in told["rows"]}
    assert list(rows) == [
        "1 process on alpha",
        "1 process on beta",
        "2 processes on alpha",
        "2 hosts, 2 ranks, exact",
        "2 hosts, 2 ranks, int8",
    ]
    assert all(row["tokens_per_second"] > 0 for row in rows.values())
    both = rows["2 hosts, 2 ranks, exact"]
    assert (both["hosts"], both["ranks"]) == (["alpha", "beta"], 2)
    assert both["allreduce_s"] > 0
    assert both["exposed_comm_s"] >= 0
    assert both["bytes_sent_per_step"] > 0
    fewer = rows["2 hosts, 2 ranks, int8"]
    assert fewer["bytes_sent_per_step"] < both["bytes_sent_per_step"] / 2
    best = max(both["tokens_per_second"], fewer["tokens_per_second"])
    assert told["efficiency"] == pytest.approx(best / sum(told["alone"].values()))
    # The same rows in the same steps: what one process learns is what two hosts learn.
    assert both["loss"] == pytest.approx(rows["2 processes on alpha"]["loss"], rel=1e-4)
    assert (folder / "bench.png").is_file()
    assert left_behind(lab) == []
    assert ranks(lab) == []


@pytest.mark.parametrize(
    "ends", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.slow)]
)
def test_what_ends_it_ends_what_runs_and_leaves_nothing(
    lab: Lab, folder: Path, ends: signal.Signals
) -> None:
    process = bench(lab, folder, BATCH, "--steps=100000")
    until_s = time.monotonic() + LIMIT_S
    while len(ranks(lab)) < 2:
        assert process.poll() is None, process.communicate()[1]
        assert time.monotonic() < until_s, "no rank came up"
        time.sleep(0.2)

    process.send_signal(ends)
    assert finish(process, LIMIT_S).returncode == 130
    assert ranks(lab) == []
    assert left_behind(lab) == []


def test_a_run_that_fails_is_named_and_the_others_end(lab: Lab, folder: Path) -> None:
    # More rows in a step than the data has: every rank refuses.
    process = bench(lab, folder, "--steps=4", "--total-batch-size=64000000")

    done = finish(process, LIMIT_S)

    assert done.returncode == 1, done.stderr
    # Whichever of the two is seen first.
    assert re.search(r"1 process on (alpha|beta): run bench-\S+ failed", done.stderr), done.stderr
    assert "--total-batch-size" in done.stderr
    assert ranks(lab) == []
    assert left_behind(lab) == []
