"""The pods of `yoked manifest --for kubernetes`, as processes on this machine."""

from __future__ import annotations

import signal
import socket
import sys
import time
from typing import Any

import pytest
import yaml

from yoked.cli.commands.manifest import ManifestFlags, make

pytestmark = [pytest.mark.distributed, pytest.mark.slow]

LIMIT_S = 120.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as opened:
        return int(opened.getsockname()[1])


class Pods:
    """Runs the container of a Job once for each index, with storage and network of this machine."""

    def __init__(self, lab: Any, text: str) -> None:
        self._lab = lab
        secret, _, job = yaml.safe_load_all(text)
        (self._secret,) = secret["stringData"].values()
        self._container = job["spec"]["template"]["spec"]["containers"][0]

    def start(self, index: int, port: int) -> Any:
        here = {
            "/yoked/": f"{self._lab.root}/",
            "yoked-r-0.yoked-r": "127.0.0.1",
            "29500": str(port),
            # What a kubelet makes of it.
            "$$": "$",
        }
        words = [*self._container["command"], *self._container["args"]]
        for ours, theirs in here.items():
            words = [word.replace(ours, theirs) for word in words]
        run = "import os, sys; os.execvp(sys.argv[1], sys.argv[1:])"
        named = {
            entry["name"]: entry.get("value", self._secret) for entry in self._container["env"]
        }
        del named["YOKED_CACHE"]
        return self._lab.start(["-c", run, *words], {**named, "JOB_COMPLETION_INDEX": str(index)})


def test_evicted_pods_save_and_their_successors_go_on(lab: Any) -> None:
    flags = ManifestFlags(
        scheduler="kubernetes", image="x", nodes=2, interface="lo", python=sys.executable
    )
    words = [
        "train",
        *lab.flags(matmul="mkl", num_iterations=200, eval_every=-1, save_every=-1),
        "--run=r",
    ]
    pods = Pods(lab, make(words, flags).text)
    port = free_port()
    first = [pods.start(index, port) for index in range(2)]
    deadline_s = time.monotonic() + LIMIT_S
    while lab.lines("r") < 5:
        assert first[0].process.poll() is None, first[0].end()
        assert time.monotonic() < deadline_s, "the pods took no steps"
        time.sleep(0.05)

    # What the kubelet of one node sends to a container's first process.
    first[1].process.send_signal(signal.SIGTERM)
    stopped = [pod.end() for pod in first]
    steps = lab.lines("r")
    port = free_port()
    second = [pods.start(index, port) for index in range(2)]
    ended = [pod.end() for pod in second]

    assert [pod.status != 0 for pod in stopped] == [True, True]
    assert [pod.status for pod in ended] == [0, 0], ended[0].stderr
    assert f'"resumed_at":{steps}}}' in (lab.runs / "r" / "metrics.jsonl").read_text()
    assert lab.curve("r").steps == list(range(200))
