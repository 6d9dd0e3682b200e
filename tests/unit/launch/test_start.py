"""What a launch works out for each host, so that nobody types it."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion
from tests.failures import raises_fault

from yoked.errors import FleetError, HostError
from yoked.fleet.model import Device, Fleet, Host, Notify
from yoked.launch import start
from yoked.launch.bootstrap.job import read_job
from yoked.launch.launching import Stage
from yoked.launch.program import Program
from yoked.launch.runrecord import program_file
from yoked.launch.start import (
    Home,
    JobRequest,
    NodePlan,
    job_spec,
    notify_file,
    plan_nodes,
    rank_environment,
)
from yoked.remote.client import RemoteBug

FACTS: dict[str, Any] = {"state": "/home/me/.local/state/yoked", "usable_cores": 6, "path": "/bin"}


class FakeAgent:
    """Answers as an agent would. interfaces: as its host has them; torch: for what its torch is
    built; None: nobody is to ask.
    """

    count = 0

    def __init__(
        self,
        facts: dict[str, Any],
        interfaces: list[dict[str, Any]],
        torch: dict[str, Any] | None = None,
    ) -> None:
        self.host = "desk"
        self.answers = {"facts": facts, "interfaces": interfaces}
        if torch is not None:
            said = json.dumps({"python": "3.12.1", "packages": {}, "torch": torch})
            self.answers["run"] = {"exit_status": 0, "stdout": said, "stderr": ""}

    def call(self, name: str, **_: Any) -> Any:
        return self.answers[name]


def agent(
    *interfaces: tuple[str, str | None], torch: dict[str, Any] | None = None, **facts: Any
) -> FakeAgent:
    found = [{"name": name, "gloo_address": address} for name, address in interfaces]
    FakeAgent.count += 1
    own = {"machine": f"machine {FakeAgent.count}", "hostname": "desk"}
    return FakeAgent({**FACTS, **own, **facts}, found, torch)


def order(**changes: Any) -> JobRequest:
    program = Program("script", "train.py", ("--lr=1",), Path("/nowhere"), ("--resume",))
    return JobRequest(**{"run": "night", "program": program, "restarts": 2, **changes})


def node(name: str, ranks: int = 1, address: str = "10.0.0.1", **facts: Any) -> NodePlan:
    found = {**FACTS, **facts}
    python = "/home/me/venv/bin/python"
    return NodePlan(Host(name), FakeAgent(found, []), found, ranks, python, "eth0", address)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def any_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "environment_python", lambda client, host: "/venv/bin/python")


def test_a_persons_program_has_a_record_and_what_yoked_trains_has_none() -> None:
    nodes = [node("alpha", ranks=2), replace(node("beta"), versions={"torch": "2.13.0"})]

    (text,) = program_file(order(), nodes).values()
    ours = order(program=Program("module", "yoked.train", (), Path("/x"), is_limited=False))

    told = json.loads(text)
    assert told["program"] == {"argv": ["train.py", "--lr=1"], "folder": "nowhere"}
    assert (told["run"], told["trains"]) == ("night", False)
    assert [(each["rank"], each["name"]) for each in told["hosts"]] == [
        (0, "alpha"),
        (1, "alpha"),
        (2, "beta"),
    ]
    assert told["hosts"][2]["versions"] == {"torch": "2.13.0"}
    assert program_file(ours, nodes) == {}


def no_search() -> dict[str, tuple[str, str]]:
    raise AssertionError("the file has all addresses")


def test_the_address_is_the_one_that_the_interface_has_today() -> None:
    fleet = Fleet(
        "home",
        (Host("a", interface="eth0", address="10.0.0.7"), Host("b", interface="wlan0")),
        Path(),
    )
    agents = {
        "a": agent(("eth0", "10.0.0.9")),
        "b": agent(("eth1", "10.1.0.2"), ("wlan0", "10.0.0.2")),
    }

    nodes = plan_nodes(fleet, agents, None, no_search)  # type: ignore[arg-type]

    assert [(s.interface, s.address) for s in nodes] == [
        ("eth0", "10.0.0.9"),
        ("wlan0", "10.0.0.2"),
    ]


def test_a_fleet_without_interfaces_finds_them_by_traffic() -> None:
    fleet = Fleet("home", (Host("a"), Host("b")), Path())
    found = {"a": ("eth0", "10.0.0.1"), "b": ("eth0", "10.0.0.2")}

    nodes = plan_nodes(fleet, {"a": agent(), "b": agent()}, None, lambda: found)  # type: ignore[arg-type]

    assert [s.address for s in nodes] == ["10.0.0.1", "10.0.0.2"]


def test_two_names_of_one_machine_are_refused() -> None:
    fleet = Fleet("home", (Host("a", interface="eth0"), Host("b", interface="eth0")), Path())
    agents = {
        "a": agent(("eth0", "10.0.0.1"), machine="same"),
        "b": agent(("eth0", "10.0.0.1"), machine="same"),
    }

    with raises_fault("same-machine"):
        plan_nodes(fleet, agents, None, no_search)  # type: ignore[arg-type]


def test_a_host_alone_needs_no_network() -> None:
    nodes = plan_nodes(Fleet("home", (Host("."),), Path()), {".": agent()}, None, no_search)  # type: ignore[arg-type]

    assert (nodes[0].interface, nodes[0].address) == ("lo", "127.0.0.1")


def test_a_mac_is_refused_with_what_it_can_do() -> None:
    fleet = Fleet("home", (Host("desk", interface="eth0"), Host("mac", interface="en0")), Path())
    agents = {
        "desk": agent(("eth0", "10.0.0.1"), has_proc=True),
        "mac": agent(("en0", "10.0.0.2"), has_proc=False),
    }

    with raises_fault("no-proc", host="mac") as problem:
        plan_nodes(fleet, agents, None, no_search)  # type: ignore[arg-type]

    assert "yoked train --fleet ." in problem.value.fix[0]


@pytest.mark.parametrize(
    "interfaces",
    [
        (("eth1", "10.0.0.9"),),
        (("eth0", None),),
    ],
)
def test_an_interface_that_cannot_be_used_is_named(
    interfaces: tuple[tuple[str, str | None], ...], snapshot: SnapshotAssertion
) -> None:
    fleet = Fleet("home", (Host("a", interface="eth0"), Host("b", interface="eth0")), Path())
    agents = {"a": agent(*interfaces), "b": agent(("eth0", "10.0.0.2"))}

    with pytest.raises((FleetError, HostError)) as caught:
        plan_nodes(fleet, agents, None, no_search)
    assert str(caught.value) == snapshot  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("device", "flag", "gpus", "torch", "trains_on", "ranks"),
    [
        ("auto", "auto", [], None, "cpu", 1),
        ("auto", "auto", ["nvidia", "nvidia"], {"build": "cuda", "cuda_build": "13.0"}, "cuda", 2),
        ("auto", "auto", ["nvidia", "nvidia"], {"build": "cpu", "cuda_build": None}, "cpu", 1),
        ("auto", "auto", ["nvidia", "nvidia"], {}, "cuda", 2),
        ("auto", "auto", ["amd"], {"build": "cuda", "cuda_build": "13.0"}, "cpu", 1),
        ("auto", "auto", ["amd", "amd"], {"build": "rocm", "cuda_build": None}, "cuda", 2),
        ("cpu", "auto", ["nvidia", "nvidia"], None, "cpu", 1),
        ("auto", "cpu", ["nvidia", "nvidia"], None, "cpu", 1),
        ("cpu", "cuda", ["nvidia", "nvidia"], {"build": "cuda", "cuda_build": "13.0"}, "cuda", 2),
        ("cuda", "auto", [], None, "cuda", 1),
    ],
)
def test_ranks_are_as_many_as_the_gpus_that_the_hosts_torch_can_use(
    device: Device,
    flag: str,
    gpus: list[str],
    torch: dict[str, Any] | None,
    trains_on: str,
    ranks: int,
) -> None:
    fleet = Fleet("home", (Host(".", device=device),), Path())
    there = agent(torch=torch, gpus=[{"vendor": vendor} for vendor in gpus])

    (node,) = plan_nodes(fleet, {".": there}, None, no_search, flag)  # type: ignore[arg-type]

    assert (node.device_type, node.ranks) == (trains_on, ranks)
    assert len(node.gpus) == (ranks if gpus and trains_on == "cuda" else 0)


def test_the_files_ranks_count_and_those_of_the_command_line_more() -> None:
    fleet = Fleet("home", (Host(".", ranks=3),), Path())

    assert plan_nodes(fleet, {".": agent()}, None, no_search)[0].ranks == 3  # type: ignore[arg-type]
    assert plan_nodes(fleet, {".": agent()}, 2, no_search)[0].ranks == 2  # type: ignore[arg-type]


def test_what_is_written_is_what_the_ranks_read(tmp_path: Path) -> None:
    nodes = [node("a", address="10.0.0.1"), node("b", 2, "10.0.0.2")]

    (tmp_path / "job.json").write_text(json.dumps(job_spec(order(), nodes, "abc", 1, 4000)))
    job = read_job(tmp_path / "job.json")

    assert (job.node.host, list(job.local_ranks), job.world_size) == ("b", [1, 2], 3)
    assert job.arguments(0) == ("--lr=1",)
    assert job.arguments(1) == ("--lr=1", "--resume")
    assert (job.control_port, job.restarts) == (4000, 2)
    assert job.cwd == Path("/home/me/.local/state/yoked/jobs/night/work")


def test_who_is_told_is_known_to_the_host_that_tells_alone() -> None:
    request = order(run="night.2", trains="night", notify=Notify(url="https://ntfy.sh/topic"))

    (file,) = notify_file(request, 0).values()

    assert json.loads(file) == {"run": "night", "url": "https://ntfy.sh/topic", "command": []}
    assert notify_file(request, 1) == {}
    assert notify_file(order(), 0) == {}
    nodes = [node("a"), node("b")]
    assert "topic" not in json.dumps(job_spec(request, nodes, "0" * 12, 0, 1)) + repr(request)


def test_cores_are_shared_out_among_the_ranks_of_a_host() -> None:
    env = rank_environment(order(), node("a", 4), "abc", "/pkg", "10.0.0.1")

    assert env["OMP_NUM_THREADS"] == "1"
    # NCCL takes a bare name for how several begin.
    assert (env["GLOO_SOCKET_IFNAME"], env["NCCL_SOCKET_IFNAME"]) == ("eth0", "=eth0")
    assert (env["YOKED_RUN"], env["YOKED_LAUNCH_ID"]) == ("night", "abc")
    assert env["PATH"] == "/home/me/venv/bin:/bin"


def test_ranks_know_the_address_of_node_0_beside_master_addr() -> None:
    env = rank_environment(order(), node("a"), "abc", "/pkg", "10.0.0.1")

    assert env["YOKED_NODE0_ADDR"] == "10.0.0.1"


def test_a_program_that_finds_its_threads_out_is_not_told() -> None:
    assert "OMP_NUM_THREADS" not in rank_environment(
        order(own_threads=True), node("a"), "x", "/p", "10.0.0.1"
    )


def test_a_pythonpath_of_the_persons_comes_after_ours() -> None:
    asked = order(env={"PYTHONPATH": "/mine", "A": "b"}, threads=3)

    env = rank_environment(asked, node("a"), "abc", "/pkg", "10.0.0.1")

    assert (env["PYTHONPATH"], env["A"], env["OMP_NUM_THREADS"]) == ("/pkg:/mine", "b", "3")


def test_what_other_hosts_do_not_have_of_this_shell_is_taken_from_its_own_ranks() -> None:
    asked = order(env={"HF_TOKEN": "asked for"}, withheld=("WANDB_API_KEY", "HF_TOKEN"))

    here = rank_environment(asked, node("."), "abc", "/pkg", "10.0.0.1")
    there = rank_environment(asked, node("a"), "abc", "/pkg", "10.0.0.1")

    assert (here["WANDB_API_KEY"], here["HF_TOKEN"]) == (None, "asked for")
    assert "WANDB_API_KEY" not in there
    assert there["HF_TOKEN"] == "asked for"


@pytest.mark.parametrize(
    ("device", "told", "hidden"),
    [("auto", None, None), ("cpu", "cpu", ""), ("mps", "mps", ""), ("cuda", "cuda", None)],
)
def test_the_device_of_yoked_toml_reaches_the_ranks(
    device: Device, told: str | None, hidden: str | None
) -> None:
    one = node("a")
    chosen = replace(one, host=replace(one.host, device=device))

    env = rank_environment(order(), chosen, "abc", "/pkg", "10.0.0.1")

    assert env.get("YOKED_DEVICE") == told
    assert env.get("CUDA_VISIBLE_DEVICES") == hidden


def test_a_job_of_this_machine_runs_where_the_person_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    at_home = order(home=Home(tmp_path, tmp_path / "runs" / "x"), file_store=True)

    env = rank_environment(at_home, node("."), "abc", "/pkg", "127.0.0.1")
    spec = job_spec(at_home, [node(".")], "abc", 0, 0)

    assert env["PYTHONPATH"] == "/pkg:/mine"
    assert env["PYTHONSAFEPATH"] == "1", "a torch.py in that folder would be torch"
    assert "PATH" not in env
    assert spec["cwd"] == str(tmp_path)
    assert spec["run_dir"] == str(tmp_path / "runs" / "x")
    assert spec["file_store"]


@pytest.mark.parametrize(("asked", "nice"), [(None, [0, 10]), (0, [0, 0]), (19, [19, 19])])
def test_a_niceness_that_is_asked_for_comes_before_that_of_yoked_toml(
    asked: int | None, nice: list[int]
) -> None:
    second = node("b")
    nodes = [node("a"), replace(second, host=replace(second.host, nice=10))]

    specs = [job_spec(order(nice=asked), nodes, "abc", number, 0) for number in range(2)]

    assert [spec["nice"] for spec in specs] == nice


def test_ranks_of_several_hosts_do_not_meet_through_a_file() -> None:
    spec = job_spec(order(file_store=True), [node("a"), node("b")], "abc", 0, 0)

    assert not spec["file_store"]


def test_a_host_that_cannot_clean_up_does_not_hide_why_the_launch_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def answer(name: str, **_: Any) -> dict[str, Any]:
        if name == "job_start":
            raise HostError("attic: the disk is full")
        raise RemoteBug("on attic: OSError(22)")

    attic = node("attic")
    monkeypatch.setattr(attic.client, "call", answer)

    with pytest.raises(HostError, match="the disk is full"):
        start._prepare_all(order(), [attic], "0123456789ab", ["/yoked"], None, [{}], Stage(""))


def test_a_start_that_is_interrupted_while_it_is_told_of_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attic, called = replace(node("attic"), python=sys.executable), list[tuple[str, Any]]()

    def answer(name: str, **args: Any) -> int:
        called.append((name, args.get("launch_id", args.get("spec", {}).get("launch_id"))))
        return 0

    def interrupted(line: str) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(attic.client, "call", answer)
    request = order(program=Program("module", "yoked.train", (), None), home=Home(tmp_path, None))

    with pytest.raises(KeyboardInterrupt):
        start.start_job(request, [attic], interrupted)

    launch_id = called[0][1]
    assert called == [
        ("job_start", launch_id),
        ("job_go", None),
        ("job_stop", launch_id),
        ("job_remove", launch_id),
    ]
