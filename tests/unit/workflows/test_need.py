"""What a run is said to need, beside what the trainer really writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from yoked import __version__
from yoked.costmodel.memory import PROCESS_BYTES
from yoked.costmodel.model_shape import ParameterCounts
from yoked.errors import UsageError
from yoked.train.config import TrainConfig
from yoked.workflows.need import checkpoint_bytes, need_of


def test_of_an_unknown_program_only_versions_are_compared() -> None:
    need = need_of()

    assert need.versions["yoked"] == __version__
    assert need.versions["python"].startswith("3.")
    assert (need.checkpoint_bytes, need.memory_bytes) == (None, None)


def test_a_checkpoint_has_weights_two_moments_for_adamw_and_one_for_muon() -> None:
    counts = ParameterCounts(
        wte=10, value_embeds=20, lm_head=30, transformer_matrices=40, scalars=5
    )

    assert checkpoint_bytes(counts) == 4 * (3 * (10 + 20 + 30 + 5) + 2 * 40)


def test_a_larger_model_needs_more_and_the_checkpoints_kept_are_told() -> None:
    small, large = need_of(TrainConfig(depth=4)), need_of(TrainConfig(depth=8, keep_last=5))

    assert small.checkpoint_bytes is not None
    assert large.checkpoint_bytes is not None
    assert large.checkpoint_bytes > 2 * small.checkpoint_bytes
    assert (large.memory_bytes or 0) > (small.memory_bytes or 0) > small.checkpoint_bytes
    # And the best one.
    assert large.keep == 6


def test_what_a_gpu_needs_is_told_unless_none_is_to_train() -> None:
    flags = TrainConfig(depth=12, device_batch_size=16, max_seq_len=2048)
    need = need_of(flags)

    assert 10**10 < (need.gpu_memory_bytes or 0) < (need.memory_bytes or 0)
    assert need_of(replace(flags, device_type="cuda")).gpu_memory_bytes == need.gpu_memory_bytes
    alone = need_of(replace(flags, device_type="cpu"))
    assert (alone.gpu_memory_bytes, alone.device) == (None, "cpu")


def test_tables_on_the_host_take_its_memory_and_not_the_gpus() -> None:
    there = TrainConfig(depth=20, device_batch_size=1, device_type="cuda", tables="device")
    on_device, on_host = need_of(there), need_of(replace(there, tables="host"))

    assert on_device.host_bytes_beside_gpu is None
    saved = (on_device.gpu_memory_bytes or 0) - (on_host.gpu_memory_bytes or 0)
    tables = 11 * 32_768 * 1280
    # Weights and two moments in bfloat16; of gradients what a step's rows use, at most all of them.
    assert 6 * tables < (on_host.host_bytes_beside_gpu or 0) - PROCESS_BYTES < 10 * tables
    assert 6 * tables < saved < 10 * tables


def test_a_model_that_nothing_could_compute_is_refused() -> None:
    with pytest.raises(UsageError):
        need_of(TrainConfig(depth=4, head_dim=7))
