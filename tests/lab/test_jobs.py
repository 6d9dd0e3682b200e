"""Jobs over real ssh: controllers die and networks go away, and the jobs do not care."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.agent.job_acts import until

from yoked.lab import faults
from yoked.lab.host import LabHost
from yoked.lab.lab import Lab
from yoked.lab.pytest_plugin import new_lab
from yoked.remote.transport import connect_here

REPOSITORY = Path(__file__).parents[2]
STATE = str(Path.home() / ".local/state/yoked")
LINES = 1600
# All run on alpha, a controller; beta is the host.
ACTS = Path(__file__).parents[1] / "unit" / "agent" / "job_acts.py"
BEGINNING = f"""
import json, sys, time, types
from pathlib import Path
sys.path.insert(0, {str(REPOSITORY / "src")!r})
# As text: a checkout below /tmp is not to be seen from inside a host.
acts = types.ModuleType("acts")
exec({ACTS.read_text()!r}, acts.__dict__)
COUNTER, SLEEPER, job_request, launch = (
    acts.COUNTER, acts.SLEEPER, acts.job_request, acts.launch
)
from yoked.launch.following import HostLog
from yoked.remote.transport import connect_ssh
def connect(host="beta", patience_s=10):
    return connect_ssh(host, python=sys.executable, patience_s=patience_s)
agent, state = connect(), Path({STATE!r})
"""
PREPARE = """
agent.call("job_start", **job_request(state, SLEEPER, run="prepared"))
print("prepared", flush=True)
time.sleep(600)
"""
FOLLOW = """
launch(agent, state, COUNTER, sys.argv[1], "0.005", run="counted")
print("began", flush=True)
log = HostLog(
    agent, "counted", connect, {"follow": True},
    on_cut=lambda host, problem: print("cut", flush=True),
    on_back=lambda host: print("back", flush=True),
)
came = {"out": b"", "err": b""}
for part in log.parts():
    assert part.content["offset"] == len(came[part.content["stream"]])
    came[part.content["stream"]] += part.data
print(json.dumps({stream: data.decode() for stream, data in came.items()}), flush=True)
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with new_lab("two-hosts-1gbe") as up:
        yield up


def kill_ssh(host: LabHost) -> None:
    """End every ssh client of a host, the shared connections too."""
    for process in host.processes():
        # The one that is shared calls itself "ssh: SOCKET [mux]"; sshd is the server.
        if process.program.partition(":")[0] == "ssh":
            os.kill(process.outer_pid, signal.SIGKILL)


def numbered(stream: str) -> str:
    return "".join(f"{stream} {number}\n" for number in range(LINES))


def test_a_prepared_job_vanishes_when_the_machine_that_launches_loses_its_controller(
    lab: Lab,
) -> None:
    alpha, beta = lab.host("alpha"), lab.host("beta")
    folder = f"{STATE}/jobs/prepared"
    with alpha.popen([sys.executable, "-c", BEGINNING + PREPARE]) as controller:
        assert controller.stdout is not None
        assert controller.stdout.readline() == "prepared\n"
        assert beta.exists(folder)

        controller.kill()
        kill_ssh(alpha)

    until(lambda: not beta.exists(folder), "removal")


@pytest.mark.slow
def test_every_byte_comes_once_and_in_order_though_cable_and_ssh_are_cut(lab: Lab) -> None:
    alpha = lab.host("alpha")
    words = [sys.executable, "-c", BEGINNING + FOLLOW, str(LINES)]
    with alpha.popen(words) as controller:
        try:
            assert controller.stdout is not None
            assert controller.stdout.readline() == "began\n"
            fault = faults.apply(lab, "cut", ["beta"])
            kill_ssh(alpha)
            assert controller.stdout.readline() == "cut\n"
            # Long enough that its first attempts to come back fail.
            time.sleep(4)
            faults.heal(lab, [fault.id])
            assert controller.stdout.readline() == "back\n"

            came = json.loads(controller.stdout.readline())
        finally:
            controller.kill()

    assert came == {"out": numbered("out"), "err": numbered("err")}


def test_what_runs_on_a_host_of_the_lab_is_not_stale_for_the_machine_around_it(lab: Lab) -> None:
    beta = lab.host("beta")
    folder = "/nowhere/but/there/jobs/elsewhere"
    env = {"YOKED_LAUNCH_ID": "0123456789ab", "YOKED_JOB_FOLDER": folder, "YOKED_RUN": "elsewhere"}
    with beta.popen(["sleep", "600"], env=env, tied=True) as process:
        try:
            until(lambda: any("sleep" in one.command for one in beta.processes()), "the process")
            with connect_here() as agent:
                shown = agent.call("job_reap")["processes"]
        finally:
            process.kill()

    assert [one for one in shown if one["run"] == "elsewhere"] == []
