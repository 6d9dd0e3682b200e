"""Plain torchrun: the commands that nanochat's users know, with another module name."""

from __future__ import annotations

import re
from typing import Any

import pytest

pytestmark = pytest.mark.distributed

# What makes the commands of the seeds short here; everything else stands as it is there.
SMALL = ("--vocab-size=512", "--num-iterations=2", "--eval-every=-1")


@pytest.mark.slow
def test_four_ranks_share_one_row_a_step_and_three_have_none(lab: Any) -> None:
    ended = lab.torchrun(
        *(4, "--device-type=cpu", "--depth=4", "--max-seq-len=512"),
        *("--device-batch-size=1", "--total-batch-size=512", *SMALL, f"--data={lab.text}"),
    ).end()

    assert ended.status == 0, ended.stderr
    assert {"1 row", "4 ranks", "3 ranks"} <= set(re.findall(r"\d ranks?\b|\d row\b", ended.stderr))
    assert "training: 2 steps of 512 tokens" in ended.stderr


@pytest.mark.slow
def test_flags_after_two_dashes_are_those_of_the_program(lab: Any) -> None:
    ended = lab.torchrun(
        *(2, "--", "--device-type", "cpu", "--depth", "4", "--aspect-ratio", "64"),
        *("--head-dim", "64", "--max-seq-len", "512", "--device-batch-size", "2"),
        *("--total-batch-size", "2048", *SMALL, "--data", str(lab.text)),
    ).end()

    assert ended.status == 0, ended.stderr
    assert "training: 2 steps of 2,048 tokens" in ended.stderr


def test_the_curve_under_torchrun_is_that_of_yoked_train(lab: Any) -> None:
    flags = lab.flags(matmul="mkl", attention="sdpa", sync="exact", lm_head="vocab-parallel")
    assert lab.train("ours", *flags, ranks=2).end().status == 0

    ended = lab.torchrun(2, "--", *flags, "--run=theirs", f"--runs-dir={lab.runs}").end()

    assert ended.status == 0, ended.stderr
    assert lab.curve("theirs") == lab.curve("ours")
