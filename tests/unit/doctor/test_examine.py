"""What is made of what hosts answer, those too that answer with nothing; the agents are made up."""

from __future__ import annotations

import errno
import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.core.faults import fault
from yoked.doctor import dials, host_probes, world_check
from yoked.doctor import examine as examining
from yoked.doctor.causes import findings_of
from yoked.doctor.examine import look
from yoked.errors import HostError, YokedError
from yoked.fleet.model import Fleet, Host
from yoked.records.examination import Examination, Need, World
from yoked.remote.client import RemoteBug
from yoked.remote.ssh import NoAgentError

ADDRESSES = {"alpha": "10.0.0.1", "beta": "10.0.0.2", "gamma": "10.0.0.3"}
DEADLINE_S = 20.0


@dataclass(frozen=True)
class Part:
    content: Any
    data: bytes = b""


class Rank:
    """A trial: what it says, and whether it goes on. It ends with its agent's connection."""

    def __init__(self, agent: FakeAgent, argv: list[str]) -> None:
        self.agent, self.says, self.argv, self.how = agent, agent.says, argv, argv[-1]
        self.told = threading.Event()
        self.spec: Mapping[str, Any] | None = None

    def lines(self) -> Iterator[dict[str, Any]]:
        if self.how == "acts":
            yield {"has": {"acts": {"worked": ["thread"], "failed": {}}}}
            return
        yield {"has": {"torch": "2.13.0", "python_version": "3.12.1"}}
        if self.how == "versions":
            return
        if "loading" in self.says:
            yield {"failed": self.says["loading"], "blame": {"package": "numpy"}}
            return
        if "cut" in self.says:
            self.agent.ended_s = time.monotonic()
            raise self.agent.why_ended()
        if self.how == "train" and "import" in self.says:
            # It takes longer than the look waits for what is well.
            if not self.told.wait(self.agent.imports_s):
                yield {"failed": self.says["import"]}
            return
        yield {"has": {"gloo": True, "imported": self.how == "train" or None}, "ready": True}
        while not self.told.wait(0.02) and not self.agent.closed:
            pass
        if self.spec is None:
            return
        if self.spec["rank"] == 0:
            yield {"port": 4711}
        yield {"doing": "connecting to the others"}
        failed = self.says.get("world") or (self.how == "train" and self.says.get("sums"))
        yield {"failed": failed} if failed else {"done": 0.1}


