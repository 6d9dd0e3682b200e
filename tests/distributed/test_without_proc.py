"""Linux without /proc and /sys, as a Mac is: what works there, and what is refused.

Both are hidden in a mount namespace of the command's own, which takes root.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.distributed.conftest import SOURCE, UNDRAWN, YOKED

HIDE = (
    "from yoked.lab import syscalls; syscalls.unshare(syscalls.CLONE_NEWNS); "
    "syscalls.mount('none', '/', None, syscalls.MS_REC | syscalls.MS_PRIVATE); "
    "syscalls.mount('none', '/sys', 'tmpfs'); syscalls.mount('none', '/proc', 'tmpfs'); "
)
TELL_FACTS = """
import json
from yoked.agent import facts, gpus, processors
from yoked.train.decisions.threads import read_cores
cores = read_cores()
print(json.dumps({
    **processors.facts(), **facts.memory(), "gpus": gpus.find_gpus(), "battery": facts.on_battery(),
    "allowed": list(processors.affinity()), "fast": list(cores.fast), "quota": cores.quota,
    "type": processors.cpu_type(), "machine": facts.machine_identity(),
}))
"""


@pytest.fixture(autouse=True, scope="module")
def hidden() -> None:
    if sys.platform != "linux":
        pytest.skip("there is no /proc to hide")
    done = hidden_python("pass")
    if done.returncode:
        pytest.skip(f"/proc cannot be hidden here: {done.stderr.splitlines()[-1]}")


def hidden_python(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", HIDE + program],
        env={"PYTHONPATH": str(SOURCE)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def yoked(lab: Any, *words: str) -> Any:
    return lab.start(["-c", HIDE + UNDRAWN + YOKED, *words]).end()


def test_facts_fall_back_to_what_system_calls_tell() -> None:
    done = hidden_python(TELL_FACTS)

    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    allowed = told["allowed"]
    assert allowed
    assert told["fast"] == allowed
    assert told["threads"] == told["cores"] == told["fast_cores"] == len(allowed)
    assert told["usable_cores"] == len(allowed)
    assert told["cpu_model"]
    assert told["type"].startswith("Linux")
    assert len(told["machine"]) == 16
    untold = ("memory_bytes", "memory_available_bytes", "cpu_quota", "quota", "battery")
    assert [told[name] for name in untold] == [None] * len(untold)
    assert told["gpus"] == []


@pytest.mark.slow
@pytest.mark.distributed
@pytest.mark.parametrize("ranks", [1, 2])
def test_a_run_trains_to_its_end_and_its_curve_is_that_with_proc(lab: Any, ranks: int) -> None:
    flags = lab.flags(num_iterations=6, save_every=-1, matmul="mkl")
    named = ["--json", f"--runs-dir={lab.runs}", "--run=hidden", f"--ranks={ranks}"]

    ended = yoked(lab, "train", *named, *flags)
    lab.train("seen", *flags, ranks=ranks).end()

    assert ended.status == 0, ended.stderr
    assert (ended.json["state"], ended.json["steps"]) == ("finished", 6)
    assert "this system has no /proc: runs, attach" in ended.stderr
    assert lab.curve("hidden").losses == pytest.approx(lab.curve("seen").losses, rel=1e-6)


@pytest.mark.distributed
def test_what_needs_a_job_is_refused_with_the_reason(lab: Any) -> None:
    (lab.root / "program.py").write_text("print('never')")

    detached = yoked(lab, "train", "--detach", "--json", *lab.flags())
    foreign = yoked(lab, "run", "--json", "--", "program.py")

    assert detached.status == 2
    assert "need Linux's /proc" in detached.json["error"]["what"]
    assert foreign.status == 1
    assert foreign.json["error"]["code"] == "no-proc"
    assert "cannot be a host of a run yet" in foreign.json["error"]["what"]


@pytest.mark.distributed
def test_init_and_the_doctor_say_that_such_a_host_is_refused_and_what_it_can_do(lab: Any) -> None:
    begun = yoked(lab, "init", ".")
    seen = yoked(lab, "doctor", "--json")

    assert begun.status == 0, begun.stderr
    assert ". cannot be a host of a run yet: it has no /proc" in begun.stderr
    assert seen.status == 1
    (found,) = (each for each in seen.json["findings"] if each["severity"] == "error")
    assert found["check"] == "no-proc"
    assert "yoked train --fleet ." in found["fix"][0]["command"]
