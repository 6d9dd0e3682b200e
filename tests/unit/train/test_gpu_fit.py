from __future__ import annotations

import pytest
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.memory import USABLE_GPU_FRACTION
from yoked.train.config import TrainConfig
from yoked.train.resolve import ResolvedConfig, resolve


def on_card(gigabytes: float, **flags: object) -> ResolvedConfig:
    return resolve(TrainConfig(**flags), "cuda", USABLE_GPU_FRACTION * gigabytes * 1e9)


@pytest.mark.parametrize("gigabytes", [4, 8, 12, 24, 80])
def test_depth_and_rows_are_what_a_card_has_memory_for(
    gigabytes: int, snapshot: SnapshotAssertion
) -> None:
    found = on_card(gigabytes)

    assert (found.depth, found.device_batch_size, found.reasons) == snapshot


def test_what_is_given_is_used_and_the_rest_fitted_to_it(snapshot: SnapshotAssertion) -> None:
    deep, wide = on_card(12, depth=20), on_card(12, device_batch_size=16)

    assert (deep.depth, deep.device_batch_size) == (20, 1)
    assert deep.reasons["depth"] == "given"
    assert wide.device_batch_size == 16
    assert wide.depth < on_card(12).depth
    assert deep.reasons["device_batch_size"] == snapshot


def test_a_model_that_is_too_large_is_told_what_makes_it_fit(snapshot: SnapshotAssertion) -> None:
    given = {"depth": 20, "device_batch_size": 16}
    plain, again = on_card(24, **given), on_card(24, **given, checkpoint_activations=True)

    assert plain.reasons["device_batch_size"] == snapshot
    assert again.reasons["device_batch_size"] == "given"


def test_a_gpu_that_nobody_has_looked_at_is_taken_for_a_common_one() -> None:
    unknown, common = resolve(TrainConfig(), "cuda"), on_card(12)

    assert unknown == common
