"""Processes that are stopped, frozen or left behind."""

from __future__ import annotations

import dataclasses
import errno
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import LabError
from yoked.lab.process import until

HIGH, FREE = 40213, 40777
SOON_S = 0.7
WAIT = "import os, signal; print(os.getpid(), flush=True); signal.pause()"
LISTEN = """
import socket, sys
try:
    socket.create_server(("", int(sys.argv[1])))
    print("free")
except OSError as problem:
    print("errno", problem.errno)
"""


def states(acts: Any, host: str) -> dict[int, str]:
    """What is there, without the dead that nobody waited for yet."""
    processes = acts.lab.host(host).processes()
    return {each.pid: each.state for each in processes if each.state != "Z"}


def test_a_stopped_host_takes_connections_but_answers_none(acts: Any) -> None:
    before = acts.call("beta", "alpha")

    fault = acts.fault("stop", "alpha")
    answer = acts.call("beta", "alpha", patience_s=SOON_S)
    stopped = [pid for pid, state in states(acts, "alpha").items() if state == "T"]
    acts.heal(fault.id)

    assert before == "passed"
    assert answer == "stalled"
    assert stopped
    assert 1 not in stopped
    assert acts.call("beta", "alpha") == "passed"
    assert "T" not in states(acts, "alpha").values()


def test_the_ssh_server_of_a_stopped_host_goes_on(acts: Any) -> None:
    servers = [
        each.pid
        for each in acts.lab.host("alpha").processes()
        if each.parent == 1 and "sshd" in each.program
    ]
    assert servers

    acts.fault("stop", "alpha")

    assert [states(acts, "alpha")[pid] for pid in servers] == ["S"] * len(servers)


def test_one_process_is_stopped_and_goes_on(acts: Any) -> None:
    with acts.program("alpha", WAIT) as program:
        pid = int(program.stdout.readline())

        acts.fault("stop", "alpha", pid)
        others = acts.call("beta", "alpha")
        seen = states(acts, "alpha")[pid]
        acts.heal()
        # It goes on, and is soon back at its wait.
        until(lambda: states(acts, "alpha")[pid] == "S", 5.0, 0.05)
        healed = states(acts, "alpha")[pid]

    assert (seen, others) == ("T", "passed")
    assert healed == "S"


def test_stopping_a_process_that_is_not_there_changes_nothing(acts: Any) -> None:
    with pytest.raises(LabError) as refused:
        acts.fault("stop", "alpha", 4_000_000)

    assert {"alpha", "4000000"} <= set(refused.value.what.split())
    assert acts.heal() == []


def test_a_suspended_host_is_silent_with_its_link_up_and_wakes_as_it_was(acts: Any) -> None:
    before = acts.call("beta", "alpha")
    running = states(acts, "alpha").keys()

    acts.fault("suspend", "alpha")
    answer = acts.call("beta", "alpha", patience_s=SOON_S)
    link = acts.link("alpha")
    acts.heal("alpha")

    assert (before, answer) == ("passed", "timeout")
    assert "LOWER_UP" in link
    assert acts.call("beta", "alpha") == "passed"
    assert states(acts, "alpha").keys() == running


def test_a_suspended_host_runs_nothing_meanwhile(acts: Any) -> None:
    count = (
        "import sys, time\nprint('counting', flush=True)\n"
        "for _ in range(10**9): open('/tmp/count', 'w').write(str(_)); time.sleep(0.001)"
    )
    file = Path(f"/proc/{acts.lab.host('alpha').pid}/root/tmp/count")
    with acts.program("alpha", count) as counter:
        counter.stdout.readline()

        def read() -> str:
            return file.read_text() if file.exists() else ""

        acts.fault("suspend", "alpha")
        first = read()
        acts.call("beta", "alpha", patience_s=SOON_S)
        second = read()
        acts.heal()
        while read() in ("", second):
            assert counter.poll() is None

    assert first == second


def test_without_a_freezer_suspend_stops_every_process_and_says_so(acts: Any) -> None:
    acts.resident("alpha")
    host = acts.lab.hosts["alpha"]
    acts.lab.hosts["alpha"] = dataclasses.replace(host, group=None)
    try:
        fault = acts.fault("suspend", "alpha")

        def others() -> dict[int, str]:
            return {pid: state for pid, state in states(acts, "alpha").items() if pid != 1}

        # One that runs on another core stops when that sees the signal.
        until(lambda: set(others().values()) == {"T"}, 5.0, 0.05)
        seen = others()
        acts.heal()
    finally:
        acts.lab.hosts["alpha"] = host

    assert str(len(seen)) in fault.text
    assert set(seen.values()) == {"T"}
    assert acts.call("beta", "alpha") == "passed"


def test_a_stale_rank_holds_its_port_and_has_no_parent_but_init(acts: Any) -> None:
    acts.fault("stale-process", "alpha", FREE)

    meets = acts.python("alpha", LISTEN, FREE)
    (rank,) = [
        each for each in acts.lab.host("alpha").processes() if "scripts.base_train" in each.command
    ]
    environment = Path(f"/proc/{rank.outer_pid}/environ").read_bytes().split(b"\0")
    acts.heal("alpha")

    assert meets == f"errno {errno.EADDRINUSE}"
    assert rank.parent == 1
    # By it the doctor knows that no launcher is the parent.
    assert acts.lab.host("alpha").read_text("/proc/1/comm") == "hostinit\n"
    assert b"TORCHELASTIC_RUN_ID=none" in environment
    assert acts.python("alpha", LISTEN, FREE) == "free"
    assert rank.pid not in states(acts, "alpha")


def test_a_stale_rank_that_somebody_ended_is_healed_without_harm(acts: Any) -> None:
    acts.fault("stale-process", "alpha", FREE)

    acts.lab.host("alpha").run(["pkill", "-f", "scripts.base_train"])

    assert [fault.kind for fault in acts.heal()] == ["stale-process"]


def test_a_stale_rank_cannot_take_a_port_that_is_held(acts: Any) -> None:
    acts.resident("alpha")

    with pytest.raises(LabError) as refused:
        acts.fault("stale-process", "alpha", HIGH)

    assert all(word in refused.value.what for word in ("alpha", str(HIGH)))
    assert acts.heal() == []
