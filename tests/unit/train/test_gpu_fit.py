from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from syrupy.assertion import SnapshotAssertion

from yoked.costmodel.memory import USABLE_GPU_FRACTION
from yoked.errors import DeviceError
from yoked.train.config import TrainConfig
from yoked.train.parts import told_out_of_memory
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
    deep, wide = on_card(12, depth=20, tables="device"), on_card(12, device_batch_size=16)

    assert (deep.depth, deep.device_batch_size) == (20, 1)
    assert deep.reasons["depth"] == "given"
    assert wide.device_batch_size == 16
    assert wide.depth < on_card(12).depth
    assert deep.reasons["device_batch_size"] == snapshot


def test_tables_go_to_the_host_where_only_so_a_model_fits(snapshot: SnapshotAssertion) -> None:
    left_open, given = on_card(12, depth=20), on_card(32, depth=20, tables="host")

    assert (left_open.tables, left_open.device_batch_size) == ("host", 1)
    assert on_card(32, depth=20).tables == on_card(12).tables == "device"
    # Where the tables were a GPU has room for more rows.
    assert given.device_batch_size == 2 * on_card(32, depth=20).device_batch_size
    assert [each.reasons["tables"] for each in (left_open, given)] == snapshot


@pytest.mark.parametrize("tables", ["auto", "host"])
def test_a_model_that_fits_in_no_single_way_is_told_of_two(
    tables: str, snapshot: SnapshotAssertion
) -> None:
    found = on_card(12, depth=20, device_batch_size=4, tables=tables)

    assert not found.fits
    assert found.memory_notes == snapshot


def test_a_model_that_is_too_large_is_told_what_makes_it_fit(snapshot: SnapshotAssertion) -> None:
    given = {"depth": 20, "device_batch_size": 16}
    plain, again = on_card(24, **given), on_card(24, **given, checkpoint_activations=True)

    assert plain.reasons["device_batch_size"] == snapshot
    assert again.reasons["device_batch_size"] == "given"


def test_what_an_encoded_gradient_loses_is_kept_on_the_card() -> None:
    exact, encoded = on_card(12, depth=14, sync="exact"), on_card(12, depth=14, sync="int8")

    assert encoded.device_batch_size < exact.device_batch_size


def test_a_gpu_that_nobody_has_looked_at_is_taken_for_a_common_one() -> None:
    unknown, common = resolve(TrainConfig(), "cuda"), on_card(12)

    assert unknown == common


@pytest.mark.parametrize(
    ("rows", "tables", "less"),
    [
        (4, "device", "--device-batch-size 2"),
        (1, "device", "--tables host"),
        (1, "host", "--depth 18"),
    ],
)
def test_where_memory_ends_all_the_same_the_next_smaller_thing_is_told(
    rows: int, tables: str, less: str
) -> None:
    found = on_card(24, depth=20, device_batch_size=rows, tables=tables)
    setup: Any = SimpleNamespace(
        resolved=found,
        device=torch.device("cpu"),
        batch_sizes=[rows],
        comm=SimpleNamespace(rank=0),
    )

    with pytest.raises(DeviceError) as caught, told_out_of_memory(setup):
        raise torch.OutOfMemoryError
    assert f"fix: {less}, or end what else" in str(caught.value)
