"""What listens on a host while each command works there: nothing of yoked's on all addresses."""

from __future__ import annotations

import ipaddress
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tests.lab.commands import run

from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab

pytest.importorskip("torch")

LIMIT_S = 240
# Given as text: a checkout under /tmp is not there on a host of the lab.
LISTENERS = (Path(__file__).parent / "strangers" / "listeners.py").read_text()
SSH = 22
PROGRAM = """
import torch.distributed as dist
dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
"""
SHAPE = (
    *("--depth=1", "--max-seq-len=64", "--vocab-size=512", "--total-batch-size=256"),
    *("--eval-every=-1", "--dtype=float32"),
)
TRAIN = ("train", *SHAPE, "--num-iterations=4", "--run=ports", "--keep=all")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as lab:
        yield lab


@contextmanager
def watched(lab: Lab, name: str) -> Iterator[list[tuple[str, int]]]:
    """(address, port) of all that listened on a host; complete after the block."""
    seen: list[tuple[str, int]] = []
    watcher = lab.host(name).popen([sys.executable, "-c", LISTENERS], stdin=subprocess.PIPE)
    assert watcher.stdout is not None
    try:
        assert watcher.stdout.readline() == "ready\n"
        yield seen
        out, err = watcher.communicate(timeout=10)
        assert not err
        seen += [(address, int(port)) for address, port in map(str.split, out.splitlines())]
    finally:
        watcher.kill()
        watcher.communicate()


@pytest.mark.parametrize(
    "words",
    [
        TRAIN,
        ("run", "--run=ports-run", "--", "program.py"),
        ("doctor",),
        pytest.param(("probe",), marks=pytest.mark.slow),
        pytest.param(("bench", *SHAPE, "--steps=2", "--processes=2"), marks=pytest.mark.slow),
    ],
    ids=lambda words: words[0],
)
def test_nothing_listens_on_all_addresses(lab: Lab, tmp_path: Path, words: tuple[str, ...]) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    command, rest = words[0], words[1:]
    with watched(lab, "alpha") as on_alpha, watched(lab, "beta") as on_beta:
        fleet = ("--fleet", str(lab.fleet_file))
        done = run(tmp_path, command, *fleet, *rest, limit_s=LIMIT_S)

    assert done.returncode == 0, done.stdout + done.stderr
    ours = [each for each in (*on_alpha, *on_beta) if each[1] != SSH]
    assert ours
    assert [each for each in ours if ipaddress.ip_address(each[0]).is_unspecified] == []
    chosen = {lab.topology.host(name).address for name in ("alpha", "beta")}
    strange = {address for address, _ in ours} - chosen
    if command != "doctor":
        assert all(ipaddress.ip_address(address).is_loopback for address in strange)
