"""Programs whose ranks share nothing are said to do so; those that share in any way are not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import YOKED
from tests.distributed.test_host_program import HERE, Pair, pair  # noqa: F401 - a fixture
from tests.schemas import conforms

pytestmark = pytest.mark.distributed

PROGRAM = HERE / "programs" / "learns.py"
DDP = "model = torch.nn.parallel.DistributedDataParallel(model)"


@pytest.fixture
def run(lab: Any) -> Any:
    """Starts `yoked run` of a program on two ranks of this machine."""
    (lab.root / "learns.py").write_text(PROGRAM.read_text())

    def start(*words: str) -> Any:
        flags = ("--ranks=2", "--run=r", "--no-doctor", "--json")
        return lab.start(["-c", YOKED, "run", *flags, "--", "learns.py", *words])

    return start


def test_a_plain_script_is_warned_of_at_its_first_steps_and_at_its_end(run: Any, lab: Any) -> None:
    go = lab.root / "go"
    started = run("plain", str(go))
    said: list[str] = []
    # The program goes on once the warning is on the screen.
    for line in started.process.stderr:
        said.append(line)
        if "its ranks share nothing" in line:
            go.touch()
            break
    end = started.end()
    shown = lab.start(["-c", YOKED, "attach", "r"]).end()
    diagnosed = lab.start(["-c", YOKED, "diagnose", "r", "--json"]).end()

    assert "each has weights of its own" in said[-1]
    assert end.status == 0
    told = conforms("run", end.json)
    assert (told["ok"], told["state"], told["faults"]) == (True, "finished", [])
    (warning,) = told["warnings"]
    assert warning["cause"] == "ranks-alone"
    assert "after step 4 each has weights of its own" in warning["evidence"][0]
    assert warning["fix"][0].endswith(DDP)
    assert "run r finished, and its ranks shared nothing\n" in shown.stdout
    assert shown.stdout.count("warning: its ranks share nothing") == 1
    assert conforms("diagnose", diagnosed.json)["warnings"] == [warning]


def warnings_of(run: Any, how: str) -> list[dict[str, Any]]:
    end = run(how).end()
    assert end.status == 0, end.stderr
    told = conforms("run", end.json)
    assert told["state"] == "finished"
    found: list[dict[str, Any]] = told["warnings"]
    assert ("its ranks share nothing" in end.stderr) <= bool(found)
    return found


@pytest.mark.slow
@pytest.mark.parametrize(
    ("how", "said", "fix"),
    [
        ("unseeded", "after step 4 each has weights of its own", DDP),
        ("same-rows", "and do the same work: after step 4 they have the same weights", DDP),
        ("forgot-ddp", "(1 number in its largest call)", f"{DDP}, and train with that"),
    ],
)
def test_ranks_that_shared_nothing_are_told_at_the_end_of_a_run_of_a_moment(
    run: Any, how: str, said: str, fix: str
) -> None:
    (warning,) = warnings_of(run, how)

    assert said in warning["evidence"][0]
    assert warning["fix"][0].endswith(fix)


@pytest.mark.slow
@pytest.mark.parametrize("how", ["ddp", "accumulates", "averages", "rank-0"])
def test_ranks_that_share_or_do_not_train_are_not_warned_of(run: Any, how: str) -> None:
    assert warnings_of(run, how) == []


def warned(of: Pair, node: int) -> list[str]:
    file = of.folder(node) / "diagnosis.json"
    told = json.loads(file.read_text())["warnings"] if file.exists() else []
    return [warning["what"] for warning in told]


@pytest.mark.parametrize("how", ["plain", "ddp"])
def test_hosts_compare_their_ranks_and_each_knows(
    pair: Pair,  # noqa: F811
    tmp_path: Path,
    how: str,
) -> None:
    go = tmp_path / "go"
    pair.start(how, str(go), program=PROGRAM, bootstrap=True)
    if how == "plain":
        pair.until(lambda: all(warned(pair, node) for node in (0, 1)))
    go.touch()

    ends = [pair.exit(node).status for node in (0, 1)]
    found = [warned(pair, node) for node in (0, 1)]

    assert ends == ["finished", "finished"]
    assert [len(each) for each in found] == ([1, 1] if how == "plain" else [0, 0])
    assert all("after step 4 each" in what for each in found for what in each)
