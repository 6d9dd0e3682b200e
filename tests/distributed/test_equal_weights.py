"""All ranks hold the same weights: on unlike CPUs too, and a difference stops the run."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from yoked.errors import WeightsApartError
from yoked.train.__main__ import parse

pytestmark = pytest.mark.distributed

HERE = Path(__file__).parent


@pytest.fixture
def bent(lab: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs bent ranks; see bent_rank.py."""

    def start(way: str, ranks: int, *flags: str) -> dict[str, Any]:
        environment = {
            **lab.environment({"BEND": way, "NOTES": str(lab.root)}),
            "PYTHONPATH": f"{HERE}{os.pathsep}{HERE.parents[1] / 'src'}",
        }
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        config = parse([*flags, f"--run={way}", f"--runs-dir={lab.runs}", f"--ranks={ranks}"])
        found: dict[str, Any] = lab.run_module("bent_rank", config)
        return found

    return start


def test_ranks_with_unlike_libraries_and_passes_keep_equal_weights(bent: Any, lab: Any) -> None:
    result = bent("unlike", 2, *lab.flags(num_iterations=20, save_every=-1))

    hidden, weights = zip(
        *((lab.root / f"bits.{rank}").read_text().split() for rank in (0, 1)), strict=True
    )
    assert result["state"] == "finished"
    assert hidden[0] != hidden[1], "the ranks were not unlike"
    assert weights[0] == weights[1]


def test_one_flipped_bit_stops_the_run_and_names_rank_and_parameter(bent: Any, lab: Any) -> None:
    with pytest.raises(WeightsApartError) as caught:
        bent("flip", 3, *lab.flags(save_every=1))

    assert caught.value.exit_status == 1
    assert "after step 3, rank 1 holds other weights" in caught.value.what
    assert "transformer.h.1.mlp.c_fc.weight" in caught.value.what
    assert not (lab.checkpoints("flip") / "model_000003.pt").exists()


def test_a_bit_that_flipped_on_rank_0_since_the_last_comparison_is_not_saved(
    bent: Any, lab: Any
) -> None:
    with pytest.raises(WeightsApartError) as caught:
        bent("flip-first", 3, *lab.flags(save_every=3))

    assert "after step 3, rank 0 holds other weights" in caught.value.what
    assert not (lab.checkpoints("flip-first") / "model_000003.pt").exists()
