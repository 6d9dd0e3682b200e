"""What only a CUDA device can tell: its memory, its compiler, its waits."""

from __future__ import annotations

import gc
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from tests.gpu.conftest import unusable
from tests.gpu.tiny import tiny_trainer

from yoked.costmodel.memory import PROCESS_BYTES, USABLE_GPU_FRACTION, rank_memory
from yoked.costmodel.model_shape import ModelShape
from yoked.errors import DeviceError
from yoked.train.comm.communicator import Communicator
from yoked.train.config import TrainConfig
from yoked.train.decisions.compute import why_no_windows, why_not_compiled
from yoked.train.decisions.products import choose_dtype, measure_dtypes
from yoked.train.gpu_fit import head_logits
from yoked.train.parts import told_out_of_memory
from yoked.train.resolve import resolve

sys.path.append(str(Path(__file__).parents[2] / "benchmarks" / "gpu"))

from sides import yoked_trainer

REASON = unusable("cuda")
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(REASON is not None, reason=str(REASON))]
CUDA = torch.device("cuda", 0)


@pytest.fixture(autouse=True)
def own_memory() -> Iterator[None]:
    """What another test left does not count, and a card's limit ends with its test."""
    gc.collect()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    yield
    torch.cuda.set_per_process_memory_fraction(1.0)


def require_free(amount: float) -> None:
    free, _ = torch.cuda.mem_get_info(CUDA)
    if free < amount:
        pytest.skip(f"{free / 1e9:.1f} GB are free here, and {amount / 1e9:.1f} are needed")


def shape_of(depth: int) -> ModelShape:
    return resolve(TrainConfig(depth=depth, window_pattern="L"), "cuda").model_shape(32_768)


@pytest.mark.parametrize(("depth", "rows"), [(4, 8), (12, 1), (12, 4), (12, 8)])
def test_a_steps_peak_is_that_of_the_memory_model(depth: int, rows: int) -> None:
    shape = shape_of(depth)
    predicted = rank_memory(
        shape,
        dtype="bfloat16",
        rows=rows,
        step_rows=rows,
        owned_fraction=1.0,
        payload_bytes=0.0,
        logits=head_logits(shape, rows),
    )
    require_free(1.2 * predicted)
    trainer = yoked_trainer(shape, CUDA, "bfloat16", rows=rows, step_rows=rows)

    for step in range(2):
        trainer.step(step)

    peak = torch.cuda.max_memory_allocated(CUDA)
    assert predicted - PROCESS_BYTES == pytest.approx(peak, rel=0.1)


@pytest.mark.parametrize("gigabytes", [8, 12])
def test_what_is_chosen_for_a_card_trains_on_it(gigabytes: int) -> None:
    require_free(gigabytes * 1e9)
    _, total = torch.cuda.mem_get_info(CUDA)
    torch.cuda.set_per_process_memory_fraction(gigabytes * 1e9 / total)
    config = TrainConfig()
    lacking = why_no_windows(config, CUDA)
    chosen = resolve(config, "cuda", USABLE_GPU_FRACTION * gigabytes * 1e9, lacking)
    rows = chosen.device_batch_size

    trainer = yoked_trainer(
        chosen.model_shape(32_768), CUDA, "bfloat16", rows=rows, step_rows=2 * rows
    )

    assert all(trainer.step(step).nats > 0 for step in range(2))


def test_memory_at_its_end_is_told_with_what_needs_less() -> None:
    _, total = torch.cuda.mem_get_info(CUDA)
    torch.cuda.set_per_process_memory_fraction(2e9 / total)
    resolved = resolve(TrainConfig(depth=12, device_batch_size=8), "cuda")
    setup = SimpleNamespace(resolved=resolved, device=CUDA, batch_sizes=[8], comm=Communicator())

    with (
        pytest.raises(DeviceError, match="12 with 8 rows") as told,
        told_out_of_memory(setup),
    ):
        yoked_trainer(shape_of(12), CUDA, "bfloat16", rows=8, step_rows=8).step(0)

    assert "--device-batch-size 4" in str(told.value.fix)


def test_compiled_steps_are_the_eager_ones_and_no_other_rows_make_another_graph() -> None:
    if problem := why_not_compiled(CUDA):
        pytest.skip(problem)
    shape = shape_of(4)
    # Micro-batches of 4, 4 and 3 rows.
    eager, compiled = (
        yoked_trainer(shape, CUDA, "float32", rows=4, step_rows=11, compiled=compiled)
        for compiled in (False, True)
    )
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    for step in range(2):
        assert compiled.step(step).nats == pytest.approx(eager.step(step).nats, rel=1e-4)
    graphs = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    compiled.batch_sizes = [3]  # 3, 3, 3 and 2; one row alone would be a graph of its own
    compiled.step(2)

    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == graphs
    assert not torch._dynamo.utils.counters["graph_break"]


def test_the_host_waits_for_cuda_at_these_lines_alone() -> None:
    trainer = tiny_trainer(CUDA)
    trainer.step(0)
    torch.cuda.set_sync_debug_mode("warn")
    try:
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            trainer.step(1)
    finally:
        torch.cuda.set_sync_debug_mode("default")

    waits = [each for each in seen if "synchroniz" in str(each.message)]
    # The loss of each micro-batch; AdamW's scalars of each group are copied there.
    assert {Path(each.filename).name for each in waits} <= {"cross_entropy.py", "optimizer.py"}


@pytest.mark.parametrize("depth", [4, 12])
def test_a_gpu_that_has_bfloat16_trains_in_it(depth: int) -> None:
    if torch.cuda.get_device_capability(CUDA) < (8, 0):
        pytest.skip("no tensor cores for bfloat16 before compute capability 8.0")
    measured = measure_dtypes(shape_of(depth), CUDA, dtype="auto", matmul="auto")

    assert choose_dtype([measured.best_s], "auto").value == "bfloat16"
