"""What the diagnosis and the doctor said of a run comes home, from the host that has it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from yoked.errors import HostError, UsageError
from yoked.launch.registry import Record
from yoked.launch.runrecord import bring_program, bring_said
from yoked.remote.client import AgentClient
from yoked.remote.transport import connect_here
from yoked.runs import is_program

DOCTOR = {
    "launch_id": "one", "time_s": 5.0, "asked": True, "why": None, "took_s": 1.5,
    "findings": [
        {
            "check": "clock", "severity": "warning", "hosts": ["attic"], "link": None,
            "saw": "it is 3 s ahead", "why": "times differ", "follows": [],
            "fix": [{"host": "attic", "command": "ntpdate", "root": True}],
        }
    ],
}  # fmt: skip


def begin(launch_id: str, host: str = "attic", attempt: int = 0) -> bytes:
    return line(event="begin", attempt=attempt, launch_id=launch_id, host=host)


def line(**content: Any) -> bytes:
    return json.dumps({"time_s": 1.0, **content}, separators=(",", ":")).encode() + b"\n"


END = line(event="end", attempt=0, finished=True)
CAUSE = line(event="cause", attempt=0, cause="rank-stopped")


@pytest.fixture
def agent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[AgentClient]:
    monkeypatch.setenv("YOKED_CACHE", str(tmp_path / "cache"))
    with connect_here("attic") as client:
        yield client


class Hosts:
    """Hosts whose jobs lie below a folder by their names; those that are silent give no answer."""

    def __init__(self, agent: AgentClient, root: Path) -> None:
        self.agent, self.root = agent, root
        self.here = root / "runs" / "night"
        self.here.mkdir(parents=True)
        self.silent: set[str] = set()
        self.notes: list[str] = []
        self.read: list[tuple[str, int]] = []

    def write(self, host: str, *parts: bytes, name: str = "diagnosis.jsonl") -> None:
        folder = self.root / host
        folder.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"".join(parts))

    def bring(self, launch_id: str = "one", *hosts: str) -> bytes:
        """What the journal here has then."""
        told = {
            host: {"node_rank": number, "trains": None, "folder": str(self.root / host)}
            for number, host in enumerate(hosts or ("attic", "cellar"))
        }
        bring_said(Record("night", launch_id, told), self.here, self._reach, self.notes.append)
        path = self.here / "diagnosis.jsonl"
        return path.read_bytes() if path.exists() else b""

    def _reach(self, host: str) -> AbstractContextManager[AgentClient]:
        if host in self.silent:
            raise HostError(f"{host} does not answer")
        return nullcontext(self.agent)


@pytest.fixture
def hosts(agent: AgentClient, tmp_path: Path) -> Hosts:
    return Hosts(agent, tmp_path)


def test_a_copy_grows_by_whole_lines_and_keeps_those_of_earlier_starts(hosts: Hosts) -> None:
    hosts.write("attic", begin("one"), CAUSE, b'{"torn')
    first = hosts.bring()
    hosts.write("attic", begin("one"), CAUSE, END, begin("one", attempt=1))
    second = hosts.bring()
    hosts.write("attic", begin("two"))
    resumed = hosts.bring("two")
    hosts.write("attic", begin("two"), END)
    again = hosts.bring("two")

    assert first == begin("one") + CAUSE
    assert second == first + END + begin("one", attempt=1)
    assert resumed == second + begin("two")
    assert again == resumed + END
    assert hosts.notes == []


def test_only_what_is_new_is_read(hosts: Hosts, monkeypatch: pytest.MonkeyPatch) -> None:
    hosts.write("attic", begin("one"), CAUSE)
    hosts.bring()
    hosts.write("attic", begin("one"), CAUSE, END)
    offsets: list[int] = []
    stream = hosts.agent.stream

    def noted(name: str, **args: Any) -> Any:
        if args["path"].endswith(".jsonl"):
            offsets.append(args["offset"])
        return stream(name, **args)

    monkeypatch.setattr(hosts.agent, "stream", noted)
    hosts.bring()

    # Its beginning says that it is the same file.
    assert offsets == [0, len(begin("one") + CAUSE)]


def test_where_node_0_is_silent_another_hosts_view_serves(hosts: Hosts) -> None:
    hosts.write("cellar", begin("one", "cellar"), CAUSE)
    hosts.silent.add("attic")

    assert hosts.bring() == begin("one", "cellar") + CAUSE
    assert hosts.notes == []


def test_of_two_hosts_views_that_stays_of_which_more_is_known(hosts: Hosts) -> None:
    hosts.write("attic", begin("one"), CAUSE)
    hosts.write("cellar", begin("one", "cellar"))
    hosts.bring()
    hosts.silent.add("attic")
    shorter = hosts.bring()
    hosts.write("cellar", begin("one", "cellar"), CAUSE, END)
    longer = hosts.bring()

    assert shorter == begin("one") + CAUSE
    assert longer == begin("one", "cellar") + CAUSE + END


def test_hosts_that_do_not_answer_are_told_and_end_nothing(hosts: Hosts) -> None:
    hosts.silent |= {"attic", "cellar"}

    assert hosts.bring() == b""
    assert hosts.notes == [
        "what the diagnosis said of run night is still on its hosts: attic does not answer"
    ]


def test_what_the_doctor_said_comes_from_node_0(hosts: Hosts) -> None:
    hosts.write("attic", json.dumps(DOCTOR).encode(), name="doctor.json")
    hosts.write("cellar", b"{}", name="doctor.json")

    hosts.bring()

    assert json.loads((hosts.here / "doctor.json").read_text()) == DOCTOR


@pytest.mark.parametrize(
    "odd", [{"asked": 1}, {"findings": [{"check": "clock"}]}, {"time_s": "soon"}]
)
def test_a_word_of_the_doctors_that_is_none_stays_there_and_is_told(
    hosts: Hosts, odd: dict[str, Any]
) -> None:
    hosts.write("attic", json.dumps({**DOCTOR, **odd}).encode(), name="doctor.json")

    hosts.bring()

    assert not (hosts.here / "doctor.json").exists()
    assert "what the doctor said" in hosts.notes[0]


@pytest.mark.parametrize("name", ["diagnosis.jsonl", "doctor.json"])
def test_nothing_is_written_through_a_link(hosts: Hosts, tmp_path: Path, name: str) -> None:
    mine = tmp_path / "mine"
    mine.write_text("my own")
    (hosts.here / name).symlink_to(mine)
    hosts.write("attic", begin("one"))
    hosts.write("attic", json.dumps(DOCTOR).encode(), name="doctor.json")

    hosts.bring()

    assert mine.read_text() == "my own"
    assert len(hosts.notes) == 1


PROGRAM = {
    "run": "night", "trains": False,
    "program": {"argv": ["train.py"], "folder": "mine"},
    "hosts": [
        {
            "rank": 0, "name": "attic", "address": "10.0.0.1", "interface": "eth0",
            "device": "cpu", "python": "/bin/python", "versions": {"python": "3.11.2"},
        }
    ],
}  # fmt: skip
FAILURE = {"host": "attic", "rank": 0, "cause": "out-of-memory", "what": "killed", "fix": []}


def bring(
    hosts: Hosts, here: Path, *, failed: bool, odd: Mapping[str, Any] = MappingProxyType({})
) -> None:
    """A program that has ended, of which host cellar tells what it is."""
    hosts.write("cellar", json.dumps({**PROGRAM, **odd}).encode(), name="run.json")
    state = "failed" if failed else "finished"
    told = {
        host: {
            "node_rank": number, "trains": None, "folder": str(hosts.root / host), "state": state,
            "failure": FAILURE if failed else None, "attempt": 1, "started_s": 7.0,
        }
        for number, host in enumerate(("attic", "cellar"))
    }  # fmt: skip
    record = Record("night", "one", told)
    bring_program(record, here, hosts._reach, hosts.notes.append, {"state": state})


@pytest.mark.parametrize("failed", [True, False])
def test_a_program_has_what_it_is_and_what_it_came_to(
    hosts: Hosts, tmp_path: Path, failed: bool
) -> None:
    hosts.silent.add("attic")
    hosts.write("cellar", begin("one", "cellar"))
    here = tmp_path / "runs" / "sweep"

    bring(hosts, here, failed=failed)

    assert json.loads((here / "run.json").read_text()) == {
        **PROGRAM, "launch_id": "one", "attempt": 2, "started_s": 7.0,
    }  # fmt: skip
    result = json.loads((here / "result.json").read_text())
    assert result["state"] == ("failed" if failed else "finished")
    # Of one that failed it is the verdict, as of a training.
    assert [fault["cause"] for fault in result.get("faults", ())] == ["out-of-memory"] * failed
    assert is_program(here)
    assert (here / "diagnosis.jsonl").read_bytes() == begin("one", "cellar")


def test_a_program_is_not_brought_into_another_run(hosts: Hosts, tmp_path: Path) -> None:
    training = tmp_path / "runs" / "sweep"
    training.mkdir()
    (training / "run.json").write_text("{}")

    with pytest.raises(UsageError, match="is a training"):
        bring(hosts, training, failed=False)
    assert [path.name for path in training.iterdir()] == ["run.json"]


@pytest.mark.parametrize("odd", [{"trains": True}, {"hosts": [{}]}, {"program": "rm"}])
def test_what_a_program_is_comes_in_the_form_that_it_has(
    hosts: Hosts, tmp_path: Path, odd: dict[str, Any]
) -> None:
    hosts.silent.add("attic")

    # The first host that does not tell it is named.
    with pytest.raises(HostError, match="attic"):
        bring(hosts, tmp_path / "runs" / "sweep", failed=False, odd=odd)
    assert not (tmp_path / "runs" / "sweep").exists()
