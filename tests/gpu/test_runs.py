"""Whole runs in which some ranks, or all, are on a device: losses are the CPU's."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.distributed.conftest import lab, shared_cache, text_folder
from tests.gpu.conftest import unusable

from yoked import journal

__all__ = ["lab", "shared_cache", "text_folder"]
pytestmark = pytest.mark.distributed
PROGRAM = str(Path(__file__).with_name("rank_on_device.py"))
# A device may add in another order.
REL, REL_LOSSY = 2e-5, 1e-3


@pytest.fixture(params=["sim", "cuda"])
def kind(request: pytest.FixtureRequest) -> str:
    """What the ranks on a device are on. Not Metal: ranks of other kinds must get AdamW's bits."""
    if reason := unusable(request.param):
        pytest.skip(reason)
    return request.param


def losses(
    lab: Any,
    run: str,
    kind: str,
    on: str,
    *flags: str,
    ranks: int = 2,
    batch: int = 3,
    **variables: str,
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
        {
            "GLOO_SOCKET_IFNAME": "lo",
            "ON": on,
            "DEVICE": kind,
            "PYTHONWARNINGS": "ignore",
            **variables,
        },
    )
    ended = started.end()
    assert ended.status == 0, ended.stderr
    return lab.curve(run).losses


def require_devices(kind: str, ranks: int) -> None:
    if kind == "cuda" and torch.cuda.device_count() < ranks:
        pytest.skip(f"ranks on GPUs alone meet by NCCL: one GPU for each of {ranks}")


def test_one_rank_of_two_may_be_on_a_device(lab: Any, kind: str) -> None:
    by_cpu = losses(lab, "cpu", kind, "", "--shares=1:1")

    assert losses(lab, "mixed", kind, "0", "--shares=3:1") == pytest.approx(by_cpu, rel=REL)


@pytest.mark.slow
def test_a_rank_waits_for_a_slow_device_and_not_for_bytes(lab: Any) -> None:
    if reason := unusable("sim"):
        pytest.skip(reason)
    losses(lab, "late", "sim", "0", "--shares=50:1", LAG_S="0.0004")

    lines = journal.read(lab.runs / "late" / "metrics.jsonl")
    _, *steps = [line for line in lines if "dt_s" in line]
    comm_s, wait_s, dt_s = (
        statistics.median(figures)
        for figures in zip(
            *((line["comm_s"][1], line["wait_s"][1], line["dt_s"]) for line in steps), strict=True
        )
    )
    # A sent message counts as on its way only once the device has what is in it.
    assert comm_s < 0.1 * dt_s
    assert wait_s > 0.4 * dt_s


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
    lab: Any, kind: str, on: str, flags: list[str]
) -> None:
    by_cpu = losses(lab, "cpu", kind, "", "--shares=1:1")

    rel = REL_LOSSY if "--sync=int8" in flags else REL
    assert losses(lab, "mixed", kind, on, *flags) == pytest.approx(by_cpu, rel=rel)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "sync"), [(2, "int8"), (3, "int4")])
def test_a_device_that_encodes_what_it_sends_changes_nothing(
    lab: Any, kind: str, ranks: int, sync: str
) -> None:
    by_cpu = losses(lab, "cpu", kind, "", f"--sync={sync}", ranks=ranks)

    found = losses(lab, "mixed", kind, "0", f"--sync={sync}", ranks=ranks, ENCODES="1")
    assert found == pytest.approx(by_cpu, rel=REL_LOSSY)


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("sync", ["late-head", "late"])
def test_late_gradients_are_the_same_beside_a_device(
    lab: Any, kind: str, ranks: int, sync: str
) -> None:
    flags = [f"--sync={sync}", "--warmup-steps=1"]
    by_cpu = losses(lab, "cpu", kind, "", *flags, ranks=ranks)
    on_time = losses(lab, "on-time", kind, "", "--sync=exact", "--warmup-steps=1", ranks=ranks)

    found = losses(lab, "mixed", kind, "0", *flags, ranks=ranks)
    assert found == pytest.approx(by_cpu, rel=REL)
    assert found != pytest.approx(on_time, rel=REL)


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "shares"), [(2, "1:1"), (3, "3:2:1"), (3, "100:100:1")])
def test_ranks_with_devices_alone_meet_by_collectives(
    lab: Any, kind: str, ranks: int, shares: str
) -> None:
    require_devices(kind, ranks)
    by_cpu = losses(lab, "cpu", kind, "", "--shares=1:1")

    on = ",".join(map(str, range(ranks)))
    found = losses(lab, "devices", kind, on, f"--shares={shares}", ranks=ranks, NCCL="1")
    assert found == pytest.approx(by_cpu, rel=REL)


@pytest.mark.slow
def test_a_checkpoint_knows_no_device(lab: Any, kind: str) -> None:
    ranks = 2 if kind == "sim" or torch.cuda.device_count() > 1 else 1
    by_cpu = losses(lab, "moved", kind, "", ranks=1)

    flags = ["--resume-from-step=4", *(["--shares=1:1"] if ranks == 2 else [])]
    on = ",".join(map(str, range(ranks)))
    by_devices = losses(lab, "moved", kind, on, *flags, ranks=ranks, NCCL="1")
    again_by_cpu = losses(lab, "moved", kind, "", "--resume-from-step=8", ranks=1)

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
def test_tables_may_be_in_host_memory(
    lab: Any, kind: str, on: str, sync: str, more: dict[str, str]
) -> None:
    require_devices(kind, len(on.split(",")))
    # A rank's rows are one micro-batch: its sums have the bits of tables on the device.
    flags = ["--shares=1:1", f"--sync={sync}"]
    on_device = losses(lab, "device", kind, on, *flags, batch=4, **more)
    # But for a GPU, which adds in any order.
    expected = on_device if kind == "sim" else pytest.approx(on_device, rel=REL)

    assert losses(lab, "host", kind, on, *flags, "--tables=host", batch=4, **more) == expected


@pytest.mark.slow
def test_a_run_goes_on_with_its_tables_elsewhere(lab: Any, kind: str) -> None:
    def on_device(*flags: str) -> Any:
        return losses(lab, "moves", kind, "0", *flags, ranks=1)

    by_cpu = losses(lab, "stays", kind, "", ranks=1)

    expected = pytest.approx(by_cpu, rel=REL)
    assert on_device("--tables=host") == expected
    assert on_device("--tables=device", "--resume-from-step=4") == expected
    assert on_device("--tables=host", "--resume-from-step=8") == expected
