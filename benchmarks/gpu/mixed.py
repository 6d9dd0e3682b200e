"""A run of two ranks on one host, one on the GPU and one on the CPU, met by Gloo on loopback.

Loopback is faster than a home's network: what is seen is what the GPU waits for beside that, the
copies to host memory and the slower rank.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sides import Options

SYNCS = ("exact", "int8")
DEADLINE_S = 300
# The first ones warm up.
FIRST_COUNTED_STEP = 3


def measure(options: Options) -> Iterator[dict[str, Any]]:
    """A result for each way in which gradients travel."""
    for sync in SYNCS:
        if options.late:
            return
        with tempfile.TemporaryDirectory(prefix="yoked-gpu-") as scratch:
            yield {"sync": sync, **_run(options, sync, Path(scratch))}


def _flags(options: Options) -> list[str]:
    if options.tiny:
        return [
            *("--depth=2", "--aspect-ratio=32", "--head-dim=32", "--max-seq-len=64"),
            *("--vocab-size=512", "--total-batch-size=512", "--device-batch-size=2"),
            *("--num-iterations=6", "--compile=off"),
        ]
    return [
        *("--depth=8", "--max-seq-len=1024", "--device-batch-size=4", "--total-batch-size=32768"),
        *("--num-iterations=20",),
    ]


def _run(options: Options, sync: str, scratch: Path) -> dict[str, Any]:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        *(sys.executable, "-m", "yoked.train", *_flags(options), f"--dtype={options.dtype}"),
        *(f"--sync={sync}", "--shares=7:1", "--lm-head=replicated", "--eval-every=-1"),
        *(f"--data={options.data}", f"--runs-dir={scratch}", "--run=mixed"),
    ]
    ranks = []
    for rank, device in enumerate((options.device.type, "cpu")):
        env = os.environ | {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_WORLD_SIZE": "2",
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "GLOO_SOCKET_IFNAME": "lo",
            "YOKED_DEVICE": device,
        }
        log = (scratch / f"{rank}.log").open("wb")
        ranks.append(subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT))
    try:
        statuses = [rank.wait(DEADLINE_S) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    if any(statuses):
        said = "\n".join((scratch / f"{rank}.log").read_text()[-2000:] for rank in (0, 1))
        return {"failed": said}
    return _figures(scratch / "mixed" / "metrics.jsonl")


def _figures(metrics: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in metrics.read_text(encoding="utf-8").splitlines()]
    steps = [line for line in lines if "dt_s" in line][FIRST_COUNTED_STEP:]
    step_s = statistics.median(step["dt_s"] for step in steps)
    by_rank = {
        name: [statistics.median(step[name][rank] for step in steps) for rank in (0, 1)]
        for name in ("compute_s", "comm_s", "wait_s", "bytes_sent")
    }
    tokens = sum(steps[-1]["tokens"])
    return {
        "tokens_per_second": tokens / step_s,
        "step_s": step_s,
        "loss": steps[-1]["loss"],
        "gpu_idle": 1 - by_rank["compute_s"][0] / step_s,
        **by_rank,
    }
