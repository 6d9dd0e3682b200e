"""One run, one loss curve: ranks and shares change neither gradients nor losses."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from yoked.train.__main__ import parse

pytestmark = pytest.mark.distributed

BENCH = Path(__file__).parents[2] / "benchmarks" / "one_curve" / "bench.py"


@pytest.fixture
def bench(lab: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The benchmark's own comparison, on the tiny run."""
    for name, value in lab.environment().items():
        monkeypatch.setenv(name, value)
    spec = importlib.util.spec_from_file_location("one_curve_bench", BENCH)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lm_head", ["replicated", "vocab-parallel"])
def test_ranks_and_shares_change_neither_gradients_nor_losses(
    bench: ModuleType, lab: Any, dtype: str, lm_head: str
) -> None:
    small = {"max_seq_len": 16, "total_batch_size": 64} if lm_head == "vocab-parallel" else {}
    config = parse(lab.flags(num_iterations=500, lm_head=lm_head, **small))

    found = bench.measure(config, lab.root / "curves", dtype, 30, bench.CASES)

    assert len(found) == len(bench.CASES)
    for number, shares in enumerate(bench.CASES.values()):
        case = json.loads((lab.root / "curves" / dtype / str(number) / "losses.json").read_text())
        assert case["lm_head"] == (lm_head if ":" in shares else "replicated")
    assert {name: bench.passes(dtype, figures) for name, figures in found.items()} == dict.fromkeys(
        found, True
    )


@pytest.mark.slow
def test_the_comparison_sees_a_run_that_learns_something_else(bench: ModuleType, lab: Any) -> None:
    first, second = (parse(lab.flags(num_iterations=500, seed=seed)) for seed in (1, 2))
    for name, config in (("first", first), ("second", second)):
        bench.run_case(config, "1", steps=2, dtype="float32", out=lab.root / name, weights=None)

    figures = bench.compare(lab.root / "first", lab.root / "second")

    assert not bench.passes("float32", figures)
    assert figures["gradient_first_step"] > 0.1


@pytest.mark.slow
def test_in_bfloat16_two_ranks_learn_what_one_does_up_to_its_rounding(lab: Any) -> None:
    flags = lab.flags(dtype="bfloat16", num_iterations=8)

    statuses = [lab.train(f"on-{n}", *flags, ranks=n).end().status for n in (1, 2)]

    assert statuses == [0, 0]
    assert lab.curve("on-2").losses == pytest.approx(lab.curve("on-1").losses, abs=2e-2)
