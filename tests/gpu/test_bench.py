"""benchmarks/gpu works: rehearsed on the CPU, in tiny sizes."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.distributed.conftest import made_up_text

BENCH = Path(__file__).parents[2] / "benchmarks" / "gpu" / "bench.py"


def rehearsed(folder: Path, *flags: str) -> dict[str, Any]:
    """Results by section."""
    text = folder / "text"
    text.mkdir()
    for number, document in enumerate(made_up_text(seed=1)):
        (text / f"{number:02}.txt").write_text(document + "\n")
    command = [sys.executable, str(BENCH), "--device=cpu", "--tiny", f"--data={text}"]
    environment = {**os.environ, "PYTHONPATH": str(BENCH.parents[2] / "src")}
    ended = subprocess.run(
        [*command, f"--results={folder / 'results'}", *flags],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=240,
    )
    assert ended.returncode == 0, ended.stderr
    (file,) = (folder / "results").glob("*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def figures(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from figures(each)
    elif isinstance(value, int | float):
        yield value


def test_a_step_its_parts_and_copies_are_rehearsed_to_their_figures(tmp_path: Path) -> None:
    found = rehearsed(tmp_path, "--only", "solo", "parts", "staging")

    assert list(found) == ["solo", "parts", "staging"]
    for section in found.values():
        assert section["rows"]
        assert all(math.isfinite(figure) for figure in figures(section["rows"]))
    assert {row["rows"] for row in found["solo"]["rows"]} == {1, 2}
    (parts,) = found["parts"]["rows"]
    assert all(part["ms"] > 0 for part in parts["parts"].values())


@pytest.mark.slow
def test_a_mixed_run_is_rehearsed_to_its_figures(tmp_path: Path) -> None:
    found = rehearsed(tmp_path, "--only", "mixed")

    assert [row["sync"] for row in found["mixed"]["rows"]] == ["exact", "int8"]
    assert all(math.isfinite(figure) for figure in figures(found["mixed"]["rows"]))
    assert not any("failed" in row for row in found["mixed"]["rows"])


def test_nanochat_takes_its_steps_beside_ours(tmp_path: Path) -> None:
    checkout = os.environ.get("NANOCHAT")
    if checkout is None:
        pytest.skip("NANOCHAT names no checkout of it")

    found = rehearsed(tmp_path, f"--nanochat={checkout}", "--only", "solo")

    for row in found["solo"]["rows"]:
        programs = row["programs"]
        assert programs["nanochat"]["second_loss"] == pytest.approx(
            programs["eager"]["second_loss"], rel=0.02
        )
