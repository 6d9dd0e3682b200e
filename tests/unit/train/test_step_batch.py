from __future__ import annotations

import pytest
import torch

from yoked.train.step_batch import StepBatch, batch_arithmetic


@pytest.mark.parametrize(
    ("rows", "expected"),
    [
        ([8], "1 rank x 4 micro-batches x 2 rows x 512 tokens = 4,096 tokens"),
        (
            [16, 16],
            (
                "2 ranks x 8 micro-batches x 2 rows x 512 tokens = 16,384 tokens; "
                "gradients are summed once a step"
            ),
        ),
        (
            [26, 6],
            (
                "26+6 rows x 512 tokens = 16,384 tokens, in 13+3 micro-batches of up to 2 rows; "
                "gradients are summed once a step"
            ),
        ),
        ([3], "3 rows x 512 tokens = 1,536 tokens, in 2 micro-batches of up to 2 rows"),
    ],
)
def test_the_batch_is_told_as_a_product_that_comes_out(rows: list[int], expected: str) -> None:
    assert batch_arithmetic(rows, [2] * len(rows), 512) == expected


def test_ranks_with_micro_batches_of_their_own_are_told_with_theirs() -> None:
    told = batch_arithmetic([24, 8], [16, 4], 512)

    assert "in 2+2 micro-batches of up to 16+4 rows" in told


def batch(*rows: int, max_deferred: int = 2) -> StepBatch:
    """Micro-batches of two rows of four tokens, by rank."""
    by_rank = [torch.split(torch.zeros(n, 5, dtype=torch.int64), 2) if n else () for n in rows]
    return StepBatch(by_rank, 0, [max_deferred] * len(rows), torch.device("cpu"))


def test_micro_batches_go_through_the_lm_head_one_by_one_or_together() -> None:
    one_by_one = list(batch(9).head_groups(together=False))
    together = list(batch(9).head_groups(together=True))

    # Three early ones, then two whose backward passes wait.
    assert [group.keep_pending for group in one_by_one] == [0, 0, 0, 1, 2]
    assert [len(group.micro_batches) for group in together] == [5]
    assert together[0].micro_batches[-1].last


def test_a_rank_without_rows_has_no_group_of_its_own_and_one_that_all_share() -> None:
    assert list(batch(0, 4).head_groups(together=False)) == []
    (group,) = batch(0, 4).head_groups(together=True)

    assert group.micro_batches == []


def test_each_tokens_gradient_is_scaled_by_those_of_all_ranks() -> None:
    assert batch(6, 2).grad_scale == 1 / 32
    assert [batch(6, 2).tokens(rank) for rank in range(2)] == [24, 8]
