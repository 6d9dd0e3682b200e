"""Runs on a host: this user's by their jobs, other users' by what their processes show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.unit.agent.job_acts import launch, no_job_left, says, until

from yoked.agent import others
from yoked.remote.client import AgentClient

SPINS = """
import time
print("ready", flush=True)
until_s = time.monotonic() + 30
while time.monotonic() < until_s:
    pass
"""


@dataclass
class Foreign:
    """A process of another user."""

    words: str
    uid: int | None = -2
    pid: int = 7
    age_s: float = 90.0

    def command(self) -> str:
        return self.words


@pytest.mark.parametrize(
    ("words", "found"),
    [
        ("python3 -m yoked.launch.bootstrap.host /home/bo b/state/jobs/big.2/job.json", ["big.2"]),
        ("python3 -m yoked.launch.bootstrap.host /state/jobs/\x1b[2J/job.json", []),
        ("vim -m yoked.launch.bootstrap.host", []),
        ("", []),
    ],
)
def test_a_run_of_another_user_is_known_by_its_command_line(
    monkeypatch: pytest.MonkeyPatch, words: str, found: list[str]
) -> None:
    monkeypatch.setattr(others, "all_processes", lambda: [Foreign(words)])

    told = others.runs_of_others()

    assert [each["run"] for each in told] == found
    assert all((each["pid"], each["age_s"]) == (7, 90.0) for each in told)


def test_a_run_of_ones_own_is_told_with_its_starter_and_is_no_other_program(
    agent: AgentClient, root: Path
) -> None:
    with no_job_left():
        job = launch(agent, root, SPINS, run="night.2", trains="night", by="ada@laptop")
        until(says(job.logs / "launcher.out", "ready"), "the program")

        told = agent.call("health", parts=["processes"])["processes"]

    (run,) = told["runs"]
    assert (run["run"], run["user"], run["ours"]) == ("night", "ada@laptop", True)
    assert run["pid"] not in [each["pid"] for each in told["busy"]]
