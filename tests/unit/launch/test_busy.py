"""Other runs on the hosts of a run: they are told, and a person decides."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import pytest

from yoked.cli.flags import JobFlags
from yoked.cli.live import shares_hosts
from yoked.cli.output import Output
from yoked.errors import YokedError
from yoked.launch.busy import OtherRun, other_runs, require_free, runs_of_others, tell_all
from yoked.launch.registry import Record

NIGHT = OtherRun("night", ("i9", "."), "ada@laptop", 1510.0)


class Client:
    def __init__(self, *runs: dict[str, Any]) -> None:
        self.runs = list(runs)

    def call(self, name: str) -> list[dict[str, Any]]:
        assert name == "job_others"
        return self.runs


def record(run: str, state: str, trains: str | None = None, run_dir: str | None = None) -> Record:
    told = {
        "state": state, "node_rank": 0, "nodes": [], "trains": trains, "by": "ada@laptop",
        "run_dir": run_dir,
        "started_s": 1000.0, "now_s": 1060.0,
    }  # fmt: skip
    return Record(run, "an id", {"i9": told})


def test_runs_that_go_on_are_others_but_for_the_one_that_starts() -> None:
    records = [record("a", "running"), record("b", "finished"), record("c.2", "prepared", "c")]

    assert other_runs(records, "c") == [OtherRun("a", ("i9",), "ada@laptop", 60.0)]
    assert [each.name for each in other_runs(records, None)] == ["a", "c"]
    # Of this machine alone, in a folder of its own.
    namesake = record("c", "running", "c", "/home/ada/runs/c")
    assert [each.name for each in other_runs([namesake], "c")] == ["c"]


def test_a_run_of_another_user_is_one_on_all_its_hosts() -> None:
    told = [{"run": "big", "user": "bob", "pid": 7, "age_s": age_s} for age_s in (90.0, 91.0)]
    clients: Any = {"i9": Client(told[0]), "pi": Client(told[1]), "mac": Client()}

    assert runs_of_others(clients) == [OtherRun("big", ("i9", "pi"), "bob", 91.0, is_ours=False)]


def test_another_run_is_told_with_whose_it_is_and_since_when() -> None:
    asked: list[Sequence[str]] = []

    def agrees(lines: Sequence[str]) -> bool:
        asked.append(lines)
        return True

    require_free([], agrees)
    require_free([NIGHT], agrees)

    whose = "run night of ada@laptop has been on i9 and this machine for 25 min 10 s"
    assert asked == [[f"{whose}: both will be slower"]]
    with pytest.raises(YokedError) as caught:
        require_free([NIGHT], lambda _: False)
    assert caught.value.code == "other-run"
    assert whose in caught.value.what
    assert caught.value.fix == (
        "yoked stop night    saves and ends it",
        "--beside    starts this one all the same",
    )


def test_what_is_over_in_seconds_starts_beside_others_and_says_which() -> None:
    notes: list[str] = []

    require_free([NIGHT], tell_all(notes.append))

    assert [line.split(" has been")[0] for line in notes] == ["run night of ada@laptop"]


def test_nobody_is_told_to_end_another_users_run() -> None:
    other = OtherRun("big", ("i9",), "bob", 90.0, is_ours=False)

    with pytest.raises(YokedError) as caught:
        require_free([other], lambda _: False)

    assert caught.value.fix[0] == "ask bob when run big ends"


@pytest.mark.parametrize("beside", [False, True])
def test_where_nobody_can_be_asked_the_flag_decides(
    capsys: pytest.CaptureFixture[str], beside: bool
) -> None:
    share = shares_hosts(JobFlags(beside=beside), Output(json_mode=True))

    assert share([NIGHT.line]) == beside
    assert (NIGHT.line in " ".join(capsys.readouterr().err.split())) == beside


@pytest.mark.parametrize(("answer", "starts"), [("y\n", True), ("\n", False)])
def test_at_a_terminal_the_person_decides(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    answer: str,
    starts: bool,
) -> None:
    monkeypatch.setattr(Output, "can_ask", True)
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))

    assert shares_hosts(JobFlags(), Output(json_mode=False))([NIGHT.line]) == starts

    said = " ".join(capsys.readouterr().err.split())
    assert said.endswith("Start it all the same? [y/N]")
    assert NIGHT.line in said
