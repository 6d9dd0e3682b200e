"""Ranks of two hosts are traced while a run goes on, though their clocks are seconds apart."""

from __future__ import annotations

import gzip
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.lab.commands import finish, run, start
from tests.schemas import conforms

from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

LIMIT_S = 240
# The second host's clock is 3.7 s ahead. All hosts of a lab have one, so here the rank has it.
STEPS = """
import time
import torch, torch.distributed as dist
dist.init_process_group("gloo")
if dist.get_rank() == 1:
    own = time.monotonic_ns
    time.monotonic_ns = lambda: own() + 3_700_000_000
model = torch.nn.Linear(100, 100)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
step = 0
while True:
    optimizer.zero_grad()
    model(torch.randn(8, 100)).square().mean().backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
    optimizer.step()
    dist.barrier()
    time.sleep(0.02)
    step += 1
    if step % 20 == 0:
        print("step", step, flush=True)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


def yoked(cwd: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return run(cwd, *words, limit_s=LIMIT_S)


def has_stepped(cwd: Path, name: str, *fleet: str) -> None:
    until_s = time.monotonic() + LIMIT_S
    while "step" not in yoked(cwd, "logs", name, "--rank", "0", *fleet).stdout:
        assert time.monotonic() < until_s


def test_ranks_of_two_hosts_lie_on_one_clock_while_their_run_goes_on(
    lab: Lab, tmp_path: Path
) -> None:
    fleet = ["--fleet", str(lab.fleet_file)]
    (tmp_path / "steps.py").write_text(STEPS)
    begun = yoked(tmp_path, "run", "--detach", "--run", "far", *fleet, "--", "steps.py")
    assert begun.returncode == 0, begun.stderr
    has_stepped(tmp_path, "far", *fleet)

    interrupted = start(tmp_path, "trace", "far", "--steps", "1000", *fleet)
    time.sleep(5.0)
    interrupted.send_signal(signal.SIGINT)
    left = finish(interrupted, LIMIT_S)
    traced = yoked(tmp_path, "trace", "far", "--steps", "5", "--json", *fleet)
    state = json.loads(yoked(tmp_path, "runs", "--json", *fleet).stdout)["runs"][0]["state"]
    yoked(tmp_path, "stop", "far", *fleet)

    assert left.returncode == 130, left.stderr
    assert state == "running"
    told = conforms("trace", json.loads(traced.stdout))
    assert [rank["host"] for rank in told["ranks"]] == ["alpha", "beta"]
    assert (told["missing"], told["steps"]) == ([], 5)
    first, second = told["clocks"]["hosts"]
    assert (first["ahead_s"], first["by"], second["by"]) == (0.0, "collectives", "collectives")
    assert second["ahead_s"] == pytest.approx(3.7, abs=0.005)
    assert told["clocks"]["held_out"] >= 20
    assert told["clocks"]["apart_median_s"] < 0.005
    content = json.loads(gzip.decompress((tmp_path / told["file"]).read_bytes()))
    names = [e["args"]["name"] for e in content["traceEvents"] if e["name"] == "process_name"]
    assert names == ["rank 0, alpha", "rank 1, beta"]