@dataclass
class FakeAgent:
    """An agent of words. lost: addresses that it does not reach; silent: calls that it does not
    answer; says: how its trials fail, by what they are doing.
    """

    name: str
    lost: tuple[str, ...] = ()
    stuck: tuple[str, ...] = ()
    silent: tuple[str, ...] = ()
    answered_by: str | None = None
    extra: tuple[Mapping[str, Any], ...] = ()
    says: Mapping[str, str] = field(default_factory=dict)
    python: str | None = "/usr/bin/python3"
    unusable: str | None = None
    noise: str = ""
    begun: tuple[Mapping[str, Any], ...] | None = ()
    odd: list[str] = field(default_factory=list)
    heard_s: float = 0.0
    ended_s: float | None = None
    listening: int = 0
    closed: bool = False
    ranks: dict[str, Rank] = field(default_factory=dict)
    bugs: tuple[str, ...] = ()
    asked_for_culprits: list[Mapping[str, Any]] = field(default_factory=list)
    looks: list[str | None] = field(default_factory=list)
    launches: int = 0
    left: list[str] = field(default_factory=list)
    enders: Mapping[str, Any] = field(default_factory=dict)
    rate: float = 1.0
    keeps: bool = True
    variables: Mapping[str, str] = field(default_factory=dict)
    imports_s: float = 0.2
    began_s: float = field(default_factory=time.monotonic)

    def call(self, name: str, *, data: bytes = b"", timeout_s: float = 30.0, **args: Any) -> Any:
        if name in self.silent or self.closed:
            raise HostError(f"{self.name} gave no answer to {name!r}")
        if name in self.bugs:
            raise RemoteBug(f"on {self.name}: OSError(20, 'Not a directory')\nTraceback")
        answer: Any = getattr(self, f"_{name}")(args)
        return answer

    def stream(
        self, name: str, *, data: bytes = b"", timeout_s: float | None = None, **args: Any
    ) -> Iterator[Part]:
        if name in self.silent:
            raise HostError(f"{self.name} gave no answer to {name!r}")
        if name == "listen":
            return self._listen(args)
        return self._trial(args)

    def why_ended(self) -> NoAgentError:
        return NoAgentError(f"{self.name}: the ssh connection ended", said=self.says["cut"])

    def close(self, patience_s: float = 5.0) -> None:
        self.closed = True

    def _listen(self, args: Mapping[str, Any]) -> Iterator[Part]:
        self.listening += 1
        try:
            yield Part({"port": 4000, "more": [4001, 29500][: len(args.get("more", ()))]})
        finally:
            self.listening -= 1

    def _trial(self, args: Mapping[str, Any]) -> Iterator[Part]:
        rank = self.ranks[args["trial"]] = Rank(self, args["argv"])
        for line in rank.lines():
            yield Part({"line": json.dumps(line)})
        end = {"exit_status": 0, "signal": None, "late": False, "stderr": ""}
        yield Part({"end": end})

    def _trial_go(self, args: Mapping[str, Any]) -> bool:
        rank = self.ranks[args["trial"]]
        rank.spec = rank.spec or args["spec"]
        rank.told.set()
        return True

    def _half_open(self, args: Mapping[str, Any]) -> Any:
        return self.begun

    def _facts(self, args: Mapping[str, Any]) -> dict[str, Any]:
        return {"machine": self.name, "gpus": []}

    def _interfaces(self, args: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        own = {"name": "eth0", "gloo_address": ADDRESSES[self.name], "kind": "physical"}
        lo = {"name": "lo", "gloo_address": "127.0.0.1", "kind": "loopback"}
        return [lo, own, *self.extra]

    def _environment(self, args: Mapping[str, Any]) -> dict[str, Any]:
        configured = None if self.unusable is not None else args["configured"]
        told = {"made": None, "configured": configured, "system": self.python}
        return {**told, "unusable": self.unusable or None}

    def _culprits(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self.asked_for_culprits.append(args)
        return {"what": "import", "late": False, "variables": [], "files": ["/v/zz.pth"]}

    def _environment_base(self, args: Mapping[str, Any]) -> dict[str, Any]:
        raise HostError(f"{self.name}: there is no Python from 3.11 to 3.14: python3 is 3.9")

    def _health(self, args: Mapping[str, Any]) -> dict[str, Any]:
        if args.get("parts") == ["virtual"]:
            return {"virtual": None}
        if args.get("parts") == ["enders", "writers"]:
            return {"enders": dict(self.enders), "writers": {"loops": self.enders.get("loops")}}
        shell = {"sources_noise": None}
        folders = {"cache": {"path": "/c", "writable": True, "error": None}}
        own = {"environment": dict(self.variables)} if self.variables else {}
        return {"shell": shell, "folders": folders, "asked": dict(args), **own}

    def _small_launch(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self.launches += 1
        return {"failed": "no bus"} if self.name == "beta" else {}

    def _left_alone(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self.left.append(args["do"])
        return {"killed": {"after_s": 2.0}} if args["do"] == "end" and not self.keeps else {}

    def _watch(self, args: Mapping[str, Any]) -> dict[str, Any]:
        self.looks.append(args["files"])
        passed_s = self.rate * (time.monotonic() - self.began_s)
        folders = {"cache": {"kept": self.keeps}} if args["files"] == "look" else {}
        clocks = {"time_s": 1e9 + passed_s, "monotonic_s": passed_s}
        return {**clocks, "limits": {}, "folders": folders}

    def _dial(self, args: Mapping[str, Any]) -> list[dict[str, Any]]:
        return [self._dialled(each, args) for each in args["targets"]]

    def _dialled(self, target: Mapping[str, Any], args: Mapping[str, Any]) -> dict[str, Any]:
        address, sends = target["address"], args["send_bytes"]
        lost = address in self.lost
        stuck = address in self.stuck and sends != 0
        by = {own: name for name, own in ADDRESSES.items()}.get(address)
        return {
            "ok": not lost and not stuck,
            "answered_by": None if lost else self.answered_by or by,
            "error": "ETIMEDOUT" if lost or stuck else None,
            "error_text": "Connection timed out" if lost or stuck else None,
            "rtt_s": None if lost else 1e-3,
            "echo_s": [],
            "goodput_bytes_per_s": 1e8 if sends is None else None,
            "path_mtu_bytes": 1500,
            "source_address": ADDRESSES[self.name],
            "took_s": 2.2 if lost else 1e-3,
            "connected": not lost,
            "arrived_bytes": 0 if lost or stuck or sends is None else sends,
        }


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(world_check, "_IMPORT_UNTIL_S", DEADLINE_S)


def examine(
    agents: Mapping[str, FakeAgent | Exception],
    *,
    hosts: Mapping[str, Any] | None = None,
    quick: bool = False,
    bandwidth: bool = False,
) -> Examination:
    def connect(host: Host, config: Path | None, *, patience_s: int, shared: bool) -> Any:
        found = agents[host.name]
        if isinstance(found, Exception):
            raise found
        return found

    wanted = hosts or {name: {"interface": "eth0"} for name in agents}
    fleet = Fleet("home", tuple(Host(name, **more) for name, more in wanted.items()), Path("f"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(host_probes, "connect_host", connect)
        seen = look(fleet, Need(), quick=quick, bandwidth=bandwidth, say=lambda line: None)
    for agent in agents.values():
        if isinstance(agent, FakeAgent):
            assert agent.closed
            assert agent.listening == 0
            assert all(rank.told.is_set() or rank.says for rank in agent.ranks.values()) or quick
    return seen


def world_of(seen: Examination) -> World:
    assert seen.world is not None
    return seen.world


def torch_of(seen: Examination, name: str) -> Mapping[str, Any]:
    torch = seen.host(name).torch
    assert torch is not None
    return torch


def fleet_of(*names: str) -> dict[str, FakeAgent | Exception]:
    return {name: FakeAgent(name) for name in names}


def test_every_ordered_pair_is_dialled_for_each_purpose() -> None:
    seen = examine(fleet_of("alpha", "beta", "gamma"))

    for source in ADDRESSES:
        for target, address in ADDRESSES.items():
            if source != target:
                own = seen.between(source, target, ("ephemeral", "rendezvous", "bulk"))
                purposes = sorted(each.purpose for each in own)
                assert purposes == ["bulk", "ephemeral", "ephemeral", "rendezvous"]
                assert all(each.ok and each.address == address for each in own)
                assert {each.port for each in own if each.purpose == "rendezvous"} == {29500}
    assert world_of(seen).ok


def test_hosts_that_are_down_leave_the_rest_to_be_seen() -> None:
    agents = fleet_of("alpha", "beta", "gamma")
    agents["beta"] = NoAgentError("beta: it did not answer", kind="refused", said="refused")

    seen = examine(agents)

    assert [host.name for host in seen.up] == ["alpha", "gamma"]
    failure = seen.host("beta").failure
    assert failure is not None
    assert failure.kind == "refused"
    pairs = {(each.source, each.target) for each in seen.dials}
    assert pairs == {("alpha", "gamma"), ("gamma", "alpha")}
    assert world_of(seen).ok


def test_no_host_at_all_is_an_examination_too() -> None:
    agents: dict[str, FakeAgent | Exception] = {
        name: HostError(f"{name}: gone") for name in ("alpha", "beta")
    }

    seen = examine(agents)

    assert (seen.up, seen.dials) == ((), ())
    assert world_of(seen).ok is None


def test_a_lost_dial_is_told_and_no_world_is_tried(snapshot: SnapshotAssertion) -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", lost=(ADDRESSES["alpha"],))

    seen = examine(agents)

    assert all(each.ok for each in seen.between("alpha", "beta"))
    (first, *_) = seen.between("beta", "alpha")
    assert (first.ok, first.error, first.took_s) == (False, "ETIMEDOUT", 2.2)
    assert first.source_address == ADDRESSES["beta"]
    assert (world_of(seen).ok, world_of(seen).reason) == snapshot


@pytest.mark.parametrize(
    ("begun", "arrived", "under"),
    [
        (({"port": 4000, "address": ADDRESSES["alpha"]},), True, None),
        (({"port": 4001, "address": ADDRESSES["alpha"]},), False, None),
        (({"port": 4000, "address": "10.8.0.2"},), True, "10.8.0.2"),
        (({"port": 4000, "address": ADDRESSES["gamma"]},), False, None),
        ((), False, None),
        (None, None, None),
    ],
    ids=["it came", "another port", "as somebody else", "another host's", "nothing", "untold"],
)
def test_of_a_lost_dial_its_target_tells_whether_it_came(
    begun: Any, arrived: bool | None, under: str | None
) -> None:
    agents = fleet_of("alpha", "beta", "gamma")
    agents["alpha"] = FakeAgent("alpha", lost=(ADDRESSES["beta"],))
    agents["beta"] = FakeAgent("beta", begun=begun)

    seen = examine(agents)

    (first, *_) = [each for each in seen.between("alpha", "beta") if each.port == 4000]
    assert (first.arrived, first.arrived_from) == (arrived, under)


def test_a_burst_follows_where_all_else_came_through() -> None:
    agents = fleet_of("alpha", "beta", "gamma")
    agents["alpha"] = FakeAgent("alpha", stuck=(ADDRESSES["beta"],))

    seen = examine(agents)

    bursts = {(each.source, each.target): each for each in seen.dials if each.purpose == "burst"}
    assert len(bursts) == 5
    assert ("alpha", "beta") not in bursts
    assert all(each.ok and each.bulk_bytes == 16_777_216 for each in bursts.values())


def test_small_passes_and_large_does_not(snapshot: SnapshotAssertion) -> None:
    agents = fleet_of("alpha", "beta")
    agents["alpha"] = FakeAgent("alpha", stuck=(ADDRESSES["beta"],))

    seen = examine(agents)

    (bulk,) = seen.between("alpha", "beta", ("bulk",))
    assert (bulk.ok, bulk.bulk_bytes) == (False, 0)
    assert bulk.error_text == snapshot
    assert all(each.ok for each in seen.between("alpha", "beta"))


def test_who_answers_in_anothers_place_is_no_success() -> None:
    agents = fleet_of("alpha", "beta")
    agents["alpha"] = FakeAgent("alpha", answered_by="gamma")

    seen = examine(agents)

    (first, *_) = seen.between("alpha", "beta")
    assert (first.ok, first.answered_by, first.error) == (False, "gamma", None)


def test_other_addresses_are_dialled_once_to_tell_causes() -> None:
    docker = {"name": "docker0", "gloo_address": "172.17.0.1", "kind": "docker"}
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", extra=(docker,))

    seen = examine(agents)

    (other,) = [each for each in seen.dials if each.address == "172.17.0.1"]
    assert (other.source, other.chosen, other.interface) == ("alpha", False, "docker0")
    assert world_of(seen).ok


def test_without_an_interface_in_the_file_the_likely_one_is_taken_where_traffic_does_not_tell() -> (
    None
):
    vpn = {"name": "wg0", "gloo_address": "10.9.0.1", "kind": "vpn"}
    agents = fleet_of("alpha", "beta")
    agents["alpha"] = FakeAgent("alpha", extra=(vpn,), lost=tuple(ADDRESSES.values()))

    seen = examine(agents, hosts={"alpha": {}, "beta": {}})

    assert {each.interface for each in seen.dials if each.chosen} == {"eth0"}


def test_a_world_that_fails_has_the_last_words_of_its_ranks(snapshot: SnapshotAssertion) -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", says={"world": "RuntimeError: Connection reset by peer"})

    seen = examine(agents)

    assert world_of(seen).ok is False
    assert world_of(seen).said == snapshot


def test_a_rank_whose_sums_fail_has_imported_torch() -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", says={"sums": "RuntimeError: Connection closed by peer"})

    seen = examine(agents)

    assert not world_of(seen).ok
    torch = torch_of(seen, "beta")
    assert torch["imported"] is True


def test_torch_that_does_not_load_is_told_of_its_host(snapshot: SnapshotAssertion) -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", says={"loading": "ImportError: libtorch_cpu.so"})

    seen = examine(agents)

    torch = torch_of(seen, "beta")
    assert (torch["imported"], torch["error"]) == (False, "ImportError: libtorch_cpu.so")
    assert torch["blame"] == {"package": "numpy"}
    assert (world_of(seen).ok, world_of(seen).reason) == snapshot


def test_the_agent_finds_out_why_an_import_fails_and_only_then() -> None:
    agents = fleet_of("alpha", "beta")
    beta = agents["beta"] = FakeAgent("beta", says={"loading": "ImportError: a.so"})

    seen = examine(agents)

    (asked,) = beta.asked_for_culprits
    assert (asked["python"], asked["said"]) == ("/usr/bin/python3", "ImportError: a.so")
    assert torch_of(seen, "beta")["culprits"]["files"] == ["/v/zz.pth"]
    assert isinstance(agents["alpha"], FakeAgent)
    assert agents["alpha"].asked_for_culprits == []


@pytest.mark.parametrize(
    ("variables", "imports_s", "error"),
    [({"TORCH_LOGS": "+inductr"}, 0.2, "ValueError: +inductr"), ({"LANG": "C"}, 60.0, None)],
    ids=["one that torch acts upon", "another"],
)
def test_an_import_is_waited_for_where_one_host_alone_has_a_variable_that_torch_acts_upon(
    variables: Mapping[str, str],
    imports_s: float,
    error: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(world_check, "_IMPORT_UNTIL_S", -DEADLINE_S)
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent(
        "beta", says={"import": "ValueError: +inductr"}, variables=variables, imports_s=imports_s
    )

    assert torch_of(examine(agents), "beta")["error"] == error


def test_a_connection_that_ends_on_the_way_is_no_fault_of_torch_or_of_another_host() -> None:
    agents = fleet_of("alpha", "beta")
    closed = "Connection to 10.0.0.2 closed by remote host."
    agents["beta"] = FakeAgent("beta", says={"cut": closed})

    seen = examine(agents)

    failure = seen.host("beta").failure
    assert failure is not None
    assert (failure.kind, failure.cause) == ("other", "ended")
    assert closed in failure.text
    found = {each.check: each.hosts for each in findings_of(seen)}
    assert found["ssh-other"] == ("beta",)
    assert not found.keys() & {"torch-import", "world-failed"}


@pytest.mark.parametrize(
    ("enders", "cause", "words"),
    [
        ({"programs": [{"pid": 7, "command": "sh /usr/local/sbin/portguard", "about": ["listeners"],
                        "file": "/usr/local/sbin/portguard", "line": 2, "words": "kill -9 $p"}]},
         "ended-by", "/usr/local/sbin/portguard, line 2,"),
        ({"sessions": [{"file": "/etc/ssh/sshd_config", "line": 3, "after_s": 1,
                        "words": "ChannelTimeout session:*=1"}]},
         "timed-out", "`ChannelTimeout session:*=1` (/etc/ssh/sshd_config, line 3)"),
        ({"loops": [{"pid": 9, "command": "sh /usr/local/sbin/cut", "changes": ["connections"],
                     "words": "ss -K sport = :22"}]},
         "ended-by", "`sh /usr/local/sbin/cut` there ends connections: `ss -K sport = :22`"),
        # No look is silent for an hour.
        ({"sessions": [{"file": "/etc/ssh/sshd_config", "line": 3, "after_s": 3600,
                        "words": "ChannelTimeout session:*=1h"}]}, "ended", ""),
    ],
)  # fmt: skip
def test_a_host_whose_connection_ended_is_asked_once_more_who_ends_such(
    enders: dict[str, Any], cause: str, words: str
) -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", says={"cut": ""}, enders=enders)

    failure = examine(agents).host("beta").failure

    assert failure is not None
    assert (failure.kind, failure.cause) == ("other", cause)
    assert words in failure.text


def test_a_trial_whose_host_says_no_more_tells_nothing_of_torch() -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", says={"cut": "reset"})

    seen = examine(agents)

    torch = torch_of(seen, "beta")
    assert (torch["imported"], torch["error"]) == (None, None)


def test_a_call_that_ends_as_a_bug_there_is_told_and_the_rest_is_seen() -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", bugs=("health",))

    seen = examine(agents)

    assert seen.host("beta").up
    assert seen.host("beta").health["untold"]["health"] == "OSError(20, 'Not a directory')"
    assert all(each.ok for each in seen.dials)
    assert world_of(seen).ok


def test_what_ended_a_look_is_told_though_its_end_fails_as_well(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*args: object) -> None:
        raise ValueError("the first")

    def fail_again(self: FakeAgent, patience_s: float = 5.0) -> None:
        self.closed = True
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(FakeAgent, "close", fail_again)
    monkeypatch.setattr(examining, "dial_all", fail)

    with pytest.raises(ValueError, match="the first"):
        examine(fleet_of("alpha", "beta"))


@pytest.mark.parametrize("found", [None, "openssl req failed: libssl.so.1.1"])
def test_this_machine_tries_to_make_certificates(
    found: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make(launch_id: str, nodes: int) -> None:
        if found:
            raise YokedError(found)

    monkeypatch.setattr(examining, "make_credentials", make)

    seen = examine(fleet_of("alpha", "beta"))

    assert seen.controller["certificates"] == found


def test_what_hides_a_module_of_pythons_here_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("queue.py", "test.py", "train.py", "json.txt"):
        (tmp_path / name).write_text("import os\nimport torch.nn\n" if name == "train.py" else "")
    for name in ("random", "socket"):
        (tmp_path / name).mkdir()
    (tmp_path / "random" / "__init__.py").write_text("")
    is_file = Path.is_file

    def refuse(path: Path) -> bool:
        if path.parent.name == "private":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return is_file(path)

    (tmp_path / "private").mkdir()
    monkeypatch.setattr(Path, "is_file", refuse)
    monkeypatch.chdir(tmp_path)

    seen = examine(fleet_of("alpha"))

    expected = [str(tmp_path / name) for name in ("queue.py", "random/__init__.py")]
    assert seen.controller["shadows"] == expected
    assert seen.controller["programs"] == [str(tmp_path / "train.py")]


def test_a_host_without_torch_is_no_riddle(snapshot: SnapshotAssertion) -> None:
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", python=None)

    seen = examine(agents)

    torch = torch_of(seen, "beta")
    assert (torch["python"], torch["error"]) == snapshot
    assert torch["no_base"] == "there is no Python from 3.11 to 3.14: python3 is 3.9"
    assert world_of(seen).reason == snapshot


@pytest.mark.parametrize("first", [("facts", "interfaces"), ()], ids=["at once", "a bit later"])
def test_a_host_that_falls_silent_is_not_taken_for_a_healthy_one(first: tuple[str, ...]) -> None:
    calls = (*first, "health", "environment", "listen", "dial")
    agents = fleet_of("alpha", "beta")
    agents["beta"] = FakeAgent("beta", silent=calls)

    seen = examine(agents)

    failure = seen.host("beta").failure
    assert failure is not None
    assert "fell silent" in failure.text
    assert seen.host("alpha").up


def test_a_host_that_starts_no_thread_is_told_in_its_own_words() -> None:
    class Refusing(FakeAgent):
        def call(self, name: str, **args: Any) -> Any:
            why = "its kernel answers clone3 with EPERM, by seccomp"
            raise fault("host-exhausted", problem="RuntimeError()", why=why)

        stream = call

    agents = fleet_of("alpha", "beta")
    agents["beta"] = Refusing("beta")

    failure = examine(agents).host("beta").failure

    assert failure is not None
    assert (failure.kind, failure.cause) == ("python", "no-threads")
    assert "answers clone3 with EPERM" in failure.text


def test_what_programs_do_first_is_tried_but_for_the_quick_form() -> None:
    thorough, quick = examine(fleet_of("alpha", "beta")), examine(fleet_of("alpha"), quick=True)

    assert torch_of(thorough, "beta")["acts"] == {"worked": ["thread"], "failed": {}}
    assert "acts" not in torch_of(quick, "alpha")


def test_the_quick_form_dials_little_and_starts_no_world() -> None:
    agents = fleet_of("alpha", "beta")

    seen = examine(agents, quick=True)

    assert seen.quick
    assert seen.world is None
    purposes = [each.purpose for each in seen.between("alpha", "beta", ("ephemeral", "bulk"))]
    assert sorted(purposes) == ["bulk", "ephemeral"]
    torch = torch_of(seen, "beta")
    assert (torch["torch"], torch["imported"]) == ("2.13.0", None)


def test_a_fleet_without_a_file_names_none_in_its_lines() -> None:
    agents = fleet_of("alpha")

    assert examine(agents).controller["fleet"] is None


def test_agents_that_are_lent_stay_with_their_owner() -> None:
    agents = fleet_of("alpha", "beta")
    hosts = tuple(Host(name, interface="eth0") for name in agents)

    seen = look(
        Fleet("home", hosts, Path("f")),
        Need(),
        quick=True,
        bandwidth=False,
        say=lambda line: None,
        lend=agents.__getitem__,
    )

    assert [host.name for host in seen.up] == ["alpha", "beta"]
    assert not any(agent.closed for agent in agents.values())


def test_health_is_asked_with_what_the_others_are() -> None:
    agents = fleet_of("alpha", "beta")

    seen = examine(agents)

    asked = seen.host("alpha").health["asked"]
    assert asked["addresses"] == [ADDRESSES["beta"]]
    assert asked["names"] == ["alpha", "beta"]
    assert asked["ports"] == [dials.RENDEZVOUS_PORT]
    assert seen.host("alpha").health["shell"]["sources_noise"] is False
    offset_s = seen.host("alpha").clock_offset_s
    assert offset_s is not None
    assert offset_s < -1e8


def test_a_host_is_looked_at_twice_and_only_once_before_a_launch() -> None:
    agents = {"alpha": FakeAgent("alpha"), "beta": FakeAgent("beta", rate=10.0, keeps=False)}
    alone = FakeAgent("alpha")

    seen = examine(agents)
    examine({"alpha": alone}, quick=True)

    assert agents["beta"].looks == ["leave", "look"]
    assert alone.looks == [None]
    assert (agents["beta"].launches, alone.launches) == (1, 0)
    assert (agents["beta"].left, alone.left) == (["begin", "end"], [])
    assert seen.host("beta").health["left_alone"] == {"killed": {"after_s": 2.0}}
    assert "left_alone" not in seen.host("alpha").health
    assert seen.host("beta").health["launch"] == {"failed": "no bus"}
    assert "launch" not in seen.host("alpha").health
    health = seen.host("beta").health
    assert health["folders"]["cache"]["kept"] is False
    watched = {name: seen.host(name).health["clock"] for name in agents}
    assert watched["alpha"]["monotonic_s"] < 5 * watched["alpha"]["watched_s"]
    assert watched["beta"]["monotonic_s"] > 5 * watched["beta"]["watched_s"]


@pytest.mark.parametrize("why", ["it is a link to /gone/python3.11, which is not there", ""])
def test_a_python_that_is_there_and_cannot_be_started_is_not_called_missing(why: str) -> None:
    agent = FakeAgent("alpha", unusable=why)

    seen = examine({"alpha": agent}, hosts={"alpha": {"python": "/v/bin/python"}})

    torch = torch_of(seen, "alpha")
    assert torch["error"] == (why or "there is no /v/bin/python")
    assert torch["imported"] is (False if why else None)


def test_what_the_program_here_imports_is_asked_of_hosts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").write_text("import torch, rowscale\n")
    monkeypatch.chdir(tmp_path)
    agents = {name: FakeAgent(name) for name in ("alpha", "beta")}

    seen = examine(agents)

    assert seen.controller["modules"] == ["rowscale"]
    argvs = [rank.argv for rank in agents["alpha"].ranks.values()]
    told = [argv[3:] for argv in argvs if argv[-1] != "acts"]
    assert told == [["rowscale", "connect"], ["rowscale", "train"]]


def test_bandwidth_is_measured_of_every_link() -> None:
    seen = examine(fleet_of("alpha", "beta", "gamma"), bandwidth=True)

    measured = {
        (each.source, each.target): each.purpose for each in seen.dials if each.goodput_bytes_per_s
    }
    assert len(measured) == 6
    assert set(measured.values()) == {"bulk"}
