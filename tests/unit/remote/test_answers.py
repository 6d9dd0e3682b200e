"""The tables of shapes fit what the agent of this very version answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.agent.calls import HANDLERS
from yoked.fleet.discover import listening
from yoked.remote.answers import PARTS, RESULTS, part_misfit
from yoked.remote.client import host_wrote
from yoked.remote.transport import connect_here


def test_every_call_in_the_tables_is_one_of_the_agents() -> None:
    assert {*RESULTS, *PARTS} <= {*HANDLERS}


def test_the_agents_own_answers_have_their_shapes(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("a")

    with connect_here() as agent:
        answers = [
            agent.call("facts"),
            agent.call("interfaces"),
            agent.call("job_list"),
            agent.call("job_reap"),
            agent.call("kernels_here"),
            agent.call("file_list", folder=str(tmp_path)),
            agent.call("run", argv=["true"]),
            agent.call("environment", digest="0" * 16, configured=None),
        ]
        content = b"".join(p.data for p in agent.stream("file_read", path=str(tmp_path / "a")))
        with listening(agent, "token", "here") as port:
            dialled = agent.call(
                "dial",
                token="token",
                host="here",
                wait_s=2,
                targets=[{"address": "127.0.0.1", "port": port}],
            )

    assert all(answer is not None for answer in answers)
    assert content == b"a"
    assert dialled[0]["answered_by"] == "here"


def test_a_call_without_parts_gets_none(snapshot: SnapshotAssertion) -> None:
    assert part_misfit("facts", {}) == snapshot


@pytest.mark.parametrize(
    "use", [lambda: {}["a"], lambda: [1][int("1")], lambda: int("x"), lambda: 1 / 0]
)
def test_what_a_hosts_program_wrote_in_another_form_names_the_host(use: Any) -> None:
    with (
        raises_fault("odd-content"),
        host_wrote("attic", "its result"),
    ):
        use()
