from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from tests.unit.report.test_metrics import full_line, write

from yoked.report.against import compare, in_words
from yoked.report.run_record import RunRecord, read_run


def make(
    folder: Path,
    *,
    seed: int,
    step_s: float = 1.0,
    better: float = 0.0,
    steps: int = 200,
    **config: Any,
) -> RunRecord:
    """A run of so many steps, with noise."""
    chance = random.Random(seed)
    lines = []
    for step in range(steps):
        line = full_line(1, step, step_s * chance.uniform(0.9, 1.1), [0.0])
        lines.append({**line, "loss": 5.0 + 2 / (1 + step) + chance.gauss(0, 0.05) - better})
        if step % 100 == 99:
            lines.append({"attempt": 1, "step": step + 1, "val_bpb": 1.5 - better})
    folder.mkdir()
    write(folder / "metrics.jsonl", lines)
    facts = {"run": folder.name, "config": {"sync": "auto", "seed": 42, **config}}
    facts["choices"] = [{"name": "sync", "value": "exact", "reason": "given"}]
    (folder / "run.json").write_text(json.dumps(facts))
    return read_run(folder)


def test_runs_of_one_kind_differ_by_no_more_than_noise_but_for_one_in_twenty(
    tmp_path: Path,
) -> None:
    runs = [make(tmp_path / str(seed), seed=seed) for seed in range(40)]

    found = [compare(one, other) for one, other in zip(runs[::2], runs[1::2], strict=True)]

    assert all(each["differs"] == [] for each in found)
    assert sum(each["loss"]["beyond_noise"] for each in found) <= 3
    assert sum(each["speed"]["beyond_noise"] for each in found) <= 3
    assert found[0]["speed"]["ratio"] == pytest.approx(1.0, abs=0.05)


def test_a_better_and_faster_run_is_told_as_such(tmp_path: Path) -> None:
    one = make(tmp_path / "a", seed=1, step_s=0.5, better=0.1, seed_of_data=7)
    other = make(tmp_path / "b", seed=2)

    found = compare(one, other)

    assert found["differs"] == [{"name": "seed_of_data", "this": "7", "other": ""}]
    assert found["loss"]["difference"] == pytest.approx(-0.1, abs=0.02)
    low, high = found["loss"]["interval"]
    assert low < found["loss"]["difference"] < high < 0
    assert found["loss"]["beyond_noise"]
    assert found["validation"] == {
        "step": 200,
        "this": pytest.approx(1.4),
        "other": 1.5,
        "difference": pytest.approx(-0.1),
    }
    assert found["speed"]["ratio"] == pytest.approx(2.0, abs=0.1)
    assert found["speed"]["beyond_noise"]
    said = in_words(found)
    assert said[0] == "seed_of_data: 7, and none in b"
    assert found["not_compared"] == []
    assert said[-1].startswith("speed, slow steps included: 2.0")
    assert said[-1].endswith("more than these runs' own noise")


def test_the_same_runs_give_the_same_interval(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a", seed=1), make(tmp_path / "b", seed=2)

    assert compare(one, other) == compare(one, other)


def test_a_run_that_is_short_or_empty_has_no_comparison(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    one, other = make(tmp_path / "a", seed=1), read_run(tmp_path / "b")

    found = compare(one, other)

    assert (found["loss"], found["validation"], found["speed"]) == (None, None, None)
    assert in_words(found) == [
        "of b it is not on record what it was told",
        "loss, validation and speed cannot be compared: b has no steps on record",
    ]


def test_a_program_against_a_training_is_said_not_to_be_comparable(tmp_path: Path) -> None:
    (tmp_path / "prog").mkdir()
    content = {"run": "prog", "trains": False, "program": {"argv": ["p.py"]}}
    (tmp_path / "prog" / "run.json").write_text(json.dumps(content))
    prog, first = read_run(tmp_path / "prog"), make(tmp_path / "first", seed=1)

    said = [in_words(compare(prog, first)), in_words(compare(first, prog))]

    assert (
        said
        == [
            [
                "of prog it is not on record what it was told",
                "loss, validation and speed cannot be compared: prog is a program and has no steps",
            ]
        ]
        * 2
    )


def test_each_figure_that_cannot_be_compared_has_its_reason(tmp_path: Path) -> None:
    one = make(tmp_path / "a", seed=1)
    short = tmp_path / "short"
    short.mkdir()
    lines = (one.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text("".join(lines[:3]))
    (short / "run.json").write_text((one.folder / "run.json").read_text())

    found = compare(read_run(short), one)

    assert (found["loss"], found["validation"], found["speed"]) == (None, None, None)
    assert [each.split(":")[0] for each in found["not_compared"]] == [
        "loss cannot be compared",
        "validation cannot be compared",
        "speed cannot be compared",
    ]
    assert set(found["not_compared"]) <= set(in_words(found))


def test_the_loss_is_compared_however_much_longer_the_other_run_has_become(tmp_path: Path) -> None:
    one, other = make(tmp_path / "a", seed=1, steps=60), make(tmp_path / "b", seed=2, steps=60)
    before = compare(one, other)["loss"]
    grown = make(tmp_path / "c", seed=2, steps=5_434)
    assert grown.metrics.curve.width == 8

    assert before is not None
    # Its first 60 steps are those of the other.
    assert compare(one, grown)["loss"] == before
    turned = compare(grown, one)["loss"]
    assert turned is not None
    assert turned["difference"] == pytest.approx(-before["difference"])


def test_a_run_that_saw_more_tokens_is_compared_as_far_as_both_have_them(tmp_path: Path) -> None:
    one = make(tmp_path / "a", seed=1)
    short = tmp_path / "short"
    short.mkdir()
    lines = (one.folder / "metrics.jsonl").read_text().splitlines(keepends=True)
    (short / "metrics.jsonl").write_text("".join(lines[:100]))

    found = compare(one, read_run(short))

    assert found["loss"]["to_tokens"] == 100 * 8
    # They are the same lines.
    assert found["loss"]["difference"] == 0.0
