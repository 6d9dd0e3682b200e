"""A host whose agent answers with anything: what is no address or name becomes no record."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.failures import raises_fault

from yoked.agent.facts import answer_facts
from yoked.errors import HostError, YokedError
from yoked.fleet.discover import survey
from yoked.fleet.model import Fleet, Host
from yoked.launch.registry import collect
from yoked.launch.start import plan_nodes
from yoked.remote.client import AgentClient

HOSTILE = "10.0.0.1; touch pwned"
ANSWERS = """
import json, sys
answers = json.loads(sys.argv[1])
for line in sys.stdin.buffer:
    asked = json.loads(line)
    sys.stdin.buffer.read(asked.get("size", 0))
    if "call" in asked:
        told = answers[asked["call"]]
        if asked["call"] == "listen":
            print(json.dumps({"id": asked["id"], "part": told, "size": 0}), flush=True)
        print(json.dumps({"id": asked["id"], "result": told, "size": 0}), flush=True)
"""
ETH0 = {
    "name": "eth0",
    "kind": "physical",
    "mtu_bytes": 1500,
    "speed_bit_per_s": None,
    "addresses": [{"address": "10.0.0.2", "prefix": 24, "link_local": False}],
    "gloo_address": "10.0.0.2",
}
JOB = {
    "run": "otter", "launch_id": "a1b2", "state": "running", "folder": "/home/ada/jobs/otter",
    "node_rank": 0, "nodes": [{"host": "attic", "address": "10.0.0.2", "ranks": 1}],
    "started_s": 1.0, "ended_s": None, "now_s": 2.0, "attempt": 0, "failure": None,
    "progress": None,
}  # fmt: skip

Say = Callable[..., AgentClient]


@pytest.fixture
def host() -> Iterator[Say]:
    """Makes an agent that gives these answers, by call."""
    made: list[AgentClient] = []

    def say(name: str = "attic", **answers: Any) -> AgentClient:
        process = subprocess.Popen(
            [sys.executable, "-c", ANSWERS, json.dumps(answers)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
        made.append(AgentClient(name, process, lambda: HostError(f"{name}: it ended")))
        return made[-1]

    yield say
    for each in made:
        each.close()


def facts(**more: Any) -> dict[str, Any]:
    return {**json.loads(json.dumps(answer_facts(None))), **more}  # type: ignore[arg-type]


def test_a_fact_that_cannot_be_is_unknown_and_its_place_is_noted(host: Say) -> None:
    agent = host(facts=facts(user="ada; touch pwned", hostname="a\nb", kernel="$(x)"))

    told = agent.call("facts")

    assert (told["user"], told["hostname"], told["kernel"]) == (None, None, None)
    assert sorted(agent.odd) == ["facts.hostname", "facts.kernel", "facts.user"]


@pytest.mark.parametrize(
    "wrong",
    [
        {"state": "relative; x"}, {"path": "/usr/bin\n/tmp"}, {"uid": "0"},
        {"usable_cores": 10**400}, {"gpus": {}}, {"machine": None, "cores": []},
    ],
)  # fmt: skip
def test_what_a_launch_builds_on_is_right_or_the_host_is_named(
    host: Say, wrong: dict[str, Any]
) -> None:
    agent = host(facts=facts(**wrong))

    with raises_fault("odd-answer", host="attic"):
        agent.call("facts")


@pytest.mark.parametrize("answer", [None, [], "no", 5, {}, [{"name": "eth0"}]])
@pytest.mark.parametrize("call", ["facts", "interfaces", "job_status", "environment"])
def test_an_answer_of_another_form_names_the_host(host: Say, call: str, answer: Any) -> None:
    agent = host(**{call: answer})

    # A list of interfaces may be empty, and one of which none is an interface is.
    if call == "interfaces" and isinstance(answer, list):
        assert agent.call(call) == []
    else:
        with raises_fault("odd-answer", host="attic"):
            agent.call(call)


@pytest.mark.parametrize(
    "wrong",
    [
        {"name": "eth0; touch pwned"},
        {"name": "-oProxyCommand=x"},
        {"gloo_address": HOSTILE},
        {"gloo_address": "10.0.0.2%eth0;x"},
    ],
)
def test_an_interface_that_cannot_be_is_none(host: Say, wrong: dict[str, Any]) -> None:
    agent = host(interfaces=[ETH0, {**ETH0, **wrong}])

    assert [each["name"] for each in agent.call("interfaces")] == ["eth0"]
    assert agent.odd


def test_no_address_of_a_hosts_choosing_reaches_a_launch(host: Say) -> None:
    hosts = (Host("attic", interface="eth0"), Host("beta", interface="eth0"))
    clients = {
        name: host(name, facts=facts(machine=name), environment={
            "made": "/v/bin/python", "configured": None, "system": None, "marker": {}},
            interfaces=[{**ETH0, "gloo_address": HOSTILE}])
        for name in ("attic", "beta")
    }  # fmt: skip

    with raises_fault("interface-gone", interface="eth0"):
        plan_nodes(Fleet("home", hosts, None), clients, None, dict)  # type: ignore[arg-type]


DIALLED = {
    "ok": True, "answered_by": "beta", "error": None, "error_text": None, "rtt_s": 0.001,
    "echo_s": [], "goodput_bytes_per_s": 1e8, "path_mtu_bytes": 1500, "source_address": "10.0.0.2",
    "took_s": 0.1, "connected": True, "arrived_bytes": 5,
}  # fmt: skip


@pytest.mark.parametrize(
    "answer",
    [[], [DIALLED, DIALLED], [{**DIALLED, "rtt_s": None}], [{**DIALLED, "error": "x; y"}], [None],
     [{**DIALLED, "echo_s": [None]}], [{"ok": True}]],
)  # fmt: skip
def test_dials_that_cannot_be_end_a_survey_with_the_hosts_name(host: Say, answer: Any) -> None:
    clients = {
        name: host(name, interfaces=[ETH0], listen={"port": 4000, "more": []}, dial=answer)
        for name in ("attic", "beta")
    }

    with pytest.raises(YokedError):
        survey([Host("attic"), Host("beta")], clients)


@pytest.mark.parametrize(
    "wrong",
    [{"run": "../x"}, {"run": "a; b"}, {"state": "odd"}, {"nodes": [{"host": "a"}]},
     {"attempt": "0"}, {"folder": "x"}, {"started_s": "soon"}],
)  # fmt: skip
def test_a_job_that_cannot_be_is_no_run(host: Say, wrong: dict[str, Any]) -> None:
    agent = host(job_list=[{**JOB, **wrong}, {**JOB, "run": "heron", "more": 1}])

    records, silent = collect({"attic": agent})

    assert silent == {}
    assert [(record.run, record.state, record.ranks) for record in records] == [
        ("heron", "running", 1)
    ]
    assert records[0].hosts["attic"]["more"] == 1
