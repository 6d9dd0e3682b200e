"""Whole runs in which some ranks, or all, are on the simulated device: losses are the CPU's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import lab, shared_cache, text_folder
from tests.gpu import simulated

__all__ = ["lab", "shared_cache", "text_folder"]
pytestmark = [
    pytest.mark.distributed,
    pytest.mark.skipif(bool(simulated.unusable()), reason=str(simulated.unusable())),
]
PROGRAM = str(Path(__file__).with_name("rank_on_device.py"))
# A device may add in another order.
REL, REL_LOSSY = 2e-5, 1e-3


def losses(
    lab: Any, run: str, on: str, *flags: str, ranks: int = 2, batch: int = 3, **variables: str
) -> Any:
    """Of a run of ranks under torchrun; on: those on the device; batch: rows of a micro-batch.

    Weights are compared after each step.
    """
    started = lab.start(
        [
            *("-m", "torch.distributed.run", "--standalone", f"--nproc_per_node={ranks}"),
            *(PROGRAM, "--", f"--runs-dir={lab.runs}", f"--run={run}"),
            *lab.flags(compile="off", eval_every=-1, device_batch_size=batch),
            *flags,
        ],
        {"GLOO_SOCKET_IFNAME": "lo", "ON": on, "PYTHONWARNINGS": "ignore", **variables},
    )
    ended = started.end()
    assert ended.status == 0, ended.stderr
    return lab.curve(run).losses


def test_one_rank_of_two_may_be_on_a_device(lab: Any) -> None:
    by_cpu = losses(lab, "cpu", "", "--shares=1:1")

    assert losses(lab, "mixed", "0", "--shares=3:1") == pytest.approx(by_cpu, rel=REL)


@pytest.mark.slow
@pytest.mark.parametrize("on", ["0", "1"])
@pytest.mark.parametrize(
    "flags",
    [
        ["--shares=1:1"],
        ["--shares=50:1"],
        ["--shares=3:1", "--sync=int8"],
        ["--balance=on"],
    ],
    ids=["1:1", "50:1", "int8", "live"],
)
def test_shares_and_compression_change_nothing_beside_a_device(
    lab: Any, on: str, flags: list[str]
) -> None:
    by_cpu = losses(lab, "cpu", "", "--shares=1:1")

    rel = REL_LOSSY if "--sync=int8" in flags else REL
    assert losses(lab, "mixed", on, *flags) == pytest.approx(by_cpu, rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shares"), [(2, "1:1"), (3, "3:2:1"), (3, "100:100:1")])
def test_ranks_with_devices_alone_meet_by_collectives(lab: Any, ranks: int, shares: str) -> None:
    by_cpu = losses(lab, "cpu", "", "--shares=1:1")

    on = ",".join(map(str, range(ranks)))
    found = losses(lab, "devices", on, f"--shares={shares}", ranks=ranks, NCCL="1")
    assert found == pytest.approx(by_cpu, rel=REL)


@pytest.mark.slow
def test_a_checkpoint_knows_no_device(lab: Any) -> None:
    by_cpu = losses(lab, "moved", "", ranks=1)

    by_devices = losses(lab, "moved", "0,1", "--resume-from-step=4", "--shares=1:1", NCCL="1")
    again_by_cpu = losses(lab, "moved", "", "--resume-from-step=8", ranks=1)

    assert by_devices == pytest.approx(by_cpu, rel=REL)
    assert again_by_cpu == pytest.approx(by_cpu, rel=REL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("on", "sync", "more"),
    [
        ("0", "exact", {}),
        ("0", "int8", {}),
        ("0,1", "exact", {}),
        ("0,1", "int8", {}),
        ("0,1", "exact", {"NCCL": "1"}),
    ],
    ids=["exact beside a CPU", "int8 beside a CPU", "exact", "int8", "nccl"],
)
def test_tables_may_be_in_host_memory(lab: Any, on: str, sync: str, more: dict[str, str]) -> None:
    # A rank's rows are one micro-batch: its sums have the bits of tables on the device.
    flags = ["--shares=1:1", f"--sync={sync}"]
    on_device = losses(lab, "device", on, *flags, batch=4, **more)

    assert losses(lab, "host", on, *flags, "--tables=host", batch=4, **more) == on_device


@pytest.mark.slow
def test_a_run_goes_on_with_its_tables_elsewhere(lab: Any) -> None:
    by_cpu = losses(lab, "stays", "", ranks=1)

    on_host = losses(lab, "moves", "0", "--tables=host", ranks=1)
    on_device = losses(lab, "moves", "0", "--tables=device", "--resume-from-step=4", ranks=1)
    again_on_host = losses(lab, "moves", "0", "--tables=host", "--resume-from-step=8", ranks=1)

    assert on_host == pytest.approx(by_cpu, rel=REL)
    assert on_device == pytest.approx(by_cpu, rel=REL)
    assert again_on_host == pytest.approx(by_cpu, rel=REL)
