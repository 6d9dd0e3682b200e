"""A host that adds nothing sits out, takes no part in any message, and comes back when it does."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import PINNED, result_of, until

from yoked import journal

pytestmark = pytest.mark.distributed

# Slow enough for a network within one machine not to matter.
FAST, SLOW = "2e7", "2e1"


def starts(folder: Path) -> list[dict[str, Any]]:
    return [line for line in journal.read(folder / "events.jsonl") if line["event"] == "start"]


def test_two_hosts_train_as_if_the_third_were_not_there(far: Any, lab: Any) -> None:
    flags = lab.flags(sync="exact", balance="off", **PINNED)
    without = far(f"{FAST}:{FAST}", "--run=two", *flags).end()

    ended = far(f"{FAST}:{SLOW}:{FAST}", "--run=three", *flags).end()

    found = result_of(ended)
    assert "host1 adds nothing" in ended.stderr
    assert [each["name"] for each in found["hosts"]] == ["host0", "host2", "host1"]
    assert [each["share"] for each in found["hosts"]] == [0.5, 0.5, 0.0]
    assert found["bytes_sent_per_step"] == result_of(without)["bytes_sent_per_step"]
    assert lab.curve("three").losses == lab.curve("two").losses


def test_a_host_that_is_to_be_kept_takes_part(far: Any, lab: Any) -> None:
    ended = far(f"{FAST}:{SLOW}", "--run=kept", "--keep=host1", *lab.flags()).end()

    assert result_of(ended)["bytes_sent_per_step"] > 0
    assert [each["name"] for each in result_of(ended)["hosts"]] == ["host0", "host1"]


@pytest.mark.slow
def test_a_host_that_has_become_faster_comes_back_and_the_curve_goes_on(far: Any, lab: Any) -> None:
    flags = lab.flags(num_iterations=300, eval_every=-1, save_every=-1, sync="exact", balance="off")
    one = lab.train("one", *flags).end()

    ended = far(f"{FAST}:{SLOW}", "--run=back", *flags, becomes=f"{FAST}:{FAST}").end()

    found = result_of(ended)
    first, second = starts(lab.runs / "back")
    assert (found["state"], found["steps"]) == ("finished", 300)
    assert (first["ranks"], second["ranks"]) == (1, 2)
    assert 0 < second["step"] < 300
    assert [each["share"] for each in found["hosts"]] == [0.5, 0.5]
    assert one.status == 0
    assert lab.curve("back").losses == pytest.approx(lab.curve("one").losses, abs=1e-3)


@pytest.mark.slow
def test_a_run_that_is_stopped_while_a_host_sits_out_goes_on_alike(far: Any, lab: Any) -> None:
    flags = lab.flags(num_iterations=400, eval_every=-1, save_every=-1, **PINNED)
    started = far(f"{FAST}:{SLOW}", "--run=stopped", *flags)
    until(lambda: lab.lines("stopped") > 5, started)
    started.ranks()[1].send_signal(signal.SIGTERM)  # the one that sits out alone
    ended = started.end()

    resumed = far(f"{FAST}:{SLOW}", "--resume", "--run=stopped").end()

    assert ended.status != 0
    assert json.loads((lab.runs / "stopped" / "result.json").read_text())["state"] == "finished"
    assert result_of(resumed)["steps"] == 400
    one = lab.train("one", *flags).end()
    assert one.status == 0
    assert lab.curve("stopped").losses == lab.curve("one").losses


def test_when_a_rank_fails_the_one_that_sits_out_ends_too(far: Any, lab: Any) -> None:
    started = far(f"{FAST}:{SLOW}", "--run=dies", *lab.flags(num_iterations=4000, eval_every=-1))
    until(lambda: lab.lines("dies") > 3, started)
    ranks = started.ranks()
    ranks[0].send_signal(signal.SIGKILL)

    assert started.end().status != 0
    assert not ranks[1].is_running()


def test_a_dry_run_names_who_would_sit_out(far: Any, lab: Any) -> None:
    ended = far(f"{FAST}:{SLOW}", "--run=dry", "--dry-run", *lab.flags()).end()

    found = result_of(ended)
    assert found["state"] == "planned"
    assert [each["share"] for each in found["hosts"]] == [1.0, 0.0]
