"""An agent's answers have the form that the tables want; what ends in a command line above all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.agent.calls import HANDLERS
from yoked.fleet.discover import listening
from yoked.records.answers import PARTS, RESULTS, understood
from yoked.records.rules import OddError
from yoked.remote.transport import connect_here

BASE = {
    "python": "/usr/bin/python3.12",
    "version": "3.12",
    "system": "Linux",
    "machine": "x86_64",
    "libc": "glibc",
    "libc_version": "2.36",
    "mac_version": "",
}


MAC = {"system": "Darwin", "machine": "arm64", "mac_version": "14.5"}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"libc": "", "libc_version": ""},
        {"libc_version": "2.5.1"},
        {**MAC, "libc": "", "libc_version": ""},
    ],
)
def test_a_hosts_python_is_understood(more: dict[str, Any]) -> None:
    assert understood("environment_base", {**BASE, **more}, []) == {**BASE, **more}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("version", "--index-url=x"),
        ("version", "3.12\n"),
        ("version", None),
        ("machine", "x86_64 --pre"),
        ("libc_version", "2.999999999"),
        ("libc_version", "2"),
        ("mac_version", "1e9"),
        ("python", "relative; touch x"),
    ],
)
def test_a_hosts_word_that_is_none_of_pips_is_refused(
    field: str, value: Any, snapshot: SnapshotAssertion
) -> None:
    with pytest.raises(OddError) as caught:
        understood("environment_base", {**BASE, field: value}, [])
    assert str(caught.value) == snapshot


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
            agent.call("compiled_list"),
            agent.call("compiled_remove", label="none"),
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


@pytest.mark.parametrize("address", ["10.0.0.1%eth0", "fe80::1%a b", "fe80::1%", "10.0.0"])
def test_an_address_that_nobody_can_read_is_left_out(address: str) -> None:
    place = {"address": address, "port": 80, "pid": 7, "command": "x"}
    odd: list[str] = []

    told = understood("job_listeners", {"r": [place, {**place, "address": "fe80::1%eth0"}]}, odd)

    assert [each["address"] for each in told["r"]] == ["fe80::1%eth0"]
    assert odd
